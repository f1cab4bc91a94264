package simtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

const surgeNode = SurgeNode + "1"

// capacity is how many workers serve: it sees every change of a Node.
type capacity struct {
	mu            sync.Mutex
	serves        map[string]bool
	least         int
	drained       bool // a worker has stopped serving
	surged, early bool // the surge node has served; a worker stopped before that
}

func (c *capacity) see(node *corev1.Node, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, is := node.Labels["node-role.kubernetes.io/control-plane"]; is {
		return
	}
	was := c.serves[node.Name]
	now := isReady(node) && !node.Spec.Unschedulable && !gone
	c.serves[node.Name] = now
	if was && !now && node.Name != surgeNode {
		c.drained, c.early = true, c.early || !c.surged
	}
	c.surged = c.surged || now && node.Name == surgeNode
	serving := slices.DeleteFunc(slices.Collect(maps.Values(c.serves)), func(serves bool) bool { return !serves })
	c.least = min(c.least, len(serving))
}

// watchCapacity sees every change of a Node from now on, until stop.
func (l *Lab) watchCapacity(ctx context.Context) (c *capacity, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c = &capacity{serves: map[string]bool{}}
	nodes, revision, err := l.Kube.Store().List(ctx, store.Nodes(), "")
	must(l.t, err)
	for _, n := range nodes {
		c.see(n.(*corev1.Node), false)
	}
	c.least = len(nodes)
	for _, n := range nodes {
		c.see(n.(*corev1.Node), false)
	}
	w := valueOf(l.Kube.Store().Watch(ctx, store.Nodes(), revision))(l.t)
	var under sync.WaitGroup
	under.Go(func() {
		for {
			e, err := w.Next(ctx)
			if err != nil {
				require(l.t, errors.Is(err, context.Canceled), "watch the Nodes: %v", err)
				return
			}
			c.see(e.Object.(*corev1.Node), e.Type == watch.Deleted)
		}
	})
	return c, func() { cancel(); under.Wait() }
}

func (l *Lab) requireNoSurge(t *testing.T) {
	require(t, errOf(l.Kube.Node(t.Context(), surgeNode)) != nil, "Kubernetes has node %s still", surgeNode)
	require(t, l.made([]string{surgeNode}) == 0, "VM %s is there still", surgeNode)
	for _, k := range l.status().Kept {
		require(t, k.Node != surgeNode, "a disk of it is kept: %+v", k)
	}
}

// TestSurge counts how many of three workers serve: with a surge node in their place, no fewer than before.
func TestSurge(t *testing.T) {
	type story struct {
		surge, out string // roll.surge, and roll.maxUnavailable.workers
		least      int
	}
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 3}, map[string]story{
		"none": {"0", "1", 2}, "one": {"1", "1", 3}, "a tenth, rounded up": {"10%", "1", 3}, "one, and two workers out": {"1", "2", 2},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.AddSurge(1)
		lab.Replace("recast.yaml", "  surge: 1\n", "  surge: "+s.surge+"\n")
		lab.setRoll("maxUnavailable: {workers: "+s.out+", perHost: 3}", "canary: false")
		requireInSync(t, lab)
		p := lab.planOf(lab.Client(), surgeNode, planning.Policy{})
		mustBe(t, p.Strategy == "" && p.Why == "it is there only during a roll",
			"without a worker to renew: %s, %s", p.Strategy, p.Why)
		lab.Patch(sim.PatchedExtension)
		c, stop := lab.watchCapacity(t.Context())
		rep := lab.Client().mustRoll(planning.Policy{})
		stop()
		t.Attr("least", strconv.Itoa(c.least))
		asked := s.surge != "0"
		require(t, c.drained && c.surged == asked && !(asked && c.early) && c.least == s.least,
			"of 3 workers at least %d served, want %d; drained %t, surged %t, drained too early %t", c.least, s.least, c.drained, c.surged, c.early)
		says := rep.Plan.Surge
		require(t, asked == (says != nil) && (says == nil || says.Least == s.least), "the plan says of it: %+v", says)
		lab.requireNoSurge(t)
		requireInSync(t, lab)
	})
}

// TestSurgeAgain: an earlier roll has left a parking VM of the surge node, and an entry in Talos' discovery.
func TestSurgeAgain(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.AddSurge(1)
		lab.Replace("recast.yaml", "surge: {memory: 4096,", "surge: {memory: 4096, bios: ovmf, machine: q35,")
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		lab.requireNoSurge(t)
		vms, volumes := len(lab.World.VMs()), len(lab.diskVolumes())
		lab.loseJournal()                                                            // the next run knows of the parking VM only from Proxmox
		lab.Replace("recast.yaml", "{name: wk1,", "{name: wk1, vm: {memory: 6144},") // stops it
		c, stop := lab.watchCapacity(t.Context())
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		stop()
		require(t, c.surged && !c.early && c.least == 2, "%d served; surged %t, too early %t", c.least, c.surged, c.early)
		lab.requireNoSurge(t)
		requireInSync(t, lab)
		requireSame(t, vms, len(lab.World.VMs()), "VMs (-after the first roll +after the second)")
		requireSame(t, volumes, len(lab.diskVolumes()), "volumes (-after the first roll +after the second)")
	})
}

