package claim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// claimantAt is a run with a recast.yaml whose proxmox.vmids begin with that number.
func claimantAt(p *claimPVE, run string, first cluster.VMID) *Claim {
	c := claimant(p, run)
	c.VMID, c.VMIDs = first, cluster.VMIDRange{First: first, Last: first + 99}
	return c
}

// TestClaimsOfTwoRanges: two recast.yaml of one cluster with different numbers.
func TestClaimsOfTwoRanges(t *testing.T) {
	t.Parallel()
	for _, second := range []cluster.VMID{9100, 8900} {
		synctest.Test(t, func(t *testing.T) {
			p := newClaimPVE()
			h := acquire(t, claimantAt(p, "r1", 9000))
			n := len(p.changes)
			_, err := claimantAt(p, "r2", second).Acquire(t.Context())
			theirs := cluster.VMIDRange{First: second, Last: second + 99}.String()
			must.FailAs(t, err, fault.Claimed, `which is alive (VM 9000 "recast-claim" on pve1)`, "proxmox.vmids 9000-9099", theirs)
			p.do(func() {
				if slices.ContainsFunc(p.changes[n:], func(c string) bool { return c != "set" }) {
					t.Errorf("changes: %q", p.changes[n:])
				}
			})
			releaseHeld(t, h)
			if h, err = claimantAt(p, "r2", second).Acquire(t.Context()); err != nil {
				t.Fatal("afterwards:", err)
			}
			releaseAll(t, p, h)
		})
	}
}

// TestClaimsOfTwoRangesAtOnce: in whatever order the two create and list, at most one
// continues, and in the end one does.
func TestClaimsOfTwoRangesAtOnce(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{-20 * time.Second, -2 * time.Second, -time.Second, -time.Millisecond, 0, time.Millisecond, time.Second, 2 * time.Second, 20 * time.Second} {
		for _, delay := range []time.Duration{0, time.Second, 20 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				p := newClaimPVE()
				p.delay = delay
				holding, most, won := 0, 0, 0
				run := func(c *Claim, after time.Duration) {
					time.Sleep(max(0, after))
					h, err := c.Acquire(t.Context())
					if err != nil {
						must.FailAs(t, err, fault.Claimed)
						return
					}
					p.do(func() { holding++; won++; most = max(most, holding) })
					time.Sleep(5 * time.Minute)
					must.Pass(t, h.Check(t.Context()))
					p.do(func() { holding-- })
					release(t, h)
				}
				var both sync.WaitGroup
				both.Go(func() { run(claimantAt(p, "r1", 9000), -late) })
				both.Go(func() { run(claimantAt(p, "r2", 9100), late) })
				both.Wait()
				if most != 1 || won == 0 || len(p.vms) > 0 {
					t.Errorf("late %s, delay %s: %d at once, %d in all, left %v", late, delay, most, won, p.vms)
				}
			})
		}
	}
}

// rivalVM is a claim whose holder has ended.
func rivalVM(t *testing.T, id cluster.VMID, change func(*State)) cluster.VM {
	t.Helper()
	s := claimantAt(nil, "r0", id).mine(4)
	if change != nil {
		change(&s)
	}
	description := must.Get(s.Description())(t)
	return cluster.VM{ID: id, Name: VMName, Host: "pve1", Config: map[string]string{"name": VMName, "description": description}}
}

// byNewer is the VM with the same record or claim in a later version.
func byNewer(vm cluster.VM) cluster.VM {
	vm.Config["description"] = strings.Replace(vm.Config["description"], `{"version":1,`, `{"version":2,"also":true,`, 1)
	return vm
}

// parkingVM is a parking VM of a recast.yaml with other numbers.
func parkingVM(t *testing.T, id cluster.VMID, rec parking.Record) cluster.VM {
	t.Helper()
	description := must.Get(rec.Description())(t)
	return cluster.VM{ID: id, Name: "recast-parking-wk1", Host: "pve1", Config: map[string]string{"description": description}}
}

// leftover is what a recast.yaml with other numbers left, and how a run next to it ends.
type leftover struct {
	vm    func(*testing.T) cluster.VM
	dead  bool
	prune bool
	after time.Duration
	want  []string // of the refusal and its hints; none: the claim is taken
}

