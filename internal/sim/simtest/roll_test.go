package simtest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// inLab runs a test in a lab in memory, whose persistent disks have to be intact in the end.
func inLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Parallel()
	inLabOnce(t, o, f)
}

// inLabOnce is inLab for a test that others wait for.
func inLabOnce(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, o)
		f(t, lab)
		lab.RequireIntact()
	})
}

// inDamagedLab is inLab for a test that changes persistent disks by hand.
func inDamagedLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	inBubble(t, func(t *testing.T) { f(t, New(t, o)) })
}

func inLongLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	long(t)
	inLab(t, o, f)
}

// inStaleLab is inLongLab where the workers are stale.
func inStaleLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	inLongLab(t, o, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		f(t, lab)
	})
}

// played is what a test does with a story in its lab.
type played[S any] = func(t *testing.T, lab *Lab, story S)

func eachInLab[S any](t *testing.T, o sim.Options, stories map[string]S, f played[S]) {
	eachIn(t, func(S) sim.Options { return o }, stories, f)
}

func eachIn[S any](t *testing.T, o func(story S) sim.Options, stories map[string]S, f played[S]) {
	for name, story := range stories {
		t.Run(name, func(t *testing.T) { inLab(t, o(story), func(t *testing.T, lab *Lab) { f(t, lab, story) }) })
	}
}

func eachLong[S any](t *testing.T, o sim.Options, stories map[string]S, f played[S]) {
	eachLongIn(t, func(S) sim.Options { return o }, stories, f)
}

func eachLongIn[S any](t *testing.T, o func(story S) sim.Options, stories map[string]S, f played[S]) {
	for name, story := range stories {
		t.Run(name, func(t *testing.T) { inLongLab(t, o(story), func(t *testing.T, lab *Lab) { f(t, lab, story) }) })
	}
}

// newDisks are the strategies that give a node another system disk.
var newDisks = storiesOf(cluster.Recreate, cluster.Reimage)

func eachLongStory[S any](t *testing.T, stories map[string]S, play func(*testing.T, S)) {
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			long(t)
			synctest.Test(t, func(t *testing.T) { play(t, s) })
		})
	}
}

// eachBy plays each story in a lab that in makes.
func eachBy[S any](t *testing.T, in inLabOf, stories map[string]S, f played[S]) {
	for name, s := range stories {
		t.Run(name, func(t *testing.T) { in(t, func(t *testing.T, lab *Lab) { f(t, lab, s) }) })
	}
}

// eachHere plays stories one after the other in one lab. After each, it puts back Kubernetes' objects, storage systems and
// the files that were there. What else a story changes, every other story must set, too.
func eachHere[S any](t *testing.T, lab *Lab, stories map[string]S, f played[S]) {
	putBack, configs, files := valueOf(lab.Kube.Save())(t), lab.MachineConfig, map[string][]byte{}
	must(t, fs.WalkDir(os.DirFS(lab.Dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files[path] = lab.Read(path)
		}
		return err
	}))
	for _, name := range slices.Sorted(maps.Keys(stories)) {
		t.Log("story: " + name) // above its errors
		f(t, lab, stories[name])
		lab.MachineConfig = configs
		for path, content := range files {
			lab.Write(path, content)
		}
		must(t, putBack())
		time.Sleep(10 * time.Second) // for controllers and kubelets to see the objects
	}
}

func TestRollBringsAnExtensionPatchOntoTheWorkers(t *testing.T) {
	inLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		requireDrift(t, lab)
		before := lab.Disks()
		lab.Patch(sim.PatchedExtension)
		r := requireDrift(t, lab, "wk1", "wk2").Nodes[1].Reasons
		require(t, len(r) == 1 && r[0].Code == "extension-digest" && strings.Contains(r[0].Text, "iscsi-tools v0.2.0: sha256:"),
			"wk1 is stale because of %+v", r)
		rep := lab.Client().mustRoll(planning.Policy{})
		require(t, rep.Outcome == "done" && len(rep.Plan.Work()) == 2, "report %+v", rep)
		requireInSync(t, lab)
		requireSame(t, before, lab.Disks(), "disks (-before +after)")
		again := lab.Client().mustRoll(planning.Policy{})
		require(t, again.Outcome == "nothing to do" && again.Run == "", "a second roll: %+v", again)
	})
}

