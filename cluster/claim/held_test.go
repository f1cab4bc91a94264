package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
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

func TestClaimLeavesOtherVMsAlone(t *testing.T) {
	t.Parallel()
	other := orphan(t, "r1")
	other.Config["description"] = strings.Replace(other.Config["description"], `"cluster":"c1"`, `"cluster":"c2"`, 1)
	broken := orphan(t, "r1")
	broken.Config["description"] = claimMark + `{"run":`
	newer := orphan(t, "r1")
	newer.Config["description"] = strings.Replace(newer.Config["description"], `"version":1`, `"version":2`, 1)
	edit := func(change func(*cluster.VM)) cluster.VM {
		vm := orphan(t, "r1")
		vm.Config["memory"], vm.Config["protection"] = "16", "1"
		change(&vm)
		return vm
	}
	type row struct {
		vm   cluster.VM
		want string
	}
	must.Bubbles(t, map[string]row{
		"a newer recast's claim":   {newer, `VM 9000 "recast-claim" on pve1: the claim in its description can't be read: a newer recast wrote it: its format is version 2, and this recast reads version 1`},
		"another cluster's claim":  {other, `VM 9000 "recast-claim" on pve1 is the claim of cluster c2, not of c1`},
		"with other Notes":         {edit(func(vm *cluster.VM) { vm.Config["description"] = "mine" }), `VM 9000 "recast-claim" on pve1 is a claim of recast, and someone has edited its Notes: which run holds it can't be read`},
		"with no Notes and name":   {edit(func(vm *cluster.VM) { vm.Name = "x"; delete(vm.Config, "description") }), `VM 9000 "x" on pve1 is a claim of recast, and someone has edited its Notes: which run holds it can't be read`},
		"with no Notes and a disk": {edit(func(vm *cluster.VM) { vm.Config["description"], vm.Config["scsi0"] = "", "fast:vm-9000-disk-0" }), `VM 9000 "recast-claim" on pve1 has the number that recast needs for its claim, and is not a claim`},
		"a foreign VM":             {cluster.VM{ID: 9000, Name: "web", Host: "pve2"}, `VM 9000 "web" on pve2 has the number that recast needs for its claim, and is not a claim`},
		"a damaged claim":          {broken, `VM 9000 "recast-claim" on pve1: the claim in its description can't be read: unexpected end of JSON input`},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE(tc.vm)
		_, err := claimant(p, "r2").Acquire(t.Context())
		requireMessage(t, err, fault.Refused, "take the claim of cluster c1: "+tc.want)
		must.Equal(t, "hints", 1, len(fault.Hints(err)))
		requirePeek(t, []cluster.VM{tc.vm}, false, tc.want)
		must.Equal(t, "changed", 0, len(p.changes))
	})
	s, found, err := Peek([]cluster.VM{{ID: 8999}, orphan(t, "r1")}, "c1", 9000)
	must.Pass(t, err)
	must.Equal(t, "peeked", []any{true, "r1", cluster.VMID(9000)}, []any{found, s.Run, s.VM.ID})
	newer.ID = 8999
	_, found, err = Peek([]cluster.VM{newer}, "c1", 9000)
	must.Fail(t, err, "a newer recast wrote it")
	must.Equal(t, "a newer recast holds it, found", false, found)
	requirePeek(t, []cluster.VM{{ID: 8999}}, false, "")
}

func TestClaimIsNotDeletedBlindly(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*claimPVE, *cluster.VM)
		want   string
	}
	must.Bubbles(t, map[string]row{
		"no quorum": {func(p *claimPVE, _ *cluster.VM) { p.noQuorum = true }, "the Proxmox cluster has no quorum"},
		"running":   {func(_ *claimPVE, vm *cluster.VM) { vm.Running = true }, "is not as recast made it"},
		"a drive":   {func(_ *claimPVE, vm *cluster.VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, "is not as recast made it"},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		p.do(func() {
			vm := p.vms[9000]
			tc.change(p, &vm)
			p.vms[9000] = vm
		})
		err := h.Release(t.Context())
		must.Contain(t, "message", clustertest.Message(err), tc.want)
		must.Equal(t, "VMs, deleted", []any{1, false}, []any{len(p.vms), slices.Contains(p.changes, "delete")})
	})
}

