package claim

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
)

func acquire(t *testing.T, c *Claim) *Held {
	t.Helper()
	h, err := c.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestClaimIsHeldAndGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		vm, _ := p.VM(t.Context(), 9000)
		description := vm.Config["description"]
		delete(vm.Config, "description")
		if diff := cmp.Diff(map[string]string{"name": "recast-claim", "memory": "16", "onboot": "0", "protection": "1"}, vm.Config); diff != "" || vm.Host != "pve1" {
			t.Errorf("on %s: %s", vm.Host, diff)
		}
		want := "Claim of recast: Talos cluster c1 is being worked on by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z. Never start this VM;"
		if !strings.HasPrefix(description, want) {
			t.Errorf("a person reads %q", description)
		}
		time.Sleep(time.Hour)
		if s := p.state(t); s.Beat < 230 || !s.Since.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("after an hour: %+v", s)
		}
		if err := h.Check(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := h.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		n := len(p.changes)
		time.Sleep(time.Hour)
		if len(p.vms) != 0 || len(p.changes) != n {
			t.Errorf("left behind: %v, written after it: %q", p.vms, p.changes[n:])
		}
		if err := h.Check(t.Context()); fault.KindOf(err) != fault.Refused {
			t.Errorf("checked after it was given back: %v", err)
		}
	})
}

func TestClaimIsRefusedWhileItsHolderLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		defer h.Release(t.Context())
		var said []string
		c := claimant(p, "r2")
		c.Say = func(s string) { said = append(said, s) }
		start := time.Now()
		_, err := c.Acquire(t.Context())
		want := `take the claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z, which is alive (VM 9000 "recast-claim" on pve1)`
		if clustertest.Message(err) != want || fault.KindOf(err) != fault.Claimed || len(fault.Hints(err)) == 0 {
			t.Errorf("err = %v, want %s", err, want)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("it took %s to see that the holder lives", took)
		}
		want = "claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z; watching for up to 1m30s whether that run is alive"
		if diff := cmp.Diff([]string{want}, said); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClaimOfAnEndedRun(t *testing.T) {
	t.Parallel()
	dead := func(h Holder) bool { return h.Host == "ci-r1" }
	for name, tc := range map[string]struct {
		dead func(Holder) bool
		run  string
		want time.Duration
	}{
		"a dead process of this machine": {dead, "r2", 0},
		"an unknown holder":              {nil, "r2", 90 * time.Second},
		"a holder on another machine":    {func(Holder) bool { return false }, "r2", 90 * time.Second},
		"this run":                       {nil, "r1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newClaimPVE(orphan(t, "r1"))
				c := claimant(p, tc.run)
				c.Dead = tc.dead
				start := time.Now()
				h := acquire(t, c)
				if took := time.Since(start); took != tc.want {
					t.Errorf("it took %s, want %s", took, tc.want)
				}
				if s := p.state(t); s.Run != tc.run || s.Beat != 5 {
					t.Errorf("claim is %+v", s)
				}
				if err := errors.Join(h.Check(t.Context()), h.Release(t.Context())); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestClaimIsTakenByOne(t *testing.T) {
	t.Parallel()
	for name, vms := range map[string][]cluster.VM{"unclaimed": nil, "unchanged": {orphan(t, "r0")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newClaimPVE(vms...)
				p.delay = time.Second // all runs have read before the first has written
				held, errs := make([]*Held, 5), make([]error, 5)
				var all sync.WaitGroup
				for i := range held {
					all.Go(func() { held[i], errs[i] = claimant(p, fmt.Sprintf("r%d", i+1)).Acquire(t.Context()) })
				}
				all.Wait()
				won := 0
				for i, h := range held {
					switch {
					case h == nil && fault.KindOf(errs[i]) != fault.Claimed:
						t.Errorf("r%d: %v", i+1, errs[i])
					case h != nil:
						won++
						if err := errors.Join(h.Check(t.Context()), h.Release(t.Context())); err != nil {
							t.Error(err)
						}
					}
				}
				if won != 1 || len(p.vms) != 0 {
					t.Errorf("%d hold it; left: %v", won, p.vms)
				}
			})
		})
	}
}

func TestClaimLostByASlowHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newClaimPVE()
		var said []string
		c := claimant(p, "r1")
		c.Say = func(s string) { said = append(said, s) }
		slow := acquire(t, c)
		// Its next heartbeat hangs between reading and writing.
		p.do(func() {
			p.onSet = func(set map[string]string) {
				if s, _, _ := Read(cluster.VM{Config: set}); s.Run == "r1" {
					time.Sleep(5 * time.Minute)
				}
			}
		})
		time.Sleep(46 * time.Second)
		want := "can't prove that we still hold the claim of cluster c1: no heartbeat has arrived for 2m16s" // after waiting for a heartbeat
		if err := slow.Check(t.Context()); clustertest.Message(err) != want || fault.KindOf(err) != fault.Refused {
			t.Errorf("err = %v, want %s", err, want)
		}
		fast := acquire(t, claimant(p, "r2"))
		if took := time.Since(p.state(t).Since); took < 0 || time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) < 90*time.Second {
			t.Error("taken over too early")
		}
		want = "lost the claim of cluster c1: to run r2 (pid 7 on ci-r2) since 2000-01-01T00:03:46Z"
		if err := slow.Check(t.Context()); clustertest.Message(err) != want || fault.KindOf(err) != fault.Claimed {
			t.Errorf("err = %v, want %s", err, want)
		}
		time.Sleep(10 * time.Minute) // it wakes up, and its write comes too late
		if err := errors.Join(slow.Release(t.Context()), fast.Check(t.Context())); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{want}, said); diff != "" {
			t.Error(diff)
		}
		if s := p.state(t); s.Run != "r2" || s.Beat < 30 {
			t.Errorf("claim is %+v", s)
		}
		if err := fast.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestClaimThroughAnOutage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		outage time.Duration
		during string
	}{
		"short": {30 * time.Second, "read the claim of cluster c1: look up VM 9000: connection refused"},
		"long":  {30 * time.Minute, "read the claim of cluster c1: look up VM 9000: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newClaimPVE()
				var said []string
				c := claimant(p, "r1")
				c.Say = func(s string) { said = append(said, s) }
				h := acquire(t, c)
				time.Sleep(time.Minute + time.Second) // between two heartbeats
				p.do(func() { p.down = true })
				time.Sleep(tc.outage)
				if err := h.Check(t.Context()); clustertest.Message(err) != tc.during {
					t.Errorf("err = %v, want %s", err, tc.during)
				}
				p.do(func() { p.down = false })
				start := time.Now()
				err := h.Check(t.Context()) // no other run took it meanwhile
				if waited := time.Since(start) > 0; err != nil || waited != (tc.outage > 45*time.Second) {
					t.Errorf("right after an outage of %s: %v, after %s", tc.outage, err, time.Since(start))
				}
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
				want := "heartbeat of the claim of cluster c1: read the claim of cluster c1: look up VM 9000: connection refused; trying again"
				if diff := cmp.Diff([]string{want}, said); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestClaimSurvivesLostAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newClaimPVE(orphan(t, "r1"))
		for _, run := range []string{"r2", "r3"} { // the first takes over, the second creates
			p.do(func() { p.lose = map[string]int{"create": 1, "set": 1} })
			h := acquire(t, claimant(p, run))
			p.do(func() { p.lose["set"] = 1 })
			time.Sleep(time.Minute)
			if err := h.Check(t.Context()); err != nil {
				t.Error(err)
			}
			p.do(func() { p.lose["set"], p.lose["delete"] = 1, 1 })
			if err := h.Release(t.Context()); err != nil || len(p.vms) != 0 {
				t.Errorf("err = %v, left: %v", err, p.vms)
			}
		}
	})
}

func TestClaimBeingCreated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after time.Duration // until the creation is over; 0: never
		kind  fault.Kind
		want  string
	}{
		"in a moment": {2 * time.Second, fault.Claimed, `take the claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:10Z, which is alive (VM 9000 "recast-claim" on pve1)`},
		"never":       {0, fault.Refused, `take the claim of cluster c1: VM 9000 "" on pve1 is locked by its creation (create), and nothing else is known of it`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				half := cluster.VM{ID: 9000, Host: "pve1", Lock: "create", Config: map[string]string{"lock": "create"}}
				p := newClaimPVE(half)
				if _, found, err := Peek([]cluster.VM{half}, "c1", 9000); found || err != nil {
					t.Errorf("peeked: %t, %v", found, err)
				}
				if tc.after > 0 {
					whole := orphan(t, "r1")
					time.AfterFunc(tc.after, func() { p.do(func() { p.vms[9000] = whole }) })
					time.AfterFunc(10*time.Second, func() {
						next, _ := claimant(nil, "r1").mine(5).Description()
						vm, _ := p.VM(t.Context(), 9000)
						if err := p.SetConfig(t.Context(), vm, map[string]string{"description": next}, nil); err != nil {
							t.Error(err)
						}
					})
				}
				_, err := claimant(p, "r2").Acquire(t.Context())
				if clustertest.Message(err) != tc.want || fault.KindOf(err) != tc.kind {
					t.Errorf("err = %v, want %s", err, tc.want)
				}
			})
		})
	}
}
