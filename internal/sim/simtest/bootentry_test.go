package simtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
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
		lab.setRoll("strategy: in-place", "reboot: kexec")
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
		whileOff()(lab)
		requireDrift(t, lab)
	})
}

// TestRollbackAfterAnUpgradeInPlace: a system disk that was upgraded in place has two boot
// entries of the same version of Talos. The EFI disk says which one boots, and the
// replacement's installation has since written its own entry there, which has the name of
// the older one.
func TestRollbackAfterAnUpgradeInPlace(t *testing.T) {
	long(t)
	eachNamed(t, oneWorker(), []cluster.Strategy{cluster.Recreate, cluster.Reimage}, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.inPlace()
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
		upgraded, m := lab.builds(), lab.machine("wk1")
		if !strings.HasSuffix(m.BootEntry, "~1.efi") {
			t.Fatalf("boots %s", m.BootEntry)
		}
		lab.Replace("recast.yaml", "strategy: in-place", "strategy: "+string(s))
		lab.Patch(everywhere)
		must(t, lab.as(secondRun).roll(onlyWorker)(t.Context()))
		must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
		if diff := cmp.Diff(upgraded, lab.builds()); diff != "" {
			t.Errorf("builds after the rollback:\n%s", diff)
		}
		lab.RequireIntact()
	})
}
