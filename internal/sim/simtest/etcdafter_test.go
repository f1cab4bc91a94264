package simtest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestEtcdTroubleAfterwards breaks etcd while a control plane is down: the roll waits for
// a temporary fault, ends with the name of a permanent one, and the next run continues
// once that is repaired.
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

// play runs the command that makes cp1 leave, and again if it is killed before the step at or
// refused.
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
		if is := lab.memberIDs()["cp1"]; is == "" || is == left {
			t.Fatalf("cp1 is member %q, it was %q", is, left)
		}
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
	if voters := lab.memberIDs(); len(voters) != c.planes || voters["cp1"] == "" {
		t.Errorf("voting members of etcd: %v", voters)
	}
	lab.RequireIntact()
}

// TestResetAfterItLeft: a reset makes a control plane that has left etcd join again. Its vote must
// not be lost with its disk: it leaves once more, here and in the run after a kill.
func TestResetAfterItLeft(t *testing.T) {
	long(t)
	eachIn(t, resetAfterLeaving.options, map[string]resetAfterLeaving{
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
	long(t)
	eachIn(t, resetAfterLeaving.options, map[string]resetAfterLeaving{
		"of two":              {planes: 2},
		"of three":            {planes: 3},
		"of two, shut down":   {planes: 2, slow: 30 * time.Second, refused: "put-back/stop: ask cp2 for the members of etcd"}, // and is started again
		"of three, shut down": {planes: 3, slow: 30 * time.Second},
		"killed":              {planes: 2, killed: true},
		"killed and off":      {planes: 2, killed: true, off: true, refused: "no control plane says who the members of etcd are"},
	}, func(t *testing.T, lab *Lab, c resetAfterLeaving) {
		lab.Patch(everywhere)
		begun := lab.Client()
		begun.killedAt(t, before("finish/keep"), begun.roll(planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}))
		time.Sleep(3 * time.Minute)
		c.play(t, lab, "put-back/stop", func(c *Client) func(context.Context) error { return c.giveUp("cp1") })
	})
}
