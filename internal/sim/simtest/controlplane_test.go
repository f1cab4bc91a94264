package simtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func toVM(method, suffix string) func(record.Call) bool {
	return func(c record.Call) bool {
		path, _, _ := strings.Cut(c.Path, "?")
		return c.Proto == "proxmox" && c.Method == method && strings.HasSuffix(path, suffix)
	}
}

// kubernetesAnswers is nil if the API of Kubernetes can be read now.
func (l *Lab) kubernetesAnswers() error {
	ctx := l.t.Context()
	return errOf(connected(ctx, l.Client(), func(s *session) (any, error) { return s.machines.Kube.Nodes(ctx) }))
}

// TestControlPlanesByCount rolls clusters of one, two and five control planes.
func TestControlPlanesByCount(t *testing.T) {
	const alone = "it is the only control plane: the Kubernetes API is down meanwhile"
	type story struct {
		planes   int
		onData   bool
		strategy cluster.Strategy
		kept     bool // the members are the same afterwards
		outage   bool // etcd has no quorum meanwhile
		note     string
	}
	eachLongIn(t, func(c story) sim.Options {
		return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: c.onData}
	}, map[string]story{
		"one, its data kept": {planes: 1, onData: true, strategy: cluster.Recreate, kept: true, outage: true, note: alone},
		"one":                {planes: 1, strategy: cluster.InPlace, kept: true, outage: true, note: alone},
		"two, their data kept": {
			planes: 2, onData: true, strategy: cluster.Recreate, kept: true, outage: true,
			note: "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile",
		},
		"two":  {planes: 2, strategy: cluster.Recreate, note: "etcd has two members"},
		"five": {planes: 5, strategy: cluster.Recreate},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		before := lab.memberIDs()
		var names []string
		for _, n := range lab.Nodes[:min(c.planes, 2)] { // a sample
			names = append(names, n.Name)
		}
		rep := lab.Client().mustRoll(planning.Policy{Only: names, AcceptOutage: c.planes == 2})
		for _, n := range rep.Plan.Nodes {
			require(t, n.Strategy == c.strategy && strings.Contains(strings.Join(n.Notes, "; "), c.note),
				"%s: %s (%s), notes %q", n.Node, n.Strategy, n.Why, n.Notes)
		}
		after := lab.memberIDs()
		diff := cmp.Diff(before, after)
		require(t, (diff == "") == c.kept && len(after) == c.planes, "members of etcd (-before +after):\n%s", diff)
		v := lab.EtcdViolations()
		require(t, (len(v) > 0) == c.outage, "outages of etcd: %q", v)
		lab.RequireIntact()
	})
}

// TestTheOnlyControlPlaneIsDown kills a roll while only Proxmox answers.
func TestTheOnlyControlPlaneIsDown(t *testing.T) {
	long(t)
	type story struct {
		planes int
		at     moment
	}
	stories := map[string]story{
		"shut down":  {1, onServer("/qemu/9001/status/shutdown POST")},
		"deleted":    {1, onServer("/qemu/9001 DELETE")},
		"parked":     {1, onServer("/qemu/9001/move_disk POST")},
		"one of two": {2, onServer("/qemu/9001 DELETE")},
		"started":    {1, onServer("/qemu/9001/status/start POST")},
	}
	for _, journal := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", journal), func(t *testing.T) {
			eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }, stories, func(t *testing.T, lab *Lab, c story) {
				cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.planes == 2}
				lab.Patch(everywhere)
				members := lab.memberIDs()
				first := lab.Client()
				first.killedAt(t, c.at, first.roll(cp1))
				if !journal {
					lab.loseJournal()
				}
				if c.at != stories["shut down"].at { // the shutdown continues for a while
					require(t, lab.kubernetesAnswers() != nil, "the Kubernetes API answers")
				}
				rep := lab.Client().mustRoll(cp1)
				requireSame(t, []string{first.Run}, rep.Resumed, "resumed (-want +got)")
				if fresh := rep.Plan.Nodes[0]; len(rep.Plan.Nodes) != 1 || fresh.Node != "cp1" || fresh.Drift.Stale {
					again := lab.plan(cp1)
					require(t, len(again.Work()) == 0, "cp1 is not done: %+v", again.Work())
				}
				requireSame(t, members, lab.memberIDs(), "members of etcd (-before +after)")
				lab.RequireIntact()
			})
		})
	}
}