// TestRollOfAnotherPatch rolls patches of two extensions in turn: that of the workers, and that of all nodes.
func TestRollOfAnotherPatch(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]struct{ surge, prepared bool }{
		"alone": {}, "with a surge node": {surge: true}, "with prepared disks": {prepared: true}, "with both": {true, true},
	}, func(t *testing.T, lab *Lab, s struct{ surge, prepared bool }) {
		if s.surge {
			lab.AddSurge(1)
		}
		if s.prepared {
			lab.BootsDisks("disk")
		}
		for _, extension := range []string{sim.PatchedExtension, sim.CommonExtension} {
			lab.Patch(extension)
			lab.Client().rollTo(t, planning.Policy{})
		}
	})
}

// A VM in a pool is in it again after it was recreated, and so is its parking VM: pools decide on permissions.
func TestRecreatedInItsPool(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.World.AddPool("talos")
		must(t, lab.World.JoinPool("", worker1, "talos", false))
		lab.Patch(sim.CommonExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		for name, want := range map[string]string{"wk1": "talos", "recast-parking-wk1": "talos", "cp1": ""} {
			requireSame(t, want, lab.namedVM(name).Pool, "pool of %s (-want +got)", name)
		}
	})
}

// TestReplicationOutlivesARoll: a job stops the roll of its node; the remedy in the refusal lifts it.
func TestReplicationOutlivesARoll(t *testing.T) {
	const id = "9031-0"
	type story struct {
		lift     edit
		strategy cluster.Strategy
	}
	o := oneWorker()
	o.DiskType = "zfspool"
	eachLong(t, o, map[string]story{
		"the system disk is left out": {func(l *Lab) { change("scsi0=" + l.vm(wk1).Config["scsi0"] + ",replicate=0")(l) }, cluster.Reimage},
		"the job is made again":       {func(l *Lab) { l.World.RemoveReplication(id) }, cluster.Recreate},
	}, func(t *testing.T, lab *Lab, s story) {
		job := world.ReplicationJob{ID: id, Guest: wk1, Target: "pve2", Schedule: "*/15", NextSync: time.Now().Add(24 * time.Hour)}
		lab.World.AddReplication(job)
		must(t, lab.World.RunReplication(id))
		resumption{strategy: s.strategy}.prepare(lab)
		err := lab.Client().roll(onlyWorker)(t.Context())
		mustBe(t, fault.CodeOf(err) == fault.PlanRefused && strings.Contains(err.Error(), "replication 9031-0 of the VM"),
			"with the job: %v", err)
		s.lift(lab)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		if len(lab.World.Replication()) == 0 {
			lab.World.AddReplication(job)
		}
		must(t, lab.World.RunReplication(id))
		requireInSync(t, lab, "cp1")
	})
}

// TestRestrictedTags: where datacenter.cfg restricts tags, Proxmox refuses a VM that is created with
// any. The new VM, and an old one that comes back, get theirs all the same.
func TestRestrictedTags(t *testing.T) {
	eachLong(t, oneWorker(), map[string]renewal{
		"recreated": {strategy: cluster.Recreate},
		"given up":  {strategy: cluster.Recreate, killed: before("bring-up/configure"), recover: true},
	}, func(t *testing.T, lab *Lab, tc renewal) {
		strategy(tc.strategy)(lab)
		lab.World.RestrictTags(world.TagAccess{Allow: "existing"})
		lab.Patch(everywhere)
		if tc.killed != (moment{}) {
			lab.Client().rollKilled(tc.killed, onlyWorker)
		}
		if tc.recover {
			must(t, lab.Client().giveUp("wk1")(t.Context()))
		} else {
			lab.Client().rollTo(t, onlyWorker, "cp1")
		}
		requireSame(t, "talos", lab.vmConfig(wk1)["tags"], "tags = (-want +got)")
	})
}

