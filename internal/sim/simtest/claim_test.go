package simtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// claimVM is the VMID of the lab's claim.
const claimVM = 9000

// rolled is the result of a roll.
type rolled struct {
	pipeline.Report
	err  error
	took time.Duration
}

// rolling starts a roll without waiting for it.
func inRoll(ctx context.Context, c *Client, policy planning.Policy) <-chan rolled {
	ended := make(chan rolled, 1)
	go func() {
		start := time.Now()
		rep, err := c.Roll(ctx, policy)
		ended <- rolled{rep, err, time.Since(start)}
	}()
	return ended
}

// second is a second client with its own identity and run.
func (l *Lab) second() *Client {
	c := l.Client()
	c.Run = "20000101-0000-beef"
	return c
}

// otherToken makes a token with the privileges of the lab's own.
func (l *Lab) otherToken() cluster.Secret {
	const id, secret = "other@pve!lab", "5ec0ffee-1ab0-4000-8000-000000000003"
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	for _, who := range []string{"other@pve", id} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	return cluster.Secret(id + "=" + secret)
}

func requireNoClaim(t *testing.T, lab *Lab) {
	t.Helper()
	for _, vm := range lab.World.VMs() {
		if vm.ID == claimVM {
			t.Errorf("the claim is still there: %s", vm.Config["description"])
		}
	}
}

// atPrompt starts a roll and returns at its confirmation; answer confirms it.
func atPrompt(t *testing.T, ctx context.Context, c *Client) (answer func() rolled) {
	t.Helper()
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.Confirm = func(planning.Plan) (bool, error) {
		once.Do(func() { close(asked) })
		<-goOn
		return true, nil
	}
	ended := inRoll(ctx, c, planning.Policy{})
	select {
	case <-asked:
	case r := <-ended:
		t.Fatalf("the roll ended before it asked: %v", r.err)
	}
	return func() rolled {
		close(goOn)
		return <-ended
	}
}