// TestClaimRenamed: a claim that someone has renamed is given back all the same, and the next heartbeat
// gives it its name again.
func TestClaimRenamed(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		rename := func() {
			p.do(func() {
				vm := p.vms[9000]
				vm.Name = "mine"
				p.vms[9000] = vm
			})
		}
		rename()
		time.Sleep(Heartbeat + time.Second)
		p.do(func() { must.Equal(t, "after a heartbeat its name is", VMName, p.vms[9000].Config["name"]) })
		rename()
		releaseAll(t, p, h)
	})
}

func TestClaimEndsWithItsContext(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		ctx, cancel := context.WithCancel(t.Context())
		h := must.Get(claimant(p, "r1").Acquire(ctx))(t)
		cancel()
		time.Sleep(time.Minute)
		must.Equal(t, "changes after the context had ended", 1, len(p.changes))
		must.FailAs(t, h.Check(t.Context()), fault.Refused)
		must.FailIs(t, must.Err(claimant(p, "r2").Acquire(ctx)), context.Canceled)
		releaseAll(t, p, h)
	})
}

func TestClaimDeletedByAPerson(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		p.do(func() { delete(p.vms, 9000) })
		time.Sleep(time.Minute)
		want := "lost the claim of cluster c1: VM 9000 was deleted"
		requireMessage(t, h.Check(t.Context()), fault.Claimed, want)
		release(t, h)
		must.Equal(t, "changes", 1, len(p.changes))
	})
}

// Reflection finds the guarded methods, so a method that does not check fails here.
func TestGuardChecksBeforeEveryChange(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		px := h.Guard(p)
		must.Pass(t, px.CreateVM(t.Context(), "pve1", 9001, nil))
		must.Equal(t, "VMs", 2, len(p.vms))
		p.do(func() { delete(p.vms, 9000) }) // claimPVE panics on every call that it does not serve
		for _, of := range []reflect.Type{reflect.TypeFor[cluster.Editor](), reflect.TypeFor[cluster.HA](), reflect.TypeFor[cluster.Power]()} {
			for m := range of.Methods() {
				f := reflect.ValueOf(px).MethodByName(m.Name)
				args := []reflect.Value{reflect.ValueOf(t.Context())}
				for i := 1; i < f.Type().NumIn(); i++ {
					args = append(args, reflect.Zero(f.Type().In(i)))
				}
				out := f.Call(args)
				err, _ := out[len(out)-1].Interface().(error)
				must.Hold(t, fault.KindOf(err) == fault.Claimed, "%s: %v", m.Name, err)
			}
		}
		must.Pass(t, must.Err(px.VM(t.Context(), 9001))) // reading needs no claim
	})
}

// TestWriteEndsWithTheClaim: a change that is being sent ends when the claim is lost, and none is sent afterwards.
func TestWriteEndsWithTheClaim(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		sent := 0
		send := func(ctx context.Context) error {
			sent++
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return nil
			}
		}
		must.Pass(t, h.Write(t.Context(), send))
		must.Equal(t, "contexts left", 0, len(h.ends))
		time.AfterFunc(20*time.Second, func() { p.do(func() { delete(p.vms, 9000) }) })
		for range 2 {
			must.FailAs(t, h.Write(t.Context(), send), fault.Claimed)
			must.Equal(t, "sent", 2, sent)
		}
	})
}

// TestAfterASilenceHostsAreJudgedAlike: an unreachable host makes the holder of a claim refuse
// exactly when it makes a run refuse that takes a claim.
func TestAfterASilenceHostsAreJudgedAlike(t *testing.T) {
	t.Parallel()
	for why, refused := range map[string]bool{cluster.IsOffline: false, "does not answer": true} {
		synctest.Test(t, func(t *testing.T) {
			p := newClaimPVE()
			h := acquire(t, claimantAt(p, "r1", 9000))
			p.do(func() { p.down = true })
			time.Sleep(time.Minute)
			p.do(func() {
				p.down, p.away = false, &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: why}}, VMs: []cluster.VM{{ID: 500, Host: "pve2"}}}
			})
			time.Sleep(20 * time.Second) // a heartbeat arrives
			start := time.Now()
			err := h.Check(t.Context())
			must.Equal(t, why, 90*time.Second, time.Since(start))
			must.Hold(t, refused == (err != nil) && (!refused || fault.KindOf(err) == fault.Refused), "%s: %v", why, err)
			release(t, h)
		})
	}
}

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
		must.Hold(t, l.revision >= 230 && l.lease.Holder == "recast run r1, pid 7 on ci-r1" && l.lease.Duration == 90*time.Second && time.Since(l.lease.Renewed) <= 15*time.Second,
			"after an hour: %+v", l.lease)
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
		must.Hold(t, got[0] != nil || got[1] != nil, "both hold the claim")
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
		err := first.Check(t.Context())
		must.Hold(t, err != nil, "the Lease was proven without an API")
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
		lost := fault.KindOf(errs[1]) == fault.Claimed
		must.Hold(t, lost == alive && (lost || errs[1] == nil), "who came later: %v", errs[1])
		release(t, second)
		if alive {
			must.Pass(t, errors.Join(first.Check(t.Context()), first.Release(t.Context())))
		}
		must.Hold(t, l.lease == nil, "left: %+v", l.lease)
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
		first.Go(func() { must.FailIs(t, h.Check(looks), context.Canceled) })
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
		must.Hold(t, fault.KindOf(err) == fault.Refused && strings.Contains(clustertest.Message(err), tc.want) && l.lease.Revision == "1",
			"err = %v", err)
	})
}

