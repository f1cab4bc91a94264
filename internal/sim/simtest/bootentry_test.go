package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
)

// TestEntryOfTheBootBefore: a machine whose kernel can't write EFI variables reports,
// after a kexec, the previous boot entry as its own. Its upgrade completes and is not
// repeated, and there is no warning of a pending reboot.
func TestEntryOfTheBootBefore(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.setRoll("strategy: in-place")
		must(t, lab.Trouble("wk1", talosapi.Trouble{NoOneShot: true}))
		lab.Patch(sim.PatchedExtension)
		c, said := lab.Client(), ""
		c.Emit = func(e step.Event) { said += e.Text + "\n" }
		must(t, c.roll(planning.Policy{})(t.Context()))
		if !strings.Contains(said, "it says that it booted") {
			t.Error("nothing was said of the entry")
		}
		requireDrift(t, lab)
		rep, err := lab.as(secondRun).Roll(t.Context(), planning.Policy{})
		if err != nil || rep.Outcome != "nothing to do" {
			t.Errorf("the next roll: %s, %v", rep.Outcome, err)
		}
		must(t, lab.World.PowerOff(wk1))
		must(t, lab.World.PowerOn(wk1))
		must(t, lab.waitReady(t))
		requireDrift(t, lab)
	})
}
