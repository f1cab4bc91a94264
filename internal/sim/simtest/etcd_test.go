package simtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// etcdWatch looks at etcd and the control planes before and after every call of a roll.
type etcdWatch struct {
	lab *Lab

	mu     sync.Mutex
	ids    map[string]string   // of the members when the watch began, by name
	fewest int                 // members that there ever were
	out    int                 // control planes that were ever off at once
	asked  []string            // calls that change etcd: method and node
	wrong  []string            // what must not be
	last   map[string]string   // members before the last such call
	lost   map[string][]string // members that were gone right after a node was made to leave, by node
}

// watchEtcd begins to look; it replaces the recorder's hooks.
func (l *Lab) watchEtcd() *etcdWatch {
	w := &etcdWatch{lab: l, ids: l.memberIDs(), fewest: len(l.EtcdMembers()), lost: map[string][]string{}}
	l.Recorder.Hooks(w.before, w.after)
	return w
}

// memberIDs are the members of etcd that vote, by name.
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
	w.asked = append(w.asked, method+" "+node)
	if method == "LeaveCluster" {
		if len(w.last) != len(w.ids) {
			w.wrong = append(w.wrong, fmt.Sprintf("%s was made to leave while the voting members were %v", node, w.last))
		}
		if n := w.lab.node(node); !w.lab.runs(n) {
			w.wrong = append(w.wrong, node+" was made to leave when its VM was off")
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
			if now[name] != w.last[name] {
				w.lost[w.lab.nameOf(c.Target)] = append(w.lost[w.lab.nameOf(c.Target)], name)
			}
		}
	}
	w.fewest = min(w.fewest, len(now))
	out := 0
	for _, n := range w.lab.Nodes {
		if n.ControlPlane && !w.lab.runs(n) {
			out++
		}
	}
	w.out = max(w.out, out)
}

func (l *Lab) runs(n sim.Node) bool {
	vm, err := l.World.LookupVM(n.Host, n.VMID)
	return err == nil && vm.Running
}

// nameOf is the name of the node at an address.
func (l *Lab) nameOf(addr string) string {
	for _, n := range l.Nodes {
		if n.Addr.String() == addr {
			return n.Name
		}
	}
	return addr
}

// mustRoll rolls with what a user has asked for.
func (l *Lab) mustRoll(run string, p cluster.Policy) cluster.Plan {
	l.t.Helper()
	c := l.Client()
	c.Run = run
	rep, err := c.Roll(l.t.Context(), p)
	if err != nil {
		l.t.Fatalf("%v\nhints %q", err, fault.Hints(err))
	}
	return rep.Plan
}

var controlPlanes = []string{"cp1", "cp2", "cp3"}

// TestPeers14MembersSurviveARoll: upgrades of three control planes lost or
// removed members, and wiped single ones (talos #9153, #9789, #8759, #7423, #5794, #1768).
func TestPeers14MembersSurviveARoll(t *testing.T) {
	t.Run("three", func(t *testing.T) {
		inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
			lab.Patch(everywhere)
			w := lab.watchEtcd()
			lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
			requireMembers(t, lab, "", false)
			if w.fewest != 2 || len(w.wrong) > 0 {
				t.Errorf("etcd once had %d voting members: %q", w.fewest, w.wrong)
			}
		})
	})
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run("one, told to "+string(s), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
				lab.Patch(everywhere)
				ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
				_, err := lab.Client().Roll(t.Context(), cluster.Policy{AcceptOutage: true})
				requireRefused(t, err, "cp1: the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk")
				lab.requireServing(from, "cp1")
				lab.requireServing(from, "wk1")
				if diff := cmp.Diff(ids, lab.memberIDs()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// requireRefused fails unless something was refused as unsafe for that reason.
func requireRefused(t *testing.T, err error, text string) {
	t.Helper()
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
	}
}

// TestPeers15OneAtATime: the next member was removed before the last one was
// back (cacppt #225, #150).
func TestPeers15OneAtATime(t *testing.T) {
	for _, onData := range []bool{false, true} {
		t.Run(fmt.Sprintf("onData=%t", onData), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				w := lab.watchEtcd()
				lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes, MaxUnavailable: func(int) int { return 3 }})
				if w.out != 1 || len(w.wrong) > 0 {
					t.Errorf("%d control planes were off at once: %q", w.out, w.wrong)
				}
				if want := map[bool]int{false: 2, true: 3}[onData]; w.fewest != want {
					t.Errorf("etcd once had %d voting members, want %d", w.fewest, want)
				}
				requireMembers(t, lab, "", false)
			})
		})
	}
}

// TestPeers16TheNodeItselfLeaves: removing a member by name took away the wrong
// node's data (talos #3340).
func TestPeers16TheNodeItselfLeaves(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		w := lab.watchEtcd()
		lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
		want := []string{
			"ForfeitLeadership cp1", "LeaveCluster cp1", "ForfeitLeadership cp2", "LeaveCluster cp2", "ForfeitLeadership cp3", "LeaveCluster cp3",
		}
		if diff := cmp.Diff(want, w.asked); diff != "" {
			t.Errorf("what was asked of etcd (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string][]string{"cp1": {"cp1"}, "cp2": {"cp2"}, "cp3": {"cp3"}}, w.lost); diff != "" {
			t.Errorf("members gone after each leave (-want +got):\n%s", diff)
		}
		for _, wrong := range w.wrong {
			t.Error(wrong)
		}
		for name, id := range lab.memberIDs() {
			if w.ids[name] == id {
				t.Errorf("%s is the same member, although its data was lost", name)
			}
			requireRecord(t, lab, name, true, true)
		}
		lab.RequireIntact()
	})
}

// requireRecord looks at what the parking VM of a control plane says of etcd.
func requireRecord(t *testing.T, lab *Lab, node string, etcdOn, left bool) {
	t.Helper()
	res, err := lab.Client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range res.Kept {
		if k.Node == node {
			vm, err := lab.World.LookupVM(lab.node(node).Host, int(k.Parking))
			if err != nil {
				t.Fatal(err)
			}
			rec, _, err := cluster.ReadRecord(cluster.VM{Config: vm.Config})
			if err != nil || len(rec.Kept) != 1 || rec.Kept[0].Left != left || rec.Kept[0].EtcdOn != etcdOn {
				t.Errorf("the record of %s: %+v, %v", node, rec.Kept, err)
			}
			return
		}
	}
	t.Errorf("no system disk of %s is kept: %+v", node, res.Kept)
}

// TestEtcdDataThatIsKept is the other way round: a member that was removed could
// never use its data again (facts: "the member has been permanently removed").
func TestEtcdDataThatIsKept(t *testing.T) {
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace} {
		t.Run(string(s), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: s != cluster.InPlace}, func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
				lab.Patch(everywhere)
				w := lab.watchEtcd()
				lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
				if len(w.asked) > 0 {
					t.Errorf("what was asked of etcd: %q", w.asked)
				}
				if diff := cmp.Diff(w.ids, lab.memberIDs()); diff != "" {
					t.Errorf("the members (-before +after):\n%s", diff)
				}
				if s != cluster.InPlace {
					requireRecord(t, lab, "cp1", false, false)
				}
				requireMembers(t, lab, "", false)
			})
		})
	}
}
