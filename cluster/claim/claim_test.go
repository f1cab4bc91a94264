package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func acquire(t *testing.T, c *Claim) *Held {
	t.Helper()
	h := must.Get(c.Acquire(t.Context()))(t)
	return h
}

func release(t *testing.T, h *Held) {
	t.Helper()
	must.Pass(t, h.Release(t.Context()))
}

// releaseAll leaves nothing behind.
func releaseAll(t *testing.T, p *claimPVE, h *Held) {
	t.Helper()
	release(t, h)
	must.Equal(t, "VMs left", 0, len(p.vms))
}

// releaseHeld gives back a claim that is still ours.
func releaseHeld(t *testing.T, h *Held) {
	t.Helper()
	must.Pass(t, errors.Join(h.Check(t.Context()), h.Release(t.Context())))
}

// requireMessage reports an error that is not of that kind, or that says anything else.
func requireMessage(t *testing.T, err error, kind fault.Kind, want string) {
	t.Helper()
	must.FailAs(t, err, kind)
	must.Equal(t, "message", want, clustertest.Message(err))
}

// requirePeek reports whether Peek finds a claim that it should not, or the other way round; message is its error.
func requirePeek(t *testing.T, vms []cluster.VM, want bool, message string) {
	t.Helper()
	_, found, err := Peek(vms, "c1", 9000)
	must.Equal(t, "peeked", []any{want, message}, []any{found, clustertest.Message(err)})
}

func TestClaimIsHeldAndGivenBack(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
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
		must.Pass(t, h.Check(t.Context()))
		for range 2 {
			release(t, h)
		}
		n := len(p.changes)
		time.Sleep(time.Hour)
		must.Equal(t, "left behind, and changes", []any{0, n}, []any{len(p.vms), len(p.changes)})
		must.FailAs(t, h.Check(t.Context()), fault.Refused)
	})
}

func TestClaimIsRefusedWhileItsHolderLives(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE()
		h := acquire(t, claimant(p, "r1"))
		defer h.Release(t.Context())
		var said []string
		c := claimant(p, "r2")
		c.Say = func(s string) { said = append(said, s) }
		start := time.Now()
		_, err := c.Acquire(t.Context())
		want := `take the claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z, which is alive (VM 9000 "recast-claim" on pve1)`
		requireMessage(t, err, fault.Claimed, want)
		must.Equal(t, "it has hints", true, len(fault.Hints(err)) > 0)
		must.Take(t, start, 0, 30*time.Second)
		want = "claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z; watching for up to 1m30s whether that run is alive"
		must.Equal(t, "got", []string{want}, said)
	})
}

func TestClaimOfAnEndedRun(t *testing.T) {
	t.Parallel()
	dead := func(h Holder) bool { return h.Host == "ci-r1" }
	type row struct {
		dead func(Holder) bool
		run  string
		want time.Duration
	}
	must.Bubbles(t, map[string]row{
		"a dead process of this machine": {dead, "r2", 0},
		"an unknown holder":              {nil, "r2", 90 * time.Second},
		"a holder on another machine":    {func(Holder) bool { return false }, "r2", 90 * time.Second},
		"this run":                       {nil, "r1", 0},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE(orphan(t, "r1"))
		c := claimant(p, tc.run)
		c.Dead = tc.dead
		start := time.Now()
		h := acquire(t, c)
		must.Equal(t, "it took", tc.want, time.Since(start))
		if s := p.state(t); s.Run != tc.run || s.Beat != 5 {
			t.Errorf("claim is %+v", s)
		}
		releaseHeld(t, h)
	})
}

func TestClaimIsTakenByOne(t *testing.T) {
	t.Parallel()
	cases := map[string][]cluster.VM{"unclaimed": nil, "unchanged": {orphan(t, "r0")}}
	must.Bubbles(t, cases, func(t *testing.T, vms []cluster.VM) {
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
				releaseHeld(t, h)
			}
		}
		must.Equal(t, "held by, VMs left", []int{1, 0}, []int{won, len(p.vms)})
	})
}

func TestClaimLostByASlowHolder(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
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
		requireMessage(t, slow.Check(t.Context()), fault.Refused, want)
		fast := acquire(t, claimant(p, "r2"))
		if took := time.Since(p.state(t).Since); took < 0 || time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) < 90*time.Second {
			t.Error("taken over too early")
		}
		want = "lost the claim of cluster c1: to run r2 (pid 7 on ci-r2) since 2000-01-01T00:03:46Z"
		requireMessage(t, slow.Check(t.Context()), fault.Claimed, want)
		time.Sleep(10 * time.Minute) // it wakes up, and its write comes too late
		must.Pass(t, errors.Join(slow.Release(t.Context()), fast.Check(t.Context())))
		must.Equal(t, "got", []string{want}, said)
		if s := p.state(t); s.Run != "r2" || s.Beat < 30 {
			t.Errorf("claim is %+v", s)
		}
		release(t, fast)
	})
}

