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
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// claimVM is the VMID of the lab's claim.
const claimVM = 9000

// rolled is the result of a roll.
type rolled struct {
	err  error
	took time.Duration
}

// inRoll starts a roll without waiting for it.
func inRoll(ctx context.Context, c *Client, policy planning.Policy) <-chan rolled {
	ended := make(chan rolled, 1)
	go func() {
		start := time.Now()
		err := c.roll(policy)(ctx)
		ended <- rolled{err, time.Since(start)}
	}()
	return ended
}

// second is a second client with its own identity and run.
func (l *Lab) second() *Client {
	c := l.Client()
	c.Run = "20000101-0000-beef"
	return c
}

// token makes a user with a token, both with that role.
func (l *Lab) token(user, role string) cluster.Secret {
	const secret = "5ec0ffee-1ab0-4000-8000-000000000003"
	id := user + "@pve!lab"
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	for _, who := range []string{user + "@pve", id} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: role, Propagate: true})
	}
	return cluster.Secret(id + "=" + secret)
}

// otherToken makes a token with the privileges of the lab's own.
func (l *Lab) otherToken() cluster.Secret { return l.token("other", "Recast") }

// requireNoClaim fails the test if a claim is left under any number.
func requireNoClaim(t *testing.T, lab *Lab) {
	t.Helper()
	for _, vm := range lab.World.VMs() {
		require(t, !survey.IsClaim(cluster.VM{Config: vm.Config}),
			"VM %d is still a claim: %s", vm.ID, vm.Config["description"])
	}
}