// TestTagThatGoesWithItsVM: a tag that no other VM has exists no more once its VM is deleted. A token
// that may only set existing ones could not give it back.
func TestTagThatGoesWithItsVM(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		change("tags=talos;wk1-only")(lab)
		lab.World.RestrictTags(world.TagAccess{Allow: "existing"})
		lab.Patch(everywhere)
		before := fmt.Sprint(lab.vmConfig(wk1))
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "the Proxmox token lacks privileges: Sys.Modify on /")
		requireSame(t, before, fmt.Sprint(lab.vmConfig(wk1)), "…\nwas\n… (-want +got)")
	})
}

func require(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf("%s%s", where(), fmt.Sprintf(text, args...))
	}
}

// mustBe is require for what the rest of a test needs: it ends it.
func mustBe(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf("%s%s", where(), fmt.Sprintf(text, args...))
	}
}

func requireNone[T any](t testing.TB, found []T, what string) {
	require(t, len(found) == 0, "%s: %+v", what, found)
}

// requireSame fails unless the values are equal; what says of what they are, and which of them is the wanted one.
func requireSame(t testing.TB, want, got any, what string, args ...any) {
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s%s:\n%s", where(), fmt.Sprintf(what, args...), diff)
	}
}

// requireFault fails unless the error is of that kind, and it and its hints say all of these texts.
func requireFault(t testing.TB, err error, kind fault.Kind, says ...string) {
	all := message(err) + "\n" + strings.Join(fault.Hints(err), "\n")
	require(t, err != nil && fault.KindOf(err) == kind, "kind %d, want %d: %s", fault.KindOf(err), kind, all)
	requireSays(t, all, says...)
}

func requireMessage(t *testing.T, err error, kind fault.Kind, want string) {
	require(t, fault.KindOf(err) == kind && message(err) == want, "%d, %d: %v\n%s", fault.KindOf(err), kind, err, want)
}

