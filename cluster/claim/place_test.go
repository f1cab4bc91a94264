package claim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// leases is a Kubernetes that has at most one Lease.
type leases struct {
	mu       sync.Mutex
	lease    *cluster.Lease
	revision int
	lose     int   // so many writes are made but not answered
	fails    error // the answer to everything
}

func (l *leases) Lease(context.Context) (cluster.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fails != nil:
		return cluster.Lease{}, l.fails
	case l.lease == nil:
		return cluster.Lease{}, cluster.ErrNotFound
	}
	return *l.lease, nil
}

func (l *leases) write(sent cluster.Lease, exists bool, next *cluster.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fails != nil:
		return l.fails
	case !exists && l.lease != nil:
		return cluster.ErrExists
	case exists && (l.lease == nil || l.lease.UID != sent.UID || l.lease.Revision != sent.Revision):
		return cluster.ErrChanged
	}
	if next != nil {
		l.revision++
		next.Name, next.Revision = "kube-system/recast", strconv.Itoa(l.revision)
		if !exists {
			next.UID = "of " + next.Revision
		}
	}
	l.lease = next
	if l.lose > 0 {
		l.lose--
		return cluster.ErrLostAnswer
	}
	return nil
}

// fail sets the answer to everything.
func (l *leases) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = err
}

func (l *leases) CreateLease(_ context.Context, n cluster.Lease) error { return l.write(n, false, &n) }

func (l *leases) UpdateLease(_ context.Context, n cluster.Lease) error { return l.write(n, true, &n) }

func (l *leases) DeleteLease(_ context.Context, n cluster.Lease) error { return l.write(n, true, nil) }

// leaseClaimant keeps its claim as a Lease; vmClaimant looks for one.
func leaseClaimant(p *claimPVE, l *leases, run string) *Claim {
	c := vmClaimant(p, l, run)
	c.InLease = true
	return c
}

func vmClaimant(p *claimPVE, l *leases, run string) *Claim {
	c := claimant(p, run)
	c.Leases = l
	return c
}

// requireNone reports a claim that is left.
func requireNone(t *testing.T, p *claimPVE, l *leases) {
	t.Helper()
	must.Equal(t, "VMs left, a Lease", []any{0, false}, []any{len(p.vms), l.lease != nil})
}

func TestClaimAsLease(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, l := newClaimPVE(), &leases{lose: 1}
		h := acquire(t, leaseClaimant(p, l, "r1"))
		time.Sleep(time.Hour)
		must.Pass(t, h.Check(t.Context()))
		must.Equal(t, "changes of VMs", 0, len(p.changes))
		if l.revision < 230 || l.lease.Holder != "recast run r1, pid 7 on ci-r1" || l.lease.Duration != 90*time.Second || time.Since(l.lease.Renewed) > 15*time.Second {
			t.Errorf("after an hour: %+v", l.lease)
		}
		_, err := leaseClaimant(p, l, "r2").Acquire(t.Context())
		must.FailAs(t, err, fault.Claimed)
		want := "held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:05Z, which is alive (Lease kube-system/recast)"
		must.Contain(t, "message", clustertest.Message(err), want)
		s, held, err := PeekLease(t.Context(), l.Lease, "c1")
		must.Equal(t, "peeked", []any{nil, true, "r1"}, []any{err, held, s.Run})
		l.lose = 1
		must.Pass(t, h.Release(t.Context()))
		requireNone(t, p, l)
		_, held, err = PeekLease(t.Context(), l.Lease, "c1")
		must.Equal(t, "peeked after it was given back", []any{nil, false}, []any{err, held})
	})
}

