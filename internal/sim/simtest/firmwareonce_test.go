package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestAnImageThatBootsByKexecOnly stops the roll at its first node, which boots through the firmware. With
// roll.reboot: kexec nobody would notice until the next power failure.
func TestAnImageThatBootsByKexecOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		reboot, talos string
		hangs         bool
	}{
		"canary": {"canary", "", true}, "powercycle": {"powercycle", "", true}, "kexec": {"kexec", "", false}, "1.12, which reboots by itself": {"canary", "v1.12.6", true},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 3, TalosVersion: tc.talos}, func(t *testing.T, lab *Lab) {
				lab.inPlace()
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  reboot: "+tc.reboot+"\n  maxUnavailable: {workers: 3, perHost: 3}\n")
				lab.Patch(sim.PatchedExtension)
				build := lab.planOf(lab.Client(), "wk1", planning.Policy{}).Wanted.Build
				lab.BreakImage(build.SchematicID, talosapi.KexecOnly)
				workers := planning.Policy{Only: []string{"wk1", "wk2", "wk3"}}
				before := lab.boots()
				err := lab.Client().roll(workers)(t.Context())
				changed := 0
				for i, boot := range lab.boots() {
					if boot != before[i] {
						changed++
					}
				}
				switch {
				case !tc.hangs && (err != nil || changed != 3):
					t.Errorf("%d nodes rebooted: %v", changed, err)
				case tc.hangs && (err == nil || changed > 1 || !strings.Contains(err.Error(), "did not come back from its upgrade")):
					t.Errorf("%d nodes rebooted: %v", changed, err)
				}
			})
		})
	}
}

// TestAKilledFirstBootIsNoProof: the run after one that was killed while its first node rebooted still
// boots another one through the firmware before the rest.
func TestAKilledFirstBootIsNoProof(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(sim.PatchedExtension)
		workers := planning.Policy{Only: []string{"wk1", "wk2", "wk3"}}
		c := lab.as(firstRun)
		c.killedAt(t, after("upgrade/reboot"), c.roll(workers))
		plan, err := lab.Client().Plan(t.Context(), workers)
		must(t, err)
		var firmware []string
		for _, n := range plan.Nodes {
			if n.Reboot == cluster.ByFirmware {
				firmware = append(firmware, string(n.Phase)+"/"+n.Node)
			}
		}
		if want := []string{"unfinished/wk1", "canary/wk2"}; !slices.Equal(firmware, want) {
			t.Errorf("through the firmware: %q, want %q", firmware, want)
		}
		must(t, lab.as(secondRun).roll(workers)(t.Context()))
		requireInSync(t, lab)
	})
}
