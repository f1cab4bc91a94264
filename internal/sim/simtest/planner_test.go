package simtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// pause marks a Node as paused, as a person would; "" removes the mark.
func (l *Lab) pause(name, why string) { l.annotate(name, cluster.PauseMark, why) }

// annotate gives a Node an annotation; "" removes it.
func (l *Lab) annotate(name, key, value string) {
	l.t.Helper()
	node := l.kubeNode(name)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
	if value == "" {
		delete(node.Annotations, key)
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// save makes a plan and reads it back from the output of recast plan -o json.
func (l *Lab) save(policy planning.Policy) *planning.Plan {
	l.t.Helper()
	return l.reread(l.plan(policy))
}

func (l *Lab) reread(plan planning.Plan) *planning.Plan {
	l.t.Helper()
	return new(valueOf(planning.Read(valueOf(json.Marshal(plan))(l.t)))(l.t))
}

func (l *Lab) rollOf(saved *planning.Plan) error {
	c := l.second()
	c.Saved = saved
	return c.roll(planning.Policy{})(l.t.Context())
}

// TestPauseDuringARoll: a node of the plan that is paused meanwhile is not taken down.
func TestPauseDuringARoll(t *testing.T) {
	inLongLab(t, sim.Options{}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false")
		lab.Patch(sim.PatchedExtension)
		seen := lab.watchOutage()
		c := lab.Client().hears(whenStarted("wk1/bring-up", func() { lab.pause("wk2", "someone works on it") }))
		const want = "roll/workers/wk2/gate: wk2 was paused since the plan was made: someone works on it"
		requireMessage(t, c.roll(planning.Policy{})(t.Context()), fault.Refused, want)
		requireSame(t, []string{"wk1"}, seen.order, "nodes that were out (-want +got)")
		requireSame(t, "nothing to do", lab.second().mustRoll(planning.Policy{}).Outcome, "outcome (-want +got)")
		requireDrift(t, lab, "wk2")
		lab.pause("wk2", "")
		lab.second().rollTo(t, planning.Policy{})
	})
}

// TestAControllerTakesANode: a node that Cluster API has taken over since the plan was made is not touched, and no
// command plans to; the others are rolled, and what was begun is finished.
func TestAControllerTakesANode(t *testing.T) {
	inLongLab(t, sim.Options{}, func(t *testing.T, lab *Lab) {
		const mark, its = "cluster.x-k8s.io/machine", "is of Cluster API (cluster.x-k8s.io/machine: wk-7), which creates and deletes its VM"
		lab.setRoll("canary: false")
		lab.Patch(sim.PatchedExtension)
		seen := lab.watchOutage()
		c := lab.Client().hears(whenStarted("wk1/bring-up", func() {
			lab.annotate("wk1", mark, "wk-6") // this one is out already
			lab.annotate("wk2", mark, "wk-7")
		}))
		requireMessage(t, c.roll(planning.Policy{})(t.Context()), fault.Refused, "roll/workers/wk2/gate: node wk2 "+its)
		lab.annotate("wk1", mark, "")
		_, errRemove := lab.second().Remove(t.Context(), "wk2")
		for name, err := range map[string]error{
			"roll":   lab.second().roll(planning.Policy{})(t.Context()),
			"remove": errRemove,
		} {
			require(t, fault.CodeOf(err) == fault.PlanRefused && strings.Contains(message(err), "wk2: it "+its),
				"%s: %v", name, err)
		}
		must(t, lab.second().roll(planning.Policy{Exclude: []string{"wk2"}})(t.Context()))
		lab.annotate("wk1", mark, "wk-7")
		err := lab.second().goBack("wk1")(t.Context())
		require(t, fault.CodeOf(err) == fault.PlanRefused && strings.Contains(message(err), "wk1: it "+its), "undo: %v", err)
		workers := slices.DeleteFunc(seen.order, func(n string) bool { return n == "cp1" })
		requireSame(t, []string{"wk1"}, workers, "workers that were out (-want +got)")
	})
}

func TestAPausedNodeIsFinished(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen("wk1/bring-up/create-vm")
		lab.pause("wk1", "someone works on it")
		lab.second().rollTo(t, planning.Policy{})
	})
}

