package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline/past"
)

func inShort(run past.Run) string {
	done, planned := run.Counted()
	return fmt.Sprintf("%s, %d of %d, ended %t, wk2 because %s", run.Result, done, planned, !run.Finished.IsZero(), run.Plan.Nodes[1].Why)
}

// TestReportOfAResumedRun: a run's second worker failed and was finished in the
// morning. The report covers all of it: the purpose, how many nodes were done, and how
// long that worker was unavailable.
func TestReportOfAResumedRun(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false")
		lab.Patch(sim.PatchedExtension)
		c := lab.logged(lab.Client())
		c.Emit = whenStarted("wk2/bring-up", func() { lab.World.FailNext("qmcreate", "no space left") })
		_, err := c.Roll(t.Context(), planning.Policy{})
		if err == nil {
			t.Fatal("it did not fail")
		}
		c.Telemetry.End(t.Context(), 1, err)
		first, told, _ := lab.past(c.Run)
		why := first.Plan.Nodes[1].Why
		if got, want := inShort(first), "failed, 1 of 2, ended true, wk2 because "+why; got != want {
			t.Errorf("it failed: %s, want %s", got, want)
		}
		if names := told.NotBack(); !slices.Equal(names, []string{"wk2"}) {
			t.Errorf("not back: %v", names)
		}
		time.Sleep(8 * time.Hour)

		again := lab.logged(lab.second())
		_, err = again.Roll(t.Context(), planning.Policy{})
		must(t, err)
		again.Telemetry.End(t.Context(), 0, nil)
		run, told, page := lab.past(c.Run)
		if got, want := inShort(run), "done, 2 of 2, ended true, wk2 because "+why; got != want {
			t.Errorf("it was finished: %s, want %s", got, want)
		}
		if o, _ := told.Longest(); o.Node != "wk2" || o.Open || o.Seconds() < 8*3600 {
			t.Errorf("outage %+v", o)
		}
		if !strings.Contains(page, "away 8h") {
			t.Error("the report does not say how long wk2 was unavailable")
		}
		lab.RequireIntact()
	})
}

// A roll whose last hook failed has failed, in the history too.
func TestHistoryOfAFailedHookAfterTheRun(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c, _ := withHooks(lab, failAt("afterRun"))
		if _, err := c.Roll(t.Context(), planning.Policy{}); err == nil {
			t.Fatal("it did not fail")
		}
		run, _, _ := lab.past(c.Run)
		if run.Result != "failed" || !strings.HasPrefix(run.Error, "every node is done: ") || len(run.Fates.Done) != 1 {
			t.Errorf("%s, %s, %+v", run.Result, run.Error, run.Fates)
		}
		requireDrift(t, lab)
	})
}
