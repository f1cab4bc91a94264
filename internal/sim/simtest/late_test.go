package simtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// late is one request that Proxmox processes after its sender's death.
type late struct {
	lab  *Lab
	held *record.Held
	once sync.Once
	said string // answer of the late call
}

// rollKilledBy rolls, and kills that run when it has sent the first matching request,
// which Proxmox does not process before deliver.
func (l *Lab) rollKilledBy(is func(record.Call) bool, p planning.Policy) *late {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	c := l.Client()
	x := &late{lab: l, held: record.Hold(record.NoAnswer)}
	killed := false
	l.Recorder.Hooks(func(call record.Call) error {
		if killed || !call.Mutation || !is(call) {
			return nil
		}
		killed = true
		c.Kill()
		cancel()
		return x.held
	}, nil)
	if err := c.roll(p)(ctx); err == nil || !killed {
		l.t.Fatalf("the run was to be killed (%t): %v", killed, err)
	}
	l.Recorder.Hooks(nil, nil)
	return x
}

// deliver makes Proxmox process the request, and waits for its end.
func (x *late) deliver() {
	x.once.Do(func() {
		x.held.Deliver()
		for _, task := range x.lab.World.Tasks() {
			x.lab.World.WaitTask(task.UPID)
		}
	})
}

// deliverBefore delivers it right before the first matching call, or when the time limit
// of Proxmox has passed.
func (x *late) deliverBefore(is func(record.Call) bool, within time.Duration) {
	x.lab.Recorder.Hooks(func(call record.Call) error {
		if !call.Late && call.Mutation && is(call) {
			x.deliver()
		}
		return nil
	}, func(call record.Call) {
		if call.Late {
			x.said = fmt.Sprintf("%s %s: %d", call.Method, call.Path, call.Status)
		}
	})
	if within > 0 {
		time.AfterFunc(within-time.Second, x.deliver)
	}
}

// TestLateDelete: the delete of the old VM is processed when the new VM with its number
// has every disk and is stopped.
func TestLateDelete(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]func(*Client) func(context.Context) error{
		"roll":    func(c *Client) func(context.Context) error { return c.roll(planning.Policy{}) },
		"recover": func(c *Client) func(context.Context) error { return c.giveUp("wk1") },
	}, func(t *testing.T, lab *Lab, end func(*Client) func(context.Context) error) {
		lab.Patch(sim.PatchedExtension)
		before := lab.Disks()
		x := lab.rollKilledBy(toVM("DELETE", "/qemu/9031"), planning.Policy{})
		x.deliverBefore(toVM("POST", "/qemu/9031/status/start"), 0)
		must(t, end(lab.Client())(t.Context()))
		if !strings.HasSuffix(x.said, ": 500") {
			t.Errorf("the late delete was not refused: %q", x.said)
		}
		for serial, sum := range before {
			if lab.Disks()[serial] != sum && !strings.HasPrefix(serial, "recast-") && !strings.Contains(serial, "sys") {
				t.Errorf("disk %s: %s before, %q after", serial, sum, lab.Disks()[serial])
			}
		}
		lab.RequireIntact()
		for _, vm := range lab.World.VMs() {
			if vm.ID == 9031 && vm.Config["protection"] != "" {
				t.Errorf("VM 9031 is left with protection %q, which it had not", vm.Config["protection"])
			}
		}
	})
}

// stopTimeout is that of the lab's recast.yaml.
const stopTimeout = time.Minute