func leftovers() map[string]leftover {
	parked := func(id cluster.VMID, change func(*parking.Record)) func(*testing.T) cluster.VM {
		return func(t *testing.T) cluster.VM {
			rec := parking.Record{Cluster: "c1", Node: "wk1", Run: "r0", VMIDs: "9100-9199", VMID: 101}
			change(&rec)
			return parkingVM(t, id, rec)
		}
	}
	return map[string]leftover{
		"a claim that stands still": {
			vm: func(t *testing.T) cluster.VM { return rivalVM(t, 9100, nil) }, after: 90 * time.Second,
			want: []string{"has given no sign of life for 1m30s", "proxmox.vmids 9100-9199", "9000-9099", "use the same proxmox.vmids", "takes the claim over"},
		},
		"a claim whose holder is dead": {
			vm: func(t *testing.T) cluster.VM { return rivalVM(t, 9100, nil) }, dead: true,
			want: []string{"has ended without giving it back", "proxmox.vmids 9100-9199", "9000-9099"},
		},
		"a claim that lacks its numbers": {
			vm:   func(t *testing.T) cluster.VM { return rivalVM(t, 9100, func(s *State) { s.VMIDs = "" }) },
			dead: true, want: []string{"has ended without giving it back", "9000-9099"},
		},
		"a claim that can't be read": {
			vm: func(*testing.T) cluster.VM {
				return cluster.VM{ID: 9100, Config: map[string]string{"description": claimMark + "{"}}
			},
			want: []string{"VM 9100", "can't be read"},
		},
		"a claim of a newer recast, whichever cluster it is of": {
			vm: func(t *testing.T) cluster.VM {
				return byNewer(rivalVM(t, 9100, func(s *State) { s.Cluster = "c2" }))
			},
			want: []string{"VM 9100", "a newer recast wrote it", "use the recast that wrote it, or a newer one"},
		},
		"of the same Talos cluster under another name": {
			vm: func(t *testing.T) cluster.VM {
				return rivalVM(t, 9100, func(s *State) { s.Cluster, s.Nodes = "c2", []cluster.VMID{101, 102} })
			},
			dead: true, want: []string{"cluster c2 there has VM 102 among its nodes, as cluster c1 here has", "one name"},
		},
		"of another Talos cluster": {
			vm: func(t *testing.T) cluster.VM {
				return rivalVM(t, 9100, func(s *State) { s.Cluster, s.Nodes = "c2", []cluster.VMID{101} })
			},
		},
		"an unfinished replacement": {
			vm:   parked(9150, func(r *parking.Record) { r.Open, r.Strategy = true, cluster.Rollback }),
			want: []string{"holds, in an unfinished replacement, the disks of node wk1 for run r0, with proxmox.vmids 9100-9199", "this one has proxmox.vmids 9000-9099", "9000-9150 holds them all"},
		},
		"an old system disk": {
			vm: parked(9150, func(*parking.Record) {}), want: []string{"holds nothing any more of node wk1", "proxmox.vmids 9100-9199", "9000-9099"},
		},
		"an old system disk below our range": {
			vm: parked(8950, func(r *parking.Record) { r.VMIDs = "8900-8999" }), want: []string{"with proxmox.vmids 8900-8999", "8950-9099 holds them all"},
		},
		"an old system disk, to be pruned": {vm: parked(9150, func(*parking.Record) {}), prune: true},
		"an old system disk in our range":  {vm: parked(9050, func(*parking.Record) {})},
		"an unfinished replacement of our node, under another name": {
			vm:   parked(9050, func(r *parking.Record) { r.Cluster, r.Open, r.Strategy, r.VMID = "c2", true, cluster.Rollback, 102 }),
			want: []string{"node wk1 (VM 102) of cluster c2", "one name"},
		},
		"the same, by a newer recast": {
			vm: func(t *testing.T) cluster.VM {
				return byNewer(parked(9050, func(r *parking.Record) { r.Cluster, r.Open, r.Strategy, r.VMID = "c2", true, cluster.Rollback, 102 })(t))
			},
			want: []string{"node wk1 (VM 102) of cluster c2", "one name"},
		},
		"an unfinished replacement of another Talos cluster": {vm: parked(9150, func(r *parking.Record) { r.Cluster, r.Open, r.Strategy = "c2", true, cluster.Rollback })},
	}
}

// TestWhatAnotherRangeHasLeft: only its own recast.yaml may finish it.
func TestWhatAnotherRangeHasLeft(t *testing.T) {
	t.Parallel()
	must.Bubbles(t, leftovers(), func(t *testing.T, tc leftover) {
		p := newClaimPVE(tc.vm(t))
		c := claimantAt(p, "r1", 9000)
		c.Nodes, c.Parked = []cluster.VMID{102}, tc.prune
		c.Dead = func(Holder) bool { return tc.dead }
		start := time.Now()
		h, err := c.Acquire(t.Context())
		if len(tc.want) == 0 {
			if err != nil || h.Release(t.Context()) != nil {
				t.Fatal(err)
			}
			return
		}
		said := clustertest.Message(err) + strings.Join(fault.Hints(err), "\n")
		must.Contain(t, "said", said, tc.want...)
		if fault.KindOf(err) != fault.Refused || len(p.changes) > 0 || time.Since(start) != tc.after {
			t.Errorf("kind %d, changes %q, after %s", fault.KindOf(err), p.changes, time.Since(start))
		}
	})
}

