package talosapi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"

	"github.com/google/uuid"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// The labels of a system disk's partitions, in order.
const (
	labelEFI       = "EFI"
	labelBIOS      = "BIOS" // BIOS and BOOT, for GRUB, are in disk images only
	labelBoot      = "BOOT"
	labelMeta      = "META"
	labelState     = "STATE"
	labelEphemeral = "EPHEMERAL"
	userPrefix     = "u-" // prefix of a user volume's partition label
)

// medium is a boot medium.
type medium struct {
	key   string // the drive
	image artefact.Image
	entry string // boot entry, lower-case; empty for an ISO

	kexec    bool   // a running kernel started it
	reported string // after a kexec: the entry as the system reports it
}

// halts reports whether this medium refuses to run on an installed machine.
func (m medium) halts() bool {
	return slices.Contains(strings.Fields(m.image.Cmdline), artefact.HaltIfInstalled)
}

// readMedium returns a device's boot medium; false if it can't boot.
func (m *machine) readMedium(d device) (medium, bool) {
	if d.CDROM {
		img, err := artefact.ReadISO(d.bytes())
		return medium{key: d.Key, image: img}, err == nil
	}
	l, ok := readLoader(d)
	if !ok {
		return medium{}, false
	}
	e, ok := m.selected(l)
	if !ok {
		return medium{}, false
	}
	img, err := m.fw.boots.read(e.UKI)
	if e.Cmdline != "" {
		img.Cmdline = e.Cmdline
	}
	return medium{key: d.Key, image: img, entry: strings.ToLower(e.Name)}, err == nil
}

// stateData is the content of the STATE partition.
type stateData struct {
	Config []byte
	NodeID string // changes with every install
}

// WithMachineConfig changes the machine configuration in the content of a system disk, as
// if the machine had been installed with it.
func WithMachineConfig(disk []byte, change func([]byte) []byte) ([]byte, error) {
	parsed, err := artefact.ReadDisk(disk)
	if err != nil {
		return nil, err
	}
	var s stateData
	p, ok := partition(parsed, labelState)
	if !ok {
		return nil, errNoState
	}
	if err := json.Unmarshal(p.Data, &s); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	s.Config = change(s.Config)
	if _, err := parseConfig(s.Config); err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	return artefact.WriteDisk(edited(parsed, labelState, func([]byte) []byte { return encoded(s) })), nil
}

// first returns the first element that matches.
func first[T any](all []T, matches func(T) bool) (one T, found bool) {
	i := slices.IndexFunc(all, matches)
	if i < 0 {
		return one, false
	}
	return all[i], true
}

func partition(d artefact.Disk, label string) (artefact.Partition, bool) {
	return first(d.Partitions, func(p artefact.Partition) bool { return p.Label == label })
}

// edited returns the disk with changed data of the partition with that label.
func edited(d artefact.Disk, label string, change func([]byte) []byte) artefact.Disk {
	d.Partitions = slices.Clone(d.Partitions)
	for i := range d.Partitions {
		if d.Partitions[i].Label == label {
			d.Partitions[i].Data = change(d.Partitions[i].Data)
		}
	}
	return d
}

// adoptImages converts disks that were made from disk images to the lab's form, in which machines change them. Their
// content stays the same.
func (m *machine) adoptImages() {
	for _, d := range m.devices() {
		if !d.foreign {
			continue
		}
		if disk, err := m.fw.boots.adopted(d.bytes()); err == nil {
			d.Media.Write(artefact.WriteDisk(disk))
		}
	}
}

// adopted converts a disk that was made from a disk image. The result has one boot entry, named like the first entry
// of an installer.
func (s *bootImages) adopted(raw []byte) (artefact.Disk, error) {
	labels, uki, err := artefact.ReadDiskImage(raw)
	if err != nil {
		return artefact.Disk{}, err
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return artefact.Disk{}, err
	}
	sum, err := s.keep(uki)
	if err != nil {
		return artefact.Disk{}, err
	}
	var disk artefact.Disk
	for _, label := range labels {
		p := newPartition(label, "", nil) // META has no values, or a value that only an installation reads
		if label == labelEFI {
			p = efiPartition(img.TalosVersion, sum, "")
		}
		if img.TalosVersion >= "v1.13" { // of two digits, as all since v1.10
			p.UUID = artefact.PartitionUUID(label)
		}
		disk.Partitions = append(disk.Partitions, p)
	}
	return disk, nil
}