func requireRefused(t testing.TB, err error, text string) {
	require(t, fault.KindOf(err) == fault.Refused && strings.Contains(err.Error(), text),
		"err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
}

func requireError(t testing.TB, err error, says ...string) {
	requireFault(t, err, fault.KindOf(err), says...)
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// requireInSync fails unless drift finds these nodes stale and no other, and every persistent disk is intact.
func requireInSync(t *testing.T, lab *Lab, stale ...string) {
	requireDrift(t, lab, stale...)
	lab.RequireIntact()
}

func requireDrift(t *testing.T, lab *Lab, stale ...string) pipeline.DriftResult {
	res := lab.drift()
	got := some(res.Nodes, func(d observe.Drift) (string, bool) { return d.Node, d.Stale })
	mustBe(t, strings.Join(got, " ") == strings.Join(stale, " ") && res.Unread == 0,
		"stale %q, want %q: %+v", got, stale, res.Nodes)
	return res
}

// rollTo rolls, and then finds these nodes stale and no other, and every persistent disk intact.
func (c *Client) rollTo(t *testing.T, policy planning.Policy, stale ...string) {
	must(t, c.roll(policy)(t.Context()))
	requireInSync(t, c.lab, stale...)
}

func (c *Client) hears(hear func(step.Event)) *Client {
	c.Emit = hear
	return c
}

func requireSays(t testing.TB, all string, says ...string) {
	for _, text := range says {
		require(t, strings.Contains(all, text), "it does not say %q:\n%s", text, all)
	}
}

// requirePlanned fails unless a node is planned so, with nothing refused, and why has these texts.
func requirePlanned(t testing.TB, n planning.NodePlan, s cluster.Strategy, why ...string) {
	require(t, n.Strategy == s && len(n.Refused) == 0, "%s is planned as %q (%s), refused %q", n.Node, n.Strategy, n.Why, n.Refused)
	requireSays(t, n.Why, why...)
}

func (l *Lab) requireEtcd() { requireNone(l.t, l.EtcdViolations(), "etcd") }

// sent are the calls since one that a test looks for.
func (l *Lab) sent(from int, is func(record.Call) bool) []record.Call {
	return slices.DeleteFunc(l.Recorder.Calls()[from:], func(c record.Call) bool { return !is(c) })
}

// requireNothingSent fails if something was changed since a call, but for the claim and by those protocols.
func (l *Lab) requireNothingSent(from int, but ...string) {
	wrong := func(c record.Call) bool { return c.Mutation && !ofClaim(c) && !slices.Contains(but, c.Proto) }
	requireNone(l.t, l.sent(from, wrong), "sent all the same")
}

func (l *Lab) plan(policy planning.Policy) planning.Plan {
	return valueOf(l.Client().Plan(l.t.Context(), policy))(l.t)
}

func (l *Lab) status() pipeline.StatusResult { return valueOf(l.Client().Status(l.t.Context()))(l.t) }

func (l *Lab) drift() pipeline.DriftResult { return valueOf(l.Client().Drift(l.t.Context()))(l.t) }

// session is a connected client, which the caller ends.
func (l *Lab) session() *session { return valueOf(l.Client().connect(l.t.Context()))(l.t) }

func (l *Lab) kubeNode(name string) *corev1.Node {
	return valueOf(l.Kube.Node(l.t.Context(), name))(l.t)
}

func (l *Lab) stored(r schema.GroupVersionResource, namespace, name string) store.Object {
	return valueOf(l.Kube.Store().Get(l.t.Context(), r, namespace, name))(l.t)
}

func (l *Lab) allStored(r schema.GroupVersionResource, namespace string) []store.Object {
	all, _, err := l.Kube.Store().List(l.t.Context(), r, namespace)
	must(l.t, err)
	return all
}

func (c *Client) mustRoll(policy planning.Policy) pipeline.Report {
	return valueOf(c.Roll(c.lab.t.Context(), policy))(c.lab.t)
}

func ofEach[A, B any](list []A, f func(A) B) (all []B) {
	for _, a := range list {
		all = append(all, f(a))
	}
	return all
}

// some is what f makes of those elements for which it says so.
func some[A, B any](list []A, f func(A) (B, bool)) (all []B) {
	for _, a := range list {
		if b, is := f(a); is {
			all = append(all, b)
		}
	}
	return all
}

func readFile(t testing.TB, name string) []byte { return valueOf(os.ReadFile(name))(t) }

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
	for _, key := range keys {
		l.Replace("recast.yaml", "roll:\n", "roll:\n  "+key+"\n")
	}
}

// patch is Patch where the roll has these settings.
func (l *Lab) patch(extension string, roll ...string) {
	l.setRoll(roll...)
	l.Patch(extension)
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
		lab.patch(sim.PatchedExtension, "canary: false")
		start := time.Now()
		must(t, lab.Client().roll(policyFor("wk1", "wk2"))(t.Context()))
		serial := 2 * time.Since(start) // of four
		lab.patch(sim.PatchedExtension, "maxUnavailable: "+c.at)
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

// TestOneOfThreeFails: of two workers at a time one fails; the other one is finished, the third is not touched.
func TestOneOfThreeFails(t *testing.T) {
	type story struct {
		fail string // a request to Proxmox
		down bool
	}
	eachLong(t, sim.Options{Workers: 3}, map[string]story{
		"before it is taken down": {"PUT /nodes/pve1/qemu/9031/config", false},
		"when it is down":         {"POST /nodes/pve1/qemu/9031/move_disk", true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.patch(sim.PatchedExtension, "canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
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
		lab.patch(sim.PatchedExtension, "strategy: "+string(s))
		lab.Cordon("wk1", true)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		require(t, lab.kubeNode("wk1").Spec.Unschedulable, "wk1 takes pods")
		requireDrift(t, lab)
	})
}

// TestAnotherNodeIsDown: a foreign Node, or one that a person has taken down, does not count.
func TestAnotherNodeIsDown(t *testing.T) {
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
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 3}, map[string]story{
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
		lab.patch(sim.PatchedExtension, "strategy: "+string(s))
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

func (l *Lab) pause(name, why string) { l.annotate(name, cluster.PauseMark, why) }

// annotate gives a Node an annotation; "" removes it.
func (l *Lab) annotate(name, key, value string) {
	node := l.kubeNode(name)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
	if value == "" {
		delete(node.Annotations, key)
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// save makes a plan and reads it back from the output of recast plan -o json.
func (l *Lab) save(policy planning.Policy) *planning.Plan { return l.reread(l.plan(policy)) }

func (l *Lab) reread(plan planning.Plan) *planning.Plan {
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
		lab.patch(sim.PatchedExtension, "canary: false")
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

// TestAControllerTakesANode: what Cluster API has taken over since the plan is not touched; what was begun is finished.
func TestAControllerTakesANode(t *testing.T) {
	inLongLab(t, sim.Options{}, func(t *testing.T, lab *Lab) {
		const mark, its = "cluster.x-k8s.io/machine", "is of Cluster API (cluster.x-k8s.io/machine: wk-7), which creates and deletes its VM"
		lab.patch(sim.PatchedExtension, "canary: false")
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
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.rollKilledWhen("wk1/bring-up/create-vm")
		lab.pause("wk1", "someone works on it")
		lab.second().rollTo(t, planning.Policy{})
	})
}

// TestNodesOfOneHolder are never down at the same time, whatever the limits are.
func TestNodesOfOneHolder(t *testing.T) {
	o := func(most int) sim.Options { return sim.Options{Workers: 3, Holder: most == 1} }
	eachLongIn(t, o, map[string]int{"one holder": 1, "none": 3}, func(t *testing.T, lab *Lab, most int) {
		lab.patch(sim.PatchedExtension, "canary: false", "maxUnavailable: {workers: 3, perHost: 3}")
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
	inStaleLab(t, sim.Options{}, func(t *testing.T, lab *Lab) {
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
	type story struct {
		move func(*Lab)
		want string   // the reported difference
		out  []string // nodes that are out already
	}
	eachLong(t, sim.Options{}, map[string]story{
		"a VM":          {func(l *Lab) { l.EditVM(9032, "tags", "new") }, "wk2: digest of the VM's configuration: ", nil},
		"the lock":      {func(l *Lab) { l.Patch(everywhere) }, "recast.lock: sha256-", nil},
		"an unfinished": {func(l *Lab) { l.rollKilledWhen("wk1/bring-up/create-vm") }, "wk1: left unfinished by run 20000101-0000-feed, which is not of this plan", []string{"wk1"}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.patch(sim.PatchedExtension, "canary: false")
		saved := lab.save(planning.Policy{})
		s.move(lab)
		seen := lab.watchOutage()
		requireRefused(t, lab.rollOf(saved), ":\n  "+s.want)
		requireSame(t, s.out, seen.order, "nodes that were out (-want +got)")
	})
}

func (l *Lab) killSaved(saved *planning.Plan, at string) {
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
		lab.patch(everywhere, "canary: false", "strategy: in-place")
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
	const withinRecreate, withinInPlace, between = "wk1/bring-up/create-vm", "wk1/wait-healthy", "wk2/gate"
	type story struct {
		strategy  cluster.Strategy
		at        string // where it is killed
		elsewhere bool
		told      bool // that a run of the plan has begun
	}
	// Nothing shows who has upgraded it.
	unknown := story{cluster.InPlace, between, true, false}
	eachLong(t, sim.Options{}, storiesOf(
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
		lab.patch(sim.PatchedExtension, "canary: false", "strategy: "+string(s.strategy))
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

func TestAWipedDiskIsNoticed(t *testing.T) {
	inDamagedLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		before := lab.Disks()
		for _, d := range lab.World.Persistent() {
			lab.World.Media(d.Volid, "pve1").Write(nil)
		}
		require(t, lab.Disks()["data-wk1"] != before["data-wk1"], "the datacentre hashes a wiped disk as before")
		require(t, len(lab.World.Violations()) != 0, "a wiped persistent disk broke no promise")
	})
}