// TestClaimsInTwoPlaces: the second run is refused, in whichever place its own claim would be.
func TestClaimsInTwoPlaces(t *testing.T) {
	t.Parallel()
	type maker func(*claimPVE, *leases, string) *Claim
	type row struct {
		first, second maker
		alive         string
	}
	must.Bubbles(t, map[string]row{
		"a VM first":    {vmClaimant, leaseClaimant, `(VM 9000 "recast-claim" on pve1)`},
		"a Lease first": {leaseClaimant, vmClaimant, "(Lease kube-system/recast)"},
	}, func(t *testing.T, tc row) {
		p, l := newClaimPVE(), &leases{}
		h := acquire(t, tc.first(p, l, "r1"))
		_, err := tc.second(p, l, "r2").Acquire(t.Context())
		must.FailAs(t, err, fault.Claimed, tc.alive)
		must.Pass(t, h.Check(t.Context()))
		must.Pass(t, h.Release(t.Context()))
		requireNone(t, p, l)
	})
}

func TestClaimsInTwoPlacesAtOnce(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, l := newClaimPVE(), &leases{}
		var got [2]error
		var both sync.WaitGroup
		for i, c := range []*Claim{vmClaimant(p, l, "r1"), leaseClaimant(p, l, "r2")} {
			both.Go(func() {
				h, err := c.Acquire(t.Context())
				if got[i] = err; err == nil {
					defer h.Release(t.Context())
					time.Sleep(time.Hour)
				}
			})
		}
		both.Wait()
		if got[0] == nil && got[1] == nil {
			t.Error("both hold the claim")
		}
		requireNone(t, p, l)
	})
}

func TestClaimLeftElsewhere(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, l := newClaimPVE(orphan(t, "r1")), &leases{}
		_, err := leaseClaimant(p, l, "r2").Acquire(t.Context())
		must.FailAs(t, err, fault.Refused)
		must.Contain(t, "message", clustertest.Message(err), "is the claim of run r1 (pid 7 on ci-r1) since")
		must.Equal(t, "VMs, a Lease", []any{1, false}, []any{len(p.vms), l.lease != nil})

		ctx, kill := context.WithCancel(t.Context())
		p.do(func() { clear(p.vms) })
		must.Get(leaseClaimant(p, l, "r3").Acquire(ctx))(t)
		kill()
		start := time.Now()
		h := acquire(t, vmClaimant(p, l, "r4"))
		if took := time.Since(start); took < 90*time.Second || l.lease != nil {
			t.Errorf("the Lease of one who was killed was cleared after %s: %+v", took, l.lease)
		}
		release(t, h)
	})
}

// TestClaimWithoutKubernetes: a claim in Proxmox does not depend on an unavailable API, which
// the run may have to repair; an API that refuses the request is an error.
func TestClaimWithoutKubernetes(t *testing.T) {
	t.Parallel()
	type row struct {
		err   error
		taken bool
	}
	must.Bubbles(t, map[string]row{
		"away":          {fmt.Errorf("%w from it", cluster.ErrNoAnswer), true},
		"forbidden":     {fault.Refusedf("leases is forbidden"), false},
		"another error": {errors.New("unauthorized"), false},
	}, func(t *testing.T, tc row) {
		p, l := newClaimPVE(), &leases{fails: tc.err}
		h, err := vmClaimant(p, l, "r1").Acquire(t.Context())
		if taken := err == nil; taken != tc.taken {
			t.Fatalf("err = %v", err)
		}
		if h != nil {
			time.Sleep(time.Minute)
			releaseHeld(t, h)
		}
		must.Equal(t, "left", 0, len(p.vms))
		if _, err := leaseClaimant(p, l, "r2").Acquire(t.Context()); err == nil {
			t.Error("a Lease was taken that could not be read")
		}
	})
}

