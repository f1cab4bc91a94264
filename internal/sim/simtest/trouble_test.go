package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// requireTrouble requires an error with that code that says which disks are safe.
func requireTrouble(t *testing.T, err error, code fault.Code, safe string) {
	t.Helper()
	if got := fault.CodeOf(err); got != code {
		t.Errorf("code %q, want %q, of: %v", got, code, err)
	}
	if got := strings.Join(fault.Safe(err), "\n"); !strings.Contains(got, safe) {
		t.Errorf("it says that safe is %q, not %q", got, safe)
	}
}

// TestTheLockIsGoneBetweenTwoPlans: a roll has finished another one's work and then can't
// make its own plan: it must not say that nothing was touched.
func TestTheLockIsGoneBetweenTwoPlans(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen("wk1/take-down/stop")
		next := lab.second()
		next.Emit = whenStarted("wk1/bring-up/finish", func() { lab.Replace("recast.lock", "", "") })
		_, err := next.Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Config {
			t.Errorf("err = %v", err)
		}
		requireTrouble(t, err, fault.LockStale, "wk1: finished, with all their disks")
		lab.RequireIntact()
	})
}
