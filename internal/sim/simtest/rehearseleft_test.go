package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// leaveScratch kills a roll whose scratch VM was just started.
func (l *Lab) leaveScratch(t *testing.T) {
	l.Patch(sim.PatchedExtension)
	c := l.rehearsing()
	c.killedAt(t, onServer("/9099/status/start POST"), c.roll(planning.Policy{Only: []string{"wk1"}}))
	if left := l.scratches(); len(left) != 1 {
		t.Fatalf("left: %q", left)
	}
}

// TestPruneScratchVMs: a killed run's scratch VMs are removed even if there is nothing to
// roll; until then doctor and plan report them.
func TestPruneScratchVMs(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		second := lab.second()
		warned := slices.ContainsFunc(diagnosis(t, second).Checks, func(c checkup.Check) bool {
			return c.What == "VM 9099" && c.State == checkup.Warning && strings.Contains(strings.Join(c.Remedy, ""), "recast prune deletes it")
		})
		if !warned {
			t.Error("doctor says nothing of it")
		}
		inSync := planning.Policy{Only: []string{"cp1"}}
		plan, err := second.Plan(t.Context(), inSync)
		if err != nil || len(plan.Scratch) > 0 || !strings.Contains(strings.Join(plan.Warn, ""), `VM 9099 "recast-rehearse-9099" on pve1, which run`) {
			t.Errorf("planned to clear %v, warned %q, %v", plan.Scratch, plan.Warn, err)
		}
		must(t, second.roll(inSync)(t.Context()))
		if left := lab.scratches(); len(left) != 1 {
			t.Fatalf("left: %q", left)
		}
		asked := 0
		rep, err := second.pruneDisks(t.Context(), -1, func(rep pipeline.PruneReport) { asked = len(rep.GoingScratch()) })
		if err != nil || asked != 1 || len(rep.Scratch) != 1 || !rep.Scratch[0].Removed {
			t.Errorf("asked for %d, report %+v, %v", asked, rep.Scratch, err)
		}
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestAChangedScratchVMIsKept: a killed run's scratch VM is deleted neither by a roll nor by
// prune once it has something that recast did not make, and both say why.
func TestAChangedScratchVMIsKept(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		lab.EditVM(scratchVM, "scsi5", "fast:3,serial=someone")
		const why = "is not a drive that it was created with"
		requireRefused(t, lab.second().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()), why)
		rep, err := lab.second().pruneDisks(t.Context(), -1, func(pipeline.PruneReport) { t.Error("it asks, though nothing goes") })
		if err != nil || len(rep.Scratch) != 1 || !strings.Contains(strings.Join(rep.Scratch[0].Keep, ""), why) {
			t.Errorf("report %+v, %v", rep.Scratch, err)
		}
		if left := lab.scratches(); len(left) != 1 {
			t.Errorf("left: %q", left)
		}
		lab.RequireIntact()
	})
}

// TestPlanOfARehearsal: a plan lists the VMs to remove and to make, and a saved one is
// rolled with the rehearsals that it lists, whatever has happened to those VMs.
func TestPlanOfARehearsal(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		must(t, lab.Client().Publish(t.Context()))
		planner, only := lab.second(), planning.Policy{Only: []string{"wk1"}}
		without, err := planner.Plan(t.Context(), only)
		if err != nil || len(without.Trials) > 0 || len(without.Scratch) != 1 {
			t.Errorf("planned %v, to clear %v, %v", without.Trials, without.Scratch, err)
		}
		planner.Rehearse = new(true)
		plan, err := planner.Plan(t.Context(), only)
		must(t, err)
		var seen []string
		for _, s := range plan.Scratch {
			seen = append(seen, fmt.Sprintf("%d %s", s.VMID, s.Host))
		}
		for _, r := range plan.Trials {
			seen = append(seen, fmt.Sprintf("%s %s %s %v %t", r.Host, r.Firmware, r.Schematic, r.Nodes, strings.HasSuffix(r.ISO, ".iso")))
		}
		if diff := cmp.Diff([]string{"9099 pve1", "pve1 OVMF, q35, CPU host storage [wk1] true"}, seen); diff != "" {
			t.Errorf("planned (-want +got):\n%s", diff)
		}
		roller := lab.second()
		roller.Saved = lab.reread(plan)
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		rep, err := roller.Roll(t.Context(), planning.Policy{})
		if err != nil || len(rep.Rehearsed) != 1 || rep.Plan.ID != plan.ID {
			t.Errorf("rehearsed %+v by plan %s of %s, %v", rep.Rehearsed, rep.Plan.ID, plan.ID, err)
		}
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}
