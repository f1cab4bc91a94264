package simtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
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

// TestCrash rolls a whole cluster in every way, kills the roll at points of every kind,
// runs it again, and compares the whole world with that of the undisturbed roll.
func TestCrash(t *testing.T) {
	longParts(t)
	chosen := wholes()
	if !*crashAll && *crashSlice == 0 {
		chosen = drawn(chosen, fewCombinations, *crashSeed, "")
	}
	for i, w := range chosen {
		for j, journal := range []string{"with-journal", "without-journal"} {
			if *crashSlice == 0 && !*crashAll && i%2 != j {
				continue
			}
			t.Run(w.String()+"/"+journal, func(t *testing.T) {
				t.Parallel()
				w.crashesEverywhere(t, j == 1)
			})
		}
	}
}

// drawn are n of a list, or all if there are fewer, in an order that depends on the seed and a name.
func drawn[E any](list []E, n int, seed uint64, name string) []E {
	var stream uint64
	for _, b := range []byte(name) {
		stream = stream*31 + uint64(b)
	}
	list = slices.Clone(list)
	rand.New(rand.NewPCG(seed, stream)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

// reference is the points and the final state of an undisturbed roll.
type reference struct {
	points  []point
	dump    string
	secrets *talosapi.Cluster // shared, so that two worlds can be compared
}

// crashed is a lab with a whole cluster to roll.
type crashed struct {
	*Lab
	members string // of etcd, before the roll
}

// crashesEverywhere kills the roll of a whole cluster and runs it again, with its journal or without.
func (w whole) crashesEverywhere(t *testing.T, lost bool) {
	var secrets *talosapi.Cluster // of the undisturbed world, which comes first
	var broken atomic.Int64
	t.Cleanup(func() { t.Attr("violations", strconv.FormatInt(broken.Load(), 10)) })
	killGrid[crashed]{
		begin: func(t *testing.T) crashed {
			o := w.options()
			o.Talos = secrets
			lab := New(t, o)
			l := crashed{lab, fmt.Sprint(lab.EtcdMembers())}
			undisturbed := secrets == nil
			if undisturbed {
				secrets = lab.Talos
				requireDrift(t, lab)
			}
			w.prepare(lab)
			if undisturbed {
				w.requirePlanned(t, lab)
			}
			return l
		},
		do:      rolls(planning.Policy{}),
		journal: true,
		broken:  &broken,
		goOn: func(t *testing.T, l crashed, _ point) bool {
			if lost {
				l.loseJournal()
			}
			_, more := l.finish(t, rolls(planning.Policy{}))
			broken.Add(int64(more))
			return false
		},
		end: func(t *testing.T, l crashed) string {
			requireInSync(t, l.Lab)
			requireMembers(t, l.Lab, l.members, w.etcdOnData || w.strategy.KeepsVM() || w.strategy == cluster.Reshape)
			broken.Add(int64(len(l.EtcdViolations())))
			return w.end(t, l.Lab)
		},
		choose: func(t *testing.T, points []point) []point {
			mustBe(t, len(points) >= 30, "an undisturbed roll has only %d points: %q", len(points), points)
			return chosenPoints(t, points)
		},
	}.killEverywhere(t)
}

// requirePlanned fails unless every node is to be rolled, in that way.
func (w whole) requirePlanned(t *testing.T, lab *Lab) {
	t.Helper()
	plan := lab.plan(planning.Policy{})
	mustBe(t, len(plan.Work()) == wholeNodes(), "plan %+v", plan)
	for _, n := range plan.Work() {
		require(t, n.Strategy == w.strategy, "%s was planned as %s: %s", n.Node, n.Strategy, n.Why)
	}
}

// end is the world in the end. A VM that was reshaped with its system disk leaves an empty parking VM, whose number
// depends on who was rolled first: a prune deletes it.
func (w whole) end(t *testing.T, lab *Lab) string {
	t.Helper()
	if w.strategy == cluster.Reshape || w.strategy == cluster.InPlace && w.shaped {
		_, err := lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks})
		must(t, err)
	}
	return lab.settledDump()
}

