package simtest

import (
	"maps"
	"net/http"
	"slices"
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
	const passes = 2 * time.Minute
	type story struct {
		fault  talosapi.EtcdFault
		node   string
		mended time.Duration // 0: not before the roll has failed
		text   string        // of the last observation; "": the roll works
	}
	cases := map[string]story{
		"the others lose their leader for a while": {talosapi.EtcdFault{Down: true}, "cp2", passes, ""},
		"another member hangs for a while":         {talosapi.EtcdFault{Hung: true}, "cp2", passes, ""},
		"its own member is a learner for a while":  {talosapi.EtcdFault{Learner: true}, "cp1", passes, ""},

		"the others lose their leader":   {talosapi.EtcdFault{Down: true}, "cp2", 0, "no control plane says who the members of etcd are"},
		"another member hangs":           {talosapi.EtcdFault{Hung: true}, "cp2", 0, "etcd: cp2 does not answer: 127.42.7.12: gave up after 15s"},
		"its own member stays a learner": {talosapi.EtcdFault{Learner: true}, "cp1", 0, "its etcd member is a learner still"},
		"a member runs out of space":     {talosapi.EtcdFault{NoSpace: true}, "cp3", 0, "alarm NOSPACE on member cp3"},
		"the data is not the same":       {talosapi.EtcdFault{Corrupt: true}, "cp3", 0, "alarm CORRUPT on member cp3"},
	}
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if call.Method != http.MethodDelete || !strings.HasSuffix(strings.Split(call.Path, "?")[0], "/qemu/9001") {
				return
			}
			lab.breakEtcd(c.fault, c.node)
			if c.mended > 0 {
				time.AfterFunc(c.mended, func() { lab.breakEtcd(talosapi.EtcdFault{}, c.node) })
			}
		})
		_, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"cp1"}})
		if c.text == "" {
			must(t, err)
		} else {
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("err = %v, want %q", err, c.text)
			}
			lab.requireLeftAlone(len(lab.Recorder.Calls()), "cp2")
			lab.breakEtcd(talosapi.EtcdFault{}, c.node)
			time.Sleep(time.Minute)
			lab.mustRoll("20000101-0000-0002", planning.Policy{Only: []string{"cp1"}})
		}
		if voters := slices.Sorted(maps.Keys(lab.memberIDs())); !slices.Equal(voters, controlPlanes) {
			t.Errorf("voting members of etcd: %q", voters)
		}
		requireInSync(t, lab, "cp2", "cp3", "wk1")
	})
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

// TestResetAfterItLeft: a reset makes a control plane that has left etcd join again. Its vote must
// not be lost with its disk: it leaves once more, here and in the run after a kill.
func TestResetAfterItLeft(t *testing.T) {
	long(t)
	only := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
	type story struct {
		planes      int
		killed, off bool   // the run dies then; the machine goes down after it has joined again
		refused     string // refusal of the next run
	}
	eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1} }, map[string]story{
		"of two":                   {planes: 2},
		"of three":                 {planes: 3},
		"killed":                   {planes: 2, killed: true},
		"killed and off":           {planes: 2, killed: true, off: true, refused: "whether cp1 has joined etcd again since it left can't be determined: no control plane says who the members of etcd are"},
		"killed and off, of three": {planes: 3, killed: true, off: true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		left := lab.memberIDs()["cp1"]
		lab.Recorder.Hooks(nil, lab.resetOnceItLeft(t, 9001))
		user := lab.Client()
		if c.killed {
			user.killedAt(t, before("take-down/stop"), user.roll(only))
			time.Sleep(3 * time.Minute)
			if is := lab.memberIDs()["cp1"]; is == "" || is == left {
				t.Fatalf("cp1 is member %q, it was %q", is, left)
			}
			user = lab.second()
		}
		if c.off {
			must(t, lab.World.PowerOff(9001))
		}
		err := user.roll(only)(t.Context())
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(strings.Join(fault.Hints(err), ""), `start VM 9001 "cp1" on pve1 in Proxmox`) {
				t.Fatalf("err = %v, hints %q; want %q", err, fault.Hints(err), c.refused)
			}
			must(t, lab.World.PowerOn(9001))
			time.Sleep(2 * time.Minute)
			err = lab.Client().roll(only)(t.Context())
		}
		must(t, err)
		if voters := lab.memberIDs(); len(voters) != c.planes || voters["cp1"] == "" {
			t.Errorf("voting members of etcd: %v", voters)
		}
		lab.RequireIntact()
	})
}

// TestReplacementResetAfterItLeft: a cancelled replacement leaves etcd too; if it is reset then, it
// joins again before it is down.
func TestReplacementResetAfterItLeft(t *testing.T) {
	long(t)
	type story struct {
		planes      int
		slow        time.Duration // how long Proxmox takes to shut it down
		killed, off bool          // the run dies then; the machine goes down after it has joined again
		refused     string        // refusal of the next run
	}
	eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1} }, map[string]story{
		"of two":              {planes: 2},
		"of three":            {planes: 3},
		"of two, shut down":   {planes: 2, slow: 30 * time.Second, refused: "put-back/stop: ask cp2 for the members of etcd"}, // and is started again
		"of three, shut down": {planes: 3, slow: 30 * time.Second},
		"killed":              {planes: 2, killed: true},
		"killed and off":      {planes: 2, killed: true, off: true, refused: "no control plane says who the members of etcd are"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		begun := lab.Client()
		begun.killedAt(t, before("finish/keep"), begun.roll(planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}))
		time.Sleep(3 * time.Minute)
		replacement := lab.memberIDs()["cp1"]
		lab.Recorder.Hooks(func(call record.Call) error {
			if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/qemu/9001/status/shutdown") {
				time.Sleep(c.slow)
			}
			return nil
		}, lab.resetOnceItLeft(t, 9001))
		user := lab.second()
		if c.killed {
			user.killedAt(t, before("put-back/stop"), user.giveUp("cp1"))
			time.Sleep(3 * time.Minute)
			if is := lab.memberIDs()["cp1"]; is == "" || is == replacement {
				t.Fatalf("cp1 is member %q, it was %q", is, replacement)
			}
			user = lab.second()
		}
		if c.off {
			must(t, lab.World.PowerOff(9001))
		}
		err := user.giveUp("cp1")(t.Context())
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(strings.Join(fault.Hints(err), ""), `start VM 9001 "cp1" on pve1 in Proxmox`) {
				t.Fatalf("err = %v, hints %q; want %q", err, fault.Hints(err), c.refused)
			}
			if c.off {
				must(t, lab.World.PowerOn(9001))
			}
			time.Sleep(2 * time.Minute)
			err = lab.Client().giveUp("cp1")(t.Context())
		}
		must(t, err)
		if voters := lab.memberIDs(); len(voters) != c.planes || voters["cp1"] == "" {
			t.Errorf("voting members of etcd: %v", voters)
		}
		lab.RequireIntact()
	})
}
