package simtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
)

// outage is a roll as observed from outside: which nodes are down, at every request to any server.
type outage struct {
	lab *Lab

	mu      sync.Mutex
	out     map[string]bool
	order   []string // nodes, as they first went down
	most    int      // maximum number down at a time
	perHost map[string]int
}

// watchOutage watches the nodes of a lab until the test ends.
func (l *Lab) watchOutage() *outage {
	o := &outage{lab: l, out: map[string]bool{}, perHost: map[string]int{}}
	l.Recorder.Hooks(nil, func(record.Call) { o.look() })
	return o
}

func (o *outage) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	running := map[int]bool{}
	for _, vm := range o.lab.World.VMs() {
		running[vm.ID] = vm.Running
	}
	now, hosts := 0, map[string]int{}
	for _, n := range o.lab.Nodes {
		out := !running[n.VMID]
		if node, err := o.lab.Kube.Node(o.lab.t.Context(), n.Name); err == nil {
			out = out || node.Spec.Unschedulable || !isReady(node)
		}
		if out && !slices.Contains(o.order, n.Name) {
			o.order = append(o.order, n.Name)
		}
		o.out[n.Name] = out
		if out {
			now++
			hosts[n.Host]++
		}
	}
	o.most = max(o.most, now)
	for host, n := range hosts {
		o.perHost[host] = max(o.perHost[host], n)
	}
}

func (o *outage) isOut(node string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out[node]
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (l *Lab) setRoll(keys ...string) {
	l.t.Helper()
	for _, key := range keys {
		l.Replace("recast.yaml", "roll:\n", "roll:\n  "+key+"\n")
	}
}

// TestOrder checks the order in which nodes go down.
func TestOrder(t *testing.T) {
	type story struct {
		options sim.Options
		roll    []string
		before  string // rolled separately before
		policy  planning.Policy
		order   []string
		stale   []string // afterwards
	}
	eachLongIn(t, func(c story) sim.Options { return c.options }, map[string]story{
		"a worker as canary, then control planes": {
			options: sim.Options{ControlPlanes: 3, Workers: 2}, order: []string{"wk1", "cp1", "cp2", "cp3", "wk2"},
		},
		"workers first":                      {roll: []string{"order: workers-first"}, order: []string{"wk1", "wk2", "cp1"}},
		"no canary":                          {roll: []string{"canary: false"}, order: []string{"cp1", "wk1", "wk2"}},
		"someone runs the new build already": {before: "wk2", order: []string{"cp1", "wk1"}},
		"only":                               {policy: policyFor("wk2", "cp1"), order: []string{"wk2", "cp1"}, stale: []string{"wk1"}},
		"exclude":                            {policy: planning.Policy{Exclude: []string{"wk1"}}, order: []string{"wk2", "cp1"}, stale: []string{"wk1"}},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll(c.roll...)
		lab.Patch(everywhere)
		if c.before != "" {
			must(t, lab.Client().roll(policyFor(c.before))(t.Context()))
		}
		seen := lab.watchOutage()
		lab.second().rollTo(t, c.policy, c.stale...)
		requireSame(t, c.order, seen.order, "order (-want +got)")
		require(t, seen.most == 1, "%d nodes were out at a time", seen.most)
	})
}

// TestAFailingCanary stops everything else, as does the first of the workers that go first.
func TestAFailingCanary(t *testing.T) {
	type story struct {
		roll []string
		says string
	}
	eachLong(t, sim.Options{Workers: 3}, map[string]story{
		"a canary":      {[]string{"maxUnavailable: {workers: 3, perHost: 3}"}, "roll/canary/wk1/take-down/drain: drain wk1: "},
		"workers first": {[]string{"order: workers-first", "canary: false"}, "roll/workers/wk1/take-down/drain: drain wk1: "},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll(append(c.roll, "drain: {timeout: 1m}")...)
		lab.Patch(everywhere)
		lab.Budget(0)
		seen := lab.watchOutage()
		err := lab.Client().roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, c.says, "PodDisruptionBudget default/web")
		requireTrouble(t, err, fault.DrainBlocked, "every disk is in its place")
		requireSame(t, []string{"wk1"}, seen.order, "nodes that were out (-want +got)")
		seen.look()
		require(t, !seen.isOut("wk1"), "wk1 is still cordoned")
		for _, d := range requireDrift(t, lab, "cp1", "wk1", "wk2", "wk3").Nodes {
			require(t, len(d.Reasons) == 1, "%s was not taken down, yet: %+v", d.Node, d.Reasons)
		}
	})
}

// TestWorkersAtATime rolls four workers, in less time than sequentially.
func TestWorkersAtATime(t *testing.T) {
	type story struct {
		hosts             int
		at                string
		most, mostPerHost int
	}
	eachLongIn(t, func(c story) sim.Options { return sim.Options{Workers: 4, Hosts: c.hosts} }, map[string]story{
		"two":          {1, "{workers: 2, perHost: 2}", 2, 2},
		"half":         {1, "{workers: 50%, perHost: 4}", 2, 2},
		"one per host": {2, "{workers: 4}", 2, 1},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("canary: false")
		lab.Patch(sim.PatchedExtension)
		start := time.Now()
		must(t, lab.Client().roll(policyFor("wk1", "wk2"))(t.Context()))
		serial := 2 * time.Since(start) // of four
		lab.Patch(sim.PatchedExtension)
		lab.setRoll("maxUnavailable: " + c.at)
		seen := lab.watchOutage()
		start = time.Now()
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		took := time.Since(start)
		require(t, seen.most == c.most, "%d were out at a time, want %d", seen.most, c.most)
		for host, n := range seen.perHost {
			require(t, n == c.mostPerHost, "%d of %s were out at a time, want %d", n, host, c.mostPerHost)
		}
		requireSame(t, (c.most > 1), took < serial*3/4, "it took %s; one after the other: %s (-want +got)", took, serial)
		requireInSync(t, lab)
	})
}

