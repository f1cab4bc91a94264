package simtest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
)

// talosFault is a fault of a machine, or of Talos on it, while one node is rolled.
type talosFault struct {
	o        sim.Options      // zero: one control plane and one worker
	rolls    string           // the rolled node; "": wk1
	strategy cluster.Strategy // "": recreate
	roll     []string         // further settings of the roll
	short    bool             // it is part of make test

	// When it begins, one of these: when a step whose path ends in at starts, or before a
	// server acts on such a call; else before the roll.
	at   string
	call string

	first  func(s *talosScene) // the world before, while the node still runs the wanted build
	begins func(s *talosScene)
	// mends removes the cause after the roll; nil: not needed.
	mends func(s *talosScene)
	// remedy is the manual remedy in the hint; nil: the same command again.
	remedy func(s *talosScene)

	kind   fault.Kind
	says   []string // texts in the error and its hints, all of them; none: the roll succeeds
	stands string   // state of the node afterwards
	spares bool     // a roll that fails leaves the VM as it was, in the same boot
	parks  bool     // an old system disk is parked in the end although it is upgraded in place
	noted  string   // a message to the user during the roll
}

// talosScene is a world with that fault.
type talosScene struct {
	*talosFault
	*Lab
	t      *testing.T
	client *Client                           // of the roll
	route  atomic.Pointer[map[string]string] // redirected addresses
	kept   map[string][]byte                 // original files, by name
	was    cluster.Secret                    // a machine's original configuration
	heard  []string
	struck atomic.Bool // the fault has begun
}

func (f *talosFault) run(t *testing.T) {
	o := f.o
	if o.ControlPlanes == 0 {
		o = oneWorker()
		o.TalosVersion = f.o.TalosVersion
	}
	f.rolls = cmp.Or(f.rolls, "wk1")
	f.strategy = cmp.Or(f.strategy, cluster.Recreate)
	s := &talosScene{talosFault: f, t: t, Lab: New(t, o)}
	s.client = s.as(firstRun)
	s.client.Reroute = s.rerouted
	s.setRoll(append(f.roll, "strategy: "+string(f.strategy))...)
	if f.first != nil {
		f.first(s)
	}
	var was machineState
	if f.spares {
		was = s.machineState()
	}
	s.Patch(everywhere)
	members := s.memberIDs()
	s.strike()
	err := inTime(t.Context(), t, s.client.roll(s.only()))
	s.Recorder.Hooks(nil, nil)
	if !s.struck.Load() {
		t.Errorf("the fault did not strike: no step %q started, and no call %q came", s.at, s.call)
	}
	s.requireSaid(err)
	for name, content := range s.kept {
		s.Write(name, content)
	}
	if got := s.stand(); got != f.stands {
		t.Errorf("%s: %s, want %s", f.rolls, got, f.stands)
	}
	s.RequireIntact()
	if f.spares && err != nil {
		requireSame(t, was, s.machineState(), "the machine is not as it was (-before +now)")
	}
	if f.mends != nil {
		f.mends(s)
	}
	if f.remedy != nil {
		f.remedy(s)
	} else if err != nil {
		must(t, s.as(secondRun).roll(s.only())(t.Context()))
	}
	s.requireWell(members)
}

// rolled is the node that is rolled.
func (s *talosScene) rolled() sim.Node { return s.Lab.node(s.rolls) }

func (s *talosScene) only() planning.Policy { return planning.Policy{Only: []string{s.rolls}} }

// strike begins the fault at its time.
func (s *talosScene) strike() {
	switch {
	case s.at != "":
		begin := whenStarted(s.at, func() { s.struck.Store(true); s.begins(s) })
		s.client.Emit = func(e step.Event) { begin(e); s.hear(e) }
		return
	case s.call != "":
		s.Recorder.Hooks(func(c record.Call) error {
			if strings.HasSuffix(c.Path+" "+c.Method, s.call) && s.struck.CompareAndSwap(false, true) {
				s.begins(s)
			}
			return nil
		}, nil)
	default: // without begins, the fault is that of the world before
		s.struck.Store(true)
		if s.begins != nil {
			s.begins(s)
		}
	}
	s.client.Emit = s.hear
}

