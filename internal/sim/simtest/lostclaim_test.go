package simtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

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

// withoutPulls removes image pulls, which are requested before the node's turn, while it
// serves.
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
		for _, at := range steps {
			t.Run(string(s)+"/"+at, func(t *testing.T) {
				long(t)
				inLab(t, oneWorker(), func(t *testing.T, lab *Lab) { loseClaim(t, lab, s, at) })
			})
		}
	}
}

func loseClaim(t *testing.T, lab *Lab, s cluster.Strategy, at string) {
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
	requireClaimed(t, err, "lost the claim of cluster lab: to run 20000101-0000-face")
	if fault.CodeOf(err) != fault.ClaimLost || rep.Code != fault.ClaimLost || !strings.Contains(rep.Outcome, "lost the claim") {
		t.Errorf("code %s, outcome %s", fault.CodeOf(err), rep.Outcome)
	}
	took := time.Since(lost)
	require(t, took <= 20*time.Second, "it ended after %s", took)
	changes := changesOfNodes(lab.Recorder.Calls()[seized:])
	require(t, len(changes)+len(late) <= 0, "after the claim was lost: %q, %q", changes, late)
	if len(hooks.ran) != ran {
		t.Errorf("hooks after the claim was lost: %q", hooks.ran[ran:])
	}
	lab.Recorder.Hooks(nil, nil)
	// The new holder is dead: nothing has beaten for it.
	next := lab.second()
	next.Commands = hooks
	must(t, next.roll(planning.Policy{})(t.Context()))
	requireInSync(t, lab)
	requireNoClaim(t, lab)
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
		requireClaimed(t, (<-ended).err, "take-down/drain: drain wk1: lost the claim")
		took := time.Since(seized)
		require(t, took <= 20*time.Second, "it kept draining for %s", took)
		lab.Budget(1)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestANetworkThatComesBack cuts a run off until another one has taken over, and then
// reconnects it.
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
		r := <-ended
		require(t, r.err != nil, "the run that was cut off says that it succeeded")
		must(t, (<-finished).err)
		token, _, _ := strings.Cut(string(first.Token), "=")
		for _, call := range lab.Recorder.Calls()[mended:] {
			if call.Mutation && call.Proto == "proxmox" && call.User == token {
				t.Errorf("the first run sent %s %s %v", call.Method, call.Path, call.Params)
			}
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}
