package simtest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

var (
	crashAll   = flag.Bool("crash.all", false, "kill every combination at every point")
	crashSeed  = flag.Uint64("crash.seed", 1, "which slice")
	crashSlice = flag.Int("crash.slice", 0, "kill every combination at so many points; 0: one of them at one point")
)

// fewCombinations is their number without a requested slice: each costs make test four rolls of a whole cluster.
const fewCombinations = 1

func oneWorker() sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1} }

// Wherever the roll of a whole cluster is killed, the next run makes the same world as an undisturbed roll.
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

type reference struct {
	dump    string
	secrets *talosapi.Cluster // shared, so that two worlds can be compared
}

type crashed struct {
	*Lab
	members string // of etcd, before the roll
}

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

func (w whole) requirePlanned(t *testing.T, lab *Lab) {
	t.Helper()
	plan := lab.plan(planning.Policy{})
	mustBe(t, len(plan.Work()) == wholeNodes(), "plan %+v", plan)
	for _, n := range plan.Work() {
		require(t, n.Strategy == w.strategy, "%s was planned as %s: %s", n.Node, n.Strategy, n.Why)
	}
}

// end is the world in the end, without empty parking VMs of reshaped VMs: their numbers depend on who was rolled first.
func (w whole) end(t *testing.T, lab *Lab) string {
	t.Helper()
	if w.strategy == cluster.Reshape || w.strategy == cluster.InPlace && w.shaped {
		_, err := lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks})
		must(t, err)
	}
	return lab.settledDump()
}

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
	requireSame(t, controlPlanes, lab.memberNames(), "members of etcd (-want +got)")
	requireSame(t, 3, len(lab.memberIDs()), "members that vote (-want +got)")
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

// Without its journal a roll goes on if nothing secret is missing, else through the old system disk, which has it.
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
	putBack := strings.Contains(p.Why, "its machine configuration is only on the old system disk")
	require(t, p.Strategy == want && p.Resume && strings.Contains(p.Why, "run 20000101-0000-feed began to "+string(r.strategy)+" it") && putBack != forward,
		"planned as %s, want %s: %s", p.Strategy, want, p.Why)
	rep := c.mustRoll(policyFor(r.node))
	requireSame(t, []string{"20000101-0000-feed"}, rep.Resumed, "resumed (-want +got)")
	require(t, rep.Outcome != "", "no outcome: %+v", rep)
	lab.RequireIntact()
	requireSame(t, ref.dump, lab.settledDump(), "the world differs from an undisturbed one")
	requireDrift(t, lab, lab.others(r.node)...)
	v := lab.EtcdViolations()
	require(t, len(v) == 0 || r.node == "wk1", "etcd: %q", v)
}

// What was begun with an earlier lock is finished with its build, or by the old system disk; then comes a new one.
func TestResumeAfterTheLockMovedOn(t *testing.T) {
	type story struct {
		at      moment
		journal bool
		why     string
	}
	eachLong(t, oneWorker(), map[string]story{
		"the past lock is here":                     {after("delete-vm"), true, "did not finish"},
		"the past lock is lost":                     {after("delete-vm"), false, "no lock here has its build"},
		"the past lock is lost, the new build runs": {before("finish/keep"), false, "no lock here has its build"},
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

const claimVM = 9000

type rolled struct {
	err  error
	took time.Duration
}

func inRoll(ctx context.Context, c *Client, policy planning.Policy) <-chan rolled {
	ended := make(chan rolled, 1)
	go func() {
		start := time.Now()
		err := c.roll(policy)(ctx)
		ended <- rolled{err, time.Since(start)}
	}()
	return ended
}

func (l *Lab) second() *Client { return l.as("20000101-0000-beef") }

func (l *Lab) token(user, role string) cluster.Secret {
	const secret = "5ec0ffee-1ab0-4000-8000-000000000003"
	id := user + "@pve!lab"
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	for _, who := range []string{user + "@pve", id} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: role, Propagate: true})
	}
	return cluster.Secret(id + "=" + secret)
}

