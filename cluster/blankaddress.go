package cluster

import (
	"net/netip"

	"github.com/recast-sh/recast/cluster/reach"
	"github.com/recast-sh/recast/internal/fault"
)

// blankAddress says how the node's machine will be reached at addr when it boots
// from the ISO of a build with nothing on its system disk: see reach.Find.
func blankAddress(addr netip.Addr, vm VM, m Machine, b Build) (set *reach.Setting, against reach.Obstacle) {
	blank := reach.Blank{ID: int(vm.ID), Config: vm.Config, Platform: b.Platform, KernelArgs: b.KernelArgs, NoNetwork: vm.withoutCustom("network")}
	disks, _ := vm.Disks() // what can't be read is refused elsewhere
	for _, d := range disks {
		switch {
		case d.CloudInit():
			blank.CloudInit = d.Key
		case blank.Storage == "" && !d.CDROM:
			blank.Storage = d.Storage()
		}
	}
	return reach.Find(addr, m.Addresses, blank)
}

// unreachable is why nobody would reach the blank machine at the node's address.
func (c candidate) unreachable() []Obstacle {
	if len(c.readdressed()) > 0 {
		return nil // which says so for every strategy
	}
	if _, o := blankAddress(c.found.Addr, c.vm, c.m, c.Build); o.Text != "" {
		return []Obstacle{{Text: o.Text, Command: o.Command, Config: o.Config}}
	}
	return nil
}

// reachBlank is what of the VM must be set, while its machine still says where its
// address comes from.
func (n *nodeRoll) reachBlank(vm VM, m Machine) (*reach.Setting, error) {
	if n.plan.Strategy == Rollback {
		return nil, nil // the system that comes back has its configuration
	}
	set, against := blankAddress(n.plan.Addr, vm, m, n.want.Build)
	if against.Text != "" {
		return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s: %s", n.plan.Node, against.Text), "it was not so when the plan was made: run recast plan and look again")
	}
	return set, nil
}

// blankSetting is what of the VM is set for its blank boot; nil: nothing.
func (f Found) blankSetting(b Build) *reach.Setting {
	switch {
	case f.Open():
		mem, _ := f.Parking.Record.memory(f.Parking.VM) // what can't be read is refused elsewhere
		return mem.Blank
	case f.VM == nil || f.Machine == nil:
		return nil
	}
	set, _ := blankAddress(f.Addr, *f.VM, *f.Machine, b)
	return set
}
