package simtest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

	interrupt context.CancelFunc // ends the context of the roll
}

func (f *talosFault) run(t *testing.T) {
	o := f.o
	if o.ControlPlanes == 0 {
		o = oneWorker()
		o.TalosVersion = f.o.TalosVersion
	}
	f.rolls = cmp.Or(f.rolls, "wk1")
	f.strategy = cmp.Or(f.strategy, cluster.Recreate)
	s := &talosScene{talosFault: f, t: t, Lab: New(t, o), kept: map[string][]byte{}}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	s.interrupt = interrupt
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
	err := inTime(ctx, t, s.client.roll(s.only()))
	s.Recorder.Hooks(nil, nil)
	require(t, s.struck.Load(), "the fault did not strike: no step %q started, and no call %q came", s.at, s.call)
	s.requireSaid(err)
	for name, content := range s.kept {
		s.Write(name, content)
	}
	requireSame(t, f.stands, s.stand(), "%s afterwards (-want +got)", f.rolls)
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

func (s *talosScene) rolled() sim.Node { return s.Lab.node(s.rolls) }

func (s *talosScene) only() planning.Policy { return policyFor(s.rolls) }

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
func (s *talosScene) keep(name string) { s.kept[name] = s.Read(name) }

func (s *talosScene) requireSaid(err error) {
	s.t.Helper()
	all := fmt.Sprint(err) + "\n" + strings.Join(fault.Hints(err), "\n")
	require(s.t, (err != nil) == (len(s.says) > 0) && fault.KindOf(err) == s.kind,
		"kind %d, want %d; it was to say %q:\n%s", fault.KindOf(err), s.kind, s.says, all)
	requireSays(s.t, all, s.says...)
	requireSays(s.t, strings.Join(s.heard, "\n"), s.noted)
}

// stand is the state of the node and its old system disk.
func (s *talosScene) stand() string {
	s.t.Helper()
	out := []string{map[bool]string{true: "on", false: "off"}[s.vm(s.rolled().VMID).Running]}
	for _, open := range valueOf(s.as(thirdRun).Status(s.t.Context()))(s.t).Open {
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
	kept := map[bool]int{true: 1, false: 0}[s.parks || s.strategy != cluster.InPlace]
	s.Lab.requireWell(s.rolls, kept, members)
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
		require(l.t, now[name] != "" && (now[name] == id || name == node),
			"etcd's member %s was %s and is %q", name, id, now[name])
	}
	require(l.t, len(now) == len(members), "members of etcd before: %v, now: %v", members, now)
}

// recovered cancels the replacement, and rolls to another build.
func (s *talosScene) recovered() {
	s.t.Helper()
	must(s.t, s.as(secondRun).giveUp(s.rolls)(s.t.Context()))
	s.requireServing(s.rolls)
	s.again()
}

func (s *talosScene) again() {
	s.t.Helper()
	s.Patch(everywhere)
	must(s.t, s.as(thirdRun).roll(s.only())(s.t.Context()))
}

type machineState struct {
	Config map[string]string
	Boot   string
}

// machineState is the machine's state that a failed drain must not change.
func (s *talosScene) machineState() machineState {
	s.t.Helper()
	return machineState{Config: maps.Clone(s.vm(s.rolled().VMID).Config), Boot: s.machine(s.rolls).BootID}
}

// TestTalosFaults plays each of them in its own world: the roll ends in time and says what a person needs to know,
// nothing irreplaceable is lost, and after the fault the remedy ends in sync.
func TestTalosFaults(t *testing.T) {
	for name, f := range talosFaults() {
		t.Run(name, func(t *testing.T) {
			if !f.short {
				long(t)
			}
			t.Attr("sum:talos-faults", "1")
			inBubble(t, f.run)
		})
	}
}

func eachFault(t *testing.T, faults map[string]*talosFault) {
	t.Helper()
	eachInBubble(t, faults, func(t *testing.T, f *talosFault) { f.run(t) })
}

// TestDrainFaults plays each fault in its own world, for a node that is recreated and for one that is upgraded in
// place: the roll says which pod or volume blocks it and why, the VM is not touched before all are gone, and after
// the fault the same command ends in sync.
func TestDrainFaults(t *testing.T) {
	faults := 0
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.InPlace} {
		for name, f := range drainFaults(strategy) {
			if testing.Short() && !(f.short && strategy == cluster.Recreate) {
				continue
			}
			faults++
			t.Run(string(strategy)+"/"+name, func(t *testing.T) { inBubble(t, f.run) })
		}
	}
	t.Attr("drain-faults", fmt.Sprint(faults))
}

// TestCtrlCInADrain interrupts a roll while a pod is terminating. It leaves a cordoned,
// complete node, from which the next roll continues; it evicts only the remaining pods.
func TestCtrlCInADrain(t *testing.T) {
	long(t)
	faults := map[string]*talosFault{}
	for s, step := range drainSteps {
		faults[string(s)] = &talosFault{
			strategy: s, first: deployed(stubborn), mends: later,
			at: step, begins: meanwhile(10*time.Second, func(s *talosScene) { s.interrupt() }),
			kind: fault.Interrupted, says: []string{"context canceled"}, stands: leftCordoned(s), spares: true,
		}
	}
	eachFault(t, faults)
}

func (l *Lab) toRack(name, rack string) {
	l.t.Helper()
	node := l.kubeNode(name)
	node.Labels["rack"] = rack
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// TestMetadataOfTheSameNode: a person's changes of a Node during its roll are kept; a new
// Node of that name gets the old one's metadata.
func TestMetadataOfTheSameNode(t *testing.T) {
	long(t)
	racked := func(meanwhile func(*talosScene), want string) *talosFault {
		return &talosFault{
			first: func(s *talosScene) { s.toRack("wk1", "a") }, at: "bring-up/start", begins: meanwhile, stands: untouched,
			mends: func(s *talosScene) { requireSame(s.t, want, s.kubeNode("wk1").Labels["rack"], "rack (-want +got)") },
		}
	}
	eachFault(t, map[string]*talosFault{
		"someone moves it to another rack": racked(func(s *talosScene) { s.toRack("wk1", "b") }, "b"),
		"someone deletes it":               racked(forgotten("wk1"), "a"),
	})
}