// otherToken is another token of recast's user.
func (l *Lab) otherToken() cluster.Secret {
	const id, secret = "recast@pve!other", "5ec0ffee-1ab0-4000-8000-000000000004"
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	l.World.Grant(world.ACL{Path: "/", Who: id, Role: "Recast", Propagate: true})
	return cluster.Secret(id + "=" + secret)
}

func requireNoClaim(t *testing.T, lab *Lab) {
	t.Helper()
	for _, vm := range lab.World.VMs() {
		require(t, !survey.IsClaim(cluster.VM{Config: vm.Config}), "VM %d is still a claim: %v", vm.ID, vm.Config)
	}
}

// atPrompt starts a roll and returns at its confirmation; answer confirms it.
func atPrompt(t *testing.T, ctx context.Context, c *Client) (answer func() rolled) {
	t.Helper()
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.confirms(func(planning.Plan) {
		once.Do(func() { close(asked) })
		<-goOn
	})
	ended := inRoll(ctx, c, planning.Policy{})
	select {
	case <-asked:
	case r := <-ended:
		t.Fatalf("the roll ended before it asked: %v", r.err)
	}
	return func() rolled {
		close(goOn)
		return <-ended
	}
}

// Of two rolls at the same time, or nearly, also from recast.yamls with different proxmox.vmids, one does everything.
func TestTwoRollsAtOnce(t *testing.T) {
	type story struct {
		token, file bool // the second one has its own
		late        time.Duration
	}
	eachLong(t, sim.Options{Workers: 2}, map[string]story{
		"the same token":     {},
		"two tokens":         {token: true},
		"two files":          {token: true, file: true},
		"two files, 1s late": {token: true, file: true, late: time.Second},
		"5s late":            {token: true, file: true, late: 5 * time.Second},
		"30s late":           {token: true, file: true, late: 30 * time.Second},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		clients, vmids := []*Client{lab.Client(), lab.second()}, []string{}
		if s.file {
			clients[1], vmids = lab.withRange("9100-9199"), []string{"9000-9099", "9100-9199"}
		}
		if s.token {
			clients[1].Token = lab.otherToken()
		}
		var ended []<-chan rolled
		for i, c := range clients {
			time.Sleep(time.Duration(i) * s.late)
			ended = append(ended, inRoll(t.Context(), c, planning.Policy{}))
		}
		var lost []string
		for i, e := range ended {
			r := <-e
			if r.err == nil {
				continue
			}
			token, _, _ := strings.Cut(string(clients[i].Token), "=")
			lost = append(lost, token)
			requireFault(t, r.err, fault.Claimed, append(vmids, "held by run "+clients[1-i].Run)...)
			require(t, len(fault.Hints(r.err)) != 0 && r.took <= time.Minute, "hints %q after %s", fault.Hints(r.err), r.took)
		}
		mustBe(t, len(lost) == 1, "%d rolls lost", len(lost))
		for _, task := range lab.World.Tasks() {
			if s.token && !s.file && task.User == lost[0] { // with a file of its own it makes and deletes a claim
				t.Errorf("the loser had Proxmox do %s %s", task.Type, task.ID)
			}
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASecondRollChangesNothing rolls while another user looks at a plan.
func TestASecondRollChangesNothing(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"the same token": false, "two tokens": true}, func(t *testing.T, lab *Lab, otherToken bool) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.second()
		if otherToken {
			second.Token = lab.otherToken()
		}
		answer := atPrompt(t, t.Context(), first)
		before := len(lab.Recorder.Calls())
		requireFault(t, second.roll(planning.Policy{})(t.Context()), fault.Claimed, "held by run "+first.Run+" (pid ")
		beats := 0
		for _, call := range lab.Recorder.Calls()[before:] {
			switch {
			case !call.Mutation:
			case strings.Contains(call.Path, fmt.Sprintf("/qemu/%d/config", claimVM)) && strings.Contains(call.Params["description"], first.Run):
				beats++
			default:
				t.Errorf("%s %s %s %v was sent", call.Proto, call.Method, call.Path, call.Params)
			}
		}
		require(t, beats != 0, "the first run's claim has not beaten")
		must(t, answer().err)
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTakeOver rolls after the holder of the claim was killed.
func TestTakeOver(t *testing.T) {
	type story struct {
		elsewhere       bool
		atLeast, atMost time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"on the same machine": {false, 0, 5 * time.Second},
		"on another machine":  {true, 90 * time.Second, 105 * time.Second},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, second := lab.Client(), lab.second()
		killed := atPrompt(t, ctx, first)
		first.Kill()
		cancel()
		var asked time.Time
		second.Elsewhere = c.elsewhere
		second.Confirm = func(planning.Plan) (bool, error) { asked = time.Now(); return true, nil }
		start := time.Now()
		must(t, second.roll(planning.Policy{})(t.Context()))
		// The images exist already: the time until the plan is due to the claim alone.
		require(t, asked.Sub(start) >= c.atLeast && asked.Sub(start) <= c.atMost, "taken over after %s", asked.Sub(start))
		require(t, killed().err != nil, "the killed roll says that it succeeded")
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASlowHolderKeepsItsClaim delays every answer of Proxmox to the first run, so that its counter changes rarely.
func TestASlowHolderKeepsItsClaim(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.second()
		second.Elsewhere, second.Token = true, lab.otherToken()
		answer := atPrompt(t, t.Context(), first)
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && !strings.HasPrefix(c.User, "other@") {
				time.Sleep(1500 * time.Millisecond)
			}
			return nil
		}, nil)
		defer lab.Recorder.Hooks(nil, nil)
		for range 3 {
			requireFault(t, second.roll(planning.Policy{})(t.Context()), fault.Claimed, "held by run "+first.Run)
			time.Sleep(20 * time.Second)
		}
		lab.Recorder.Hooks(nil, nil)
		must(t, answer().err)
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTheClaimEndsWithItsRun checks that runs that ended badly leave no claim. Before the first node, none is touched.
func TestTheClaimEndsWithItsRun(t *testing.T) {
	type story struct {
		kind    fault.Kind
		touches bool // a node
		spoil   func(lab *Lab, c *Client, cancel context.CancelFunc)
	}
	confirm := func(yes bool, meanwhile func(c *Client, cancel context.CancelFunc)) story {
		return story{fault.Interrupted, false, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) {
				meanwhile(c, cancel)
				return yes, nil
			}
		}}
	}
	eachLong(t, oneWorker(), map[string]story{
		"a failure": {fault.Failed, true, func(lab *Lab, _ *Client, _ context.CancelFunc) {
			lab.World.FailNext("qmshutdown", "no")
			lab.World.FailNext("qmstop", "no")
		}},
		"a declined plan":              confirm(false, func(*Client, context.CancelFunc) {}),
		"Ctrl-C at the prompt":         confirm(false, func(_ *Client, cancel context.CancelFunc) { cancel() }),
		"Ctrl-C before the first node": confirm(true, func(c *Client, _ context.CancelFunc) { c.Runner.Stop() }),
		"Ctrl-C twice": {fault.Interrupted, true, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("wk1/take-down/park", func() { c.Runner.Stop(); cancel() })
		}},
		"Ctrl-C while images are made": {fault.Interrupted, false, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("publish", cancel)
		}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, from := lab.Client(), len(lab.Recorder.Calls())
		s.spoil(lab, first, cancel)
		requireFault(t, first.roll(planning.Policy{})(ctx), s.kind)
		if !s.touches {
			requireNone(t, changesOfNodes(lab.Recorder.Calls()[from:]), "sent")
		}
		requireNoClaim(t, lab)
		lab.second().rollTo(t, planning.Policy{})
		requireNoClaim(t, lab)
	})
}

// poorToken makes a token that may read everything and change no VM.
func (l *Lab) poorToken() cluster.Secret {
	l.World.AddRole("Look", "Sys.Audit", "VM.Audit", "Datastore.Audit")
	return l.token("poor", "Look")
}

// A token that may not make VMs rolls in place, while another one tries to roll, too.
func TestRollWithAClaimInKubernetes(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		answer := atPrompt(t, t.Context(), c)
		status := lab.status()
		require(t, status.Claim != nil && status.Claim.Run == c.Run && status.Claim.Lease == "kube-system/recast",
			"status: %+v", status.Claim)
		requireFault(t, lab.second().roll(planning.Policy{})(t.Context()), fault.Claimed, "(Lease kube-system/recast)") // its token may make VMs
		must(t, answer().err)
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		for _, task := range lab.World.Tasks() {
			require(t, task.User != "poor@pve!lab", "Proxmox did %s %s for it", task.Type, task.ID)
		}
		require(t, lab.status().Claim == nil, "the claim is there afterwards")
	})
}

