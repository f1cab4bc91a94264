package talosapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// The labels of a system disk's partitions, in order.
const (
	labelEFI       = "EFI"
	labelBIOS      = "BIOS" // this one and the next, for GRUB, are in disk images only
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

// halts says whether this medium refuses to run on an installed machine.
func (m medium) halts() bool {
	return slices.Contains(strings.Fields(m.image.Cmdline), artefact.HaltIfInstalled)
}

// readMedium is a device's boot medium; false if it can't boot.
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
	state, err := s.encode()
	if err != nil {
		return nil, err
	}
	return artefact.WriteDisk(edited(parsed, labelState, func([]byte) []byte { return state })), nil
}

func partition(d artefact.Disk, label string) (artefact.Partition, bool) {
	i := slices.IndexFunc(d.Partitions, func(p artefact.Partition) bool { return p.Label == label })
	if i < 0 {
		return artefact.Partition{}, false
	}
	return d.Partitions[i], true
}

// edited is the disk with changed data of the partition with that label.
func edited(d artefact.Disk, label string, change func([]byte) []byte) artefact.Disk {
	d.Partitions = slices.Clone(d.Partitions)
	for i := range d.Partitions {
		if d.Partitions[i].Label == label {
			d.Partitions[i].Data = change(d.Partitions[i].Data)
		}
	}
	return d
}

// adoptImages brings disks that were made from disk images into the lab's form, in which
// machines change them. Their content stays what it is.
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

// adopted is a disk that was made from a disk image, with one boot entry, named like the
// first one of an installer.
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
		p := newPartition(label, "", nil) // META has no values, or one that only an installation reads
		if label == labelEFI {
			if p, err = efiPartition(img.TalosVersion, sum, ""); err != nil {
				return artefact.Disk{}, err
			}
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
func efiPartition(talos, uki, cmdline string) (artefact.Partition, error) {
	name := loader{}.nextName(talos)
	b, err := json.Marshal(loader{Entries: []bootEntry{{Name: name, UKI: uki, Cmdline: cmdline}}})
	if err != nil {
		return artefact.Partition{}, fmt.Errorf("write boot entries: %w", err)
	}
	return newPartition(labelEFI, "vfat", b), nil
}

func (s stateData) encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write state: %w", err)
	}
	return b, nil
}

// readState is the state on the system disk; false if there is none.
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

// systemDisk is the first disk with a META partition: to Talos that means "installed".
func systemDisk(devs []device) (device, bool) {
	i := slices.IndexFunc(devs, func(d device) bool {
		_, ok := partition(d.disk, labelMeta)
		return ok
	})
	if i < 0 {
		return device{}, false
	}
	return devs[i], true
}