// TestAClaimMayBeOnAHostThatIsAway: a host that the cluster has lost is watched as long as a
// counter is; one that does not answer us may answer others.
func TestAClaimMayBeOnAHostThatIsAway(t *testing.T) {
	t.Parallel()
	away := func(why string) *cluster.HostsAway {
		return &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: why}}, VMs: []cluster.VM{{ID: 9100, Host: "pve2"}}}
	}
	synctest.Test(t, func(t *testing.T) {
		p := newClaimPVE()
		p.away = away(cluster.IsOffline)
		start := time.Now()
		h := acquire(t, claimantAt(p, "r1", 9000))
		must.Equal(t, "offline: it took", 90*time.Second, time.Since(start))
		release(t, h)
		p.away = away("does not answer")
		_, err := claimantAt(p, "r1", 9000).Acquire(t.Context())
		if fault.KindOf(err) != fault.Refused || !strings.Contains(clustertest.Message(err), "whether another run is at work can't be determined: Proxmox host pve2 does not answer") || len(p.vms) > 0 {
			t.Errorf("online: %v, left %v", err, p.vms)
		}
		c := claimantAt(p, "r1", 9000)
		c.Nodes = []cluster.VMID{9100} // VM 9100 belongs to a node
		h = acquire(t, c)
		release(t, h)
	})
}

// TestAHolderWhoseHostWasAway: the run that began meanwhile did not see its claim.
func TestAHolderWhoseHostWasAway(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		first := acquire(t, claimantAt(p, "r1", 9000))
		ctx, end := first.Within(t.Context())
		defer end()
		p.do(func() {
			p.away = &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve1", Why: cluster.IsOffline}}, VMs: []cluster.VM{{ID: 9000, Host: "pve1"}}}
		})
		c := claimantAt(p, "r2", 9100)
		c.Host = "pve2"
		second := acquire(t, c)
		p.do(func() { p.away = nil })
		time.Sleep(20 * time.Second) // a heartbeat arrives
		must.FailAs(t, first.Check(t.Context()), fault.Claimed, "to run r2 (pid 7 on ci-r2)", "which has begun meanwhile")
		if err := second.Check(t.Context()); err != nil || context.Cause(ctx) == nil {
			t.Errorf("the second: %v; the first's context: %v", err, context.Cause(ctx))
		}
		must.Pass(t, errors.Join(first.Release(t.Context()), second.Release(t.Context())))
	})
}

// TestCover: a claim taken before the nodes were known is changed to name them.
func TestCover(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimantAt(p, "r1", 9000))
		p.do(func() { p.lose = map[string]int{"set": 1} })
		must.Do(t, h.Cover(t.Context(), []cluster.VMID{101, 102}))
		time.Sleep(time.Minute)
		if s := p.state(t); !slices.Equal(s.Nodes, []cluster.VMID{101, 102}) || s.VMIDs != "9000-9099" {
			t.Errorf("the claim is %+v", s)
		}
		other := claimantAt(p, "r2", 9100)
		other.Cluster, other.Nodes = "c2", []cluster.VMID{102}
		must.FailAs(t, must.Err(other.Acquire(t.Context())), fault.Claimed)
		n := len(p.changes)
		must.Pass(t, h.Cover(t.Context(), []cluster.VMID{102}))
		must.Equal(t, "changes", n, len(p.changes))
		release(t, h)
	})
}

// TestALateDelete: Proxmox executes a run's delete when the number is already the next run's.
func TestALateDelete(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		late := p.vms[9000]
		releaseAll(t, p, h)
		h = acquire(t, claimant(p, "r2"))
		if err := p.DeleteVM(t.Context(), late); err == nil || len(p.vms) != 1 {
			t.Errorf("the late delete: %v, left %v", err, p.vms)
		}
		releaseHeld(t, h)
		// A claim that is taken over, unprotected because its holder died during the delete.
		old := orphan(t, "r1")
		old.Config["protection"] = "0"
		p = newClaimPVE(old)
		h = acquire(t, claimant(p, "r2"))
		if err := p.DeleteVM(t.Context(), old); err == nil || len(p.vms) != 1 {
			t.Errorf("the late delete of one that was taken over: %v, left %v", err, p.vms)
		}
		releaseHeld(t, h)
	})
}

// TestWithin: a context within the claim ends when the claim is lost.
func TestWithin(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		ctx, end := h.Within(t.Context())
		defer end()
		if errAsked := errors.New("500 no"); !errors.Is(h.Judge(errAsked), errAsked) || h.Judge(nil) != nil {
			t.Error("judged while it is held")
		}
		lost := time.Now()
		p.do(func() { p.vms[9000] = rivalVM(t, 9000, nil) })
		<-ctx.Done()
		must.Take(t, lost, 0, 15*time.Second)
		cause := context.Cause(ctx)
		must.Equal(t, "cause", []any{fault.Claimed, fault.ClaimLost}, []any{fault.KindOf(cause), fault.CodeOf(cause)})
		after, end := h.Within(t.Context())
		defer end()
		if after.Err() == nil {
			t.Error("begun after it was lost")
		}
		for _, err := range []error{nil, fault.TaskFailed.Errorf("500 no"), context.Canceled, fault.As(fault.Interrupted, context.Canceled), cause, errors.Join(cause, fault.NoBoot.Errorf("x"))} {
			judged := h.Judge(err)
			if fault.KindOf(judged) != fault.Claimed || fault.CodeOf(judged) != fault.ClaimLost || err != nil && !errors.Is(judged, err) {
				t.Errorf("%v is judged %v: kind %d, code %s", err, judged, fault.KindOf(judged), fault.CodeOf(judged))
			}
		}
		release(t, h)
	})
}