// TestTheOnlyControlPlaneHangs: the Kubernetes API is down too, and with it the mark on its Node.
func TestTheOnlyControlPlaneHangs(t *testing.T) {
	long(t)
	alone := sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}
	eachFault(t, map[string]*talosFault{
		"reimage=false": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, first: published, begins: breakImage(talosapi.Hangs),
			mends: inTurn(withoutKubernetes, breakImage(talosapi.Sound), switchedOff, poweredOn, later),
			says:  []string{"cp1 did not come back from its upgrade", "and it can't be asked to roll back"}, stands: "on, cordoned",
		},
		"reimage=true": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, first: published, begins: breakImage(talosapi.Hangs),
			remedy: (*talosScene).again, parks: true,
			says: []string{"cp1 did not come back from its upgrade", "it was reimaged and runs build "}, stands: untouched,
		},
	})
}

func withoutKubernetes(s *talosScene) {
	s.t.Helper()
	require(s.t, s.kubernetesAnswers() != nil, "the Kubernetes API answers")
}

// TestAControlPlaneIsOffBeforeItLeaves: the VM is powered off between a run's death and
// the next run. Its member is removed only if the others keep the quorum.
func TestAControlPlaneIsOffBeforeItLeaves(t *testing.T) {
	eachLongIn(t, func(planes int) sim.Options { return sim.Options{ControlPlanes: planes, Workers: 1} }, storiesOf(2, 3), func(t *testing.T, lab *Lab, planes int) {
		lab.Patch(everywhere)
		cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
		lab.Client().rollKilled(onServer("/nodes/cp1 PATCH"), cp1)
		must(t, lab.World.PowerOff(9001))
		if planes == 2 {
			err := lab.Client().roll(cp1)(t.Context())
			requireRefused(t, err, "cp1 is off before it could leave etcd, and the other members can't do without it")
			must(t, lab.World.PowerOn(9001))
			time.Sleep(2 * time.Minute)
		}
		lab.Client().mustRoll(cp1)
		requireRecord(t, lab, "cp1", true, planes == 2)
		ids := lab.memberIDs()
		require(t, len(ids) == planes, "members of etcd: %v", ids)
		lab.RequireIntact()
	})
}

// etcdSeen is what a roll did to etcd and the control planes.
type etcdSeen struct {
	Fewest int                 // minimum number of voting members
	Out    int                 // maximum number of control planes down at once
	Asked  []string            // calls that change etcd: method and node
	Lost   map[string][]string // members missing right after a node's leave, by node
	Wrong  []string            // leaves at a wrong time
}

// etcdWatch looks before and after every call of a roll.
type etcdWatch struct {
	lab  *Lab
	mu   sync.Mutex
	seen etcdSeen
	ids  map[string]string // of the members at the beginning, by name
	last map[string]string // members before the latest call that changes etcd
}

// memberIDs are the voting members of etcd, by name.
func (l *Lab) memberIDs() map[string]string {
	ids := map[string]string{}
	for _, m := range l.EtcdMembers() {
		if !m.Learner {
			ids[m.Name] = m.ID
		}
	}
	return ids
}

func (w *etcdWatch) method(c record.Call) (string, bool) {
	method, isMachine := strings.CutPrefix(c.Method, "/machine.MachineService/Etcd")
	return method, isMachine && c.Mutation
}

