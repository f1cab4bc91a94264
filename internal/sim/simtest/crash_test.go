package simtest

import (
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline"
)

var (
	crashAll   = flag.Bool("crash.all", false, "kill every combination at every point")
	crashSeed  = flag.Uint64("crash.seed", 1, "which slice")
	crashSlice = flag.Int("crash.slice", 0, "kill every combination at so many points; 0: one of them at one point")
)

// fewCombinations is the number of combinations without a requested slice: each costs make
// test four rolls of a whole cluster.
const fewCombinations = 1

// oneWorker is the smallest lab with something to roll.
func oneWorker() sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1} }

// reference is the points and the final state of an undisturbed roll.
type reference struct {
	points  []point
	dump    string
	secrets *talosapi.Cluster // shared, so that two worlds can be compared
}

// crash is a roll of a whole cluster that is killed and run again, with its journal or
// without.
type crash struct {
	whole
	journal bool
}

func (c crash) String() string {
	journal := "without-journal"
	if c.journal {
		journal = "with-journal"
	}
	return c.whole.String() + "/" + journal
}

// TestCrash rolls a whole cluster in every way, kills the roll at points of every kind,
// runs it again, and compares the whole world with that of the undisturbed roll.
func TestCrash(t *testing.T) {
	longParts(t)
	for i, w := range chosenWholes() {
		undisturbed := sync.OnceValue(func() reference { return undisturbed(t, w) })
		for j, journal := range []bool{true, false} {
			if *crashSlice == 0 && !*crashAll && i%2 != j {
				continue
			}
			c := crash{w, journal}
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				ref := undisturbed()
				if len(ref.points) < 30 {
					t.Fatalf("an undisturbed roll has only %d points: %q", len(ref.points), ref.points)
				}
				violations := 0
				for _, at := range chosenPoints(t, ref.points) {
					t.Run(strconv.Itoa(at.at), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { violations += c.at(t, at, ref) })
					})
				}
				t.Attr("violations", strconv.Itoa(violations))
			})
		}
	}
}

func chosenWholes() []whole {
	if *crashAll || *crashSlice > 0 {
		return wholes()
	}
	return drawn(wholes(), fewCombinations, *crashSeed, "")
}

// undisturbed rolls a whole cluster and checks the result.
func undisturbed(t *testing.T, w whole) (ref reference) {
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, w.options())
		requireDrift(t, lab)
		members := fmt.Sprint(lab.EtcdMembers())
		w.prepare(lab)
		plan, err := lab.Client().Plan(t.Context(), planning.Policy{})
		if err != nil || len(plan.Work()) != wholeNodes() {
			t.Fatalf("plan %+v, %v", plan, err)
		}
		for _, n := range plan.Work() {
			if n.Strategy != w.strategy {
				t.Errorf("%s was planned as %s: %s", n.Node, n.Strategy, n.Why)
			}
		}
		points, _ := lab.finish(t, rolls(planning.Policy{}))
		requireInSync(t, lab)
		requireMembers(t, lab, members, w.keepsEtcd())
		ref = reference{points, w.end(t, lab), lab.Talos}
	})
	return ref
}

// end is the world in the end. A VM that was reshaped with its system disk leaves an empty parking VM, whose number depends
// on who was rolled first: a prune deletes it.
func (w whole) end(t *testing.T, lab *Lab) string {
	t.Helper()
	if w.strategy == cluster.Reshape || w.strategy == cluster.InPlace && w.shaped {
		_, err := lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks})
		must(t, err)
	}
	return lab.settledDump()
}

// at kills the roll at a point and returns the number of broken promises.
func (c crash) at(t *testing.T, at point, ref reference) (violations int) {
	o := c.options()
	o.Talos = ref.secrets
	lab := New(t, o)
	c.prepare(lab)
	members := fmt.Sprint(lab.EtcdMembers())
	violations = lab.diesAt(t, at, rolls(planning.Policy{}))
	if !c.journal {
		lab.loseJournal()
	}
	_, more := lab.finish(t, rolls(planning.Policy{}))
	if diff := cmp.Diff(ref.dump, c.end(t, lab)); diff != "" {
		t.Errorf("killed at %s: the world differs from an undisturbed one:\n%s", at, diff)
	}
	res, err := lab.Client().Drift(t.Context())
	if err != nil || !res.InSync {
		t.Errorf("killed at %s: drift after all: %+v, %v", at, res, err)
	}
	requireMembers(t, lab, members, c.keepsEtcd())
	return violations + more + len(lab.EtcdViolations())
}