// TestTwoRollsAtOnce starts two rolls at the same moment: one of them does everything.
func TestTwoRollsAtOnce(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{Workers: 2}, map[string]bool{"the same token": false, "two tokens": true}, func(t *testing.T, lab *Lab, otherToken bool) {
		lab.Patch(sim.PatchedExtension)
		clients := []*Client{lab.Client(), lab.second()}
		if otherToken {
			clients[1].Token = lab.otherToken()
		}
		var ended []<-chan rolled
		for _, c := range clients {
			ended = append(ended, inRoll(t.Context(), c, planning.Policy{}))
		}
		var lost []string
		for i, e := range ended {
			r := <-e
			if r.err == nil {
				continue
			}
			token, _, _ := strings.Cut(string(clients[i].Token), "=")
			lost = append(lost, token)
			if fault.KindOf(r.err) != fault.Claimed || !strings.Contains(r.err.Error(), "held by run "+clients[1-i].Run) || len(fault.Hints(r.err)) == 0 {
				t.Errorf("the loser: %v, hints %q", r.err, fault.Hints(r.err))
			}
			if r.took > time.Minute {
				t.Errorf("it took the loser %s to see that the other one is alive", r.took)
			}
		}
		if len(lost) != 1 {
			t.Fatalf("%d rolls lost", len(lost))
		}
		for _, task := range lab.World.Tasks() {
			if otherToken && task.User == lost[0] {
				t.Errorf("the loser had Proxmox do %s %s", task.Type, task.ID)
			}
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASecondRollChangesNothing rolls while another user looks at a plan.
func TestASecondRollChangesNothing(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]bool{"the same token": false, "two tokens": true}, func(t *testing.T, lab *Lab, otherToken bool) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.second()
		if otherToken {
			second.Token = lab.otherToken()
		}
		answer := atPrompt(t, t.Context(), first)
		before := len(lab.Recorder.Calls())
		_, err := second.Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "held by run "+first.Run+" (pid ") {
			t.Errorf("err = %v", err)
		}
		beats := 0
		for _, call := range lab.Recorder.Calls()[before:] {
			switch {
			case !call.Mutation:
			case strings.Contains(call.Path, fmt.Sprintf("/qemu/%d/config", claimVM)) && strings.Contains(call.Params["description"], first.Run):
				beats++
			default:
				t.Errorf("%s %s %s %v was sent", call.Proto, call.Method, call.Path, call.Params)
			}
		}
		if beats == 0 {
			t.Error("the first run's claim has not beaten")
		}
		if r := answer(); r.err != nil {
			t.Errorf("the first run: %v", r.err)
		}
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTakeOver rolls after the holder of the claim was killed.
func TestTakeOver(t *testing.T) {
	long(t)
	type story struct {
		elsewhere       bool
		atLeast, atMost time.Duration
	}
	cases := map[string]story{
		"on the same machine": {false, 0, 5 * time.Second},
		"on another machine":  {true, 90 * time.Second, 105 * time.Second},
	}
	eachInLab(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, second := lab.Client(), lab.second()
		killed := atPrompt(t, ctx, first)
		first.Kill()
		cancel()
		var asked time.Time
		second.Elsewhere = c.elsewhere
		second.Confirm = func(planning.Plan) (bool, error) { asked = time.Now(); return true, nil }
		start := time.Now()
		must(t, second.roll(planning.Policy{})(t.Context()))
		// The images exist already: the time until the plan is due to the claim alone.
		if took := asked.Sub(start); took < c.atLeast || took > c.atMost {
			t.Errorf("taken over after %s, want %s to %s", took, c.atLeast, c.atMost)
		}
		if r := killed(); r.err == nil {
			t.Error("the killed roll says that it succeeded")
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASlowHolderKeepsItsClaim delays every answer of Proxmox to the first run, so that
// its counter changes rarely.
func TestASlowHolderKeepsItsClaim(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.second()
		second.Elsewhere, second.Token = true, lab.otherToken()
		answer := atPrompt(t, t.Context(), first)
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && !strings.HasPrefix(c.User, "other@") {
				time.Sleep(1500 * time.Millisecond)
			}
			return nil
		}, nil)
		defer lab.Recorder.Hooks(nil, nil)
		for range 3 {
			if _, err := second.Roll(t.Context(), planning.Policy{}); fault.KindOf(err) != fault.Claimed {
				t.Errorf("err = %v", err)
			}
			time.Sleep(20 * time.Second)
		}
		lab.Recorder.Hooks(nil, nil)
		if r := answer(); r.err != nil {
			t.Errorf("the slow run: %v", r.err)
		}
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTheClaimEndsWithItsRun checks that runs that ended badly leave no claim.
func TestTheClaimEndsWithItsRun(t *testing.T) {
	long(t)
	type story struct {
		spoil func(lab *Lab, c *Client, cancel context.CancelFunc)
		kind  fault.Kind
	}
	cases := map[string]story{
		"a failure": {func(lab *Lab, _ *Client, _ context.CancelFunc) {
			lab.World.FailNext("qmshutdown", "no")
			lab.World.FailNext("qmstop", "no")
		}, fault.Failed},
		"a declined plan": {func(_ *Lab, c *Client, _ context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) { return false, nil }
		}, fault.Interrupted},
		"Ctrl-C at the prompt": {func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) { cancel(); return false, nil }
		}, fault.Interrupted},
		"Ctrl-C twice": {func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("wk1/take-down/park", func() { c.Runner.Stop(); cancel() })
		}, fault.Interrupted},
		"Ctrl-C while images are made": {func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("publish", cancel)
		}, fault.Interrupted},
	}
	eachInLab(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := lab.Client()
		c.spoil(lab, first, cancel)
		_, err := first.Roll(ctx, planning.Policy{})
		if err == nil || fault.KindOf(err) != c.kind {
			t.Errorf("kind %d, want %d: %v", fault.KindOf(err), c.kind, err)
		}
		requireNoClaim(t, lab)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTheClaimsNumber rolls while the claim's VMID is taken.
func TestTheClaimsNumber(t *testing.T) {
	long(t)
	type story struct {
		config map[string]string
		text   string
		hint   string
	}
	cases := map[string]story{
		"a stranger": {map[string]string{"name": "router"}, `VM 9000 "router" on pve1 has the number that recast needs for its claim`, "proxmox.vmids"},
		"another cluster's claim": {
			map[string]string{"name": "recast-claim", "description": `recast-claim: {"cluster":"prod","run":"20000101-0000-0000","holder":{"host":"ci"},"beat":3}`},
			`VM 9000 "recast-claim" on pve1 is the claim of cluster prod, not of lab`, "proxmox.vmids of its own",
		},
		"a claim that nobody can read": {
			map[string]string{"name": "recast-claim", "description": `recast-claim: {"cluster":`}, `VM 9000 "recast-claim" on pve1: the claim in its description can't be read`, "delete that VM",
		},
	}
	eachInLab(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		lab.DefineVM(claimVM, c.config)
		before := lab.Recorder.Mutations()
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), c.text) {
			t.Errorf("err = %v", err)
		}
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
			t.Errorf("hints %q lack %q", hints, c.hint)
		}
		if n := lab.Recorder.Mutations() - before; n > 0 {
			t.Errorf("%d changing requests were sent", n)
		}
	})
}
