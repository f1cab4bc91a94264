package talosapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// loaderDefaultVar is sd-boot's variable with the name of the entry to boot next.
const loaderDefaultVar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// loader is the content of the EFI partition. Its own default entry counts only if no
// firmware variable names one.
type loader struct {
	Default string `json:",omitempty"`
	Entries []bootEntry
}

type bootEntry struct {
	Name string // "Talos-v1.13.9.efi"
	UKI  string // SHA-256 of the boot image: see bootImages
	// Cmdline is what GRUB passes to the kernel; "": the boot image's own, as systemd-boot always does.
	Cmdline string `json:",omitempty"`
}

// entry finds a boot entry by name, like sd-boot case-insensitively.
func (l loader) entry(name string) (bootEntry, bool) {
	i := slices.IndexFunc(l.Entries, func(e bootEntry) bool { return strings.EqualFold(e.Name, name) })
	if i < 0 {
		return bootEntry{}, false
	}
	return l.Entries[i], true
}

// other is the first entry, by name, except than.
func (l loader) other(than string) (string, bool) {
	names := make([]string, 0, len(l.Entries))
	for _, e := range l.Entries {
		if !strings.EqualFold(e.Name, than) {
			names = append(names, e.Name)
		}
	}
	if len(names) == 0 {
		return "", false
	}
	return slices.Min(names), true
}

// nextName is the name of a new entry of that Talos version beside the existing ones: the
// version alone, or with the next number after a tilde (generateNextUKIName in sdboot.go).
func (l loader) nextName(version string) string {
	highest := -1
	for _, e := range l.Entries {
		base := strings.TrimSuffix(strings.TrimPrefix(e.Name, "Talos-"), ".efi")
		v, n, numbered := strings.Cut(base, "~")
		if v != version {
			continue
		}
		i, err := strconv.Atoi(n)
		if !numbered {
			i, err = 0, nil
		}
		if err == nil {
			highest = max(highest, i)
		}
	}
	if highest < 0 {
		return "Talos-" + version + ".efi"
	}
	return fmt.Sprintf("Talos-%s~%d.efi", version, highest+1)
}

func readLoader(d device) (loader, bool) {
	efi, ok := partition(d.disk, labelEFI)
	if !ok {
		return loader{}, false
	}
	var l loader
	return l, json.Unmarshal(efi.Data, &l) == nil
}

// editLoader changes the boot entries of the disk at that key.
func (m *machine) editLoader(key string, change func(*loader)) error {
	return m.editJSON(key, labelEFI, func(data []byte) ([]byte, error) {
		var l loader
		if err := json.Unmarshal(data, &l); err != nil {
			return nil, fmt.Errorf("read boot entries: %w", err)
		}
		change(&l)
		return json.Marshal(l)
	})
}

// metaData is the tags of the META partition that the lab simulates.
type metaData struct {
	Upgrade string `json:",omitempty"` // entry to fall back to
	Staged  string `json:",omitempty"` // installer to run at the next boot
}

func readMeta(d device) metaData {
	var meta metaData
	if p, ok := partition(d.disk, labelMeta); ok && len(p.Data) > 0 {
		_ = json.Unmarshal(p.Data, &meta) // invalid data counts as no tags
	}
	return meta
}

// editMeta changes the tags in META. Without tags the partition is empty.
func (m *machine) editMeta(key string, change func(*metaData)) error {
	return m.editJSON(key, labelMeta, func(data []byte) ([]byte, error) {
		var meta metaData
		if len(data) > 0 {
			if err := json.Unmarshal(data, &meta); err != nil {
				return nil, fmt.Errorf("read META: %w", err)
			}
		}
		change(&meta)
		if meta == (metaData{}) {
			return nil, nil
		}
		return json.Marshal(meta)
	})
}

// editJSON changes the data of a partition unless change fails.
func (m *machine) editJSON(key, label string, change func([]byte) ([]byte, error)) error {
	var failed error
	err := m.rewrite(key, func(disk artefact.Disk) artefact.Disk {
		return edited(disk, label, func(data []byte) []byte {
			changed, err := change(data)
			if err != nil {
				failed = err
				return data
			}
			return changed
		})
	})
	return errors.Join(err, failed)
}

// efiString is a string variable as in efivarfs: four bytes of attributes, then UTF-16LE
// with a final NUL.
func efiString(s string) []byte {
	b := []byte{7, 0, 0, 0}
	for _, u := range utf16.Encode([]rune(s + "\x00")) {
		b = append(b, byte(u), byte(u>>8))
	}
	return b
}
