package pveapi_test

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestPasswordIsMasked: nobody can read a password.
func TestPasswordIsMasked(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		richLab(t, l)
		l.putOK(vm+"/config", "cipassword=secret")
		if got := l.config(9011)["cipassword"]; got != "**********" {
			t.Errorf("config shows %v", got)
		}
		for _, row := range l.do("GET", vm+"/pending").Data.([]any) {
			if r := row.(map[string]any); r["key"] == "cipassword" && r["value"] != "**********" {
				t.Errorf("pending shows %v", r)
			}
		}
	})
}

// TestMappedDevices: a mapping needs the privilege to use it, and only a start needs its device.
func TestMappedDevices(t *testing.T) {
	t.Parallel()
	const use = "/mapping/pci/gpu"
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("Maps", "Mapping.Use")
		create := func() string {
			return l.outcome(l.do("POST", "/nodes/pve1/qemu", "vmid=9012", "hostpci0=mapping=gpu,pcie=1"))
		}
		if got, want := create(), "403 Permission check failed ("+use+", Mapping.Use)"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		l.world.Grant(world.ACL{Path: use, Who: tokenID, Role: "Maps"})
		if got := create(); got != "OK" {
			t.Fatal(got)
		}
		const start = "/nodes/pve1/qemu/9012/status/start"
		if got, want := l.task("POST", start), "PCI device mapping not found for 'gpu'"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		l.world.AddMapping("pci", "gpu", "pve2")
		if got := l.task("POST", start); got != "PCI device mapping not found for 'gpu'" {
			t.Error(got)
		}
		l.world.AddMapping("pci", "gpu", "pve1", "pve2")
		if got := l.task("POST", start); got != "OK" {
			t.Error(got)
		}
		if got, want := l.do("PUT", "/nodes/pve1/qemu/9012/config", "hostpci1=0000:01:00.0").Status, "500 only root can set 'hostpci1' config for non-mapped devices"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestOtherNames: cdrom is ide2, and a description is limited to what the file can hold.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "cdrom=isos:iso/boot.iso", "description=text\n\n"); got != "OK" {
			t.Fatal(got)
		}
		if got := l.config(9012); got["ide2"] != "isos:iso/boot.iso,media=cdrom,size=3" || got["cdrom"] != nil || got["description"] != "text" {
			t.Error(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "cdrom=none", "description= \n")
		if got := l.config(9012); got["ide2"] != "none,media=cdrom" || got["description"] != nil {
			t.Error(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "delete=cdrom")
		if got := l.config(9012); got["ide2"] != nil {
			t.Error(got)
		}
		const tooLarge = "500 balloon value too large (must be smaller than assigned memory)"
		for _, set := range []string{"balloon=4096", "memory=1024"} {
			if got := l.do("PUT", vm+"/config", set, "cores=1").Status; (got == tooLarge) != (set == "balloon=4096") {
				t.Errorf("%s: %s", set, got)
			}
		}
		l.putOK(vm+"/config", "balloon=1024")
		if got := l.do("PUT", vm+"/config", "memory=512").Status; got != tooLarge {
			t.Error(got)
		}
	})
}