// lockedVM is a Proxmox with one VM that another task has locked.
type lockedVM struct {
	cluster.Proxmox
	vm       cluster.VM
	until    time.Time // when the lock ends
	leaves   map[string]string
	noQuorum bool
	done     int
}

func (f *lockedVM) VM(context.Context, cluster.VMID) (cluster.VM, error) {
	vm := f.vm
	vm.Config = maps.Clone(vm.Config)
	if vm.Lock != "" && !time.Now().Before(f.until) {
		maps.Copy(vm.Config, f.leaves)
		vm.Lock, vm.Running, vm.QMP = "", false, ""
		delete(vm.Config, "lock")
	}
	vm.Digest = fmt.Sprint(vm.Config)
	return vm, nil
}

func (f *lockedVM) Quorate(context.Context) (bool, error) { return !f.noQuorum, nil }

func (f *lockedVM) SetConfig(ctx context.Context, vm cluster.VM, _ map[string]string, _ []string) error {
	switch now, err := f.VM(ctx, vm.ID); {
	case err != nil:
		return err
	case now.Lock != "" && vm.Config["lock"] != "":
		return fmt.Errorf("VM is locked: %w", cluster.ErrLocked)
	case now.Digest != vm.Digest:
		return fmt.Errorf("checksum mismatch: %w", cluster.ErrChanged)
	}
	f.done++
	return nil
}

func TestPatience(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	type row struct {
		lock     string
		lasts    time.Duration
		before   bool // the VM was read before it was locked
		leaves   map[string]string
		noQuorum bool
		took     time.Duration // at least; at most a poll more
		err      string
		hint     string
		said     []string
	}
	must.Bubbles(t, map[string]row{
		"free":                        {before: true},
		"locked since":                {lock: "backup", lasts: 3 * minute, before: true, took: 3 * minute, said: []string{"waiting for VM 101: it is locked (backup)"}},
		"locked already":              {lock: "snapshot-delete", lasts: minute, took: minute, said: []string{"waiting for VM 101: it is locked (snapshot-delete)"}},
		"changed under the lock":      {lock: "snapshot", lasts: minute, before: true, leaves: map[string]string{"parent": "theirs"}, took: minute, err: "changed by someone else", said: []string{"waiting for VM 101: it is locked (snapshot)"}},
		"quorum is lost meanwhile":    {lock: "backup", lasts: minute, before: true, noQuorum: true, took: minute, err: "no quorum", hint: "pvecm status", said: []string{"waiting for VM 101: it is locked (backup)"}},
		"for too long":                {lock: "backup", lasts: 24 * time.Hour, before: true, took: lockWait, err: "VM 101 free: gave up after 15m0s; last seen: it is locked (backup)", hint: "qm unlock 101", said: []string{"waiting for VM 101: it is locked (backup)"}},
		"a lock that no task has":     {lock: "suspended", lasts: 24 * time.Hour, before: true, err: `VM 101 "wk1" on pve1 is locked (suspended)`, hint: "qm unlock 101"},
		"such a lock before the read": {lock: "suspended", lasts: 24 * time.Hour, err: "is locked (suspended): VM is locked", hint: "discards the saved state"},
	}, func(t *testing.T, c row) {
		f := &lockedVM{vm: cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"memory": "512"}}, leaves: c.leaves, noQuorum: c.noQuorum}
		read, _ := f.VM(t.Context(), 101)
		if c.lock != "" {
			f.vm.Lock, f.vm.Config["lock"], f.until = c.lock, c.lock, time.Now().Add(c.lasts)
		}
		if !c.before {
			read, _ = f.VM(t.Context(), 101)
		}
		var said []string
		px := WithPatience(f, 2*time.Second, func(text string) { said = append(said, text) })
		start := time.Now()
		err := px.SetConfig(t.Context(), read, map[string]string{"onboot": "0"}, nil)
		must.Take(t, start, c.took, c.took+2*time.Second)
		must.Hold(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)) && f.done == map[bool]int{true: 1}[err == nil],
			"done %d times: %v; want %q", f.done, err, c.err)
		must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), c.hint)
		must.Equal(t, "said", c.said, said)
	})
}