func (s *talosScene) hear(e step.Event) {
	if e.Status == step.Note {
		s.heard = append(s.heard, e.Text)
	}
}

// keep restores a file after the roll.
func (s *talosScene) keep(name string) {
	if s.kept == nil {
		s.kept = map[string][]byte{}
	}
	s.kept[name] = s.Read(name)
}

// requireSaid checks the roll's result and messages.
func (s *talosScene) requireSaid(err error) {
	s.t.Helper()
	all := fmt.Sprint(err) + "\n" + strings.Join(fault.Hints(err), "\n")
	if (err != nil) != (len(s.says) > 0) || fault.KindOf(err) != s.kind {
		s.t.Errorf("kind %d, want %d; it was to say %q:\n%s", fault.KindOf(err), s.kind, s.says, all)
		return
	}
	for _, text := range s.says {
		if !strings.Contains(all, text) {
			s.t.Errorf("it does not say %q:\n%s", text, all)
		}
	}
	if told := strings.Join(s.heard, "\n"); !strings.Contains(told, s.noted) {
		s.t.Errorf("%q was not shown:\n%s", s.noted, told)
	}
}

// stand is the state of the node and its old system disk.
func (s *talosScene) stand() string {
	s.t.Helper()
	n := s.rolled()
	vm, err := s.World.LookupVM(n.Host, n.VMID)
	must(s.t, err)
	out := []string{"off"}
	if vm.Running {
		out[0] = "on"
	}
	res, err := s.as(thirdRun).Status(s.t.Context())
	must(s.t, err)
	for _, open := range res.Open {
		if open.Node == s.rolls {
			out = append(out, "its old disk parked")
		}
	}
	if k, err := s.Kube.Node(s.t.Context(), s.rolls); err == nil && k.Spec.Unschedulable {
		out = append(out, "cordoned")
	}
	return strings.Join(out, ", ")
}

// requireWell requires a healthy node in a healthy cluster.
func (s *talosScene) requireWell(members map[string]string) {
	s.t.Helper()
	requireDrift(s.t, s.Lab, s.others(s.rolls)...)
	s.Lab.requireWell(s.rolls, map[bool]int{true: 0, false: 1}[s.strategy == cluster.InPlace && !s.parks], members)
}

// requireWell requires a node to serve in a healthy cluster with that many kept disks and no
// claim. Of the members of etcd only its own may be another one.
func (l *Lab) requireWell(node string, kept int, members map[string]string) {
	l.t.Helper()
	l.requireServing(node)
	l.requireKept(kept)
	l.RequireIntact()
	now := l.memberIDs()
	for name, id := range members {
		if now[name] == "" || now[name] != id && name != node {
			l.t.Errorf("etcd's member %s was %s and is %q", name, id, now[name])
		}
	}
	if len(now) != len(members) {
		l.t.Errorf("members of etcd before: %v, now: %v", members, now)
	}
}

// recovered cancels the replacement, and rolls to another build.
func (s *talosScene) recovered() {
	s.t.Helper()
	must(s.t, s.as(secondRun).giveUp(s.rolls)(s.t.Context()))
	s.requireServing(s.rolls)
	s.again()
}

// again rolls to another build.
func (s *talosScene) again() {
	s.t.Helper()
	s.Patch(everywhere)
	must(s.t, s.as(thirdRun).roll(s.only())(s.t.Context()))
}

// TestTalosFaults plays each of them in its own world: the roll ends in time and says what
// a person needs to know, nothing irreplaceable is lost, and after the fault the remedy
// ends in sync.
func TestTalosFaults(t *testing.T) {
	for name, f := range talosFaults() {
		t.Run(name, func(t *testing.T) {
			if !f.short {
				long(t)
			}
			t.Attr("sum:talos-faults", "1")
			t.Parallel()
			synctest.Test(t, f.run)
		})
	}
}

