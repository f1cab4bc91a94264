package simtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
)

// job runs recast in pods of the lab's cluster, one after the other, as a Job does that replaces a pod
// when it has ended. No pod has the journal of another.
type job struct {
	*Lab
	on     []string // nodes of its first pods; beyond them the scheduler chooses
	policy planning.Policy
	saved  *planning.Plan // what each of its runs carries out; nil: what is stale
	kill   moment         // of its first pod
	grace  time.Duration  // from SIGTERM to SIGKILL; at least Kubernetes' default of 30 s
	emit   func(step.Event)
	says   string // the error of its first pod; "": that its own pod was evicted

	pods    int
	evicted []string // nodes that its pods were evicted from
	waited  []string // pods that had to wait for the claim of the one before
}

// start starts the next pod, and waits until it runs.
func (j *job) start() (cluster.OwnPod, string) {
	j.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("roll-%d", j.pods), Namespace: metav1.NamespaceDefault, Finalizers: []string{batchv1.JobTrackingFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "roll", UID: "job", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "recast", Image: "recast"}},
			Tolerations: []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists}},
		},
	}
	if j.pods < len(j.on) {
		p.Spec.NodeName = j.on[j.pods]
	}
	j.pods++
	j.put(store.Pods(), p)
	for range 100 {
		time.Sleep(time.Second)
		if now := j.pod(p.Name); now.Status.Phase == corev1.PodRunning {
			return cluster.OwnPod{Namespace: now.Namespace, Name: now.Name, UID: string(now.UID)}, now.Spec.NodeName
		}
	}
	j.t.Fatalf("pod %s does not start: %+v", p.Name, j.pod(p.Name).Status)
	return cluster.OwnPod{}, ""
}

func (j *job) pod(name string) *corev1.Pod {
	j.t.Helper()
	return j.stored(store.Pods(), metav1.NamespaceDefault, name).(*corev1.Pod)
}