func TestClaimThroughAnOutage(t *testing.T) {
	t.Parallel()
	type row struct {
		outage time.Duration
		during string
	}
	must.Bubbles(t, map[string]row{
		"short": {30 * time.Second, "read the claim of cluster c1: look up VM 9000: connection refused"},
		"long":  {30 * time.Minute, "read the claim of cluster c1: look up VM 9000: connection refused"},
	}, func(t *testing.T, tc row) {
		p := newClaimPVE()
		var said []string
		c := claimant(p, "r1")
		c.Say = func(s string) { said = append(said, s) }
		h := acquire(t, c)
		time.Sleep(time.Minute + time.Second) // between two heartbeats
		p.do(func() { p.down = true })
		time.Sleep(tc.outage)
		must.Equal(t, "error", tc.during, clustertest.Message(h.Check(t.Context())))
		p.do(func() { p.down = false })
		start := time.Now()
		err := h.Check(t.Context()) // no other run took it meanwhile
		if waited := time.Since(start) > 0; err != nil || waited != (tc.outage > 45*time.Second) {
			t.Errorf("right after an outage of %s: %v, after %s", tc.outage, err, time.Since(start))
		}
		release(t, h)
		want := "heartbeat of the claim of cluster c1: read the claim of cluster c1: look up VM 9000: connection refused; trying again"
		must.Equal(t, "got", []string{want}, said)
	})
}

func TestClaimSurvivesLostAnswers(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newClaimPVE(orphan(t, "r1"))
		for _, run := range []string{"r2", "r3"} { // the first takes over, the second creates
			p.do(func() { p.lose = map[string]int{"create": 1, "set": 1} })
			h := acquire(t, claimant(p, run))
			p.do(func() { p.lose["set"] = 1 })
			time.Sleep(time.Minute)
			must.Pass(t, h.Check(t.Context()))
			p.do(func() { p.lose["set"], p.lose["delete"] = 1, 1 })
			releaseAll(t, p, h)
		}
	})
}

func TestClaimBeingCreated(t *testing.T) {
	t.Parallel()
	type row struct {
		after time.Duration // until the creation is over; 0: never
		kind  fault.Kind
		want  string
	}
	must.Bubbles(t, map[string]row{
		"in a moment": {2 * time.Second, fault.Claimed, `take the claim of cluster c1: held by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:10Z, which is alive (VM 9000 "recast-claim" on pve1)`},
		"never":       {0, fault.Refused, `take the claim of cluster c1: VM 9000 "" on pve1 is locked by its creation (create), and nothing else is known of it`},
	}, func(t *testing.T, tc row) {
		half := cluster.VM{ID: 9000, Host: "pve1", Lock: "create", Config: map[string]string{"lock": "create"}}
		p := newClaimPVE(half)
		requirePeek(t, []cluster.VM{half}, false, "")
		if tc.after > 0 {
			whole := orphan(t, "r1")
			time.AfterFunc(tc.after, func() { p.do(func() { p.vms[9000] = whole }) })
			time.AfterFunc(10*time.Second, func() {
				next, _ := claimant(nil, "r1").mine(5).Description()
				vm, _ := p.VM(t.Context(), 9000)
				must.Pass(t, p.SetConfig(t.Context(), vm, map[string]string{"description": next}, nil))
			})
		}
		_, err := claimant(p, "r2").Acquire(t.Context())
		must.Equal(t, "error", []any{tc.want, tc.kind}, []any{clustertest.Message(err), fault.KindOf(err)})
	})
}

// TestDeletion: a claim that can't be read is to be deleted only if its VM has nothing, and once nobody holds it.
func TestDeletion(t *testing.T) {
	t.Parallel()
	const deletes = "qm set 9000 --protection 0 && qm destroy 9000"
	type row struct {
		change func(*cluster.VM)
		want   bool
	}
	must.Each(t, map[string]row{
		"as recast made it": {func(*cluster.VM) {}, true},
		"with a drive":      {func(vm *cluster.VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, false},
		"running":           {func(vm *cluster.VM) { vm.Running = true }, false},
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: 9000, Name: VMName, Host: "pve1", Config: map[string]string{"description": claimMark + "{"}}
		c.change(&vm)
		_, found, err := Read(vm)
		hint := strings.Join(fault.Hints(err), "\n")
		if !found || strings.Contains(hint, deletes) != c.want || !strings.Contains(hint, "Else wait "+Watch.String()) {
			t.Errorf("%t, %v, hint %s", found, err, hint)
		}
	})
}

