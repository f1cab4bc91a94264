package simtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// surgeNode is the surge node of these stories.
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
	l.t.Helper()
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

// requireNoSurge fails unless nothing is left of the surge node: no VM, no Node, no disk.
func (l *Lab) requireNoSurge(t *testing.T) {
	t.Helper()
	require(t, errOf(l.Kube.Node(t.Context(), surgeNode)) != nil, "Kubernetes has node %s still", surgeNode)
	require(t, l.made([]string{surgeNode}) == 0, "VM %s is there still", surgeNode)
	for _, k := range l.status().Kept {
		require(t, k.Node != surgeNode, "a disk of it is kept: %+v", k)
	}
}

// TestSurge renews three workers, which have data disks, and counts how many serve meanwhile: with a
// surge node in their place, no fewer than before.
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

// TestSurgeAgain makes a surge node of which an earlier roll has left a parking VM, and an entry in Talos'
// discovery. It has UEFI, so a disk for its variables.
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
		require(t, c.surged && !c.early && c.least == 2,
			"at least %d served; surged %t, drained too early %t", c.least, c.surged, c.early)
		lab.requireNoSurge(t)
		requireInSync(t, lab)
		requireSame(t, vms, len(lab.World.VMs()), "VMs (-after the first roll +after the second)")
		requireSame(t, volumes, len(lab.diskVolumes()), "volumes (-after the first roll +after the second)")
	})
}

// requireSurgeStays fails unless the surge node is there, and drift and status say so.
func (l *Lab) requireSurgeStays(t *testing.T) {
	t.Helper()
	l.kubeNode(surgeNode)
	requireSame(t, []string{surgeNode}, l.status().Surge, "what status says is left over (-want +got)")
}

// TestSurgeWithData does not remove a surge node with data that only it has. The roll says why, and the
// next one removes the node once that may be lost.
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
	t.Helper()
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

// TestSurgeAfterAFailure: where a worker fails, the surge node stays. What a person does then decides
// what becomes of it.
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
			"surge nodes ("+surgeNode+") stays: the next recast roll goes on with it")
		lab.requireSurgeStays(t)
		lab.Budget(1)
		s(t, lab)
		lab.rollWithoutSurge(t)
	})
}

// TestSurgeRefused: what would fail once a worker is to be taken out is refused before.
func TestSurgeRefused(t *testing.T) {
	type story struct {
		bring   func(*Lab)
		policy  planning.Policy
		kind    fault.Kind
		refused string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"no memory":       {func(l *Lab) { l.Replace("recast.yaml", "surge: {memory: 4096,", "surge: {memory: 4096000,") }, planning.Policy{}, fault.Refused, surgeNode + ": its VM takes 4000 GiB of memory, and pve1 has "},
		"no storage":      {func(l *Lab) { l.Replace("recast.yaml", "storage: fast, size: 10G", "storage: fats, size: 10G") }, planning.Policy{}, fault.Refused, surgeNode + ": Proxmox has no storage fats"},
		"no room":         {func(l *Lab) { l.Replace("recast.yaml", "storage: fast, size: 10G", "storage: fast, size: 90T") }, planning.Policy{}, fault.Refused, surgeNode + ": "},
		"no file":         {func(l *Lab) { l.MachineConfig = configFiles{}.read }, planning.Policy{}, fault.Refused, surgeNode + ": its machine configuration is not in talos.machineConfigs"},
		"a control plane": {func(l *Lab) { l.MachineConfig = configFiles{surgeNode: l.configOf("cp1")}.read }, planning.Policy{}, fault.Refused, surgeNode + ": it has surge: true, which is for workers, and its machine configuration is that of a control plane"},
		"left out":        {func(*Lab) {}, planning.Policy{Exclude: []string{surgeNode}}, fault.Config, "roll.surge asks for 1 surge nodes, and this roll has 0"},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.AddSurge(1)
		s.bring(lab)
		must(t, lab.Client().roll(planning.Policy{})(t.Context())) // no worker is taken out
		lab.Patch(sim.PatchedExtension)
		requireFault(t, lab.Client().roll(s.policy)(t.Context()), s.kind, s.refused)
		lab.requireNoSurge(t)
		lab.requireServing("wk1")
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

// surging is a lab in which the workers that serve are counted.
type surging struct {
	*Lab
	*capacity
	stop func()
}

// TestSurgeInstalledTwice: a surge node loses its power while Talos is installed on it, so that the next roll gives it
// another blank disk. Both are freed with it: one that stayed would keep the next roll from making it.
func TestSurgeInstalledTwice(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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

// TestSurgeKilled kills a roll with a surge node at points of every kind. The next roll, with the
// journal or without, comes to the same end.
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
		do: rolls(policyFor("wk1")), choose: chosenPoints,
		goOn: func(t *testing.T, s surging, _ point) bool {
			s.finish(t, rolls(planning.Policy{}))
			return false
		},
		end: func(t *testing.T, s surging) string {
			s.stop()
			require(t, !s.early && s.least >= 1, "at least %d served, drained too early %t", s.least, s.early)
			requireInSync(t, s.Lab)
			s.requireNoSurge(t)
			return ""
		},
	}.killEverywhere(t)
}