func (l *Lab) requireSurgeStays(t *testing.T) {
	l.kubeNode(surgeNode)
	requireSame(t, []string{surgeNode}, l.status().Surge, "what status says is left over (-want +got)")
}

// TestSurgeWithData: a surge node with data that only it has stays until that may be lost.
func TestSurgeWithData(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.AddSurge(1)
		daemons("default", "agent", "/var/lib/agent")(lab)
		acceptLoss("hostpath/var/lib/agent")(lab)
		lab.Patch(sim.PatchedExtension)
		requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), fault.Refused,
			surgeNode+": hostPath /var/lib/agent (DaemonSet default/agent) is on the system disk and would be lost", "every worker is done", "recast remove takes one away")
		requireDrift(t, lab, surgeNode)
		lab.requireSurgeStays(t)
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), surgeNode)), "is on the system disk and would be lost")
		lab.Replace("recast.yaml", "{name: "+surgeNode+",", "{name: "+surgeNode+", acceptLoss: [hostpath/var/lib/agent],")
		p := lab.planOf(lab.Client(), surgeNode, planning.Policy{})
		require(t, p.Strategy == cluster.Remove && p.Phase == planning.SurgeEnd && len(p.WillLose) == 1,
			"left over, it is planned as %s in phase %s: %v", p.Strategy, p.Phase, p.WillLose)
		lab.rollWithoutSurge(t)
	})
}

func (l *Lab) rollWithoutSurge(t *testing.T) {
	l.Client().rollTo(t, planning.Policy{})
	l.requireNoSurge(t)
}

// TestSurgeGetsData: data that came after its removal was planned counts as well.
func TestSurgeGetsData(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		begins := func() { daemons("default", "agent", "/var/lib/agent")(lab) }
		c := lab.Client().hears(whenStarted("roll/surge-end/"+surgeNode+"/gate", begins))
		requireFault(t, errOf(c.Roll(t.Context(), planning.Policy{})), fault.Refused, "remove became impossible for "+surgeNode+" since the plan was made: hostPath /var/lib/agent")
		lab.requireSurgeStays(t)
		noDaemons("default", "agent")(lab)
		lab.rollWithoutSurge(t)
	})
}

// TestSurgeAfterAFailure: the surge node stays. What a person does then decides what becomes of it.
func TestSurgeAfterAFailure(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]func(t *testing.T, lab *Lab){
		"the next roll goes on": func(t *testing.T, lab *Lab) {
			p := lab.planOf(lab.Client(), surgeNode, planning.Policy{})
			require(t, p.Strategy == "" && strings.HasPrefix(p.Why, "it serves while workers are away"),
				"it is planned as %s: %s", p.Strategy, p.Why)
			plan := lab.plan(policyFor("cp1"))
			require(t, len(plan.Work()) == 0 && plan.Surge == nil, "with --only cp1: %+v", plan.Surge)
		},
		"it is asked for no more": func(_ *testing.T, l *Lab) { l.Replace("recast.yaml", "  surge: 1\n", "  surge: 0\n") },
		"it is removed by hand": func(t *testing.T, lab *Lab) {
			must(t, errOf(lab.Client().Remove(t.Context(), surgeNode)))
			lab.requireNoSurge(t)
		},
		"it is cordoned": func(t *testing.T, lab *Lab) {
			lab.Cordon(surgeNode, true)
			requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), surgeNode+": it is to serve while workers are away, and is cordoned: kubectl uncordon")
			lab.Cordon(surgeNode, false)
		},
		"it has a disk of a person": func(t *testing.T, lab *Lab) {
			id := lab.namedVM(surgeNode).ID
			lab.EditVM(id, "scsi5", "fast:1")
			lab.Replace("recast.yaml", "  surge: 1\n", "  surge: 0\n")
			requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), surgeNode+": its VM has scsi5 beside its system disk")
			lab.configure(world.ChangeRequest{ID: id, Delete: []string{"scsi5"}})
			lab.configure(world.ChangeRequest{ID: id, Delete: []string{"unused0"}})
		},
	}, func(t *testing.T, lab *Lab, s func(t *testing.T, lab *Lab)) {
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		lab.Budget(0)
		requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), fault.Failed,
			"surge nodes ("+surgeNode+") stays: the next recast roll continues with it")
		lab.requireSurgeStays(t)
		lab.Budget(1)
		s(t, lab)
		lab.rollWithoutSurge(t)
	})
}

