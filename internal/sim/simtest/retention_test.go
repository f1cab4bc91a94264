package simtest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// TestRetention rolls a worker repeatedly: one old system disk stays, and earlier ones are
// freed as the plan showed. Then prune frees the last one too.
func TestRetention(t *testing.T) {
	long(t)
	eachNamed(t, oneWorker(), []cluster.Strategy{cluster.Recreate, cluster.Reimage}, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		strategy(s)(lab)
		volumes := len(lab.diskVolumes())
		for i, run := range []string{firstRun, secondRun, thirdRun} {
			lab.Patch(everywhere)
			c := lab.as(run)
			plan := lab.planOf(c, "wk1", onlyWorker)
			rep, err := c.Roll(t.Context(), onlyWorker)
			must(t, err)
			if diff := cmp.Diff(plan.Frees, rep.Plan.Nodes[0].Frees); diff != "" {
				t.Errorf("the plan shows other disks than the roll frees:\n%s", diff)
			}
			if want := min(i, 1); len(plan.Frees) != want || want == 1 && plan.Frees[0].Run != []string{firstRun, secondRun}[i-1] {
				t.Errorf("roll %d frees %v", i+1, plan.Frees)
			}
			lab.requireKept(1)
			if got := len(lab.diskVolumes()); got != volumes+1 {
				t.Errorf("%d volumes after roll %d, before the first one %d: %q", got, i+1, volumes, lab.diskVolumes())
			}
			lab.RequireIntact()
		}
		if park := lab.parkingOf("wk1"); lab.vmConfig(park)["protection"] != "1" {
			t.Errorf("the parking VM is not protected: %v", lab.vmConfig(park))
		}

		// By default prune frees nothing; on request, everything.
		rep, err := lab.Client().pruneDisks(t.Context(), -1, func(pipeline.PruneReport) { t.Error("it asks, though nothing goes") })
		if err != nil || len(rep.Disks) != 1 || len(rep.Disks[0].Keep) != 1 || rep.Disks[0].Run != thirdRun || len(rep.VMs) != 1 || len(rep.VMs[0].Keep) == 0 {
			t.Errorf("prune: %+v, %v", rep, err)
		}
		rep, err = lab.Client().pruneDisks(t.Context(), 0, nil)
		if err != nil || len(rep.Disks) != 1 || !rep.Disks[0].Removed || rep.Disks[0].SizeBytes == 0 || len(rep.VMs) != 1 || !rep.VMs[0].Removed {
			t.Errorf("prune --keep-disks 0: %+v, %v", rep, err)
		}
		lab.requireKept(0)
		requireNoClaim(t, lab)
		if park := lab.parkingOf("wk1"); park != 0 || len(lab.diskVolumes()) != volumes {
			t.Errorf("parking VM %d, volumes %q", park, lab.diskVolumes())
		}
		lab.RequireIntact()
		requireRefused(t, lab.Client().goBack("wk1")(t.Context()), "no earlier system disk of it is parked")
	})
}

// TestRetentionCannotFree: if a superseded disk can't be freed, the roll of a healthy node
// does not fail. The disk stays, and prune says why.
func TestRetentionCannotFree(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
		lab.Patch(everywhere)
		c := lab.as(secondRun)
		var notes []string
		c.Emit = func(e step.Event) {
			switch {
			case strings.HasSuffix(e.Path, "finish/keep") && e.Status == step.Done:
				lab.DefineVM(9050, map[string]string{"name": "thief", "memory": "512"})
				lab.EditVM(9050, "scsi0", volidOf(lab, lab.parkingOf("wk1"), "scsi30"))
			case strings.HasSuffix(e.Path, "free-scsi30") && e.Status == step.Note:
				notes = append(notes, e.Text)
			}
		}
		rep, err := c.Roll(t.Context(), onlyWorker)
		if err != nil || rep.Outcome != "done" {
			t.Fatalf("outcome %s: %v", rep.Outcome, err)
		}
		if all := strings.Join(notes, "; "); !strings.Contains(all, `VM 9050 "thief" on pve1 refers to it as well: it stays`) || !strings.Contains(all, "recast prune can free it") {
			t.Errorf("notes %q", notes)
		}
		requireDrift(t, lab, lab.others("wk1")...)
		lab.requireKept(2)
		if lab.vmConfig(lab.parkingOf("wk1"))["protection"] != "1" {
			t.Error("the parking VM is not protected")
		}
		pruned, err := lab.Client().pruneDisks(t.Context(), -1, nil)
		if err != nil || len(pruned.Disks) != 2 || !strings.Contains(strings.Join(pruned.Disks[0].Keep, ""), "thief") {
			t.Errorf("prune: %+v, %v", pruned.Disks, err)
		}
		lab.configure(world.ChangeRequest{ID: 9050, Delete: []string{"scsi0"}})
		must(t, errOf(lab.Client().pruneDisks(t.Context(), -1, nil)))
		lab.requireKept(1)
		lab.RequireIntact()
	})
}

// TestCrashRetention kills the second roll of a worker at each point from the closing of
// its record on: the next roll, with its journal or without, frees what it was about to
// free.
func TestCrashRetention(t *testing.T) {
	long(t)
	t.Parallel()
	var points []point
	var want string
	var secrets *talosapi.Cluster
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, oneWorker())
		points, want = lab.retained(t, point{}, true)
		secrets = lab.Talos
	})
	first := 0
	for i, p := range points { // the worker that frees a disk is the last one of its kind
		if strings.Contains(p.name, "POST") && strings.HasSuffix(p.name, "/config") {
			first = i
		}
	}
	if first < 2 {
		t.Fatalf("an undisturbed roll frees nothing: %q", points)
	}
	freed := points[first]
	last := points[first-2:] // before, the record is closed and the protection lifted
	for _, at := range chosenKills(t, last, 1, func(p point) bool { return p.at == freed.at || p.at == freed.at+1 }) {
		t.Run(strconv.Itoa(at.at)+" "+at.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := oneWorker()
				o.Talos = secrets
				if _, got := New(t, o).retained(t, at, at.at%2 == 1); got != want {
					t.Errorf("the world differs from an undisturbed one (-want +got):\n%s", cmp.Diff(want, got))
				}
			})
		})
	}
}

// retained rolls a worker twice, the second time killed at a point and run again.
func (l *Lab) retained(t *testing.T, at point, journal bool) (points []point, dump string) {
	t.Helper()
	l.Patch(everywhere)
	must(t, l.as(firstRun).roll(onlyWorker)(t.Context()))
	l.Patch(everywhere)
	second := func(ctx context.Context, c *Client) error {
		c.Run = secondRun
		return c.roll(onlyWorker)(ctx)
	}
	if at == (point{}) {
		points, _ = l.finish(t, second)
	} else {
		l.diesAt(t, at, second)
		if !journal {
			l.loseJournal()
		}
		// Nodes with nothing to do are left alone, so this is no third roll.
		must(t, l.as(thirdRun).roll(onlyWorker)(t.Context()))
	}
	requireDrift(t, l, l.others("wk1")...)
	l.requireKept(1)
	requireNoClaim(t, l)
	l.RequireIntact()
	return points, l.settledDump()
}