// TestClaimInKubernetesOfAKilledRun: the claim is taken over by the same token, and removed by one that may make VMs.
func TestClaimInKubernetesOfAKilledRun(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, map[string]bool{"by the same": true, "by one that may make VMs": false}, func(t *testing.T, lab *Lab, poor bool) {
		lab.Patch(everywhere)
		lab.inPlace()
		c, next := lab.Client(), lab.second()
		c.Token = lab.poorToken()
		c.killedAt(t, onServer("/Reboot"), c.roll(planning.Policy{}))
		if poor {
			next.Token = c.Token
		}
		next.rollTo(t, planning.Policy{})
		requireNoClaim(t, lab)
		require(t, lab.status().Claim == nil, "the claim is there afterwards")
	})
}

// TestLeaseOfTheOnlyControlPlane: the roll is refused, because its claim would be lost with the API.
func TestLeaseOfTheOnlyControlPlane(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), "which is lost with the only control plane")
		must(t, c.roll(onlyWorker)(t.Context()))
		requireNoClaim(t, lab)
	})
}

// elsewhere is a client on another machine: with the same files but no journal.
func (l *Lab) elsewhere() *Client {
	l.t.Helper()
	c := l.second()
	c.Elsewhere, c.Dir = true, l.t.TempDir()
	must(l.t, os.CopyFS(c.Dir, os.DirFS(l.Dir)))
	must(l.t, os.RemoveAll(filepath.Join(c.Dir, ".recast", "runs")))
	return c
}