// claimPVE is a Proxmox cluster as far as a claim uses it: VMs with a digest that every change
// increments. All other methods of Proxmox panic.
type claimPVE struct {
	cluster.Proxmox

	mu       sync.Mutex
	vms      map[cluster.VMID]cluster.VM
	changes  []string
	noQuorum bool
	down     bool           // no request is answered
	lose     map[string]int // so many changes of a kind are made but not answered
	onSet    func(set map[string]string)
	delay    time.Duration      // of every change
	away     *cluster.HostsAway // what can't be listed
}

func newClaimPVE(vms ...cluster.VM) *claimPVE {
	p := &claimPVE{vms: map[cluster.VMID]cluster.VM{}}
	for _, vm := range vms {
		vm.Digest = "d0"
		p.vms[vm.ID] = vm
	}
	return p
}

var errDown = errors.New("connection refused")

func (p *claimPVE) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	vm, ok := p.vms[id]
	_, away := p.away.VM(id)
	switch {
	case p.down:
		return cluster.VM{}, errDown
	case away:
		return cluster.VM{}, p.away
	case !ok:
		return cluster.VM{}, cluster.ErrNotFound
	}
	vm.Config = maps.Clone(vm.Config)
	return vm, nil
}

func (p *claimPVE) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := p.VM(ctx, id)
	vm.Running = true
	return vm, err
}

func (p *claimPVE) Quorate(context.Context) (bool, error) { return !p.noQuorum, nil }

// do runs f between two requests.
func (p *claimPVE) do(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *claimPVE) change(what string, id cluster.VMID, f func(cluster.VM, bool) (cluster.VM, error)) error {
	time.Sleep(p.delay)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return errDown
	}
	if _, away := p.away.VM(id); away {
		return p.away
	}
	old, found := p.vms[id]
	vm, err := f(old, found)
	if err != nil {
		return err
	}
	p.changes = append(p.changes, what)
	vm.Digest = fmt.Sprintf("d%d", len(p.changes))
	if vm.ID == 0 {
		delete(p.vms, id)
	} else {
		p.vms[id] = vm
	}
	if p.lose[what] > 0 {
		p.lose[what]--
		return cluster.ErrLostAnswer
	}
	return nil
}

func (p *claimPVE) CreateVM(_ context.Context, host string, id cluster.VMID, config map[string]string) error {
	return p.change("create", id, func(_ cluster.VM, found bool) (cluster.VM, error) {
		if found {
			return cluster.VM{}, cluster.ErrExists
		}
		return cluster.VM{ID: id, Host: host, Name: config["name"], Config: maps.Clone(config)}, nil
	})
}

func (p *claimPVE) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, _ []string) error {
	var onSet func(map[string]string)
	p.do(func() { onSet = p.onSet })
	if onSet != nil {
		onSet(set)
	}
	return p.change("set", vm.ID, func(now cluster.VM, found bool) (cluster.VM, error) {
		if !found || now.Digest != vm.Digest {
			return cluster.VM{}, cluster.ErrChanged
		}
		now.Config = maps.Clone(now.Config)
		maps.Copy(now.Config, set)
		return now, nil
	})
}

func (p *claimPVE) DeleteVM(_ context.Context, vm cluster.VM) error {
	return p.change("delete", vm.ID, func(now cluster.VM, _ bool) (cluster.VM, error) {
		if now.Config["protection"] == "1" {
			return cluster.VM{}, fmt.Errorf("can't remove VM %d - protection mode enabled", vm.ID)
		}
		return cluster.VM{}, nil
	})
}

func (p *claimPVE) state(t *testing.T) State {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok, err := Read(p.vms[9000])
	if !ok || err != nil {
		t.Fatalf("no claim: %v, %v", p.vms[9000], err)
	}
	return s
}

func claimant(p *claimPVE, run string) *Claim {
	return &Claim{
		Proxmox: p, Cluster: "c1", VMID: 9000, Host: "pve1", Run: run,
		Holder: Holder{Host: "ci-" + run, Boot: "b", PID: 7, Start: "1"},
	}
}

func orphan(t *testing.T, run string) cluster.VM {
	t.Helper()
	c := claimant(nil, run)
	description := must.Get(c.mine(4).Description())(t)
	return cluster.VM{ID: 9000, Name: VMName, Host: "pve1", Config: map[string]string{"name": VMName, "description": description + "\n"}}
}

// VMs lists what runs that claim other numbers see.
func (p *claimPVE) VMs(context.Context) ([]cluster.VM, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return nil, errDown
	}
	var vms []cluster.VM
	for _, id := range slices.Sorted(maps.Keys(p.vms)) {
		vm := p.vms[id]
		vm.Config = maps.Clone(vm.Config)
		vms = append(vms, vm)
	}
	if p.away != nil {
		vms = slices.DeleteFunc(vms, func(vm cluster.VM) bool { _, there := p.away.VM(vm.ID); return there })
		return vms, p.away
	}
	return vms, nil
}
