package schematics

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// Customization is what a schematic requests of an image in addition to extensions.
type Customization struct {
	KernelArgs     []string // recast's own is the last
	Meta           []MetaValue
	Bootloader     string         // of a boot ISO: "sd-boot", "grub", "dual-boot"; "": Talos' own choice
	OverlayOptions map[string]any // of the overlay, if there is one
	// EmbeddedConfigSHA256 is of the machine configuration embedded in the image, in hex; "" without one.
	EmbeddedConfigSHA256 string
}

// MetaValue is an initial value in the META partition.
type MetaValue struct {
	Key   uint8
	Value string
}

// Customization reads the locked schematic.
func (e Locked) Customization() (Customization, error) {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil {
		return Customization{}, fmt.Errorf("read the locked schematic: %w", err)
	}
	c := Customization{
		KernelArgs:     slices.Clone(s.doc.Customization.ExtraKernelArgs),
		OverlayOptions: maps.Clone(s.doc.Overlay.Options),
	}
	if b := s.doc.Customization.Bootloader; b != 0 {
		c.Bootloader = b.String()
	}
	if config := s.doc.Customization.EmbeddedMachineConfiguration; config != "" {
		c.EmbeddedConfigSHA256 = sum(config)
	}
	for _, m := range s.doc.Customization.Meta {
		c.Meta = append(c.Meta, MetaValue(m))
	}
	return c, nil
}

// NoDisk says why no disk image of a schematic of this lock is made; "": one can be.
func (l Lock) NoDisk(e Locked, byImager bool) string {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil { // impossible for a lock that was resolved or read
		return err.Error()
	}
	custom := s.doc.Customization
	switch size := custom.DiskImage.SectorSize; {
	case byImager && beforeLoopless.MatchString(l.Talos):
		return "before Talos v1.13 the imager needs loop devices for one, and recast gives it none"
	case custom.Bootloader.String() == "grub":
		return "its bootloader is grub, and what GRUB boots from a disk can't be compared with the lock"
	case size != 0 && size != 512:
		return fmt.Sprintf("its diskImage.sectorSize is %d, and Proxmox' disks have 512", size)
	}
	return ""
}

// beforeLoopless matches the versions whose buildImage in siderolabs/talos pkg/imager/out.go attaches loop devices.
var beforeLoopless = regexp.MustCompile(`^v1\.1[0-2]\.`)

// BuildOrder lists the extensions in build order: those that the schematic names, in
// its order, then the other explicit ones.
func (e Locked) BuildOrder() ([]Extension, error) {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil {
		return nil, fmt.Errorf("read the locked schematic: %w", err)
	}
	var order []Extension
	named := map[int]bool{}
	for _, name := range s.Extensions() {
		i := e.official(name)
		if i < 0 {
			i = e.official(renamed(name))
		}
		if i < 0 {
			return nil, fmt.Errorf("the locked schematic names extension %q, but the lock has no digest for it", name)
		}
		order, named[i] = append(order, e.Extensions[i]), true
	}
	for i, x := range e.Extensions {
		if x.Explicit && !named[i] {
			order = append(order, x)
		}
	}
	return order, nil
}

// official is the index of the extension that schematics and factories know by that
// name: with the digest of the list, or else with one that recast.yaml gives. -1 if
// there is none.
func (e Locked) official(name string) int {
	i := slices.IndexFunc(e.Extensions, func(x Extension) bool { return !x.Explicit && x.Official() == name })
	if i >= 0 {
		return i
	}
	return slices.IndexFunc(e.Extensions, func(x Extension) bool { return x.Official() == name })
}