// end is what the kubelet and the Job's controller do when the process has ended. Its journal goes with the pod.
func (j *job) end(name string) {
	j.t.Helper()
	fresh := j.pod(name).DeepCopy()
	fresh.Finalizers = nil
	must(j.t, errOf(j.Kube.Store().Update(j.t.Context(), store.Pods(), fresh, store.Main)))
	_, err := j.Kube.Store().Delete(j.t.Context(), store.Pods(), metav1.NamespaceDefault, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if !apierrors.IsNotFound(err) { // gone with its finalizers
		must(j.t, err)
	}
	j.loseJournal()
}

// once runs recast in the next pod until it ends. Its kubelet sends it SIGTERM when the pod is to end, and
// SIGKILL when the grace period is over.
func (j *job) once(t *testing.T) error {
	t.Helper()
	own, node := j.start()
	c := j.as(fmt.Sprintf("20000101-0000-%04d", j.pods))
	c.Pod, c.Saved, c.Elsewhere = own, j.saved, true
	c.Emit = func(e step.Event) {
		if e.Status == step.Note && strings.Contains(e.Text, "watching for up to") {
			j.waited = append(j.waited, own.Name)
		}
		if e.Status == step.Note && e.Text == "evicting pod "+own.String() {
			c.Runner.Stop() // SIGTERM is faster than the answer to the eviction
		}
		if j.emit != nil {
			j.emit(e)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	roll := func(ctx context.Context) error { return errOf(c.Roll(ctx, j.policy)) }
	if j.kill != (moment{}) && j.pods == 1 {
		c.killedAt(t, j.kill, roll)
		j.end(own.Name)
		return errKilled
	}
	var terminating time.Time
	kubelet := make(chan struct{})
	go func() {
		defer close(kubelet)
		for ctx.Err() == nil && j.pod(own.Name).DeletionTimestamp == nil {
			time.Sleep(100 * time.Millisecond)
		}
		if ctx.Err() != nil {
			return
		}
		terminating = time.Now()
		c.Runner.Stop()
		select {
		case <-ctx.Done():
		case <-time.After(max(j.grace, 30*time.Second)):
			t.Errorf("%s on %s did not end in its grace period", own.Name, node)
			c.Kill()
			cancel()
		}
	}()
	err := roll(ctx)
	ended := time.Now()
	time.Sleep(200 * time.Millisecond) // the kubelet has seen it, too
	cancel()
	<-kubelet
	says := "drain " + node + ": this run's own pod was evicted from " + node + "; the roll goes on from the pod that replaces it"
	if !terminating.IsZero() {
		j.evicted = append(j.evicted, node)
		took := ended.Sub(terminating)
		require(t, took <= 2*time.Second || j.says != "", "%s on %s ended %s after its eviction", own.Name, node, took)
	}
	if j.says != "" && j.pods == 1 {
		says = j.says
	}
	if err != nil {
		requireFault(t, err, fault.Interrupted, says)
		requireNoClaim(t, j.Lab)
	}
	j.end(own.Name)
	return err
}

func (j *job) run(t *testing.T) {
	t.Helper()
	for range 10 {
		if err := j.once(t); err == nil || t.Failed() {
			return
		}
	}
	t.Errorf("it does not end: evicted from %q", j.evicted)
}

// TestRollOfItsOwnCluster rolls every node, those that recast's pods run on as well.
func TestRollOfItsOwnCluster(t *testing.T) {
	type story struct {
		job
		alone   int // 1: a single control plane
		roll    []string
		saved   string   // the node that recast ran on when the plan was saved; "": none is
		out     []string // order in which nodes go down
		evicted []string
		waited  []string
		stale   []string // afterwards
	}
	o := func(c story) sim.Options { return sim.Options{ControlPlanes: 3 - 2*c.alone, Workers: 2} }
	eachLongIn(t, o, map[string]story{
		"on a worker": {
			job: job{on: []string{"wk1", "wk2"}}, out: []string{"wk2", "cp1", "cp2", "cp3", "wk1"}, evicted: []string{"wk1"},
		},
		"on a control plane, then on a worker": {
			job: job{on: []string{"cp2", "wk2"}}, out: []string{"wk1", "cp1", "cp3", "cp2", "wk2"}, evicted: []string{"cp2", "wk2"},
		},
		"in place, and then where the scheduler puts it": {
			job: job{on: []string{"wk1"}}, roll: []string{"strategy: in-place", "reboot: kexec"}, out: []string{"wk2", "cp1", "cp2", "cp3", "wk1"}, evicted: []string{"wk1"},
		},
		"a saved plan has its own order": {
			job: job{on: []string{"cp1", "cp2", "wk1"}}, roll: []string{"canary: false"}, saved: "wk1",
			out: []string{"cp1", "cp2", "cp3", "wk2", "wk1"}, evicted: []string{"cp1", "cp2", "wk1"},
		},
		"a saved plan, in place": {
			job: job{on: []string{"cp1", "wk2", "wk1"}}, roll: []string{"canary: false", "strategy: in-place", "reboot: kexec"}, saved: "wk1",
			out: []string{"cp1", "cp2", "cp3", "wk2", "wk1"}, evicted: []string{"cp1", "wk2", "wk1"},
		},
		"no other node is out beside that which it is on": {
			job: job{on: []string{"wk1", "cp1"}}, roll: []string{"canary: false", "maxUnavailable: {workers: 2, perHost: 2}", "workersBeside: true"},
			out: []string{"cp1", "cp2", "cp3", "wk2", "wk1"}, evicted: []string{"wk1"},
		},
		"the workers of a single control plane": {
			job: job{on: []string{"wk1", "cp1"}, policy: planning.Policy{Exclude: []string{"cp1"}}}, alone: 1,
			out: []string{"wk2", "wk1"}, evicted: []string{"wk1"}, stale: []string{"cp1"},
		},
		"killed when its eviction was accepted": {
			job: job{on: []string{"wk1", "wk2"}, kill: onServer("/pods/roll-0/eviction POST")}, waited: []string{"roll-1"},
		},
		"killed before its drain": {
			job: job{on: []string{"wk1", "cp1"}, kill: before("wk1/take-down/drain")}, waited: []string{"roll-1"},
		},
		"killed while another node is drained": {
			job: job{on: []string{"wk1", "cp1", "wk2"}, kill: after("wk2/take-down/drain")}, waited: []string{"roll-1"}, evicted: []string{"cp1"},
		},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll(c.roll...)
		lab.Patch(everywhere)
		before := lab.Disks()
		c.Lab = lab
		if c.saved != "" {
			lab.loseJournal() // its past locks would name other reasons than a pod without them finds
			c.job.saved = lab.savedOn(c.saved)
		}
		var seen *outage
		if c.kill.server == "" { // which needs the hooks for itself
			seen = lab.watchOutage()
		}
		c.run(t)
		requireInSync(t, lab, c.stale...)
		lab.requireRolledFrom(t, before)
		requireSame(t, c.evicted, c.job.evicted, "nodes that its pods were evicted from (-want +got)")
		requireSame(t, c.waited, slices.Compact(c.job.waited), "pods that had to wait for the claim (-want +got)")
		if seen != nil && c.out != nil {
			requireSame(t, c.out, seen.order, "order in which nodes were out (-want +got)")
			require(t, seen.most <= 1, "%d nodes were out at a time", seen.most)
		}
	})
}

// savedOn is a plan that recast has made in a pod on that node.
func (l *Lab) savedOn(node string) *planning.Plan {
	l.t.Helper()
	planner, c := job{Lab: l, on: []string{node}}, l.Client()
	c.Pod, _ = planner.start()
	plan := valueOf(c.Plan(l.t.Context(), planning.Policy{}))(l.t)
	planner.end(c.Pod.Name)
	return l.reread(plan)
}

// requireRolledFrom fails unless every node serves, with the disks that there were, and no claim is left.
func (l *Lab) requireRolledFrom(t *testing.T, disks map[string]string) {
	t.Helper()
	requireSame(t, disks, l.Disks(), "disks (-before +after)")
	for _, n := range l.Nodes {
		l.requireServing(n.Name)
	}
	requireNoClaim(t, l)
}

// TestItsPodIsEvictedMeanwhile: where someone else evicts recast's pod while another node is out, that is the first
// Ctrl-C, as everywhere: the node is finished.
func TestItsPodIsEvictedMeanwhile(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		before := lab.Disks()
		j := job{Lab: lab, on: []string{"wk1", "wk2"}, grace: time.Hour, says: "stopped; not started: roll/workers"}
		j.emit = whenStarted("wk2/bring-up", func() {
			must(t, lab.Kube.Evict(t.Context(), metav1.NamespaceDefault, "roll-0", metav1.DeleteOptions{}))
		})
		require(t, j.once(t) != nil, "it went on")
		requireDrift(t, lab, "wk1", "wk3")
		j.run(t)
		requireInSync(t, lab)
		lab.requireRolledFrom(t, before)
		requireSame(t, []string{"wk1"}, j.evicted, "nodes that its pods were evicted from (-want +got)")
	})
}

// TestItsOwnClusterIsRefused where Kubernetes could not start another pod, or does not say where this one is.
func TestItsOwnClusterIsRefused(t *testing.T) {
	const outside = "recast runs as a pod of this cluster, on wk1: should that pod end meanwhile, nothing could start another one. Run recast from outside of the cluster"
	type story struct {
		planes    int
		policy    planning.Policy
		strategy  cluster.Strategy
		uid       string   // of the pod; "": its own
		says      []string // of the refusal; none: it is rolled
		forbidden string   // a resource that its user may not get
	}
	stories := map[string]story{
		"a single control plane":           {planes: 1, says: []string{"cp1: without it the Kubernetes API is down, and " + outside}},
		"a single control plane, in place": {planes: 1, strategy: cluster.InPlace, says: []string{"cp1: without it the Kubernetes API is down, and " + outside}},
		"two, with an accepted outage":     {planes: 2, policy: planning.Policy{AcceptOutage: true}, says: []string{"cp2: without it the Kubernetes API is down, and " + outside}},
		"a pod of another cluster":         {planes: 1, uid: "6f1c0a5e-0000-4000-8000-000000000001"},
		"it may not read pods": {
			planes: 3, forbidden: "pods",
			says: []string{"wk2: whether recast runs as a pod of this cluster, and on which node, is not known: read pod default/roll-0: ", `cannot get resource "pods"`, "or, where recast is no pod of this cluster, unset RECAST_POD_NAMESPACE, RECAST_POD_NAME and RECAST_POD_UID"},
		},
	}
	eachLongIn(t, func(c story) sim.Options {
		return sim.Options{ControlPlanes: c.planes, Workers: 2, EtcdOnData: c.planes < 3}
	}, stories, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: " + string(cmp.Or(c.strategy, cluster.Auto)))
		lab.Patch(everywhere)
		client := lab.Client()
		client.Pod, _ = (&job{Lab: lab, on: []string{"wk1"}}).start()
		client.Pod.UID = cmp.Or(c.uid, client.Pod.UID)
		if c.forbidden != "" {
			lab.Kube.Grant("recast", func(r kubeapi.Request) bool { return r.Verb != "get" || r.Resource != c.forbidden })
			lab.Write("kubeconfig", valueOf(lab.Kubeconfig("recast", time.Hour))(t))
		}
		if len(c.says) == 0 { // until the drain of the node that a bare pod would be lost from
			client.rollTo(t, policyFor("cp1"), "wk1", "wk2")
			return
		}
		refused := strings.Join(valueOf(client.Plan(t.Context(), c.policy))(t).Refused(), "\n")
		before := len(lab.Recorder.Calls())
		requireFault(t, client.roll(c.policy)(t.Context()), fault.Refused, c.says...)
		requireSays(t, refused, c.says...)
		requireNone(t, changesOfNodes(lab.Recorder.Calls()[before:]), "changes")
		if c.planes < 3 {
			must(t, errOf(client.Drift(t.Context()))) // what only reads does not ask
		}
	})
}
