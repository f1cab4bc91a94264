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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func acquire(t *testing.T, c *Claim) *Held {
	t.Helper()
	return must.Get(c.Acquire(t.Context()))(t)
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
		diff := cmp.Diff(map[string]string{"name": "recast-claim", "memory": "16", "onboot": "0", "protection": "1"}, vm.Config)
		must.Hold(t, diff == "" && vm.Host == "pve1", "on %s: %s", vm.Host, diff)
		want := "Claim of recast: Talos cluster c1 is being worked on by run r1 (pid 7 on ci-r1) since 2000-01-01T00:00:00Z. Never start this VM;"
		must.Hold(t, strings.HasPrefix(description, want), "a person reads %q", description)
		time.Sleep(time.Hour)
		s := p.state(t)
		must.Hold(t, s.Beat >= 230 && s.Since.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), "after an hour: %+v", s)
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
		s := p.state(t)
		must.Hold(t, s.Run == tc.run && s.Beat == 5, "claim is %+v", s)
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
				must.Hold(t, !slices.ContainsFunc(p.changes[n:], func(c string) bool { return c != "set" }),
					"changes: %q", p.changes[n:])
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
				must.Hold(t, most == 1 && won != 0 && len(p.vms) == 0,
					"late %s, delay %s: %d at once, %d in all, left %v", late, delay, most, won, p.vms)
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
			must.Be(t, err == nil && h.Release(t.Context()) == nil, "%v", err)
			return
		}
		said := clustertest.Message(err) + strings.Join(fault.Hints(err), "\n")
		must.Contain(t, "said", said, tc.want...)
		must.Hold(t, fault.KindOf(err) == fault.Refused && len(p.changes) == 0 && time.Since(start) == tc.after,
			"kind %d, changes %q, after %s", fault.KindOf(err), p.changes, time.Since(start))
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
		must.Hold(t, fault.KindOf(err) == fault.Refused && strings.Contains(clustertest.Message(err), "whether another run is at work can't be determined: Proxmox host pve2 does not answer") && len(p.vms) == 0,
			"online: %v, left %v", err, p.vms)
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
		s := p.state(t)
		must.Hold(t, slices.Equal(s.Nodes, []cluster.VMID{101, 102}) && s.VMIDs == "9000-9099", "the claim is %+v", s)
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
		errAsked := errors.New("500 no")
		must.Hold(t, errors.Is(h.Judge(errAsked), errAsked) && h.Judge(nil) == nil, "judged while it is held")
		lost := time.Now()
		p.do(func() { p.vms[9000] = rivalVM(t, 9000, nil) })
		<-ctx.Done()
		must.Take(t, lost, 0, 15*time.Second)
		cause := context.Cause(ctx)
		must.Equal(t, "cause", []any{fault.Claimed, fault.ClaimLost}, []any{fault.KindOf(cause), fault.CodeOf(cause)})
		after, end := h.Within(t.Context())
		defer end()
		must.Hold(t, after.Err() != nil, "begun after it was lost")
		for _, err := range []error{nil, fault.TaskFailed.Errorf("500 no"), context.Canceled, fault.As(fault.Interrupted, context.Canceled), cause, errors.Join(cause, fault.NoBoot.Errorf("x"))} {
			judged := h.Judge(err)
			must.Hold(t, fault.KindOf(judged) == fault.Claimed && fault.CodeOf(judged) == fault.ClaimLost && (err == nil || errors.Is(judged, err)),
				"%v is judged %v: kind %d, code %s", err, judged, fault.KindOf(judged), fault.CodeOf(judged))
		}
		release(t, h)
	})
}