// TestNodesOfOneHolder are never down at the same time, whatever the limits are.
func TestNodesOfOneHolder(t *testing.T) {
	o := func(most int) sim.Options { return sim.Options{Workers: 3, Holder: most == 1} }
	eachLongIn(t, o, map[string]int{"one holder": 1, "none": 3}, func(t *testing.T, lab *Lab, most int) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(sim.PatchedExtension)
		seen := lab.watchOutage()
		rep := lab.Client().mustRoll(planning.Policy{})
		require(t, seen.most == most, "%d were out at a time", seen.most)
		notes := strings.Join(rep.Plan.Work()[0].Notes, "\n") + "\n"
		require(t, strings.Contains(notes, "of wk2, wk3: they are never out at the same time\n") == (most == 1),
			"notes: %q", notes)
	})
}

// TestRollOfASavedPlan does what the plan says, and refuses it afterwards.
func TestRollOfASavedPlan(t *testing.T) {
	inLongLab(t, sim.Options{}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		saved := lab.save(policyFor("wk2"))
		must(t, lab.rollOf(saved))
		requireDrift(t, lab, "wk1")
		last := lab.status().LastRun
		require(t, strings.HasSuffix(last.ID, saved.RunSuffix()) && len(last.Took) == 1 && last.Took[0].OutageSeconds != 0,
			"%+v", last)
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		require(t, n.OutageFrom == "an earlier roll of workers" && n.OutageSeconds == last.Took[0].OutageSeconds, "%+v", n)
	})
}

// TestASavedPlanIsRefused if the world has changed, before anything is touched.
func TestASavedPlanIsRefused(t *testing.T) {
	long(t)
	type story struct {
		move func(*Lab)
		want string   // the reported difference
		out  []string // nodes that are out already
	}
	eachInLab(t, sim.Options{}, map[string]story{
		"a VM":          {func(l *Lab) { l.EditVM(9032, "tags", "new") }, "wk2: digest of the VM's configuration: ", nil},
		"the lock":      {func(l *Lab) { l.Patch(everywhere) }, "recast.lock: sha256-", nil},
		"an unfinished": {func(l *Lab) { l.rollKilledWhen("wk1/bring-up/create-vm") }, "wk1: left unfinished by run 20000101-0000-feed, which is not of this plan", []string{"wk1"}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("canary: false")
		lab.Patch(sim.PatchedExtension)
		saved := lab.save(planning.Policy{})
		s.move(lab)
		seen := lab.watchOutage()
		requireRefused(t, lab.rollOf(saved), ":\n  "+s.want)
		requireSame(t, s.out, seen.order, "nodes that were out (-want +got)")
	})
}

// killSaved kills a roll of a saved plan when a step whose path ends in at starts.
func (l *Lab) killSaved(saved *planning.Plan, at string) {
	l.t.Helper()
	c := l.Client()
	c.Saved = saved
	c.rollKilled(before(at), planning.Policy{})
}

// What a killed run of a saved plan has left at a node is not a difference: the node
// cordoned and drained, or an old system disk still to be freed. Without the journal a node's old system
// disk is put back first, since nothing else has its configuration; that is none either.
func TestASavedPlanResumesItsLeftovers(t *testing.T) {
	type story struct {
		roll, at string
		before   func(lab *Lab)
		lost     bool // the journal, and the second run is on another machine
	}
	eachLong(t, oneWorker(), map[string]story{
		"a drained node": {roll: "strategy: in-place", at: "wk1/upgrade/install"},
		"a disk to free": {roll: "strategy: recreate", at: "finish/free-scsi30", before: func(lab *Lab) {
			lab.Patch(sim.PatchedExtension)
			must(lab.t, lab.Client().roll(onlyWorker)(lab.t.Context()))
		}},
		"a drained node, elsewhere":             {roll: "strategy: recreate", at: "wk1/take-down/stop", lost: true},
		"disks on the parking VM, elsewhere":    {roll: "strategy: recreate", at: "wk1/take-down/delete-vm", lost: true},
		"no VM, elsewhere":                      {roll: "strategy: recreate", at: "wk1/bring-up/create-vm", lost: true},
		"half of the disks back, elsewhere":     {roll: "strategy: recreate", at: "wk1/bring-up/attach", lost: true},
		"a blank machine, elsewhere":            {roll: "strategy: recreate", at: "wk1/bring-up/configure", lost: true},
		"half of the disks, reimage, elsewhere": {roll: "strategy: reimage", at: "wk1/bring-up/attach", lost: true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("canary: false", c.roll)
		if c.before != nil {
			c.before(lab)
		}
		lab.Patch(everywhere)
		if c.lost {
			lab.loseJournal() // a plan says less of images whose locks are not there
		}
		saved := lab.save(onlyWorker)
		lab.killSaved(saved, c.at)
		if c.lost {
			lab.loseJournal()
		}
		must(t, lab.rollOf(saved))
		requireInSync(t, lab, "cp1")
	})
}

// A plan made with --accept-outage is rolled with it.
func TestASavedPlanAcceptsItsOutage(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 2, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "strategy: in-place")
		lab.Patch(everywhere)
		must(t, lab.rollOf(lab.save(planning.Policy{AcceptOutage: true})))
		requireDrift(t, lab)
	})
}

