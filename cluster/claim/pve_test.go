package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
)

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

// orphan is a claim whose holder has ended.
func orphan(t *testing.T, run string) cluster.VM {
	t.Helper()
	c := claimant(nil, run)
	description, err := c.mine(4).Description()
	if err != nil {
		t.Fatal(err)
	}
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
