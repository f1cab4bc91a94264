package simtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

const claimVM = 9000

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
func (l *Lab) second() *Client { return l.as("20000101-0000-beef") }

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
			requireFault(t, r.err, fault.Claimed, append(vmids, "held by run "+clients[1-i].Run)...)
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
		requireFault(t, second.roll(planning.Policy{})(t.Context()), fault.Claimed, "held by run "+first.Run+" (pid ")
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
		require(t, killed().err != nil, "the killed roll says that it succeeded")
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestASlowHolderKeepsItsClaim delays every answer of Proxmox to the first run, so that its counter changes rarely.
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
			requireFault(t, second.roll(planning.Policy{})(t.Context()), fault.Claimed, "held by run "+first.Run)
			time.Sleep(20 * time.Second)
		}
		lab.Recorder.Hooks(nil, nil)
		must(t, answer().err)
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestTheClaimEndsWithItsRun checks that runs that ended badly leave no claim. Before the first node, none is touched.
func TestTheClaimEndsWithItsRun(t *testing.T) {
	type story struct {
		kind    fault.Kind
		touches bool // a node
		spoil   func(lab *Lab, c *Client, cancel context.CancelFunc)
	}
	confirm := func(yes bool, meanwhile func(c *Client, cancel context.CancelFunc)) story {
		return story{fault.Interrupted, false, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Confirm = func(planning.Plan) (bool, error) {
				meanwhile(c, cancel)
				return yes, nil
			}
		}}
	}
	eachLong(t, oneWorker(), map[string]story{
		"a failure": {fault.Failed, true, func(lab *Lab, _ *Client, _ context.CancelFunc) {
			lab.World.FailNext("qmshutdown", "no")
			lab.World.FailNext("qmstop", "no")
		}},
		"a declined plan":              confirm(false, func(*Client, context.CancelFunc) {}),
		"Ctrl-C at the prompt":         confirm(false, func(_ *Client, cancel context.CancelFunc) { cancel() }),
		"Ctrl-C before the first node": confirm(true, func(c *Client, _ context.CancelFunc) { c.Runner.Stop() }),
		"Ctrl-C twice": {fault.Interrupted, true, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("wk1/take-down/park", func() { c.Runner.Stop(); cancel() })
		}},
		"Ctrl-C while images are made": {fault.Interrupted, false, func(_ *Lab, c *Client, cancel context.CancelFunc) {
			c.Emit = whenStarted("publish", cancel)
		}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, from := lab.Client(), len(lab.Recorder.Calls())
		s.spoil(lab, first, cancel)
		requireFault(t, first.roll(planning.Policy{})(ctx), s.kind)
		if !s.touches {
			requireNone(t, changesOfNodes(lab.Recorder.Calls()[from:]), "sent")
		}
		requireNoClaim(t, lab)
		lab.second().rollTo(t, planning.Policy{})
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
		status := lab.status()
		require(t, status.Claim != nil && status.Claim.Run == c.Run && status.Claim.Lease == "kube-system/recast",
			"status: %+v", status.Claim)
		requireFault(t, lab.second().roll(planning.Policy{})(t.Context()), fault.Claimed, "(Lease kube-system/recast)") // its token may make VMs
		must(t, answer().err)
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		for _, task := range lab.World.Tasks() {
			require(t, task.User != "poor@pve!lab", "Proxmox did %s %s for it", task.Type, task.ID)
		}
		claim := lab.status().Claim
		require(t, claim == nil, "afterwards: %+v", claim)
	})
}

// TestClaimInKubernetesOfAKilledRun: the claim is taken over by the same token, and removed by one that may make VMs.
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
		next.rollTo(t, planning.Policy{})
		requireNoClaim(t, lab)
		status := lab.status()
		require(t, status.Claim == nil, "afterwards: %+v", status.Claim)
	})
}

// TestLeaseOfTheOnlyControlPlane: the roll is refused, because its claim would be lost with the API.
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

// elsewhere is a client on another machine: with the same files but no journal.
func (l *Lab) elsewhere() *Client {
	l.t.Helper()
	c := l.second()
	c.Elsewhere, c.Dir = true, l.t.TempDir()
	must(l.t, os.CopyFS(c.Dir, os.DirFS(l.Dir)))
	must(l.t, os.RemoveAll(filepath.Join(c.Dir, ".recast", "runs")))
	return c
}