// TestSurgeRefused: what would fail once a worker is to be taken out is refused before.
func TestSurgeRefused(t *testing.T) {
	long(t)
	type story struct {
		bring   func(*Lab)
		policy  planning.Policy
		kind    fault.Kind
		refused string
	}
	stories := map[string]story{
		"no memory":       {func(l *Lab) { l.Replace("recast.yaml", "surge: {memory: 4096,", "surge: {memory: 4096000,") }, planning.Policy{}, fault.Refused, surgeNode + ": its VM takes 4000 GiB of memory, and pve1 has "},
		"no storage":      {func(l *Lab) { l.Replace("recast.yaml", "storage: fast, size: 10G", "storage: fats, size: 10G") }, planning.Policy{}, fault.Refused, surgeNode + ": Proxmox has no storage fats"},
		"no room":         {func(l *Lab) { l.Replace("recast.yaml", "storage: fast, size: 10G", "storage: fast, size: 90T") }, planning.Policy{}, fault.Refused, surgeNode + ": "},
		"no file":         {func(l *Lab) { l.MachineConfig = configFiles{}.read }, planning.Policy{}, fault.Refused, surgeNode + ": its machine configuration is not in talos.machineConfigs"},
		"a control plane": {func(l *Lab) { l.MachineConfig = configFiles{surgeNode: l.configOf("cp1")}.read }, planning.Policy{}, fault.Refused, surgeNode + ": it has surge: true, which is for workers, and its machine configuration is that of a control plane"},
		"left out":        {func(*Lab) {}, planning.Policy{Exclude: []string{surgeNode}}, fault.Config, "roll.surge asks for 1 surge nodes, and this roll has 0"},
	}
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		eachHere(t, lab, stories, func(t *testing.T, lab *Lab, s story) {
			lab.AddSurge(1)
			s.bring(lab)
			must(t, lab.Client().roll(planning.Policy{})(t.Context())) // no worker is taken out
		})
		lab.Patch(sim.PatchedExtension)
		eachHere(t, lab, stories, func(t *testing.T, lab *Lab, s story) {
			lab.AddSurge(1)
			s.bring(lab)
			requireFault(t, lab.Client().roll(s.policy)(t.Context()), s.kind, s.refused)
			lab.requireNoSurge(t)
			lab.requireServing("wk1")
		})
	})
}

// TestSurgeTakesNoMemory: a surge node that is not made leaves its memory to the other nodes.
func TestSurgeTakesNoMemory(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.AddSurge(1)
		lab.Replace("recast.yaml", "  surge: 1\n", "  surge: 0\n")
		lab.Replace("recast.yaml", "surge: {memory: 4096,", "surge: {memory: 53248,") // nearly all that pve1 has left
		lab.Replace("recast.yaml", "{name: wk1,", "{name: wk1, vm: {memory: 6144},")
		requirePlanned(t, lab.planOf(lab.Client(), "wk1", planning.Policy{}), cluster.Reshape)
	})
}

// TestSurgeByMistake: a node that was there before is not removed because it has surge: true.
func TestSurgeByMistake(t *testing.T) {
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, map[string][]string{
		"wk2": {"wk2: it has surge: true, and nothing shows that a roll has made it", "wk2: its VM has scsi1 beside its system disk"},
		"cp3": {"cp3: it has surge: true, and is a control plane"},
	}, func(t *testing.T, lab *Lab, refused []string) {
		lab.AddSurge(1)
		node, _, _ := strings.Cut(refused[0], ":")
		lab.Replace("recast.yaml", "{name: "+node+",", "{name: "+node+", class: surge, host: pve1, surge: true, vm: {ipconfig: ['ip=127.42.7.252/24,gw=127.42.7.1']},")
		requireSays(t, strings.Join(lab.plan(policyFor(node)).Refused(), "\n"), refused...)
		requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), refused[0])
		must(t, errOf(lab.Kube.Node(t.Context(), node)))
	})
}

// TestSurgeOfASavedPlan: a run of a saved plan that is killed goes on with the plan, to the same end.
func TestSurgeOfASavedPlan(t *testing.T) {
	eachLong(t, oneWorker(), map[string]string{
		"not killed": "", "when the surge node is made": "roll/surge/" + surgeNode + "/bring-up", "when it serves": "roll/workers/wk1/take-down",
		"when the worker is done": "roll/surge-end/" + surgeNode, "when its VM is gone": "roll/surge-end/" + surgeNode + "/keep",
	}, func(t *testing.T, lab *Lab, at string) {
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		saved := lab.save(planning.Policy{})
		if at != "" {
			lab.killSaved(saved, at)
		}
		must(t, lab.rollOf(saved))
		lab.requireNoSurge(t)
		requireInSync(t, lab)
	})
}