func (l *Lab) seize(from, by string) {
	l.t.Helper()
	vm := l.vm(claimVM)
	l.EditVM(claimVM, "description", strings.ReplaceAll(vm.Config["description"], from, by))
}

// changesOfNodes are the changing requests to machines, to their VMs and to Nodes.
func changesOfNodes(calls []record.Call) []string {
	claim := strconv.Itoa(claimVM)
	var out []string
	for _, c := range calls {
		images := c.Proto == "factory" || c.Proto == "registry" || strings.Contains(c.Path, "/storage/")
		ofClaim := c.Params["vmid"] == claim || strings.Contains(c.Path, "/qemu/"+claim)
		if c.Mutation && !images && !ofClaim && !ofScratch(c) {
			out = append(out, strings.TrimSpace(c.Proto+" "+c.Method+" "+c.Path))
		}
	}
	return out
}

// withoutPulls removes image pulls, which are requested before the node's turn, while it serves.
func withoutPulls(changes []string) []string {
	return slices.DeleteFunc(changes, func(c string) bool { return c == "talos /machine.ImageService/Pull" })
}

// A run that loses its claim at any of its steps changes nothing more, runs no hook, ends soon and says why.
func TestALostClaim(t *testing.T) {
	for s, steps := range map[cluster.Strategy][]string{
		cluster.Recreate: {
			"gate", "take-down/remember", "take-down/drain", "take-down/stop", "take-down/park/scsi0", "bring-up/create-vm", "bring-up/start",
			"bring-up/configure", "bring-up/wait-healthy", "bring-up/finish/eject", "bring-up/finish/restore-node", "bring-up/finish/uncordon",
		},
		cluster.InPlace: {"pull", "upgrade/install", "upgrade/reboot", "finish/set-installer", "finish/uncordon"},
	} {
		eachLong(t, oneWorker(), storiesOf(steps...), func(t *testing.T, lab *Lab, at string) {
			strategy(s)(lab)
			c, hooks := withHooks(lab, nil)
			var lost time.Time
			seized, ran := 0, 0
			var late []string
			lab.Recorder.Hooks(nil, func(call record.Call) {
				if call.Mutation && !lost.IsZero() && time.Since(lost) > time.Second {
					late = append(late, fmt.Sprint(time.Since(lost), call.Proto, call.Method, call.Path))
				}
			})
			c.Emit = whenStarted("wk1/"+at, func() {
				lab.seize(c.Run, "20000101-0000-face")
				lost, seized, ran = time.Now(), len(lab.Recorder.Calls()), len(hooks.ran)
			})
			rep, err := c.Roll(t.Context(), planning.Policy{})
			mustBe(t, !lost.IsZero(), "the roll never came to that step: %v", err)
			requireFault(t, err, fault.Claimed, "lost the claim of cluster lab: to run 20000101-0000-face")
			require(t, fault.CodeOf(err) == fault.ClaimLost && rep.Code == fault.ClaimLost && strings.Contains(rep.Outcome, "lost the claim"),
				"code %s, outcome %s", fault.CodeOf(err), rep.Outcome)
			requireTook(t, lost, 0, 20*time.Second)
			requireNone(t, append(changesOfNodes(lab.Recorder.Calls()[seized:]), late...), "after the claim was lost")
			requireNone(t, hooks.ran[ran:], "hooks after the claim was lost")
			lab.Recorder.Hooks(nil, nil)
			// The new holder is dead: nothing has beaten for it.
			hooks.next(lab).rollTo(t, planning.Policy{})
			requireNoClaim(t, lab)
		})
	}
}

