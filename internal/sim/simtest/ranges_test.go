package simtest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/discover"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// withRange is another client with its own recast.yaml.
func (l *Lab) withRange(vmids string) *Client {
	l.t.Helper()
	c, err := l.WithRange(filepath.Join(l.t.TempDir(), "other"), vmids)
	must(l.t, err)
	return c
}

// requireNoClaims fails the test if a claim is left under any number.
func requireNoClaims(t *testing.T, lab *Lab) {
	t.Helper()
	for _, vm := range lab.World.VMs() {
		if discover.IsClaim(cluster.VM{Config: vm.Config}) {
			t.Errorf("VM %d is still a claim: %s", vm.ID, vm.Config["description"])
		}
	}
}

// TestTwoFilesOfOneCluster: two recast.yaml with different proxmox.vmids roll the same
// nodes. One does everything, whenever the other begins.
func TestTwoFilesOfOneCluster(t *testing.T) {
	for _, late := range []time.Duration{0, time.Second, 5 * time.Second, 30 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			if late != 0 {
				long(t)
			}
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				clients := []*Client{lab.Client(), lab.withRange("9100-9199")}
				clients[1].Token = lab.otherToken()
				first := inRoll(t.Context(), clients[0], planning.Policy{})
				time.Sleep(late)
				ended := []rolled{{}, <-inRoll(t.Context(), clients[1], planning.Policy{})}
				ended[0] = <-first
				lost := 0
				for i, r := range ended {
					if r.err == nil {
						continue
					}
					lost++
					for _, want := range []string{"held by run " + clients[1-i].Run, "proxmox.vmids 9000-9099", "proxmox.vmids 9100-9199"} {
						if fault.KindOf(r.err) != fault.Claimed || !strings.Contains(strings.ReplaceAll(r.err.Error(), "has 9", "has proxmox.vmids 9"), want) {
							t.Errorf("the loser does not say %q: %v", want, r.err)
						}
					}
				}
				if lost != 1 {
					t.Fatalf("%d of two rolls lost: %v, %v", lost, ended[0].err, ended[1].err)
				}
				requireInSync(t, lab)
				requireNoClaims(t, lab)
			})
		})
	}
}

// TestUnfinishedWorkOfAnotherFile: a run with other proxmox.vmids was killed in the middle. Its
// own recast.yaml finishes that; status reports it with any.
func TestUnfinishedWorkOfAnotherFile(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		other, me := lab.withRange("9100-9199"), lab.Client()
		other.Emit = whenStarted("take-down/park/scsi1", func() { other.Kill(); cancel() })
		if _, err := other.Roll(ctx, planning.Policy{}); err == nil {
			t.Fatal("it was not killed")
		}
		refused := func(what string, wants ...string) {
			t.Helper()
			before := lab.Recorder.Mutations()
			_, err := me.Roll(t.Context(), planning.Policy{})
			said := fmt.Sprint(err, fault.Hints(err))
			for _, want := range append(wants, "9000-9099", "9100-9199", "use the same proxmox.vmids") {
				if fault.KindOf(err) != fault.Refused || !strings.Contains(said, want) {
					t.Errorf("%s: it does not say %q: %s", what, want, said)
				}
			}
			if n := lab.Recorder.Mutations() - before; n > 0 {
				t.Errorf("%s: %d changing requests", what, n)
			}
		}
		refused("beside a dead claim", `VM 9100 "recast-claim"`, "has ended without giving it back")
		res, err := me.Status(t.Context())
		must(t, err)
		if res.Claim == nil || res.Claim.VMID != 9100 || res.Claim.VMIDs != "9100-9199" || len(res.Open) != 1 || res.Open[0].Node != "wk1" ||
			!strings.Contains(strings.Join(res.Problems, "\n"), "it was made with proxmox.vmids 9100-9199, and this recast.yaml has 9000-9099") {
			t.Errorf("status: claim %+v, open %+v, problems %q", res.Claim, res.Open, res.Problems)
		}
		next := lab.withRange("9100-9199")
		next.Run = "20000101-0000-cafe"
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		lab.Patch(sim.PatchedExtension)
		requireNoClaims(t, lab)
		refused("beside an old system disk", "keeps old system disks of node wk1", "9000-9101 holds them all")
		must(t, me.setRange("9000-9199"))
		must(t, me.roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()
		requireNoClaims(t, lab)
	})
}

// TestALostClaimEndsARunAtOnce: whatever it waits for, and whatever Proxmox says.
func TestALostClaimEndsARunAtOnce(t *testing.T) {
	for _, at := range []string{"bring-up/wait-healthy", "take-down/stop"} {
		t.Run(at, func(t *testing.T) {
			if at != "bring-up/wait-healthy" {
				long(t)
			}
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				first, hooks := withHooks(lab, nil)
				var lost time.Time
				var late []string
				lab.Recorder.Hooks(nil, func(call record.Call) {
					if call.Mutation && !lost.IsZero() && time.Since(lost) > time.Second {
						late = append(late, fmt.Sprint(time.Since(lost), call.Proto, call.Method, call.Path))
					}
				})
				first.Emit = whenStarted(at, func() {
					lost = time.Now()
					lab.EditVM(claimVM, "description", `recast-claim: {"cluster":"lab","run":"20000101-0000-beef","holder":{"host":"ci"},"beat":3}`)
				})
				rep, err := first.Roll(t.Context(), planning.Policy{})
				if fault.KindOf(err) != fault.Claimed || fault.CodeOf(err) != fault.ClaimLost || rep.Code != fault.ClaimLost || !strings.HasPrefix(rep.Outcome, "failed: lost the claim") {
					t.Errorf("kind %d, code %s, outcome %s: %v", fault.KindOf(err), fault.CodeOf(err), rep.Outcome, err)
				}
				if took := time.Since(lost); lost.IsZero() || took > 20*time.Second {
					t.Errorf("it ended after %s", took)
				}
				if len(late) > 0 {
					t.Errorf("after the claim was lost: %q", late)
				}
				hooks.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1")
			})
		})
	}
}
