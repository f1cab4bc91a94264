package cluster

import (
	"net/netip"

	"github.com/recast-sh/recast/cluster/reach"
)

// BlankAddress says how the node's machine will be reached at addr when it boots
// from the ISO of a build with nothing on its system disk: see reach.Find.
func BlankAddress(addr netip.Addr, vm VM, m Machine, b Build) (set *reach.Setting, against reach.Obstacle) {
	blank := reach.Blank{ID: int(vm.ID), Config: vm.Config, Platform: b.Platform, KernelArgs: b.KernelArgs, NoNetwork: vm.WithoutCustom("network")}
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