// A run that loses its claim before it uploads an image sends none. One that loses it meanwhile ends the upload, and sends no
// other, also where the answer is lost.
func TestALostClaimEndsAPublish(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf("before", "meanwhile", "lost answer"), func(t *testing.T, lab *Lab, when string) {
		lab.Replace("recast.yaml", "iso: {storage", "iso: {delivery: upload, storage")
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		seize := func() { lab.seize(c.Run, "20000101-0000-face") }
		uploads := func(call record.Call) bool { return call.Method == "POST" && strings.HasSuffix(call.Path, "/upload") }
		want := 1
		if when == "before" {
			c.Emit, want = whenStarted("upload-isos", seize), 0
		}
		lab.Recorder.Hooks(func(call record.Call) error {
			switch {
			case !uploads(call):
				return nil
			case when == "lost answer":
				seize()
				return io.ErrUnexpectedEOF
			case when == "meanwhile":
				seize()
			}
			time.Sleep(time.Minute)
			return nil
		}, nil)
		began := time.Now()
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Claimed, "upload to storage isos: ", "lost the claim of cluster lab: to run 20000101-0000-face")
		requireTook(t, began, 0, 30*time.Second)
		requireSame(t, want, len(lab.sent(0, uploads)), "uploads (-want +got)")
		requireNone(t, changesOfNodes(lab.Recorder.Calls()), "after the claim was lost")
	})
}

// A run that waits for a PodDisruptionBudget and loses its claim ends with its next heartbeat, and leaves the node.
func TestALostClaimEndsADrain(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.Budget(0)
		c := lab.Client()
		draining := make(chan struct{})
		c.Emit = whenStarted("take-down/drain", func() { close(draining) })
		ended := inRoll(t.Context(), c, planning.Policy{})
		<-draining
		time.Sleep(time.Minute)
		lab.seize(c.Run, "20000101-0000-face")
		seized := time.Now()
		requireFault(t, (<-ended).err, fault.Claimed, "take-down/drain: drain wk1: lost the claim")
		requireTook(t, seized, 0, 20*time.Second)
		lab.Budget(1)
		lab.second().rollTo(t, planning.Policy{})
		requireNoClaim(t, lab)
	})
}