func (w *etcdWatch) before(c record.Call) error {
	method, ok := w.method(c)
	if !ok {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.lab.memberIDs()
	node := w.lab.nameOf(c.Target)
	w.seen.Asked = append(w.seen.Asked, method+" "+node)
	if method == "LeaveCluster" {
		if len(w.last) != len(w.ids) {
			w.seen.Wrong = append(w.seen.Wrong, fmt.Sprintf("%s was made to leave while the voting members were %v", node, w.last))
		}
		if n := w.lab.node(node); !w.lab.runs(n) {
			w.seen.Wrong = append(w.seen.Wrong, node+" was made to leave when its VM was off")
		}
	}
	return nil
}

func (w *etcdWatch) after(c record.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.lab.memberIDs()
	if method, ok := w.method(c); ok && method == "LeaveCluster" {
		for _, name := range slices.Sorted(maps.Keys(w.last)) {
			if node := w.lab.nameOf(c.Target); now[name] != w.last[name] {
				w.seen.Lost[node] = append(w.seen.Lost[node], name)
			}
		}
	}
	w.seen.Fewest = min(w.seen.Fewest, len(now))
	out := 0
	for _, n := range w.lab.Nodes {
		if n.ControlPlane && !w.lab.runs(n) {
			out++
		}
	}
	w.seen.Out = max(w.seen.Out, out)
}

func (l *Lab) runs(n sim.Node) bool {
	vm, err := l.World.LookupVM(n.Host, n.VMID)
	return err == nil && vm.Running
}

func (l *Lab) nameOf(addr string) string {
	for _, n := range l.Nodes {
		if n.Addr.String() == addr {
			return n.Name
		}
	}
	return addr
}

var controlPlanes = []string{"cp1", "cp2", "cp3"}

// TestPeersRoll rolls three control planes, however many may be down at a time.
//   - Upgrades of three control planes lost or removed members (talos #9153, #9789, #8759,
//     #7423). The data of a removed member is unusable for ever (facts: "the member has been
//     permanently removed").
//   - The next member was removed before the previous one was back (cacppt #225, #150).
//   - Removing a member by name deleted the wrong node's data (talos #3340).
//   - A machine that joins etcd removes the member with its own name, whoever that is (talos
//     PR #3715).
func TestPeersRoll(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		onData   bool
	}
	options := func(c story) sim.Options { return sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: c.onData} }
	stories := storiesOf(story{cluster.Recreate, false}, story{cluster.Recreate, true}, story{cluster.Reimage, true}, story{cluster.InPlace, false})
	eachLongIn(t, options, stories, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: "+string(c.strategy), "maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(everywhere)
		w := &etcdWatch{lab: lab, ids: lab.memberIDs(), seen: etcdSeen{Fewest: 3, Lost: map[string][]string{}}}
		who := lab.identities()
		lab.Recorder.Hooks(w.before, w.after)
		lab.as(firstRun).mustRoll(policyFor(controlPlanes...))
		requireMembers(t, lab, "", false)
		lab.RequireIntact()

		inPlace := c.strategy == cluster.InPlace
		kept, after := c.onData || inPlace, lab.memberIDs()
		want := etcdSeen{Fewest: 3, Out: 1, Lost: map[string][]string{}}
		if inPlace {
			want.Out = 0
		}
		for _, name := range controlPlanes {
			if !kept {
				want.Fewest = 2
				want.Asked = append(want.Asked, "ForfeitLeadership "+name, "LeaveCluster "+name)
				want.Lost[name] = []string{name}
			}
			if !inPlace {
				requireRecord(t, lab, name, !kept, !kept)
			}
			require(t, (w.ids[name] == after[name]) == kept,
				"%s was etcd member %s and is %s, its data kept: %t", name, w.ids[name], after[name], kept)
		}
		requireSame(t, want, w.seen, "what happened to etcd (-want +got)")
		requireSame(t, who, lab.identities(), "UUID and address by name (-before +after)")
	})
}

