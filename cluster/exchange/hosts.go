package exchange

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// requireHost refuses a VM that has left the host of the exchange. Proxmox HA may migrate it until
// it is removed from HA. An exchange that hands over no disk may go on anywhere.
func (r *Replace) requireHost(vm cluster.VM) error {
	if vm.Host == r.VM.Host || len(r.Disks) == 0 {
		return nil
	}
	return fault.WithHint(fault.HostAway.Refusedf("%s was on %s when its replacement was begun: disks can be handed over on one host only", vm, r.VM.Host),
		"run the same command again; if that finds the replacement unfinished, bring the VM back first, on %s: %s. Nothing was destroyed", vm.Host, cluster.MigrateCommand(vm, r.VM.Host))
}