// everywhere is an extension that every node of the lab has.
const everywhere = "qemu-guest-agent"

// wholeNodes is the number of nodes in a whole cluster: three control planes and two workers, or one in a short run.
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

// prepare makes every node stale: of those that get another configuration, every second one reboots for it.
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
		require(t, !m.Learner, "%s is a learner still", m.Name)
	}
	requireSame(t, "cp1 cp2 cp3", strings.Join(names, " "), "members of etcd (-want +got)")
	after := fmt.Sprint(lab.EtcdMembers())
	require(t, !kept || after == before, "members of etcd: %s, before: %s", after, before)
	lab.requireEtcd()
}

// resumption is one node's replacement that is finished without the journal.
type resumption struct {
	strategy cluster.Strategy
	node     string
	at       moment
	answers  bool // the node answers at that moment: nothing secret is missing
	files    bool // the user keeps machine configurations in files
}

func (r resumption) String() string {
	where := "no-files"
	if r.files {
		where = "machineConfigs"
	}
	return fmt.Sprintf("%s/%s/%s/%s", r.strategy, r.node, r.at, where)
}

func (r resumption) prepare(lab *Lab) {
	lab.setRoll("strategy: " + string(r.strategy))
	lab.Patch(everywhere)
}

// lab is a lab with that node to roll.
func (r resumption) lab(t *testing.T, secrets *talosapi.Cluster) *Lab {
	o := threePlanes
	if r.node == "wk1" {
		o = oneWorker()
	}
	o.Talos = secrets
	lab := New(t, o)
	r.prepare(lab)
	return lab
}

// resumptions are the relevant points, for each strategy and role.
func resumptions() []resumption {
	var all []resumption
	for _, node := range []string{"wk1", "cp2"} {
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			add := func(answers bool, moments ...moment) {
				for _, m := range moments {
					all = append(all, resumption{s, node, m, answers, false}, resumption{s, node, m, answers, true})
				}
			}
			add(true, before("take-down/drain"), after("take-down/drain"))
			if node == "cp2" {
				add(true, onServer("EtcdLeaveCluster"), after("leave-etcd"))
			}
			add(false, after("take-down/stop"), after("park/scsi0"))
			switch {
			case s == cluster.Reimage:
				add(false, after("blank-disk"))
			case node == "wk1":
				add(false, after("park/efidisk0"), after("delete-vm"), after("create-vm"), after("attach/scsi1"))
			default:
				add(false, after("park/efidisk0"), after("delete-vm"), after("create-vm"))
			}
			add(false, before("bring-up/configure"))
			add(true, after("bring-up/configure"), before("finish/keep"))
		}
	}
	return all
}

// usual is the default slice: the most common case at points of every kind, and one or two of each other.
func (r resumption) usual() bool {
	var points []moment
	switch {
	case r.strategy == cluster.Recreate && r.node == "wk1" && !r.files:
		points = []moment{after("take-down/drain"), after("park/scsi0"), after("delete-vm"), after("attach/scsi1"), before("bring-up/configure"), before("finish/keep")}
	case r.strategy == cluster.Recreate && r.node == "wk1":
		points = []moment{after("delete-vm")}
	case r.strategy == cluster.Recreate && !r.files:
		points = []moment{onServer("EtcdLeaveCluster"), before("bring-up/configure")}
	case r.node == "wk1" && !r.files:
		points = []moment{after("blank-disk")}
	}
	return slices.Contains(points, r.at)
}