// faultsOfNames: another machine takes the node's name, or the node another name, at every
// moment before recast uses the name.
func faultsOfNames() map[string]*talosFault {
	const (
		another = "Kubernetes has UUID 5ec0ffee-0000-4000-8000-000000009032 for node wk1, whose VM 9031 has 5ec0ffee-0000-4000-8000-000000009031: two machines have its name"
		whose   = `it is the machine of VM 9032 "wk2" on pve1`
		remedy  = "give every machine a hostname of its own"
	)
	var (
		taken    = renamed("wk2", "wk2", "wk1")
		given    = renamed("wk2", "wk1", "wk2")
		twoAndWk = sim.Options{ControlPlanes: 3, Workers: 2}
	)
	rows := map[string]*talosFault{
		"two nodes have its hostname": {
			begins: taken,
			says:   []string{`node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009032 belongs to VM 9032 "wk2" on pve1, not to VM 9031`, "has that VM's machine been given the hostname of wk1?"}, stands: untouched,
		},
		"two nodes have its hostname when it is to be drained":           {short: true, at: "take-down/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to be configured":        {at: "bring-up/start", begins: taken, mends: inTurn(given, forgotten("wk1")), says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to take pods":            {at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to be drained, in place": {strategy: cluster.InPlace, at: "upgrade/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to take pods, in place":  {strategy: cluster.InPlace, at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: "on, cordoned"},
		"it is given another hostname when it is to be drained":          {at: "take-down/drain", begins: renamed("wk1", "wk1", "wk9"), mends: inTurn(renamed("wk1", "wk9", "wk1"), forgotten("wk9")), says: []string{"the machine of wk1 is node wk9 now", "see who has changed its hostname"}, stands: untouched},
		"another machine takes its hostname before it leaves etcd":       {o: twoAndWk, rolls: "cp2", at: "take-down/leave-etcd", begins: usurped, mends: restored, says: []string{"for node cp2, whose VM 9002 has", "is named cp2, but runs on 127.42.7.32", whose, remedy}, stands: untouched},
		"another machine takes its hostname when it is to be configured": {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: usurped, mends: inTurn(restored, forgotten("cp2")), says: []string{"for node cp2, whose VM 9002 has", whose, remedy}, stands: isOut},
		"another machine takes its member of etcd, but has no kubelet":   {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: inTurn(usurped, unnoticed), mends: restored, says: []string{"is named cp2, but runs on 127.42.7.32, which has UUID 5ec0ffee-0000-4000-8000-000000009032: another machine has its name", whose, remedy}, stands: "on, its old disk parked"},
	}
	for _, f := range rows {
		f.kind = fault.Refused
		if f.o.ControlPlanes == 0 {
			f.o = twoWorkers
		}
		if f.mends == nil {
			f.mends = given
		}
	}
	return rows
}

// usurped is a worker with cp2's configuration and so its name, in Kubernetes and etcd.
func usurped(s *talosScene) {
	s.was = s.configOf("wk2")
	impostor(s.t, s.Lab, "cp2", "wk2")
}

// unnoticed deletes the usurper's Node.
func unnoticed(s *talosScene) {
	s.Lab.Kube.NodeDown(s.Lab.node("wk2").UUID)
	forgotten("cp2")(s)
}

// forgotten is a Node that a person deletes.
func forgotten(node string) func(*talosScene) { return dropped(store.Nodes(), "", node) }

// restored gives that worker its own configuration back, and removes it as cp2 from etcd.
func restored(s *talosScene) {
	s.apply("wk2", s.was)
	for _, m := range s.EtcdMembers() {
		if m.Name == "cp2" {
			s.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
				return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: parseMember(m.ID)})
			})
		}
	}
}