// TestOneOfThreeFails rolls two workers at a time, of which one fails while it is down:
// the other one is finished, the third is not touched.
func TestOneOfThreeFails(t *testing.T) {
	type story struct {
		fail string // a request to Proxmox
		down bool
	}
	eachLong(t, sim.Options{Workers: 3}, map[string]story{
		"before it is taken down": {"PUT /nodes/pve1/qemu/9031/config", false},
		"when it is down":         {"POST /nodes/pve1/qemu/9031/move_disk", true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		lab.Patch(sim.PatchedExtension)
		lab.World.FailNext(c.fail, "the disk is on fire")
		seen := lab.watchOutage()
		err := lab.Client().roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "roll/workers/wk1/", "the disk is on fire")
		says := strings.Contains(strings.Join(fault.Hints(err), "\n"), "still unfinished, cordoned or down: wk1. recast roll")
		require(t, says == c.down, "hints %q", fault.Hints(err))
		require(t, !slices.Contains(seen.order, "wk3"), "wk3 was touched")
		seen.look()
		require(t, !seen.isOut("wk2"), "wk2 was not finished")
		require(t, seen.isOut("wk1") == c.down, "wk1 is out: %t", seen.isOut("wk1"))
		lab.second().rollTo(t, planning.Policy{})
	})
}

// TestAForeignCordonStays rolls a node that a person has cordoned.
func TestAForeignCordonStays(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf(cluster.Recreate, cluster.Reimage, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("strategy: " + string(s))
		lab.Patch(sim.PatchedExtension)
		lab.Cordon("wk1", true)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		require(t, lab.kubeNode("wk1").Spec.Unschedulable, "wk1 takes pods")
		requireDrift(t, lab)
	})
}

// TestAnotherNodeIsDown: one more down would exceed the limit. A foreign Node, or one that
// a person has taken down, does not count.
func TestAnotherNodeIsDown(t *testing.T) {
	long(t)
	off := func(node string) edit { return func(l *Lab) { must(l.t, l.World.PowerOff(l.node(node).VMID)) } }
	foreign := func(l *Lab) {
		l.Kube.NodeUp(kubeapi.NodeInfo{Name: "gpu1", UUID: "5ec0ffee-0000-4000-8000-0000000000aa", BootID: "b"})
		time.Sleep(time.Minute)
		l.Kube.NodeDown("5ec0ffee-0000-4000-8000-0000000000aa")
	}
	cordoned := all(func(l *Lab) { l.Cordon("wk2", true) }, off("wk2"))
	ignored := func(node string) edit {
		return all(func(l *Lab) { l.setRoll("ignoreNodes: [" + node + "]") }, off(node))
	}
	type story struct {
		spoil  edit
		only   string
		refuse string // "": it rolls
		warns  string
	}
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 3}, map[string]story{
		"one of ours":                                          {off("wk2"), "wk1", "other nodes are not Ready: wk2", ""},
		"one that recast does not know":                        {foreign, "wk1", "", "gpu1 (not in recast.yaml)"},
		"the same, for a control plane":                        {foreign, "cp1", "", "gpu1 (not in recast.yaml)"},
		"one that someone cordoned":                            {cordoned, "wk1", "", "wk2 (cordoned)"},
		"one that is ignored":                                  {ignored("wk2"), "wk1", "", "wk2 (in roll.ignoreNodes)"},
		"a control plane that is ignored, for a worker":        {ignored("cp2"), "wk1", "", "cp2 (in roll.ignoreNodes)"},
		"a control plane that is ignored, for a control plane": {ignored("cp2"), "cp1", "other nodes are not Ready: cp2", "cp2 (in roll.ignoreNodes)"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		c.spoil(lab)
		time.Sleep(2 * time.Minute) // until Kubernetes reports it
		only := policyFor(c.only)
		plan := lab.plan(only)
		refused := strings.Join(plan.Refused(), "\n")
		require(t, strings.Contains(refused, c.refuse) && (c.refuse != "" || refused == ""), "the plan refuses %q", refused)
		require(t, strings.Contains(strings.Join(plan.Warn, "\n"), c.warns), "the plan warns of %q", plan.Warn)
		before := len(lab.Recorder.Calls())
		err := lab.Client().roll(only)(t.Context())
		if c.refuse == "" {
			must(t, err)
			return
		}
		requireRefused(t, err, c.refuse)
		requireNone(t, withoutPulls(changesOfNodes(lab.Recorder.Calls()[before:])), "sent")
	})
}

// TestSettle watches a node for the configured time, from the moment at which it stays healthy.
func TestSettle(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf(cluster.Recreate, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.Replace("recast.yaml", "settle: 2s", "settle: 90s")
		lab.setRoll("strategy: " + string(s))
		lab.Patch(sim.PatchedExtension)
		var settling, done time.Time
		lab.Client().hears(func(e step.Event) {
			switch {
			case !strings.HasSuffix(e.Path, "/wait-healthy"):
			case e.Status == step.Note && strings.HasSuffix(e.Text, "healthy, settling"):
				if settling.IsZero() {
					settling = time.Now()
				}
			case e.Status == step.Note:
				settling = time.Time{}
			case e.Status == step.Done:
				done = time.Now()
			}
		}).mustRoll(planning.Policy{})
		took := done.Sub(settling)
		require(t, !settling.IsZero() && took >= 90*time.Second && took <= 100*time.Second, "it settled for %s", took)
	})
}

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