// TestPatienceWithABackupOfAStoppedVM: a stopped VM runs while it is backed up. It is not mistaken
// for a VM that someone started.
func TestPatienceWithABackupOfAStoppedVM(t *testing.T) {
	t.Parallel()
	whole := func(px cluster.Proxmox, ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
		vm, err := px.VM(ctx, id)
		if (vm.Lock == "backup") != vm.Running {
			err = errors.Join(err, fmt.Errorf("lock %q of a VM that runs: %t", vm.Lock, vm.Running))
		}
		return vm.State(), err
	}
	type reading func(cluster.Proxmox, context.Context, cluster.VMID) (cluster.VMState, error)
	cases := map[string]reading{"VM": whole, "VMState": cluster.Proxmox.VMState}
	must.Bubbles(t, cases, func(t *testing.T, read reading) {
		f := &lockedVM{vm: cluster.VM{ID: 101, Host: "pve1", Running: true, QMP: "prelaunch", Lock: "backup", Config: map[string]string{"lock": "backup"}}, until: time.Now().Add(time.Minute)}
		px := WithPatience(f, 2*time.Second, func(string) {})
		vm, err := read(px, t.Context(), 101)
		must.Equal(t, "error and value", []any{nil, false}, []any{err, vm.Running})
		f.vm.QMP = "running" // now its guest runs
		f.until = time.Now().Add(time.Hour)
		if vm, err := read(px, t.Context(), 101); err != nil || !vm.Running {
			t.Errorf("%+v, %v", vm, err)
		}
	})
}

// pairedVMs is a Proxmox with a locked source VM, and the VM that is to get its disk.
type pairedVMs struct {
	lockedVM
	to    cluster.VM
	later func(to *cluster.VM) // changes the target when the lock ends
	moved int
}

func (f *lockedVM) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := f.VM(ctx, id)
	return vm.State(), err
}

func (f *pairedVMs) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	if id == f.vm.ID {
		return f.lockedVM.VM(ctx, id)
	}
	to := f.to
	to.Config = maps.Clone(to.Config)
	if !time.Now().Before(f.until) {
		f.later(&to)
	}
	return to, nil
}

func (f *pairedVMs) MoveDisk(ctx context.Context, vm cluster.VM, _ string, _ cluster.VMID, _ string) error {
	err := f.SetConfig(ctx, vm, nil, nil)
	f.moved = f.done
	return err
}

// TestPatienceWithATarget: the VM that is to get a disk must be unchanged, too.
func TestPatienceWithATarget(t *testing.T) {
	t.Parallel()
	type row struct {
		later func(to *cluster.VM)
		moved int
	}
	must.Bubbles(t, map[string]row{
		"as it was":         {func(*cluster.VM) {}, 1},
		"another VM":        {func(to *cluster.VM) { to.Config["smbios1"] = "uuid=b" }, 0},
		"on another host":   {func(to *cluster.VM) { to.Host = "pve2" }, 0},
		"started meanwhile": {func(to *cluster.VM) { to.Running = true }, 0},
	}, func(t *testing.T, c row) {
		f := &pairedVMs{
			lockedVM: lockedVM{vm: cluster.VM{ID: 101, Host: "pve1", Config: map[string]string{"scsi1": "fast:vm-101-disk-1"}}},
			to:       cluster.VM{ID: 9900, Host: "pve1", Config: map[string]string{"smbios1": "uuid=a"}}, later: c.later,
		}
		read, _ := f.VM(t.Context(), 101)
		f.vm.Lock, f.vm.Config["lock"], f.until = "backup", "backup", time.Now().Add(time.Minute)
		err := WithPatience(f, 2*time.Second, func(string) {}).MoveDisk(t.Context(), read, "scsi1", 9900, "scsi1")
		must.Hold(t, f.moved == c.moved && (err == nil) == (c.moved == 1) && (err == nil || errors.Is(err, cluster.ErrChanged)),
			"moved %d times: %v", f.moved, err)
	})
}
