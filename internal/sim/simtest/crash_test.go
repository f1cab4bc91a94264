package simtest

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

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
	requireSame(t, ref.dump, c.end(t, lab), "killed at %s: the world differs from an undisturbed one", at)
	res, err := lab.Client().Drift(t.Context())
	if err != nil || !res.InSync {
		t.Errorf("killed at %s: drift after all: %+v, %v", at, res, err)
	}
	requireMembers(t, lab, members, c.keepsEtcd())
	return violations + more + len(lab.EtcdViolations())
}

// everywhere is an extension that every node of the lab has.
const everywhere = "qemu-guest-agent"

// wholeNodes is the number of nodes in a whole cluster: three control planes and two
// workers, or one in a short run.
func wholeNodes() int {
	if testing.Short() {
		return 4
	}
	return 5
}

// whole is such a cluster, and how to roll it.
type whole struct {
	strategy   cluster.Strategy
	etcdOnData bool // etcd's data is on persistent disks
	holder     bool // data disks belong to a data VM
	shaped     bool // the VMs get another shape, too
}

func (w whole) String() string {
	where, owner := "etcd-on-system-disk", "owned"
	if w.etcdOnData {
		where = "etcd-on-data-disk"
	}
	if w.holder {
		owner = "holder"
	}
	if w.shaped {
		owner += "/shaped"
	}
	return fmt.Sprintf("%s/%s/%s", w.strategy, where, owner)
}

func (w whole) options() sim.Options {
	return sim.Options{ControlPlanes: 3, Workers: wholeNodes() - 3, EtcdOnData: w.etcdOnData, Holder: w.holder}
}

// keepsEtcd says whether the members of etcd stay the same.
func (w whole) keepsEtcd() bool {
	return w.etcdOnData || w.strategy.KeepsVM() || w.strategy == cluster.Reshape
}

// prepare makes every node stale: of those that get another configuration, every second one
// reboots for it.
func (w whole) prepare(lab *Lab) {
	if w.shaped {
		lab.shapeAll("memory: 6144, cores: 3, tags: [talos]", "disks: [{slot: scsi1, size: 25G, cache: writeback}]")
	}
	if w.strategy == cluster.Reshape {
		return
	}
	if w.strategy == cluster.ApplyConfig {
		files := lab.keptConfigs()
		for i, n := range lab.Nodes {
			files.set(lab.t, n.Name, []string{noReboot, needsReboot}[i%2])
		}
		lab.MachineConfig = files.read
		return
	}
	lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(w.strategy)+"\n")
	lab.Patch(everywhere)
}

func wholes() []whole {
	var all []whole
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace} {
		for _, etcdOnData := range []bool{false, true} {
			for _, holder := range []bool{false, true} {
				all = append(all, whole{strategy: s, etcdOnData: etcdOnData, holder: holder})
			}
		}
	}
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.Reshape} {
		all = append(all, whole{strategy: s, shaped: true})
	}
	return append(all, whole{strategy: cluster.ApplyConfig})
}

// requireMembers compares etcd with its earlier state: IDs too if its data was kept.
func requireMembers(t *testing.T, lab *Lab, before string, kept bool) {
	t.Helper()
	var names []string
	for _, m := range lab.EtcdMembers() {
		names = append(names, m.Name)
		if m.Learner {
			t.Errorf("%s is a learner still", m.Name)
		}
	}
	if got := strings.Join(names, " "); got != "cp1 cp2 cp3" {
		t.Errorf("members of etcd: %s", got)
	}
	if after := fmt.Sprint(lab.EtcdMembers()); kept && after != before {
		t.Errorf("members of etcd: %s, before: %s", after, before)
	}
	lab.requireEtcd()
}
