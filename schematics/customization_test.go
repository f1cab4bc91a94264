package schematics

import (
	"strings"
	"testing"
)

const customized = `overlay:
    image: siderolabs/sbc-raspberrypi
    name: rpi_generic
    options:
        configTxt: gpu_mem=128
customization:
    extraKernelArgs:
        - net.ifnames=0
        - recast.lock=sha256-1
    meta:
        - key: 12
          value: "on"
    systemExtensions:
        officialExtensions:
            - siderolabs/zfs
            - siderolabs/i915-ucode
            - siderolabs/agent
    bootloader: sd-boot
`

func TestCustomization(t *testing.T) {
	t.Parallel()
	const embedding = "customization:\n    embeddedMachineConfiguration: |\n        secret\n"
	type row struct {
		schematic string
		want      Customization
	}
	each(t, map[string]row{
		"nothing": {"customization: {}\n", Customization{}},
		"everything": {customized, Customization{
			KernelArgs: []string{"net.ifnames=0", "recast.lock=sha256-1"}, Meta: []MetaValue{{Key: 12, Value: "on"}},
			Bootloader: "sd-boot", OverlayOptions: map[string]any{"configTxt": "gpu_mem=128"},
		}},
		"a machine configuration": {embedding, Customization{EmbeddedConfigSHA256: sum("secret\n")}},
	}, func(t *testing.T, c row) {
		got := must(Locked{File: "base.yaml", Schematic: c.schematic}.Customization())(t)
		same(t, "result", c.want, got)
	})
}

// The lock lists extensions by name; they are built in the order of the file, under
// their current names, and explicit ones after them.
func TestBuildOrder(t *testing.T) {
	t.Parallel()
	e := Locked{File: "base.yaml", Schematic: customized, Extensions: []Extension{
		{Name: "agent", Ref: "ghcr.io/siderolabs/agent"},
		{Name: "i915", Ref: "ghcr.io/siderolabs/i915"},
		{Name: "zfs", Ref: "ghcr.io/siderolabs/zfs"},
		{Name: "frr", Ref: "ghcr.io/acme/frr", Explicit: true},
		{Name: "bird", Ref: "ghcr.io/acme/bird", Explicit: true},
	}}
	list := must(e.BuildOrder())(t)
	var got []string
	for _, x := range list {
		got = append(got, x.Name)
	}
	same(t, "result", []string{"zfs", "i915", "agent", "frr", "bird"}, got)
	e.Extensions[0].Explicit = true // pinned by recast.yaml
	if list, err := e.BuildOrder(); err != nil || list[2].Name != "agent" {
		t.Errorf("a pinned one: %v, %v", list, err)
	}
	e.Extensions[0].Ref = "ghcr.io/acme/agent" // of that name, but not the official one
	if list, err := e.BuildOrder(); err == nil {
		t.Errorf("an extension that is not locked: %v", list)
	}
}

// TestNoDisk: what a disk image can't be made of, or not by the imager, has its reason.
func TestNoDisk(t *testing.T) {
	t.Parallel()
	const loops, grub = "before Talos v1.13 the imager needs loop devices", "its bootloader is grub"
	type row struct {
		talos, custom string
		imager        bool
		why           string
	}
	each(t, map[string]row{
		"factory":         {"v1.12.6", "{}", false, ""},
		"imager":          {"v1.13.0", "{}", true, ""},
		"two digits":      {"v1.20.0", "{}", true, ""},
		"older imager":    {"v1.12.11", "{}", true, loops},
		"oldest imager":   {"v1.10.0-rc.0", "{}", true, loops},
		"systemd-boot":    {"v1.13.9", "{bootloader: sd-boot}", true, ""},
		"both":            {"v1.13.9", "{bootloader: dual-boot}", false, ""},
		"GRUB":            {"v1.13.9", "{bootloader: grub}", false, grub},
		"GRUB, imager":    {"v1.13.9", "{bootloader: grub}", true, grub},
		"usual sectors":   {"v1.13.9", "{diskImage: {sectorSize: 512}}", true, ""},
		"foreign sectors": {"v1.13.9", "{diskImage: {sectorSize: 4096}}", false, "its diskImage.sectorSize is 4096, and Proxmox' disks have 512"},
	}, func(t *testing.T, tc row) {
		why := Lock{Talos: tc.talos}.NoDisk(Locked{File: "a.yaml", Schematic: "customization: " + tc.custom + "\n"}, tc.imager)
		if !strings.HasPrefix(why, tc.why) || (why == "") != (tc.why == "") {
			t.Errorf("%q, want %q", why, tc.why)
		}
	})
}