func (l *Lab) identities() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, n := range l.Nodes {
		k := l.kubeNode(n.Name)
		out[n.Name] = fmt.Sprint(k.Status.NodeInfo.SystemUUID, " ", k.Status.Addresses)
	}
	return out
}

// requireRecord checks what a control plane's parking VM says about etcd.
func requireRecord(t *testing.T, lab *Lab, node string, etcdOn, left bool) {
	t.Helper()
	_, rec := lab.recordOf(node)
	require(t, len(rec.Kept) == 1 && rec.Kept[0].Left == left && rec.Kept[0].EtcdOn == etcdOn,
		"the record of %s: %+v", node, rec.Kept)
}

// TestPeers14TheOnlyOneIsNotWiped: upgrades wiped single control planes (talos #5794, #1768).
func TestPeers14TheOnlyOneIsNotWiped(t *testing.T) {
	eachLong(t, oneWorker(), newDisks, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("strategy: " + string(s))
		lab.Patch(everywhere)
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		err := lab.Client().roll(planning.Policy{AcceptOutage: true})(t.Context())
		requireRefused(t, err, "cp1: the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk")
		lab.requireLeftAlone(from, "cp1")
		lab.requireLeftAlone(from, "wk1")
		requireSame(t, ids, lab.memberIDs(), "members of etcd (-before +after)")
	})
}

const (
	typeControlPlane = "type: controlplane"
	typeInit         = "type: init"
	beginsAlone      = "Talos begins a new, empty etcd"
)

// makeInit gives a control plane the type that an old talosctl gen config gave the first one. It keeps etcd's data.
func (l *Lab) makeInit(name string) {
	l.t.Helper()
	text := strings.Replace(string(l.configOf(name)), typeControlPlane, typeInit, 1)
	l.talosctl(name, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte(text), Mode: machineapi.ApplyConfigurationRequest_STAGED})
		return err
	})
	l.talosctl(name, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(3 * time.Minute)
	mustBe(l.t, strings.Contains(string(l.configOf(name)), typeInit), "%s is not of that type", name)
}

// requireOneEtcd fails if a second etcd was begun, or members are missing.
func (l *Lab) requireOneEtcd(members ...string) {
	l.t.Helper()
	got := l.memberNames()
	require(l.t, slices.Equal(got, members), "etcd has %q, want %q", got, members)
	l.requireEtcd()
}

// TestTypeInit: no strategy takes etcd's data from a control plane of type init, which would begin a second
// etcd without them; another type lifts that.
func TestTypeInit(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None}, func(t *testing.T, lab *Lab) {
		lab.makeInit("cp1")
		lab.Patch(everywhere)
		only := policyFor("cp1")
		requirePlanned(t, lab.planOf(lab.Client(), "cp1", only), cluster.InPlace, beginsAlone)
		for _, s := range []string{"recreate", "reimage"} {
			user := lab.Client()
			lab.Replace("recast.yaml", "vmid: 9001}", "vmid: 9001, strategy: "+s+"}")
			from := len(lab.Recorder.Calls())
			requireRefused(t, user.roll(only)(t.Context()), beginsAlone)
			lab.requireLeftAlone(from, "cp1")
			lab.Replace("recast.yaml", ", strategy: "+s+"}", "}")
		}
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), beginsAlone)

		files := configFiles{"cp1": cluster.Secret(strings.Replace(string(lab.configOf("cp1")), typeInit, typeControlPlane, 1))}
		user := files.user(lab, firstRun)
		configure := only
		configure.What = []planning.What{planning.Config}
		requirePlanned(t, lab.planOf(user, "cp1", configure), cluster.ApplyConfig)
		must(t, user.roll(configure)(t.Context()))
		requirePlanned(t, lab.planOf(user, "cp1", only), cluster.Recreate)
		must(t, user.roll(only)(t.Context()))
		lab.requireOneEtcd("cp1", "cp2", "cp3")
		lab.RequireIntact()
	})
}