// TestANetworkThatComesBack cuts a run off until another one has taken over, and then reconnects it.
func TestANetworkThatComesBack(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf("take-down/drain", "bring-up/attach", "bring-up/finish"), func(t *testing.T, lab *Lab, at string) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.elsewhere()
		second.Token = lab.otherToken()
		cut := make(chan struct{})
		first.Emit = whenStarted("wk1/"+at, func() { first.Cut(); close(cut) })
		ended := inRoll(t.Context(), first, planning.Policy{})
		<-cut
		finished := inRoll(t.Context(), second, planning.Policy{})
		time.Sleep(2 * time.Minute)
		first.Mend()
		mended := len(lab.Recorder.Calls())
		require(t, (<-ended).err != nil, "the run that was cut off says that it succeeded")
		must(t, (<-finished).err)
		token, _, _ := strings.Cut(string(first.Token), "=")
		ofFirst := func(c record.Call) bool { return c.Mutation && c.Proto == "proxmox" && c.User == token }
		requireNone(t, lab.sent(mended, ofFirst), "the first run sent")
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

func (l *Lab) withRange(vmids string) *Client {
	l.t.Helper()
	return valueOf(l.WithRange(filepath.Join(l.t.TempDir(), "other"), vmids))(l.t)
}

// Only its own recast.yaml finishes what a run with other proxmox.vmids began; status reports that with any.
func TestUnfinishedWorkOfAnotherFile(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		other, me := lab.withRange("9100-9199"), lab.Client()
		other.killedAt(t, before("take-down/park/scsi1"), other.roll(planning.Policy{}))
		refused := func(wants ...string) {
			t.Helper()
			before := lab.Recorder.Mutations()
			err := me.roll(planning.Policy{})(t.Context())
			requireFault(t, err, fault.Refused, append(wants, "9000-9099", "9100-9199", "use the same proxmox.vmids")...)
			requireSame(t, before, lab.Recorder.Mutations(), "changing requests (-want +got)")
		}
		refused(`VM 9100 "recast-claim"`, "has ended without giving it back")
		res := valueOf(me.Status(t.Context()))(t)
		mustBe(t, res.Claim != nil && len(res.Open) == 1, "claim %+v, open %+v", res.Claim, res.Open)
		require(t, res.Claim.VMID == 9100 && res.Claim.VMIDs == "9100-9199" && res.Open[0].Node == "wk1", "%+v, %+v", res.Claim, res.Open)
		requireSays(t, strings.Join(res.Problems, "\n"), "it was made with proxmox.vmids 9100-9199, and this recast.yaml has 9000-9099")
		next := lab.withRange("9100-9199")
		next.Run = "20000101-0000-cafe"
		next.rollTo(t, planning.Policy{})
		lab.Patch(sim.PatchedExtension)
		requireNoClaim(t, lab)
		refused("keeps the previous system disk of node wk1", "9000-9101 holds them all") // beside an old system disk
		must(t, me.setRange("9000-9199"))
		must(t, me.roll(planning.Policy{})(t.Context()))
		requireNoClaim(t, lab)
	})
}

// requireCount fails unless there are so many of them.
func requireCount[T any](t testing.TB, want int, found []T, what string) {
	t.Helper()
	require(t, len(found) == want, "%d %s, want %d: %+v", len(found), what, want, found)
}

// requireTook fails unless it is so long since then.
func requireTook(t testing.TB, since time.Time, least, most time.Duration) {
	t.Helper()
	took := time.Since(since)
	require(t, took >= least && took <= most, "it took %s, want %s to %s", took, least, most)
}

// refuses does what is to be refused with a text, and leaves nodes alone.
func (l *Lab) refuses(do func(context.Context) error, says string, alone ...string) {
	l.t.Helper()
	from := len(l.Recorder.Calls())
	requireRefused(l.t, do(l.t.Context()), says)
	for _, node := range alone {
		l.requireLeftAlone(from, node)
	}
}

// confirms has a client say yes to plans after that.
func (c *Client) confirms(asked func(planning.Plan)) *Client {
	c.Confirm = func(p planning.Plan) (bool, error) {
		asked(p)
		return true, nil
	}
	return c
}