// TestResumeWithoutTheJournal kills a roll and finishes it without its journal: forward if nothing secret is missing,
// else through the old system disk, which has it. Either way the result is that of an undisturbed roll.
func TestResumeWithoutTheJournal(t *testing.T) {
	long(t)
	references := map[string]func() reference{}
	for _, r := range chosenKills(t, resumptions(), 1, resumption.usual) {
		key := string(r.strategy) + "/" + r.node
		if references[key] == nil {
			references[key] = sync.OnceValue(func() reference { return r.undisturbed(t) })
		}
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			ref := references[key]()
			synctest.Test(t, func(t *testing.T) { r.run(t, ref) })
		})
	}
}

func (r resumption) undisturbed(t *testing.T) (ref reference) {
	synctest.Test(t, func(t *testing.T) {
		lab := r.lab(t, nil)
		must(t, lab.Client().roll(policyFor(r.node))(t.Context()))
		ref = reference{dump: lab.settledDump(), secrets: lab.Talos}
	})
	return ref
}

func (r resumption) run(t *testing.T, ref reference) {
	lab := r.lab(t, ref.secrets)
	configs := lab.keptConfigs().read
	c := lab.Client()
	c.killedAt(t, r.at, c.roll(policyFor(r.node)))
	lab.loseJournal()
	time.Sleep(time.Minute)

	c = lab.Client()
	if r.files {
		c.MachineConfig = configs
	}
	forward := r.files || r.answers
	p := lab.planOf(c, r.node, policyFor(r.node))
	want := r.strategy
	if !forward {
		want = cluster.PutBack
	}
	putBack := strings.Contains(p.Why, "its machine configuration is nowhere but on the old system disk")
	require(t, p.Strategy == want && p.Resume && strings.Contains(p.Why, "run 20000101-0000-feed began to "+string(r.strategy)+" it") && putBack != forward,
		"planned as %s, want %s: %s", p.Strategy, want, p.Why)
	rep := c.mustRoll(policyFor(r.node))
	got := strings.Join(rep.Resumed, " ")
	require(t, got == "20000101-0000-feed" && rep.Outcome != "", "resumed %q, outcome %q", got, rep.Outcome)
	lab.RequireIntact()
	requireSame(t, ref.dump, lab.settledDump(), "the world differs from an undisturbed one")
	requireDrift(t, lab, lab.others(r.node)...)
	v := lab.EtcdViolations()
	require(t, len(v) == 0 || r.node == "wk1", "etcd: %q", v)
}

