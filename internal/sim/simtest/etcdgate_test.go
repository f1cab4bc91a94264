package simtest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// breakEtcd sets the fault of control planes' etcd.
func (l *Lab) breakEtcd(f talosapi.EtcdFault, names ...string) {
	l.t.Helper()
	for _, name := range names {
		require(l.t, l.BreakEtcd(name, f) == nil, "%s has no etcd to break", name) // not fatal: hooks of a roll call this
	}
}

// talosctl is a Talosctl that must succeed.
func (l *Lab) talosctl(name string, call func(context.Context, *client.Client) error) {
	l.t.Helper()
	must(l.t, l.Talosctl(l.t.Context(), name, call))
}

// leaveAndReboot makes a control plane a new member of etcd, or lets it try.
func (l *Lab) leaveAndReboot(name string, between func()) {
	l.t.Helper()
	l.talosctl(name, func(ctx context.Context, c *client.Client) error {
		return c.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
	})
	between()
	l.talosctl(name, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(2 * time.Minute)
}

// touched lists the changes of a node's VM, machine or Node since a call, without image
// pulls, which come before its turn.
func (l *Lab) touched(from int, name string) []string {
	n := l.node(name)
	var out []string
	for _, c := range l.Recorder.Calls()[from:] {
		of := strings.Contains(c.Path, fmt.Sprintf("/qemu/%d/", n.VMID)) || c.Proto == "talos" && c.Target == n.Addr.String() ||
			c.Proto == "kubernetes" && c.Target == name
		if c.Mutation && of && c.Method != "/machine.ImageService/Pull" {
			out = append(out, c.Method+" "+c.Path)
		}
	}
	return out
}

// requireLeftAlone fails unless the node is untouched and schedulable.
func (l *Lab) requireLeftAlone(from int, name string) {
	l.t.Helper()
	touched := l.touched(from, name)
	require(l.t, len(touched) == 0, "%s was touched: %q", name, touched)
	n := l.node(name)
	vm := valueOf(l.World.LookupVM(n.Host, n.VMID))(l.t)
	require(l.t, vm.Running, "%s: %+v", name, vm)
	if k, err := l.Kube.Node(l.t.Context(), name); err == nil && k.Spec.Unschedulable {
		l.t.Errorf("%s is cordoned", name)
	}
}

// TestGateOfEtcd rolls one control plane while etcd needs it: what the members say reaches
// the gate. TestUnhealthyEtcd and the rows of cluster/rolling have each judgement.
func TestGateOfEtcd(t *testing.T) {
	type story struct {
		spoil  func(l *Lab)
		policy planning.Policy
		text   []string // in the error; none: the roll works
	}
	broken := func(f talosapi.EtcdFault, names ...string) func(*Lab) {
		return func(l *Lab) { l.breakEtcd(f, names...) }
	}
	eachLong(t, threePlanes, map[string]story{
		"another member is out of space": {broken(talosapi.EtcdFault{NoSpace: true}, "cp3"), policyFor("cp1"), []string{"alarm NOSPACE on member cp3"}},
		"another member is hung":         {broken(talosapi.EtcdFault{Hung: true}, "cp3"), policyFor("cp1"), []string{"cp3 does not answer: 127.42.7.13: gave up after 15s: read etcd's status"}},
		"another member is of another age": {
			broken(talosapi.EtcdFault{Version: "3.4.27"}, "cp3"), policyFor("cp1"),
			[]string{"its members are more than one minor version apart: cp3 runs 3.4.27, cp2 runs 3."},
		},
		"another member is a learner": {
			func(l *Lab) {
				l.leaveAndReboot("cp2", func() { l.breakEtcd(talosapi.EtcdFault{Learner: true}, "cp2") })
			},
			policyFor("cp1"),
			[]string{"cp2 is a learner: it does not vote yet"},
		},
		"nobody leads": {broken(talosapi.EtcdFault{Down: true}, "cp2", "cp3"), policyFor("cp1"), []string{"request timed out", "no control plane says who the members of etcd are"}},
		"a member that the others do not know": {
			splitBrain, planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}, []string{"the cluster has 3 control planes, but etcd without cp1 only these members: cp2"},
		},
		"only its own member is down": {broken(talosapi.EtcdFault{Down: true}, "cp1"), policyFor("cp1"), nil},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		user := lab.Client()
		from := 0
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if toVM(http.MethodDelete, "/qemu/9001")(call) {
				lab.breakEtcd(talosapi.EtcdFault{}, "cp1") // the faulty member ends with the machine
			}
		})
		user.Confirm = func(planning.Plan) (bool, error) {
			c.spoil(lab)
			time.Sleep(time.Minute)
			from = len(lab.Recorder.Calls())
			return true, nil
		}
		_, err := user.Roll(t.Context(), c.policy)
		if c.text == nil {
			must(t, err)
			return
		}
		requireFault(t, err, fault.Refused, c.text...)
		require(t, len(fault.Hints(err)) != 0, "no hint: %v", err)
		lab.requireLeftAlone(from, "cp1")
	})
}

