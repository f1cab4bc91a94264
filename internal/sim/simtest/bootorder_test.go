package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
)

// TestBootOrderThatNoStrategyMends: a running node boots from its network card before its system disk, and
// that change is pending: recreate and reimage are impossible, and in-place changes no boot order. The plan
// leaves that node as it is, with the one command, and the others are rolled.
func TestBootOrderThatNoStrategyMends(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		change("boot=order=net0;scsi0")(lab)
		requireDrift(t, lab, "wk1")
		const command = "qm set 9031 --boot 'order=scsi0;net0'"
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		if n.Strategy != "" || len(n.Refused) > 0 || n.ByHand != command {
			t.Errorf("strategy %q, refused %q, by hand %q", n.Strategy, n.Refused, n.ByHand)
		}
		plan, err := lab.Client().Plan(t.Context(), planning.Policy{})
		must(t, err)
		if !slices.ContainsFunc(plan.Warn, func(w string) bool {
			return strings.Contains(w, "wk1 is left as it is: it boots from net0") && strings.HasSuffix(w, command)
		}) {
			t.Errorf("warnings %q", plan.Warn)
		}
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()

		// A node that was named is refused, with the same command, and so is its roll.
		refusedWith := func() {
			t.Helper()
			n := lab.planOf(lab.Client(), "wk1", onlyWorker)
			if !slices.ContainsFunc(n.Refused, func(r string) bool { return strings.HasSuffix(r, command) }) {
				t.Errorf("refused %q", n.Refused)
			}
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), command)
		}
		refusedWith()

		// With an image to install, too, the others go on, and the report has the command.
		lab.Patch(everywhere)
		if n := lab.planOf(lab.Client(), "wk1", planning.Policy{}); n.Strategy != "" || len(n.Refused) > 0 || n.ByHand != command {
			t.Errorf("strategy %q, refused %q, by hand %q", n.Strategy, n.Refused, n.ByHand)
		}
		refusedWith()
		before := lab.machine("wk1")
		rep, err := lab.Client().Roll(t.Context(), planning.Policy{})
		must(t, err)
		if !slices.ContainsFunc(rep.Afterwards, func(text string) bool {
			return strings.HasPrefix(text, "wk1 is left as it is") && strings.HasSuffix(text, command)
		}) {
			t.Errorf("afterwards %q", rep.Afterwards)
		}
		if m := lab.machine("wk1"); m.BootID != before.BootID {
			t.Error("wk1 was rebooted")
		}
		if res, err := lab.Client().Drift(t.Context()); err != nil || res.Nodes[0].Stale || !res.Nodes[1].Stale {
			t.Errorf("%+v, %v", res.Nodes, err)
		}
		change("boot=order=scsi0;net0")(lab)
		if n := planOf(t, lab, "wk1"); len(n.Refused) > 0 {
			t.Errorf("afterwards refused %q", n.Refused)
		}
	})
}
