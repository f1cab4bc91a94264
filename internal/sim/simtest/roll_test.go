package simtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// inLab runs a test in a lab in memory, whose persistent disks have to be intact in the end.
func inLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	t.Parallel()
	inLabOnce(t, o, f)
}

// inLabOnce is inLab for a test that others wait for.
func inLabOnce(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, o)
		f(t, lab)
		lab.RequireIntact()
	})
}

// inDamagedLab is inLab for a test that changes persistent disks by hand.
func inDamagedLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	inBubble(t, func(t *testing.T) { f(t, New(t, o)) })
}

// inLongLab is inLab for a long test.
func inLongLab(t *testing.T, o sim.Options, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	long(t)
	inLab(t, o, f)
}

// played is what a test does with a story in its lab.
type played[S any] = func(t *testing.T, lab *Lab, story S)

// eachInLab plays each story in a lab of its own.
func eachInLab[S any](t *testing.T, o sim.Options, stories map[string]S, f played[S]) {
	t.Helper()
	eachIn(t, func(S) sim.Options { return o }, stories, f)
}

// eachIn is eachInLab where each story has its own options.
func eachIn[S any](t *testing.T, o func(story S) sim.Options, stories map[string]S, f played[S]) {
	t.Helper()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) { inLab(t, o(story), func(t *testing.T, lab *Lab) { f(t, lab, story) }) })
	}
}

// eachLong is eachInLab for long stories, of which a slice has some.
func eachLong[S any](t *testing.T, o sim.Options, stories map[string]S, f played[S]) {
	t.Helper()
	eachLongIn(t, func(S) sim.Options { return o }, stories, f)
}

// eachLongIn is eachLong where each story has its own options.
func eachLongIn[S any](t *testing.T, o func(story S) sim.Options, stories map[string]S, f played[S]) {
	t.Helper()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) { inLongLab(t, o(story), func(t *testing.T, lab *Lab) { f(t, lab, story) }) })
	}
}

// newDisks are the strategies that give a node another system disk.
var newDisks = storiesOf(cluster.Recreate, cluster.Reimage)

// eachLongStory is eachLong for stories that make their own labs.
func eachLongStory[S any](t *testing.T, stories map[string]S, play func(*testing.T, S)) {
	t.Helper()
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			long(t)
			synctest.Test(t, func(t *testing.T) { play(t, s) })
		})
	}
}

// eachBy plays each story in a lab that in makes.
func eachBy[S any](t *testing.T, in inLabOf, stories map[string]S, f played[S]) {
	t.Helper()
	for name, s := range stories {
		t.Run(name, func(t *testing.T) { in(t, func(t *testing.T, lab *Lab) { f(t, lab, s) }) })
	}
}

func TestRollBringsAnExtensionPatchOntoTheWorkers(t *testing.T) {
	inLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		requireDrift(t, lab)
		before := lab.Disks()
		lab.Patch(sim.PatchedExtension)
		res := requireDrift(t, lab, "wk1", "wk2")
		r := res.Nodes[1].Reasons
		require(t, len(r) == 1 && r[0].Code == "extension-digest" && strings.Contains(r[0].Text, "iscsi-tools v0.2.0: sha256:"),
			"wk1 is stale because of %+v", r)
		rep := lab.Client().mustRoll(planning.Policy{})
		require(t, rep.Outcome == "done" && len(rep.Plan.Work()) == 2, "report %+v", rep)
		requireInSync(t, lab)
		after := lab.Disks()
		for serial, sum := range before {
			require(t, after[serial] == sum, "disk %s: %s before, %s after", serial, sum, after[serial])
		}
		again := lab.Client().mustRoll(planning.Policy{})
		require(t, again.Outcome == "nothing to do" && again.Run == "", "a second roll: %+v", again)
	})
}

// TestRollOfAnotherPatch rolls patches of two extensions, one after the other: that of the workers, and
// that of all nodes.
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

func TestSwappedISOsAreNoticed(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		// The swap needs two builds on the storage: the control planes have another one.
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().Publish(t.Context()))
		lab.SwapISOs()
		err := lab.Client().roll(planning.Policy{})(t.Context())
		requireRefused(t, err, "it booted v1.13.9 with schematic")
		requireTrouble(t, err, fault.NoBoot, "scsi0 (the old system disk) parked on VM ")
		lab.RequireIntact()
		require(t, !lab.vm(wk1).Running, "the VM that booted the wrong bytes: %+v", lab.vm(wk1))
		lab.SwapISOs() // someone restores the right content
		lab.Client().rollTo(t, planning.Policy{})
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

// TestReplicationOutlivesARoll: a job that a new system disk would break stops the roll of
// its node; the remedy in the refusal lifts it, and the job continues.
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
	eachInLab(t, oneWorker(), map[string]renewal{
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

// require fails unless that holds; the text says what is so instead.
func require(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(text, args...)
	}
}

// mustBe is require for what the rest of a test needs: it ends it.
func mustBe(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(text, args...)
	}
}

// requireNone fails if there is any.
func requireNone[T any](t testing.TB, found []T, what string) {
	t.Helper()
	require(t, len(found) == 0, "%s: %+v", what, found)
}

// requireSame fails unless the values are equal; what says of what they are, and which of them is the wanted one.
func requireSame(t testing.TB, want, got any, what string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s:\n%s", fmt.Sprintf(what, args...), diff)
	}
}