// seize writes another run into the claim, as a takeover does.
func (l *Lab) seize(from, by string) {
	l.t.Helper()
	vm := l.vm(claimVM)
	l.EditVM(claimVM, "description", strings.ReplaceAll(vm.Config["description"], from, by))
}

// changesOfNodes are the changing requests to machines, to their VMs and to Nodes.
func changesOfNodes(calls []record.Call) []string {
	claim := strconv.Itoa(claimVM)
	var out []string
	for _, c := range calls {
		images := c.Proto == "factory" || c.Proto == "registry" || strings.Contains(c.Path, "/storage/")
		ofClaim := c.Params["vmid"] == claim || strings.Contains(c.Path, "/qemu/"+claim)
		if c.Mutation && !images && !ofClaim && !ofScratch(c) {
			out = append(out, strings.TrimSpace(c.Proto+" "+c.Method+" "+c.Path))
		}
	}
	return out
}

// withoutPulls removes image pulls, which are requested before the node's turn, while it serves.
func withoutPulls(changes []string) []string {
	return slices.DeleteFunc(changes, func(c string) bool { return c == "talos /machine.ImageService/Pull" })
}

// TestALostClaim takes the claim from a run at the beginning of each of its steps: it changes nothing
// after that, runs no hook, ends soon and says why, and the next run finishes its work.
func TestALostClaim(t *testing.T) {
	for s, steps := range map[cluster.Strategy][]string{
		cluster.Recreate: {
			"gate", "take-down/remember", "take-down/drain", "take-down/stop", "take-down/park/scsi0", "bring-up/create-vm", "bring-up/start",
			"bring-up/configure", "bring-up/wait-healthy", "bring-up/finish/eject", "bring-up/finish/restore-node", "bring-up/finish/uncordon",
		},
		cluster.InPlace: {"pull", "upgrade/install", "upgrade/reboot", "finish/set-installer", "finish/uncordon"},
	} {
		eachLong(t, oneWorker(), storiesOf(steps...), func(t *testing.T, lab *Lab, at string) {
			strategy(s)(lab)
			c, hooks := withHooks(lab, nil)
			var lost time.Time
			seized, ran := 0, 0
			var late []string
			lab.Recorder.Hooks(nil, func(call record.Call) {
				if call.Mutation && !lost.IsZero() && time.Since(lost) > time.Second {
					late = append(late, fmt.Sprint(time.Since(lost), call.Proto, call.Method, call.Path))
				}
			})
			c.Emit = whenStarted("wk1/"+at, func() {
				lab.seize(c.Run, "20000101-0000-face")
				lost, seized, ran = time.Now(), len(lab.Recorder.Calls()), len(hooks.ran)
			})
			rep, err := c.Roll(t.Context(), planning.Policy{})
			mustBe(t, !lost.IsZero(), "the roll never came to that step: %v", err)
			requireFault(t, err, fault.Claimed, "lost the claim of cluster lab: to run 20000101-0000-face")
			require(t, fault.CodeOf(err) == fault.ClaimLost && rep.Code == fault.ClaimLost && strings.Contains(rep.Outcome, "lost the claim"),
				"code %s, outcome %s", fault.CodeOf(err), rep.Outcome)
			took := time.Since(lost)
			require(t, took <= 20*time.Second, "it ended after %s", took)
			requireNone(t, append(changesOfNodes(lab.Recorder.Calls()[seized:]), late...), "after the claim was lost")
			requireNone(t, hooks.ran[ran:], "hooks after the claim was lost")
			lab.Recorder.Hooks(nil, nil)
			// The new holder is dead: nothing has beaten for it.
			hooks.next(lab).rollTo(t, planning.Policy{})
			requireNoClaim(t, lab)
		})
	}
}