// requireClaimed fails unless a run ended because another one has the claim, and says these.
func requireClaimed(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		requireFault(t, err, fault.Claimed, text)
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

// TestTwoRollsAtOnce starts a second roll with the first one or soon after it, also from
// another recast.yaml with proxmox.vmids of its own: one of the two does everything.
func TestTwoRollsAtOnce(t *testing.T) {
	type story struct {
		token, file bool // the second one has its own
		late        time.Duration
	}
	eachLong(t, sim.Options{Workers: 2}, map[string]story{
		"the same token":     {},
		"two tokens":         {token: true},
		"two files":          {token: true, file: true},
		"two files, 1s late": {token: true, file: true, late: time.Second},
		"5s late":            {token: true, file: true, late: 5 * time.Second},
		"30s late":           {token: true, file: true, late: 30 * time.Second},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		clients, vmids := []*Client{lab.Client(), lab.second()}, []string{}
		if s.file {
			clients[1], vmids = lab.withRange("9100-9199"), []string{"9000-9099", "9100-9199"}
		}
		if s.token {
			clients[1].Token = lab.otherToken()
		}
		var ended []<-chan rolled
		for i, c := range clients {
			time.Sleep(time.Duration(i) * s.late)
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
			requireClaimed(t, r.err, append(vmids, "held by run "+clients[1-i].Run)...)
			require(t, len(fault.Hints(r.err)) != 0 && r.took <= time.Minute,
				"the loser has hints %q, and it took %s to see that the other one is alive", fault.Hints(r.err), r.took)
		}
		mustBe(t, len(lost) == 1, "%d rolls lost", len(lost))
		for _, task := range lab.World.Tasks() {
			if s.token && !s.file && task.User == lost[0] { // with a file of its own it makes and deletes a claim
				t.Errorf("the loser had Proxmox do %s %s", task.Type, task.ID)
			}
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASecondRollChangesNothing rolls while another user looks at a plan.
func TestASecondRollChangesNothing(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"the same token": false, "two tokens": true}, func(t *testing.T, lab *Lab, otherToken bool) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.second()
		if otherToken {
			second.Token = lab.otherToken()
		}
		answer := atPrompt(t, t.Context(), first)
		before := len(lab.Recorder.Calls())
		requireClaimed(t, second.roll(planning.Policy{})(t.Context()), "held by run "+first.Run+" (pid ")
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
		require(t, beats != 0, "the first run's claim has not beaten")
		must(t, answer().err)
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTakeOver rolls after the holder of the claim was killed.
func TestTakeOver(t *testing.T) {
	type story struct {
		elsewhere       bool
		atLeast, atMost time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"on the same machine": {false, 0, 5 * time.Second},
		"on another machine":  {true, 90 * time.Second, 105 * time.Second},
	}, func(t *testing.T, lab *Lab, c story) {
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
		took := asked.Sub(start)
		require(t, took >= c.atLeast && took <= c.atMost, "taken over after %s, want %s to %s", took, c.atLeast, c.atMost)
		r := killed()
		require(t, r.err != nil, "the killed roll says that it succeeded")
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASlowHolderKeepsItsClaim delays every answer of Proxmox to the first run, so that
// its counter changes rarely.
func TestASlowHolderKeepsItsClaim(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
			requireClaimed(t, second.roll(planning.Policy{})(t.Context()), "held by run "+first.Run)
			time.Sleep(20 * time.Second)
		}
		lab.Recorder.Hooks(nil, nil)
		must(t, answer().err)
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTheClaimEndsWithItsRun checks that runs that ended badly leave no claim.
func TestTheClaimEndsWithItsRun(t *testing.T) {
	type story struct {
		kind  fault.Kind
		spoil func(lab *Lab, c *Client, cancel context.CancelFunc)
	}
	eachLong(t, oneWorker(), map[string]story{
		"a failure": {fault.Failed, func(lab *Lab, _ *Client, _ context.CancelFunc) {
			lab.World.FailNext("qmshutdown", "no")
			lab.World.FailNext("qmstop", "no")
		}},
		"a declined plan": {fault.Interrupted, func(_ *Lab, c *Client, _ context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) { return false, nil }
		}},
		"Ctrl-C at the prompt": {fault.Interrupted, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) { cancel(); return false, nil }
		}},
		"Ctrl-C twice": {fault.Interrupted, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("wk1/take-down/park", func() { c.Runner.Stop(); cancel() })
		}},
		"Ctrl-C while images are made": {fault.Interrupted, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("publish", cancel)
		}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := lab.Client()
		s.spoil(lab, first, cancel)
		if err := first.roll(planning.Policy{})(ctx); err == nil || fault.KindOf(err) != s.kind {
			t.Errorf("kind %d, want %d: %v", fault.KindOf(err), s.kind, err)
		}
		requireNoClaim(t, lab)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// poorToken makes a token that may read everything and change no VM.
func (l *Lab) poorToken() cluster.Secret {
	l.World.AddRole("Look", "Sys.Audit", "VM.Audit", "Datastore.Audit")
	return l.token("poor", "Look")
}

// TestRollWithAClaimInKubernetes rolls in place with a token that may not make VMs, while
// another token tries to roll too.
func TestRollWithAClaimInKubernetes(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		answer := atPrompt(t, t.Context(), c)
		status := valueOf(lab.Client().Status(t.Context()))(t)
		require(t, status.Claim != nil && status.Claim.Run == c.Run && status.Claim.Lease == "kube-system/recast",
			"status: %+v", status.Claim)
		requireClaimed(t, lab.second().roll(planning.Policy{})(t.Context()), "(Lease kube-system/recast)") // its token may make VMs
		must(t, answer().err)
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		for _, task := range lab.World.Tasks() {
			require(t, task.User != "poor@pve!lab", "Proxmox did %s %s for it", task.Type, task.ID)
		}
		if status, err := lab.Client().Status(t.Context()); err != nil || status.Claim != nil {
			t.Errorf("afterwards: %+v, %v", status.Claim, err)
		}
	})
}

// TestClaimInKubernetesOfAKilledRun: the claim is taken over by the same token, and
// removed by one that may make VMs.
func TestClaimInKubernetesOfAKilledRun(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, map[string]bool{"by the same": true, "by one that may make VMs": false}, func(t *testing.T, lab *Lab, poor bool) {
		lab.Patch(everywhere)
		lab.inPlace()
		c, next := lab.Client(), lab.second()
		c.Token = lab.poorToken()
		c.killedAt(t, onServer("/Reboot"), c.roll(planning.Policy{}))
		if poor {
			next.Token = c.Token
		}
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		status := valueOf(lab.Client().Status(t.Context()))(t)
		require(t, status.Claim == nil, "afterwards: %+v", status.Claim)
	})
}

// TestLeaseOfTheOnlyControlPlane: the roll is refused, because its claim would be lost
// with the API.
func TestLeaseOfTheOnlyControlPlane(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), "which is lost with the only control plane")
		must(t, c.roll(onlyWorker)(t.Context()))
		requireNoClaim(t, lab)
	})
}