// TestLateShutdown: the shutdown of one control plane is processed when another one is
// down, unless that is later than Proxmox's time limit for it.
func TestLateShutdown(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		first  string // recast's next action on cp1 after its sender's death
		policy planning.Policy
	}{
		"finished": {"", planning.Policy{Only: []string{"cp1", "cp2"}}},
		"put back": {"cp1", planning.Policy{Only: []string{"cp2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				x := lab.rollKilledBy(toVM("POST", "/qemu/9001/status/shutdown"), planning.Policy{Only: []string{"cp1"}})
				x.deliverBefore(func(call record.Call) bool {
					return toVM("POST", "/qemu/9002/status/start")(call) || toVM("DELETE", "/qemu/9002")(call)
				}, stopTimeout+exchange.LateQueue)
				if c.first != "" {
					must(t, errOf(lab.Client().Recover(t.Context(), c.first)))
				}
				rep, err := lab.as("20000101-0000-0002").Roll(t.Context(), c.policy)
				x.deliver()
				if v := lab.EtcdViolations(); len(v) > 0 {
					t.Errorf("etcd lost its quorum: %q (%s, %v)", v, rep.Outcome, err)
				}
				if err != nil && fault.KindOf(err) != fault.Refused {
					t.Error(err)
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestLateRequestIsTold: status shows a request without an answer, until its time limit
// has passed.
func TestLateRequestIsTold(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		x := lab.rollKilledBy(toVM("POST", "/qemu/9001/status/shutdown"), planning.Policy{Only: []string{"cp1"}})
		told := func() []string {
			res := lab.status()
			return res.Unanswered
		}
		const want = "waits up to 6m0s before it takes another control plane out"
		if got := told(); len(got) != 1 || !strings.Contains(got[0], "shutdown of VM 9001") || !strings.Contains(got[0], want) {
			t.Errorf("status tells of %q", got)
		}
		res, err := lab.Client().Doctor(t.Context())
		if err != nil || !slices.ContainsFunc(res.Checks, func(c checkup.Check) bool { return strings.Contains(c.Seen, want) }) {
			t.Errorf("doctor does not tell of it: %+v, %v", res.Checks, err)
		}
		must(t, errOf(lab.Client().Recover(t.Context(), "cp1")))
		if got := told(); len(got) != 1 {
			t.Errorf("once its record is closed status tells of %q", got)
		}
		must(t, lab.as(secondRun).roll(policyFor("cp2"))(t.Context()))
		if got := told(); len(got) != 0 {
			t.Errorf("when its time is over status tells of %q", got)
		}
		x.deliver() // a server must not keep it
	})
}

// TestLateStart: the start of a VM is processed when it is stopped to get its old disks
// back, unless that is later than Proxmox's time limit for it.
func TestLateStart(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		before := lab.machinesDump()
		x := lab.rollKilledBy(toVM("POST", "/qemu/9031/status/start"), planning.Policy{})
		x.deliverBefore(toVM("POST", "/move_disk"), exchange.LateQueue)
		if rep, err := lab.Client().Recover(t.Context(), "wk1"); err != nil || rep.Outcome != "done" {
			t.Errorf("%s, %v", rep.Outcome, err)
		}
		lab.requireRecovered(before)
	})
}

// loseEvery breaks the connection in place of the answer to every k-th change by Proxmox,
// and returns the number of lost answers.
func (l *Lab) loseEvery(k int64) *atomic.Int64 {
	var changes, lost atomic.Int64
	l.Recorder.Hooks(nil, func(c record.Call) {
		if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%k == 0 {
			lost.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	return &lost
}

// rollUnanswered is a roll that is done at once although every k-th answer of Proxmox is lost, and at least so many.
func (l *Lab) rollUnanswered(k, least int64) {
	l.t.Helper()
	lost := l.loseEvery(k)
	rep, err := l.Client().Roll(l.t.Context(), planning.Policy{})
	l.Recorder.Hooks(nil, nil)
	if err != nil || rep.Outcome != "done" || lost.Load() < least {
		l.t.Fatalf("report %+v, %d answers lost, error %v", rep, lost.Load(), err)
	}
}

// TestRollWithLostAnswers rolls two workers while Proxmox's answer to every k-th change is lost:
// it ends in sync without a second run.
func TestRollWithLostAnswers(t *testing.T) {
	eachLong(t, twoWorkers, storiesOf[int64](1, 2, 3, 7), func(t *testing.T, lab *Lab, k int64) {
		before := lab.Disks()
		lab.Patch(sim.PatchedExtension)
		lab.rollUnanswered(k, 3)
		lab.requireRolled(t)
		for serial, sum := range lab.Disks() {
			if was, persistent := before[serial]; persistent && was != sum {
				t.Errorf("disk %s: %s before, %s after", serial, was, sum)
			}
		}
	})
}

// TestRollWithLostChanges rolls a worker while every k-th change does not reach Proxmox:
// idempotent ones are retried, any other ends the run, and the next one continues.
func TestRollWithLostChanges(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), storiesOf[int64](3, 5, 7), func(t *testing.T, lab *Lab, k int64) {
		lab.Patch(sim.PatchedExtension)
		var changes, lost atomic.Int64
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%k == 0 {
				lost.Add(1)
				return errKilled
			}
			return nil
		}, nil)
		var err error
		for run := range 20 {
			_, err = lab.as(fmt.Sprintf("20000101-0000-%04d", run)).Roll(t.Context(), planning.Policy{})
			if !errors.Is(err, cluster.ErrLostAnswer) {
				break
			}
		}
		if err != nil || lost.Load() == 0 {
			t.Fatalf("%d changes lost: %v", lost.Load(), err)
		}
		lab.Recorder.Hooks(nil, nil)
		requireInSync(t, lab)
	})
}