type surging struct {
	*Lab
	*capacity
	stop func()
}

// TestSurgeInstalledTwice: without power while Talos is installed, it gets another blank disk. Both are freed with it.
func TestSurgeInstalledTwice(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		off := func() { must(t, lab.World.PowerOff(lab.namedVM(surgeNode).ID)) }
		installing := whenStarted(surgeNode+"/bring-up/wait-healthy", func() { time.AfterFunc(10*time.Second, off) })
		requireFault(t, lab.Client().hears(installing).roll(planning.Policy{})(t.Context()), fault.Failed, `"`+surgeNode+`" on pve1 is off`)
		var said []string
		must(t, lab.Client().hears(func(e step.Event) { said = append(said, e.Text) }).roll(planning.Policy{})(t.Context()))
		requireSays(t, strings.Join(said, "\n"), "so it gets another blank system disk")
		lab.requireNoSurge(t)
	})
}

// TestSurgeKilled: the next roll, with the journal or without, comes to the same end.
func TestSurgeKilled(t *testing.T) {
	long(t)
	killGrid[surging]{
		begin: func(t *testing.T) surging {
			lab := New(t, oneWorker())
			lab.AddSurge(1)
			lab.Patch(sim.PatchedExtension)
			c, stop := lab.watchCapacity(t.Context())
			return surging{lab, c, stop}
		},
		do: rolls(policyFor("wk1")), choose: chosenPoints, then: rolls(planning.Policy{}),
		end: func(t *testing.T, s surging) string {
			s.stop()
			require(t, !s.early && s.least >= 1, "at least %d served, drained too early %t", s.least, s.early)
			requireInSync(t, s.Lab)
			s.requireNoSurge(t)
			return ""
		},
	}.killEverywhere(t)
}

// job runs recast in one pod after the other, as a Job does. No pod has the journal of another.
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
	return j.stored(store.Pods(), metav1.NamespaceDefault, name).(*corev1.Pod)
}

// end is what the kubelet and the Job's controller do when the process has ended. Its journal goes with the pod.
func (j *job) end(name string) {
	fresh := j.pod(name).DeepCopy()
	fresh.Finalizers = nil
	must(j.t, errOf(j.Kube.Store().Update(j.t.Context(), store.Pods(), fresh, store.Main)))
	_, err := j.Kube.Store().Delete(j.t.Context(), store.Pods(), metav1.NamespaceDefault, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if !apierrors.IsNotFound(err) { // gone with its finalizers
		must(j.t, err)
	}
	j.loseJournal()
}

// once runs recast in the next pod until it ends: SIGTERM when the pod is to end, SIGKILL after the grace period.
func (j *job) once(t *testing.T) error {
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
	says := "drain " + node + ": this run's own pod was evicted from " + node + "; the roll continues in the pod that replaces it"
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

func (l *Lab) savedOn(node string) *planning.Plan {
	planner, c := job{Lab: l, on: []string{node}}, l.Client()
	c.Pod, _ = planner.start()
	plan := valueOf(c.Plan(l.t.Context(), planning.Policy{}))(l.t)
	planner.end(c.Pod.Name)
	return l.reread(plan)
}

// requireRolledFrom fails unless every node serves, with the disks that there were, and no claim is left.
func (l *Lab) requireRolledFrom(t *testing.T, disks map[string]string) {
	requireSame(t, disks, l.Disks(), "disks (-before +after)")
	for _, n := range l.Nodes {
		l.requireServing(n.Name)
	}
	requireNoClaim(t, l)
}

// TestItsPodIsEvictedMeanwhile: where someone else evicts recast's pod while another node is out, that is the first
// Ctrl-C, as everywhere: the node is finished.
func TestItsPodIsEvictedMeanwhile(t *testing.T) {
	inStaleLab(t, sim.Options{ControlPlanes: 1, Workers: 3}, func(t *testing.T, lab *Lab) {
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
			says: []string{"wk2: whether recast runs as a pod of this cluster, and on which node, is not known: read pod default/roll-0: ", `cannot get resource "pods"`, "or, where recast is not a pod of this cluster, unset RECAST_POD_NAMESPACE, RECAST_POD_NAME and RECAST_POD_UID"},
		},
	}
	eachLongIn(t, func(c story) sim.Options {
		return sim.Options{ControlPlanes: c.planes, Workers: 2, EtcdOnData: c.planes < 3}
	}, stories, func(t *testing.T, lab *Lab, c story) {
		lab.patch(everywhere, "strategy: "+string(cmp.Or(c.strategy, cluster.Auto)))
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
