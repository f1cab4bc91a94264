package pveapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// booter is a firmware that counts its runs in its variables.
type booter struct{ boots []string }

func (b *booter) PowerOn(hw *world.Hardware) world.Guest {
	seen := "SeaBIOS"
	if hw.NVRAM != nil {
		seen = "variables " + string(hw.NVRAM.Bytes())
		hw.NVRAM.Write(append(hw.NVRAM.Bytes(), '+'))
	}
	b.boots = append(b.boots, seen)
	return b
}
func (b *booter) Shutdown() {}
func (b *booter) Kill()     {}

// TestVariablesAreOnTheEFIDisk: they move with it, and without one they end with the process.
func TestVariablesAreOnTheEFIDisk(t *testing.T) {
	t.Parallel()
	type row struct {
		vm     []string
		ends   string   // ends of the first two starts
		boots  []string // two starts and a reset
		parked []string // one more start, of a VM that got efidisk0; nil: there is none
	}
	tests := map[string]row{
		"SeaBIOS": {ends: "OK", boots: []string{"SeaBIOS", "SeaBIOS", "SeaBIOS"}},
		"SeaBIOS with an EFI disk": {
			vm: []string{"efidisk0=fast:1,efitype=4m"}, ends: "OK", boots: []string{"SeaBIOS", "SeaBIOS", "SeaBIOS"}, parked: []string{"variables "},
		},
		"OVMF": {
			vm: []string{"bios=ovmf", "efidisk0=fast:1,efitype=4m"}, ends: "OK", boots: []string{"variables ", "variables +", "variables ++"},
			parked: []string{"variables +++"},
		},
		"OVMF without an EFI disk": {vm: []string{"bios=ovmf"}, ends: "WARNINGS: 1", boots: []string{"variables ", "variables ", "variables +"}},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		b := &booter{}
		l.world.SetFirmware(b)
		const at = "/nodes/pve1/qemu/9012"
		if got := l.task("POST", "/nodes/pve1/qemu", append(test.vm, "vmid=9012", "memory=512")...); got != "OK" {
			t.Fatal(got)
		}
		for range 2 {
			if got := l.task("POST", at+"/status/start"); got != test.ends {
				t.Errorf("start: %s", got)
			}
			if len(b.boots) == 2 {
				l.task("POST", at+"/status/reset")
			}
			l.task("POST", at+"/status/stop")
		}
		if diff := cmp.Diff(test.boots, b.boots); diff != "" {
			t.Error(diff)
		}
		if test.parked == nil {
			return
		}
		l.task("POST", "/nodes/pve1/qemu", "vmid=9013", "bios=ovmf")
		if got := l.task("POST", at+"/move_disk", "disk=efidisk0", "target-vmid=9013"); got != "OK" {
			t.Fatal(got)
		}
		l.task("POST", "/nodes/pve1/qemu/9013/status/start")
		if diff := cmp.Diff(test.parked, b.boots[3:]); diff != "" {
			t.Error(diff)
		}
	})
}