// newPartition makes a partition with new UUIDs.
func newPartition(label, filesystem string, data []byte) artefact.Partition {
	p := artefact.Partition{Label: label, UUID: uuid.NewString(), Filesystem: filesystem, Data: data}
	if filesystem != "" {
		p.FilesystemUUID = uuid.NewString()
	}
	return p
}

// efiPartition has a single boot entry with the image of that digest.
func efiPartition(talos, uki, cmdline string) artefact.Partition {
	name := loader{}.nextName(talos)
	return newPartition(labelEFI, "vfat", encoded(loader{Entries: []bootEntry{{Name: name, UKI: uki, Cmdline: cmdline}}}))
}

// encoded returns the JSON of a value that has only strings, numbers and flags: such values always marshal.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("talosapi: %v", err))
	}
	return b
}

// readState returns the state on the system disk; false if there is none.
func readState(devs []device) (stateData, bool) {
	d, ok := systemDisk(devs)
	if !ok {
		return stateData{}, false
	}
	p, ok := partition(d.disk, labelState)
	if !ok {
		return stateData{}, false
	}
	var s stateData
	if err := json.Unmarshal(p.Data, &s); err != nil || len(bytes.TrimSpace(s.Config)) == 0 {
		return stateData{}, false
	}
	return s, true
}

// systemDisk returns the first disk with a META partition: to Talos that means "installed".
func systemDisk(devs []device) (device, bool) {
	return first(devs, func(d device) bool {
		_, ok := partition(d.disk, labelMeta)
		return ok
	})
}

// loaderDefaultVar is sd-boot's variable with the name of the entry to boot next.
const loaderDefaultVar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// loader is the content of the EFI partition. Its own default entry counts only if no firmware variable names an entry.
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
	return first(l.Entries, func(e bootEntry) bool { return strings.EqualFold(e.Name, name) })
}

// other returns the first entry, by name, except the entry than.
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

// nextName returns the name of a new entry of that Talos version beside the existing entries: the version alone, or
// with the next number after a tilde (generateNextUKIName in sdboot.go).
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
		return encoded(l), nil
	})
}

// metaData holds the tags of the META partition that the lab simulates.
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
		return encoded(meta), nil
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

// efiString returns a string variable as in efivarfs: four bytes of attributes, then UTF-16LE with a final NUL.
func efiString(s string) []byte {
	b, _ := binary.Append([]byte{7, 0, 0, 0}, binary.LittleEndian, utf16.Encode([]rune(s+"\x00"))) // numbers: no error
	return b
}

// top returns the top entry of sd-boot's menu: the newest version, and among equal versions the greatest name. A
// tilde sorts before everything, so "Talos-v1.13.9.efi" comes before "Talos-v1.13.9~1.efi", which was added after it
// (boot_entry_compare in systemd's boot.c).
func (m *machine) top(l loader) (bootEntry, bool) {
	if len(l.Entries) == 0 {
		return bootEntry{}, false
	}
	version := func(e bootEntry) string {
		img, _ := m.fw.boots.read(e.UKI) // no version if it can't be read
		return img.TalosVersion
	}
	return slices.MaxFunc(l.Entries, func(a, b bootEntry) int {
		return cmp.Or(compareVersions(version(a), version(b)), compareVersions(strings.ToLower(a.Name), strings.ToLower(b.Name)))
	}), true
}

// compareVersions does the work of strverscmp_improved of systemd: it compares numbers by value, and a suffix after a
// tilde sorts before no suffix.
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, noVersionChar), strings.TrimLeftFunc(b, noVersionChar)
		for _, sign := range []string{"~", "", "-", "^", "."} {
			if sign == "" {
				if a == "" || b == "" {
					return cmp.Compare(len(a), len(b))
				}
				continue
			}
			hasA, hasB := strings.HasPrefix(a, sign), strings.HasPrefix(b, sign)
			switch {
			case hasA && hasB:
				a, b = a[1:], b[1:]
			case hasA:
				return -1
			case hasB:
				return 1
			}
		}
		part := isLetter
		if a != "" && isDigit(rune(a[0])) || b != "" && isDigit(rune(b[0])) {
			part = isDigit
		}
		partA, partB := leading(a, part), leading(b, part)
		a, b = a[len(partA):], b[len(partB):]
		if r := compareParts(partA, partB, part('0')); r != 0 {
			return r
		}
	}
}

