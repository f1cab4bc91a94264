package talosapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// nvramMagic is the prefix of an EFI disk's content once it was written; before that it is
// blank.
const nvramMagic = "recast lab NVRAM\n"

// variables are the firmware variables that the lab simulates. They are on the VM's EFI
// disk, not on the system disk: a new system disk finds what the old one has left there.
type variables struct {
	LoaderEntryDefault string `json:",omitempty"`
}

// NVRAM is the content of the EFI disk of a machine that was installed with that image.
func NVRAM(img artefact.Image) []byte {
	return variables{LoaderEntryDefault: loader{}.nextName(img.TalosVersion)}.encode()
}

func (v variables) encode() []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("talosapi: %v", err)) // a string always marshals
	}
	return append([]byte(nvramMagic), b...)
}

func readVariables(content []byte) (v variables) {
	if rest, ok := bytes.CutPrefix(content, []byte(nvramMagic)); ok {
		_ = json.Unmarshal(rest, &v) // invalid variables count as none
	}
	return v
}

// uefi says whether the machine has UEFI firmware; SeaBIOS has no variables, and the boot
// loader stores its default beside its entries.
func (m *machine) uefi() bool { return m.hw.NVRAM != nil }

// defaultEntry is the name of the boot loader's default entry; "" if none is set.
func (m *machine) defaultEntry(l loader) string {
	if m.uefi() {
		return readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return l.Default
}

// setDefault makes an entry of the disk at that key the default.
func (m *machine) setDefault(key, name string) error {
	if m.uefi() {
		writeDefault(m.hw.NVRAM, name)
		return nil
	}
	return m.editLoader(key, func(l *loader) { l.Default = name })
}

func writeDefault(nvram *world.Media, name string) {
	v := readVariables(nvram.Bytes())
	v.LoaderEntryDefault = name
	nvram.Write(v.encode())
}

// selected is the entry that the boot loader boots: the default if it exists, else the
// first in its own order (config_select_default_entry in systemd's boot.c).
func (m *machine) selected(l loader) (bootEntry, bool) {
	if e, ok := l.entry(m.defaultEntry(l)); ok {
		return e, true
	}
	return m.first(l)
}

// loadedEntry is the entry that systemd-boot reports as loaded. An ISO's entry has the
// same name as the first one that an installer writes: only the medium distinguishes them.
func (m *machine) loadedEntry(med medium) string {
	if med.entry == "" && m.uefi() {
		return strings.ToLower(loader{}.nextName(med.image.TalosVersion))
	}
	return med.entry
}

// bootedEntry is the entry that the system considers as booted. After a kexec it is that
// of the variable LoaderEntryOneShot, which the kernel can write only with efibc; else it
// is systemd-boot's report of the latest firmware boot
// (controllers/runtime/booted_entry.go).
func (m *machine) bootedEntry(med medium) string {
	before, _ := m.bootLoader.Load().(string)
	if m.has().NoOneShot && before != "" {
		return before
	}
	return cmp.Or(med.reported, m.loadedEntry(med))
}