// TestWorkersDoNotWaitForEtcd: an unhealthy member stops the roll of control planes, but not of workers before them.
func TestWorkersDoNotWaitForEtcd(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  order: workers-first\n")
		lab.Patch(everywhere)
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2")
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		requireRefused(t, err, "roll/control-planes/cp1/gate: etcd would not survive losing cp1: cp2 does not answer")
		for _, name := range controlPlanes {
			lab.requireLeftAlone(from, name)
		}
		requireDrift(t, lab, controlPlanes...)
	})
}

// splitBrain makes cp3 forget etcd and form a new one, while the others continue without
// it. The lab's cp2 is down meanwhile, so that nobody lets it join.
func splitBrain(l *Lab) {
	l.leaveAndReboot("cp3", func() { l.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2") })
	l.talosctl("cp3", func(ctx context.Context, c *client.Client) error {
		return c.Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	time.Sleep(time.Minute)
	l.breakEtcd(talosapi.EtcdFault{}, "cp2")
}

// parseMember parses a member's ID in Talos' form.
func parseMember(hex string) uint64 {
	id, _ := strconv.ParseUint(hex, 16, 64) // the lab's own; 0 is no member
	return id
}

// TestEtcdTroubleAfterwards breaks etcd while a control plane is down: the roll waits for a temporary fault, ends with
// the name of a permanent one, and the next run continues once that is repaired.
func TestEtcdTroubleAfterwards(t *testing.T) {
	long(t)
	faults := map[string]*talosFault{
		"the others lose their leader for a while": {begins: forAWhile(talosapi.EtcdFault{Down: true}, "cp2"), stands: untouched},
		"another member hangs for a while":         {begins: forAWhile(talosapi.EtcdFault{Hung: true}, "cp2"), stands: untouched},
		"its own member is a learner for a while":  {begins: forAWhile(talosapi.EtcdFault{Learner: true}, "cp1"), stands: untouched},
		"another member hangs": {
			begins: breakEtcd(talosapi.EtcdFault{Hung: true}, "cp2"), mends: inTurn(breakEtcd(talosapi.EtcdFault{}, "cp2"), later),
			says: []string{"etcd: cp2 does not answer: 127.42.7.12: gave up after 15s"}, stands: isOut,
		},
		"a member runs out of space": {
			begins: breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3"), mends: inTurn(breakEtcd(talosapi.EtcdFault{}, "cp3"), later),
			says: []string{"alarm NOSPACE on member cp3"}, stands: isOut,
		},
		"the data is not the same": {
			begins: breakEtcd(talosapi.EtcdFault{Corrupt: true}, "cp3"), mends: inTurn(breakEtcd(talosapi.EtcdFault{}, "cp3"), later),
			says: []string{"alarm CORRUPT on member cp3"}, stands: isOut,
		},
	}
	for _, f := range faults {
		f.o, f.rolls, f.at = threePlanes, "cp1", "bring-up/start"
	}
	eachFault(t, faults)
}

// forAWhile is a fault of a member of etcd that passes.
func forAWhile(f talosapi.EtcdFault, node string) func(*talosScene) {
	return inTurn(breakEtcd(f, node), meanwhile(2*time.Minute, breakEtcd(talosapi.EtcdFault{}, node)))
}

// resetOnceItLeft resets a machine right after the first machine has left etcd.
func (l *Lab) resetOnceItLeft(t *testing.T, id int) func(record.Call) {
	t.Helper()
	var once sync.Once
	return func(call record.Call) {
		if strings.HasSuffix(call.Method, "EtcdLeaveCluster") {
			once.Do(func() {
				time.AfterFunc(100*time.Millisecond, func() {
					must(t, l.World.PowerOff(id))
					must(t, l.World.PowerOn(id))
				})
			})
		}
	}
}

// resetAfterLeaving is a control plane, cp1, that is reset when it has left etcd, and joins it again.
type resetAfterLeaving struct {
	planes      int
	slow        time.Duration // how long Proxmox takes to shut it down
	killed, off bool          // the run dies then; the machine goes down after it has joined again
	refused     string        // refusal of the next run
}

func (c resetAfterLeaving) options() sim.Options {
	return sim.Options{ControlPlanes: c.planes, Workers: 1}
}

// play runs the command that makes cp1 leave, and again if it is killed before the step at or refused.
func (c resetAfterLeaving) play(t *testing.T, lab *Lab, at string, command func(*Client) func(context.Context) error) {
	left := lab.memberIDs()["cp1"]
	lab.Recorder.Hooks(func(call record.Call) error {
		if toVM("POST", "/qemu/9001/status/shutdown")(call) {
			time.Sleep(c.slow)
		}
		return nil
	}, lab.resetOnceItLeft(t, 9001))
	user := lab.second()
	if c.killed {
		user.killedAt(t, before(at), command(user))
		time.Sleep(3 * time.Minute)
		is := lab.memberIDs()["cp1"]
		mustBe(t, is != "" && is != left, "cp1 is member %q, it was %q", is, left)
		user = lab.as(thirdRun)
	}
	if c.off {
		must(t, lab.World.PowerOff(9001))
	}
	err := command(user)(t.Context())
	if c.refused != "" {
		if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(strings.Join(fault.Hints(err), ""), `start VM 9001 "cp1" on pve1 in Proxmox`) {
			t.Fatalf("err = %v, hints %q; want %q", err, fault.Hints(err), c.refused)
		}
		if c.off {
			must(t, lab.World.PowerOn(9001))
		}
		time.Sleep(2 * time.Minute)
		err = command(lab.Client())(t.Context())
	}
	must(t, err)
	voters := lab.memberIDs()
	require(t, len(voters) == c.planes && voters["cp1"] != "", "voting members of etcd: %v", voters)
	lab.RequireIntact()
}

// TestResetAfterItLeft: a reset makes a control plane that has left etcd join again. Its vote must
// not be lost with its disk: it leaves once more, here and in the run after a kill.
func TestResetAfterItLeft(t *testing.T) {
	eachLongIn(t, resetAfterLeaving.options, map[string]resetAfterLeaving{
		"of two":                   {planes: 2},
		"of three":                 {planes: 3},
		"killed":                   {planes: 2, killed: true},
		"killed and off":           {planes: 2, killed: true, off: true, refused: "whether cp1 has joined etcd again since it left can't be determined: no control plane says who the members of etcd are"},
		"killed and off, of three": {planes: 3, killed: true, off: true},
	}, func(t *testing.T, lab *Lab, c resetAfterLeaving) {
		lab.Patch(everywhere)
		c.play(t, lab, "take-down/stop", func(c *Client) func(context.Context) error {
			return c.roll(planning.Policy{Only: []string{"cp1"}, AcceptOutage: true})
		})
	})
}

// TestReplacementResetAfterItLeft: a cancelled replacement leaves etcd too; if it is reset then, it
// joins again before it is down.
func TestReplacementResetAfterItLeft(t *testing.T) {
	eachLongIn(t, resetAfterLeaving.options, map[string]resetAfterLeaving{
		"of two":              {planes: 2},
		"of three":            {planes: 3},
		"of two, shut down":   {planes: 2, slow: 30 * time.Second, refused: "put-back/stop: ask cp2 for the members of etcd"}, // and is started again
		"of three, shut down": {planes: 3, slow: 30 * time.Second},
		"killed":              {planes: 2, killed: true},
		"killed and off":      {planes: 2, killed: true, off: true, refused: "no control plane says who the members of etcd are"},
	}, func(t *testing.T, lab *Lab, c resetAfterLeaving) {
		lab.Patch(everywhere)
		lab.Client().rollKilled(before("finish/keep"), planning.Policy{Only: []string{"cp1"}, AcceptOutage: true})
		time.Sleep(3 * time.Minute)
		c.play(t, lab, "put-back/stop", func(c *Client) func(context.Context) error { return c.giveUp("cp1") })
	})
}