// TestALostClaimEndsADrain takes the claim from a run that waits for a PodDisruptionBudget:
// it ends with its next heartbeat, and leaves the node to the next run.
func TestALostClaimEndsADrain(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.Budget(0)
		c := lab.Client()
		draining := make(chan struct{})
		c.Emit = whenStarted("take-down/drain", func() { close(draining) })
		ended := inRoll(t.Context(), c, planning.Policy{})
		<-draining
		time.Sleep(time.Minute)
		lab.seize(c.Run, "20000101-0000-face")
		seized := time.Now()
		requireFault(t, (<-ended).err, fault.Claimed, "take-down/drain: drain wk1: lost the claim")
		took := time.Since(seized)
		require(t, took <= 20*time.Second, "it kept draining for %s", took)
		lab.Budget(1)
		lab.second().rollTo(t, planning.Policy{})
		requireNoClaim(t, lab)
	})
}

// TestANetworkThatComesBack cuts a run off until another one has taken over, and then reconnects it.
func TestANetworkThatComesBack(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf("take-down/drain", "bring-up/attach", "bring-up/finish"), func(t *testing.T, lab *Lab, at string) {
		lab.Patch(sim.PatchedExtension)
		first, second := lab.Client(), lab.elsewhere()
		second.Token = lab.otherToken()
		cut := make(chan struct{})
		first.Emit = whenStarted("wk1/"+at, func() { first.Cut(); close(cut) })
		ended := inRoll(t.Context(), first, planning.Policy{})
		<-cut
		finished := inRoll(t.Context(), second, planning.Policy{})
		time.Sleep(2 * time.Minute)
		first.Mend()
		mended := len(lab.Recorder.Calls())
		require(t, (<-ended).err != nil, "the run that was cut off says that it succeeded")
		must(t, (<-finished).err)
		token, _, _ := strings.Cut(string(first.Token), "=")
		ofFirst := func(c record.Call) bool { return c.Mutation && c.Proto == "proxmox" && c.User == token }
		requireNone(t, lab.sent(mended, ofFirst), "the first run sent")
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// withRange is another client with its own recast.yaml.
func (l *Lab) withRange(vmids string) *Client {
	l.t.Helper()
	return valueOf(l.WithRange(filepath.Join(l.t.TempDir(), "other"), vmids))(l.t)
}

// TestUnfinishedWorkOfAnotherFile: a run with other proxmox.vmids was killed in the middle. Its
// own recast.yaml finishes that; status reports it with any.
func TestUnfinishedWorkOfAnotherFile(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		other, me := lab.withRange("9100-9199"), lab.Client()
		other.killedAt(t, before("take-down/park/scsi1"), other.roll(planning.Policy{}))
		refused := func(what string, wants ...string) {
			t.Helper()
			before := lab.Recorder.Mutations()
			_, err := me.Roll(t.Context(), planning.Policy{})
			said := fmt.Sprint(err, fault.Hints(err))
			for _, want := range append(wants, "9000-9099", "9100-9199", "use the same proxmox.vmids") {
				require(t, fault.KindOf(err) == fault.Refused && strings.Contains(said, want),
					"%s: it does not say %q: %s", what, want, said)
			}
			n := lab.Recorder.Mutations() - before
			require(t, n <= 0, "%s: %d changing requests", what, n)
		}
		refused("beside a dead claim", `VM 9100 "recast-claim"`, "has ended without giving it back")
		res := valueOf(me.Status(t.Context()))(t)
		if res.Claim == nil || res.Claim.VMID != 9100 || res.Claim.VMIDs != "9100-9199" || len(res.Open) != 1 || res.Open[0].Node != "wk1" ||
			!strings.Contains(strings.Join(res.Problems, "\n"), "it was made with proxmox.vmids 9100-9199, and this recast.yaml has 9000-9099") {
			t.Errorf("status: claim %+v, open %+v, problems %q", res.Claim, res.Open, res.Problems)
		}
		next := lab.withRange("9100-9199")
		next.Run = "20000101-0000-cafe"
		next.rollTo(t, planning.Policy{})
		lab.Patch(sim.PatchedExtension)
		requireNoClaim(t, lab)
		refused("beside an old system disk", "keeps the previous system disk of node wk1", "9000-9101 holds them all")
		must(t, me.setRange("9000-9199"))
		must(t, me.roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()
		requireNoClaim(t, lab)
	})
}