// A node that is up to date with its own build has not booted the new one.
func TestACanaryOfItsOwnBuild(t *testing.T) {
	inLab(t, sim.Options{Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.setRoll("maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(sim.PatchedExtension) // of the workers' schematic alone
		requireSame(t, []planning.Batch{
			{Phase: planning.Canary, Nodes: []string{"wk1"}, Limit: 1},
			{Phase: planning.Workers, Nodes: []string{"wk2", "wk3"}, Limit: 3},
		}, lab.plan(planning.Policy{}).Batches, "batches (-want +got)")
	})
}

func TestASavedPlanResumes(t *testing.T) {
	long(t)
	const withinRecreate, withinInPlace, between = "wk1/bring-up/create-vm", "wk1/wait-healthy", "wk2/gate"
	type story struct {
		strategy  cluster.Strategy
		at        string // where it is killed
		elsewhere bool
		told      bool // that a run of the plan has begun
	}
	// Nothing shows who has upgraded it.
	unknown := story{cluster.InPlace, between, true, false}
	eachInLab(t, sim.Options{}, storiesOf(
		story{cluster.Recreate, withinRecreate, false, false},
		// Its machine configuration is lost, so its old system disk is put back into the new VM, first.
		story{cluster.Recreate, withinRecreate, true, false},
		story{cluster.Recreate, between, false, false},
		story{cluster.Recreate, between, true, false},
		story{cluster.InPlace, withinInPlace, false, false},
		story{cluster.InPlace, withinInPlace, true, false},
		story{cluster.InPlace, between, false, false},
		unknown,
		story{cluster.InPlace, between, true, true},
	), func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("canary: false", "strategy: "+string(s.strategy))
		lab.Patch(sim.PatchedExtension)
		saved := lab.save(planning.Policy{})
		lab.killSaved(saved, s.at)
		again := lab.second()
		again.Saved, again.Elsewhere, again.Begun = saved, s.elsewhere, s.told
		if s.elsewhere {
			must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast", "runs")))
		}
		if s == unknown {
			requireRefused(t, again.roll(planning.Policy{})(t.Context()), "wk1: what is done: in-place → none")
			return
		}
		again.rollTo(t, planning.Policy{})
	})
}
