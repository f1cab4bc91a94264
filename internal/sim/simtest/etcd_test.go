package simtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// etcdWatch checks etcd and the control planes before and after every call of a roll.
type etcdWatch struct {
	lab *Lab

	mu     sync.Mutex
	ids    map[string]string   // of the members at the beginning, by name
	fewest int                 // minimum number of members
	out    int                 // maximum number of control planes down at once
	asked  []string            // calls that change etcd: method and node
	wrong  []string            // violations
	last   map[string]string   // members before the latest such call
	lost   map[string][]string // members missing right after a node's leave, by node
}

// watchEtcd starts the checks; it replaces the recorder's hooks.
func (l *Lab) watchEtcd() *etcdWatch {
	w := &etcdWatch{lab: l, ids: l.memberIDs(), fewest: len(l.EtcdMembers()), lost: map[string][]string{}}
	l.Recorder.Hooks(w.before, w.after)
	return w
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
			if node := w.lab.nameOf(c.Target); now[name] != w.last[name] {
				w.lost[node] = append(w.lost[node], name)
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

// mustRoll is a roll that must succeed.
func (l *Lab) mustRoll(run string, p planning.Policy) planning.Plan {
	l.t.Helper()
	rep, err := l.as(run).Roll(l.t.Context(), p)
	if err != nil {
		l.t.Fatalf("%v\nhints %q", err, fault.Hints(err))
	}
	return rep.Plan
}

var controlPlanes = []string{"cp1", "cp2", "cp3"}

// account is the report of a watched roll of three control planes.
type account struct {
	*etcdWatch
	strategy      cluster.Strategy
	kept          bool // etcd's data is kept
	after         map[string]string
	who, whoAfter map[string]string // identity of each node
}

// rollControlPlanes rolls three of them, however many may be down at a time.
func rollControlPlanes(t *testing.T, s cluster.Strategy, onData bool) (a account) {
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData})
		lab.setRoll("strategy: "+string(s), "maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(everywhere)
		a = account{etcdWatch: lab.watchEtcd(), strategy: s, kept: onData || s == cluster.InPlace, who: lab.identities()}
		lab.mustRoll("20000101-0000-feed", planning.Policy{Only: controlPlanes})
		a.after, a.whoAfter = lab.memberIDs(), lab.identities()
		requireMembers(t, lab, "", false)
		if s != cluster.InPlace {
			for _, node := range controlPlanes {
				requireRecord(t, lab, node, !a.kept, !a.kept)
			}
		}
		lab.RequireIntact()
	})
	return a
}

// TestPeersRoll checks one roll for each story.
func TestPeersRoll(t *testing.T) {
	long(t)
	for _, c := range []struct {
		strategy cluster.Strategy
		onData   bool
	}{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, true}, {cluster.InPlace, false}} {
		t.Run(fmt.Sprintf("%s/onData=%t", c.strategy, c.onData), func(t *testing.T) {
			t.Parallel()
			a := rollControlPlanes(t, c.strategy, c.onData)
			t.Run("Peers14MembersSurvive", a.peers14)
			t.Run("Peers15OneAtATime", a.peers15)
			t.Run("Peers16TheNodeItselfLeaves", a.peers16)
			t.Run("Peers17NameAndAddressStay", a.peers17)
		})
	}
}

// peers14: upgrades of three control planes lost or removed members (talos #9153, #9789,
// #8759, #7423). The data of a removed member is unusable for ever (facts: "the member has
// been permanently removed").
func (a account) peers14(t *testing.T) {
	if want := map[bool]int{false: 2, true: 3}[a.kept]; a.fewest != want {
		t.Errorf("etcd once had %d voting members, want %d", a.fewest, want)
	}
	for _, name := range controlPlanes {
		if (a.ids[name] == a.after[name]) != a.kept {
			t.Errorf("%s was etcd member %s and is %s, its data kept: %t", name, a.ids[name], a.after[name], a.kept)
		}
	}
}

// peers15: the next member was removed before the previous one was back (cacppt #225,
// #150).
func (a account) peers15(t *testing.T) {
	if want := map[bool]int{false: 1, true: 0}[a.strategy == cluster.InPlace]; a.out != want {
		t.Errorf("%d control planes were off at once, want %d", a.out, want)
	}
	for _, wrong := range a.wrong {
		t.Error(wrong)
	}
}

// peers16: removing a member by name deleted the wrong node's data (talos #3340).
func (a account) peers16(t *testing.T) {
	var asked []string
	lost := map[string][]string{}
	if !a.kept {
		for _, name := range controlPlanes {
			asked = append(asked, "ForfeitLeadership "+name, "LeaveCluster "+name)
			lost[name] = []string{name}
		}
	}
	if diff := cmp.Diff(asked, a.asked); diff != "" {
		t.Errorf("what was asked of etcd (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(lost, a.lost); diff != "" {
		t.Errorf("members gone after each leave (-want +got):\n%s", diff)
	}
}

// peers17: a machine that joins etcd removes the member with its own name, whoever that is
// (talos PR #3715).
func (a account) peers17(t *testing.T) {
	if diff := cmp.Diff(a.who, a.whoAfter); diff != "" {
		t.Errorf("UUID and address by name (-before +after):\n%s", diff)
	}
}

// identities is the identity of each node.
func (l *Lab) identities() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, n := range l.Nodes {
		k, err := l.Kube.Node(l.t.Context(), n.Name)
		must(l.t, err)
		out[n.Name] = fmt.Sprint(k.Status.NodeInfo.SystemUUID, " ", k.Status.Addresses)
	}
	return out
}

// requireRefused fails unless the error is a refusal as unsafe for that reason.
func requireRefused(t *testing.T, err error, text string) {
	t.Helper()
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
	}
}

// requireRecord checks what a control plane's parking VM says about etcd.
func requireRecord(t *testing.T, lab *Lab, node string, etcdOn, left bool) {
	t.Helper()
	_, rec := lab.recordOf(node)
	if len(rec.Kept) != 1 || rec.Kept[0].Left != left || rec.Kept[0].EtcdOn != etcdOn {
		t.Errorf("the record of %s: %+v", node, rec.Kept)
	}
}

// TestPeers14TheOnlyOneIsNotWiped: upgrades wiped single control planes (talos #5794, #1768).
func TestPeers14TheOnlyOneIsNotWiped(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), storiesOf(cluster.Recreate, cluster.Reimage), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("strategy: " + string(s))
		lab.Patch(everywhere)
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), planning.Policy{AcceptOutage: true})
		requireRefused(t, err, "cp1: the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk")
		lab.requireLeftAlone(from, "cp1")
		lab.requireLeftAlone(from, "wk1")
		if diff := cmp.Diff(ids, lab.memberIDs()); diff != "" {
			t.Error(diff)
		}
	})
}
