package contract

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/fault"
)

// claimant is a process that wants the claim, with its own connection.
func (s *server) claimant(id int, run string) *claim.Claim {
	return &claim.Claim{
		Proxmox: s.newClient(), Cluster: exchangeCluster, VMID: cluster.VMID(id), Host: s.place.node, Run: run,
		Holder: claim.Holder{Host: "contract", Boot: "b", PID: len(run), Start: run},
		Parked: true, // other tests exchange VMs under the same cluster's name
	}
}

// beat is the counter of the claim's holder.
func (s *server) beat(id int) int {
	s.t.Helper()
	state, found, err := claim.Peek([]cluster.VM{s.read(id)}, exchangeCluster, cluster.VMID(id))
	if err != nil || !found {
		s.t.Fatalf("no claim: %v", err)
	}
	return state.Beat
}

// TestClaim: one process at a time.
func TestClaim(t *testing.T) {
	story(t, "keeps a second process out, for as long as the first one lives", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		held, err := s.claimant(id, "r1").Acquire(t.Context())
		must(t, err)
		began := s.beat(id)
		if _, err := s.claimant(id, "r2").Acquire(t.Context()); fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "run r1") {
			t.Errorf("the second one: %v", err)
		}
		if now := s.beat(id); now <= began {
			t.Errorf("the claim's counter stands at %d, stood at %d", now, began)
		}
		if err := held.Check(t.Context()); err != nil {
			t.Error(err)
		}
		must(t, held.Release(t.Context()))
		if r := s.do(http.MethodGet, s.vm(id, "config")); r.Code == http.StatusOK {
			t.Error("given back, the claim is still there")
		}
		next, err := s.claimant(id, "r2").Acquire(t.Context())
		must(t, err)
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
	story(t, "is no other VM's number", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		before := s.config(id)["digest"]
		if _, err := s.claimant(id, "r1").Acquire(t.Context()); fault.KindOf(err) != fault.Refused {
			t.Error(err)
		}
		if s.config(id)["digest"] != before {
			t.Error("that VM was changed")
		}
	})
}

// TestClaimTakenOver: a process that was stopped for long loses the claim, and changes
// nothing any more; the process that has taken it over continues.
func TestClaimTakenOver(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		id, x, px := s.freeID(), s.newPlainNode(), s.newClient()
		beating, stopBeating := context.WithCancel(t.Context())
		held, err := s.claimant(id, "r1").Acquire(beating)
		must(t, err)
		steps, err := x.open(held.Guard(px), cluster.Recreate, "r1")
		must(t, err)
		stopBeating()
		began := time.Now()
		next, err := s.claimant(id, "r2").Acquire(t.Context())
		must(t, err)
		if took := time.Since(began); took < claim.Watch {
			t.Errorf("taken over after %v", took)
		}
		parked := s.digest(x.park)
		if err := s.carryOut(steps); fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "run r2") {
			t.Errorf("the first one continued: %v", err)
		}
		x.wantMachine(t, "of the first one", x.before)
		if now := s.digest(x.park); now != parked {
			t.Error("the parking VM was changed")
		}
		if err := x.resume(next.Guard(s.newClient()), cluster.Recreate, "r1", false); err != nil {
			t.Errorf("the second one: %v", err)
		}
		x.wantMachine(t, "the second one", x.before.renewedBy("r1", x.serial()))
		x.wantKept(t, "the second one", x.before.Drives["scsi0"])
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		s.intact(t)
	})
}

// TestClaimLost takes the claim before each change of an exchange: neither that change nor
// any later one is made.
func TestClaimLost(t *testing.T) {
	u := unfinished{strategy: cluster.Reimage}
	var chosen slice
	for k := range u.changesSimulated(t) {
		chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) {
			id, x := s.freeID(), u.node(t, s)
			held, err := s.claimant(id, "r1").Acquire(t.Context())
			must(t, err)
			px := mortal(held.Guard(s.newClient()), func(made int, _ mutation) bool {
				if made == k {
					s.usurp(id)
				}
				return true
			})
			if err := x.exchange(px, u.strategy, "r1"); fault.KindOf(err) != fault.Claimed || px.done != k {
				t.Errorf("it made %d changes and ended with: %v", px.done, err)
			}
			x.wantAllThere(t)
		})
	}
}

// usurp has another process take over at once, as if it knew that the holder is dead.
func (s *server) usurp(id int) {
	s.t.Helper()
	c := s.claimant(id, "usurper")
	c.Dead = func(claim.Holder) bool { return true }
	if _, err := c.Acquire(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}