// TestClaimTakenWhileKubernetesWasAway: once the API is back, the run that could not see the
// Lease yields; an orphaned Lease is deleted.
func TestClaimTakenWhileKubernetesWasAway(t *testing.T) {
	t.Parallel()
	must.Bubbles(t, map[string]bool{"alive": true, "dead": false}, func(t *testing.T, alive bool) {
		p, l := newClaimPVE(), &leases{}
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		first := must.Get(leaseClaimant(p, l, "r1").Acquire(ctx))(t)
		l.fail(cluster.ErrNoAnswer)
		second := acquire(t, vmClaimant(p, l, "r2"))
		if err := first.Check(t.Context()); err == nil {
			t.Error("the Lease was proven without an API")
		}
		if !alive {
			kill()
			synctest.Wait() // a heartbeat at this very moment has ended
		}
		l.fail(nil)
		var errs [2]error
		var both sync.WaitGroup
		both.Go(func() { errs[1] = second.Check(t.Context()) })
		if alive {
			both.Go(func() { errs[0] = first.Check(t.Context()) })
		}
		both.Wait()
		if lost := fault.KindOf(errs[1]) == fault.Claimed; lost != alive || !lost && errs[1] != nil {
			t.Errorf("who came later: %v", errs[1])
		}
		release(t, second)
		if alive {
			must.Pass(t, errors.Join(first.Check(t.Context()), first.Release(t.Context())))
		}
		if l.lease != nil {
			t.Errorf("left: %+v", l.lease)
		}
	})
}

// TestClaimOfAPrune: a run that does not look for the Lease is waited for.
func TestClaimOfAPrune(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, l := newClaimPVE(), &leases{}
		h := acquire(t, leaseClaimant(p, l, "r1"))
		defer h.Release(t.Context())
		prunes := acquire(t, claimant(p, "r2"))
		time.AfterFunc(30*time.Second, func() { _ = prunes.Release(t.Context()) })
		start := time.Now()
		must.Pass(t, h.Check(t.Context()))
		must.Equal(t, "it waited", true, time.Since(start) >= 30*time.Second)
		again := acquire(t, claimant(p, "r3"))
		defer again.Release(t.Context())
		must.Fail(t, h.Check(t.Context()), "run r3")
	})
}

// TestDeletedLeaseIsLost: a heartbeat does not create a deleted Lease again.
func TestDeletedLeaseIsLost(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := &leases{}
		h := acquire(t, leaseClaimant(newClaimPVE(), l, "r1"))
		l.mu.Lock()
		l.lease = nil
		l.mu.Unlock()
		time.Sleep(time.Minute)
		must.FailAs(t, h.Check(t.Context()), fault.Claimed)
		must.Equal(t, "a Lease", false, l.lease != nil)
	})
}

// TestLeaseChecksTakeTurns: a node that waits for another node's check of Proxmox,
// which does not answer, ends with its context.
func TestLeaseChecksTakeTurns(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, l := newClaimPVE(), &leases{}
		h := acquire(t, leaseClaimant(p, l, "r1"))
		p.do(func() { p.down = true })
		looks, cancel := context.WithCancel(t.Context())
		var first sync.WaitGroup
		first.Go(func() {
			must.FailIs(t, h.Check(looks), context.Canceled)
		})
		synctest.Wait() // until it reads Proxmox
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		start := time.Now()
		if err := h.Check(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
			t.Errorf("who waits for its turn: after %s: %v", time.Since(start), err)
		}
		cancel()
		first.Wait()
		p.do(func() { p.down = false })
		releaseHeld(t, h)
	})
}

func TestForeignLeases(t *testing.T) {
	t.Parallel()
	type row struct{ claim, want string }
	must.Bubbles(t, map[string]row{
		"no version":      {`{"cluster": "c1", "run": "r1"}`, "Lease kube-system/recast: the claim in it can't be read: someone has edited it: it lacks its version"},
		"not ours":        {"", "Lease kube-system/recast: the claim in it can't be read: unexpected end of JSON input"},
		"of another name": {`{"version": 1, "cluster": "c2", "run": "r1"}`, "Lease kube-system/recast is the claim of cluster c2, not of c1"},
	}, func(t *testing.T, tc row) {
		l := &leases{lease: &cluster.Lease{Name: "kube-system/recast", Revision: "1", Claim: tc.claim}}
		_, err := leaseClaimant(newClaimPVE(), l, "r2").Acquire(t.Context())
		if fault.KindOf(err) != fault.Refused || !strings.Contains(clustertest.Message(err), tc.want) || l.lease.Revision != "1" {
			t.Errorf("err = %v", err)
		}
	})
}