// TestResumeAfterTheLockMovedOn finishes, with a new lock, what was begun with the previous one: with its own build
// if that lock is still known here, else through the old system disk. Then the node is rolled to the new one.
func TestResumeAfterTheLockMovedOn(t *testing.T) {
	type story struct {
		at      moment
		journal bool
		why     string
	}
	eachLong(t, oneWorker(), map[string]story{
		"the past lock is here":                     {after("delete-vm"), true, "did not finish"},
		"the past lock is lost":                     {after("delete-vm"), false, "is in no lock that is here"},
		"the past lock is lost, the new build runs": {before("finish/keep"), false, "is in no lock that is here"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		first := lab.Client()
		first.killedAt(t, c.at, first.roll(planning.Policy{}))
		lab.Patch(sim.PatchedExtension)
		if !c.journal {
			lab.loseJournal()
		}
		second := lab.as("20000101-0000-beef")
		p := lab.planOf(second, "wk1", planning.Policy{})
		require(t, p.Resume && strings.Contains(p.Why, c.why), "plan: %s: %s", p.Strategy, p.Why)
		rep := second.mustRoll(planning.Policy{})
		requireSame(t, second.Run, rep.Run, "the run (-want +got)")
		requireSame(t, []string{first.Run}, rep.Resumed, "what it resumed (-want +got)")
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}

// interrupter presses Ctrl-C when a worker's step starts, and records which nodes had begun by then.
type interrupter struct {
	at    int // counted over the steps of all workers, from 1
	press func()

	mu      sync.Mutex
	steps   int
	pressed string   // the step
	begun   []string // nodes whose branch had started by then
}

func (i *interrupter) emit(e step.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	rest, ofWorker := strings.CutPrefix(e.Path, "roll/workers/")
	if e.Status != step.Started || !ofWorker || strings.HasSuffix(e.Path, "/pull") { // it runs early, and is interrupted
		return
	}
	i.steps++
	if node, _, inside := strings.Cut(rest, "/"); !inside && i.pressed == "" {
		i.begun = append(i.begun, node)
	}
	if i.steps == i.at {
		i.pressed = e.Path
		i.press()
	}
}

// moments are a selection of the steps of a roll of two workers at a time, by seed.
func moments(salt uint64) []int {
	const stepsOfTwo = 60
	all := rand.New(rand.NewPCG(*crashSeed, salt)).Perm(stepsOfTwo)
	return []int{1, 2 + all[0], 2 + all[1]}
}

// twoAtATime rolls three workers, two at a time, and calls press at one of the steps.
func twoAtATime(ctx context.Context, lab *Lab, at int, press func(c *Client)) (*interrupter, pipeline.Report, error) {
	lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
	lab.Patch(sim.PatchedExtension)
	c := lab.Client()
	i := &interrupter{at: at, press: func() { press(c) }}
	c.Emit = i.emit
	rep, err := c.Roll(ctx, planning.Policy{})
	return i, rep, err
}

// TestCtrlCOnce finishes the nodes in progress, and starts no other.
func TestCtrlCOnce(t *testing.T) {
	eachLong(t, sim.Options{Workers: 3}, storiesOf(moments(1)...), func(t *testing.T, lab *Lab, at int) {
		seen := lab.watchOutage()
		press, rep, err := twoAtATime(t.Context(), lab, at, func(c *Client) { c.Runner.Stop() })
		requireFault(t, err, fault.Interrupted, "stopped; not started: roll/workers/wk")
		require(t, strings.Contains(rep.Outcome, "stopped; not started: "), "outcome %q", rep.Outcome)
		stale := slices.DeleteFunc([]string{"wk1", "wk2", "wk3"}, func(node string) bool { return slices.Contains(press.begun, node) })
		requireDrift(t, lab, stale...)
		slices.Sort(press.begun)
		slices.Sort(seen.order)
		requireSame(t, press.begun, seen.order, "pressed at %s: nodes that had begun, and that were out", press.pressed)
		requireNoClaim(t, lab)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
	})
}

// TestCtrlCTwice stops a roll of two workers at a time at once; the next one finishes it.
func TestCtrlCTwice(t *testing.T) {
	eachLong(t, sim.Options{Workers: 3}, storiesOf(moments(2)...), func(t *testing.T, lab *Lab, at int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var pressed time.Time
		press, _, err := twoAtATime(ctx, lab, at, func(c *Client) { c.Runner.Stop(); cancel(); pressed = time.Now() })
		took := time.Since(pressed)
		require(t, fault.KindOf(err) == fault.Interrupted && took <= 15*time.Second,
			"pressed at %s: after %s: %v", press.pressed, took, err)
		requireNoClaim(t, lab)
		// Proxmox and the machines continue what they were told to do.
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		for _, n := range lab.Nodes {
			lab.requireServing(n.Name)
		}
	})
}

func TestKillsAreCounted(t *testing.T) {
	t.Parallel()
	require(t, !byKill(errors.New("the disk is full")) && !byKill(nil) && byKill(errors.Join(errors.New("x"), context.Canceled)),
		"byKill takes another error for a kill")
	names := []string{"a", "b", "a", beat + "1", beat + "1", beat + "1", "c"}
	want := []point{{"a", 1, 1}, {"b", 1, 2}, {"a", 2, 3}, {beat + "1", 1, 4}, {beat + "1", 2, 5}, {"c", 1, 6}}
	got := pointsOf(names)
	require(t, slices.Equal(got, want), "points %+v, want %+v", got, want)
}
