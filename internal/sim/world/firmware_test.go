package world_test

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/world"
)

// plug is a firmware that records the hardware of its VM.
type plug struct{ hw world.Hardware }

func (p *plug) PowerOn(hw *world.Hardware) world.Guest { p.hw = *hw; return p }
func (p *plug) Shutdown()                              {}
func (p *plug) Kill()                                  {}

// TestFirmwareOfAVM: only the 4 MB variables of x86_64 contain keys.
func TestFirmwareOfAVM(t *testing.T) {
	t.Parallel()
	const keys = "fast:1,efitype=4m,pre-enrolled-keys=1"
	type row struct {
		config     map[string]string
		arch       string
		secureBoot bool
	}
	tests := map[string]row{
		"nothing said":  {map[string]string{}, "amd64", false},
		"no keys":       {map[string]string{"bios": "ovmf", "efidisk0": "fast:1,efitype=4m,pre-enrolled-keys=0"}, "amd64", false},
		"keys":          {map[string]string{"bios": "ovmf", "efidisk0": keys, "arch": "x86_64"}, "amd64", true},
		"keys, SeaBIOS": {map[string]string{"efidisk0": keys}, "amd64", false},
		"2 MB":          {map[string]string{"bios": "ovmf", "efidisk0": "fast:1,efitype=2m,pre-enrolled-keys=1"}, "amd64", false},
		"ARM":           {map[string]string{"bios": "ovmf", "efidisk0": keys, "arch": "aarch64"}, "arm64", false},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, tc row) {
		p := &plug{}
		w.SetFirmware(p)
		must(t, w.DefineVM("pve1", 100, tc.config, nil))
		must(t, w.PowerOn(100))
		if p.hw.Arch != tc.arch || p.hw.SecureBoot != tc.secureBoot {
			t.Errorf("%s, Secure Boot %t", p.hw.Arch, p.hw.SecureBoot)
		}
	})
}

// TestChanges: what guests do counts as a change, reading does not.
func TestChanges(t *testing.T) {
	t.Parallel()
	inWorld(t, world.Options{}, func(t *testing.T, w *world.World) {
		p := &plug{}
		w.SetFirmware(p)
		must(t, w.DefineVM("pve1", 100, map[string]string{"scsi0": "fast:1"}, nil))
		must(t, w.PowerOn(100))
		before := w.Changes()
		_, _, _, _ = w.VMs(), w.Violations(), w.Tasks(), w.Quorate()
		if _, err := w.LookupVM("pve1", 100); err != nil || w.Changes() != before {
			t.Errorf("%d changes, %d after it was read; %v", before, w.Changes(), err)
		}
		if p.hw.PowerOff(); w.Changes() == before {
			t.Error("that a guest ends counts for nothing")
		}
	})
}