// requireFault fails unless the error is of that kind, and it and its hints say all of these texts.
func requireFault(t testing.TB, err error, kind fault.Kind, says ...string) {
	t.Helper()
	all := message(err) + "\n" + strings.Join(fault.Hints(err), "\n")
	require(t, err != nil && fault.KindOf(err) == kind, "kind %d, want %d: %s", fault.KindOf(err), kind, all)
	requireSays(t, all, says...)
}

// requireMessage fails unless the error is of that kind and has exactly this text.
func requireMessage(t *testing.T, err error, kind fault.Kind, want string) {
	t.Helper()
	require(t, fault.KindOf(err) == kind && message(err) == want,
		"kind %d, want %d: %v\nwant %s", fault.KindOf(err), kind, err, want)
}

// requireRefused fails unless the error is a refusal whose message has this text.
func requireRefused(t testing.TB, err error, text string) {
	t.Helper()
	require(t, fault.KindOf(err) == fault.Refused && strings.Contains(err.Error(), text),
		"err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
}

// requireError fails unless there is an error, and it and its hints say all of these texts.
func requireError(t testing.TB, err error, says ...string) {
	t.Helper()
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
	t.Helper()
	requireDrift(t, lab, stale...)
	lab.RequireIntact()
}

func requireDrift(t *testing.T, lab *Lab, stale ...string) pipeline.DriftResult {
	t.Helper()
	res := lab.drift()
	var got []string
	for _, d := range res.Nodes {
		if d.Stale {
			got = append(got, d.Node)
		}
	}
	mustBe(t, strings.Join(got, " ") == strings.Join(stale, " ") && res.Unread == 0,
		"stale %q, want %q: %+v", got, stale, res.Nodes)
	return res
}

// rollTo rolls, and then finds these nodes stale and no other, and every persistent disk intact.
func (c *Client) rollTo(t *testing.T, policy planning.Policy, stale ...string) {
	t.Helper()
	must(t, c.roll(policy)(t.Context()))
	requireInSync(t, c.lab, stale...)
}

func (c *Client) hears(hear func(step.Event)) *Client {
	c.Emit = hear
	return c
}

// requireSays fails unless a text has all of these.
func requireSays(t testing.TB, all string, says ...string) {
	t.Helper()
	for _, text := range says {
		require(t, strings.Contains(all, text), "it does not say %q:\n%s", text, all)
	}
}

// requirePlanned fails unless a node is planned so, with nothing refused, and why has these texts.
func requirePlanned(t testing.TB, n planning.NodePlan, s cluster.Strategy, why ...string) {
	t.Helper()
	require(t, n.Strategy == s && len(n.Refused) == 0, "%s is planned as %q (%s), refused %q", n.Node, n.Strategy, n.Why, n.Refused)
	requireSays(t, n.Why, why...)
}

// requireEtcd fails the test if etcd was used in a way that may lose it.
func (l *Lab) requireEtcd() {
	l.t.Helper()
	requireNone(l.t, l.EtcdViolations(), "etcd")
}

// sent are the calls since one that a test looks for.
func (l *Lab) sent(from int, is func(record.Call) bool) []record.Call {
	return slices.DeleteFunc(l.Recorder.Calls()[from:], func(c record.Call) bool { return !is(c) })
}

// requireNothingSent fails if something was changed since a call, but for the claim and by those protocols.
func (l *Lab) requireNothingSent(from int, but ...string) {
	l.t.Helper()
	wrong := func(c record.Call) bool { return c.Mutation && !ofClaim(c) && !slices.Contains(but, c.Proto) }
	requireNone(l.t, l.sent(from, wrong), "sent all the same")
}

func (l *Lab) plan(policy planning.Policy) planning.Plan {
	l.t.Helper()
	return valueOf(l.Client().Plan(l.t.Context(), policy))(l.t)
}

func (l *Lab) status() pipeline.StatusResult {
	l.t.Helper()
	return valueOf(l.Client().Status(l.t.Context()))(l.t)
}

func (l *Lab) drift() pipeline.DriftResult {
	l.t.Helper()
	return valueOf(l.Client().Drift(l.t.Context()))(l.t)
}

// session is a connected client, which the caller ends.
func (l *Lab) session() *session {
	l.t.Helper()
	return valueOf(l.Client().connect(l.t.Context()))(l.t)
}

func (l *Lab) kubeNode(name string) *corev1.Node {
	l.t.Helper()
	return valueOf(l.Kube.Node(l.t.Context(), name))(l.t)
}

func (l *Lab) stored(r schema.GroupVersionResource, namespace, name string) store.Object {
	l.t.Helper()
	return valueOf(l.Kube.Store().Get(l.t.Context(), r, namespace, name))(l.t)
}

func (l *Lab) allStored(r schema.GroupVersionResource, namespace string) []store.Object {
	l.t.Helper()
	all, _, err := l.Kube.Store().List(l.t.Context(), r, namespace)
	must(l.t, err)
	return all
}

func (c *Client) mustRoll(policy planning.Policy) pipeline.Report {
	c.lab.t.Helper()
	return valueOf(c.Roll(c.lab.t.Context(), policy))(c.lab.t)
}

// ofEach is what f makes of each element.
func ofEach[A, B any](list []A, f func(A) B) (all []B) {
	for _, a := range list {
		all = append(all, f(a))
	}
	return all
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	return valueOf(os.ReadFile(name))(t)
}