// compareParts compares two numbers of any length, or two words.
func compareParts(a, b string, numbers bool) int {
	if !numbers {
		return strings.Compare(a, b)
	}
	if a == "" || b == "" { // a word sorts before a number
		return cmp.Compare(len(a), len(b))
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func leading(s string, of func(rune) bool) string { return s[:len(s)-len(strings.TrimLeftFunc(s, of))] }

func isDigit(r rune) bool  { return r >= '0' && r <= '9' }
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

func noVersionChar(r rune) bool {
	return !isDigit(r) && !isLetter(r) && !strings.ContainsRune("~-^.", r)
}

// nvramMagic is the prefix of an EFI disk's content once it was written; before that the EFI disk is blank.
const nvramMagic = "recast lab NVRAM\n"

// variables are the firmware variables that the lab simulates. They are on the VM's EFI disk, not on the system disk:
// a new system disk finds the variables that the old one has left there.
type variables struct {
	LoaderEntryDefault string `json:",omitempty"`
}

// NVRAM returns the content of the EFI disk of a machine that was installed with that image.
func NVRAM(img artefact.Image) []byte {
	return variables{LoaderEntryDefault: loader{}.nextName(img.TalosVersion)}.encode()
}

func (v variables) encode() []byte { return append([]byte(nvramMagic), encoded(v)...) }

func readVariables(content []byte) (v variables) {
	if rest, ok := bytes.CutPrefix(content, []byte(nvramMagic)); ok {
		_ = json.Unmarshal(rest, &v) // invalid variables count as none
	}
	return v
}

// uefi reports whether the machine has UEFI firmware; SeaBIOS has no variables, and the boot loader stores its
// default beside its entries.
func (m *machine) uefi() bool { return m.hw.NVRAM != nil }

// defaultEntry returns the name of the boot loader's default entry; "" if none is set.
func (m *machine) defaultEntry(l loader) string {
	if m.uefi() {
		return readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return l.Default
}

// setDefault makes an entry of the disk at that key the default.
func (m *machine) setDefault(key, name string) error {
	if !m.uefi() {
		return m.editLoader(key, func(l *loader) { l.Default = name })
	}
	v := readVariables(m.hw.NVRAM.Bytes())
	v.LoaderEntryDefault = name
	m.hw.NVRAM.Write(v.encode())
	return nil
}

// selected returns the entry that the boot loader boots: the default if it exists, else the first entry in the boot
// loader's own order (config_select_default_entry in systemd's boot.c).
func (m *machine) selected(l loader) (bootEntry, bool) {
	if e, ok := l.entry(m.defaultEntry(l)); ok {
		return e, true
	}
	return m.top(l)
}

// loadedEntry returns the entry that systemd-boot reports as loaded. An ISO's entry has the same name as the first
// entry that an installer writes: only the medium distinguishes them.
func (m *machine) loadedEntry(med medium) string {
	if med.entry == "" && m.uefi() {
		return strings.ToLower(loader{}.nextName(med.image.TalosVersion))
	}
	return med.entry
}

// bootedEntry returns the entry that the system considers as booted. After a kexec it is the entry of the variable
// LoaderEntryOneShot, which the kernel can write only with efibc; otherwise it is systemd-boot's report of the latest
// firmware boot (controllers/runtime/booted_entry.go).
func (m *machine) bootedEntry(med medium) string {
	before, _ := m.bootLoader.Load().(string)
	if m.has().NoOneShot && before != "" {
		return before
	}
	return cmp.Or(med.reported, m.loadedEntry(med))
}

// bootImages holds the machines' unified kernel images by SHA-256, as their installers contained them. Disks and
// image caches hold only the digest: a real image has a hundred MiB, of which all machines share one copy. Images are
// never removed, because a disk somewhere may still refer to them.
type bootImages struct {
	mu   sync.Mutex
	held map[string]*world.Media
}

// keep stores an image and returns its digest.
func (s *bootImages) keep(uki []byte) (string, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(uki))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[sum] == nil {
		m, err := world.SpooledMedia(uki)
		if err != nil {
			return "", fmt.Errorf("keep boot image: %w", err)
		}
		s.held[sum] = m
	}
	return sum, nil
}

// read returns the boot image with that digest.
func (s *bootImages) read(sum string) (artefact.Image, error) {
	s.mu.Lock()
	m := s.held[sum]
	s.mu.Unlock()
	if m == nil {
		return artefact.Image{}, fmt.Errorf("%w: nothing with SHA-256 %s is here", artefact.ErrNotBootable, sum)
	}
	return artefact.ReadUKI(m.Bytes())
}
