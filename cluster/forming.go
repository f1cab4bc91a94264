package cluster

import "github.com/recast-sh/recast/internal/fault"

// Forming says whether the VM is being created and has no more than that lock
// yet: Proxmox writes the configuration proper only at the end of the task
// (qemu-server, API2/Qemu.pm, create_and_lock_config).
func Forming(vm VM) bool { return vm.Lock == "create" && vm.Config["description"] == "" }

// HalfMade is the error of a VM that is forming and does not become more. Only
// root can take that lock away.
func HalfMade(vm VM) error {
	return fault.WithHint(fault.ClaimHeld.Refusedf("%s is locked by its creation (create), and nothing else is known of it", vm),
		"if no task qmcreate of VM %d runs on %s any more, it was killed: remove what it left there, as root, with "+
			"qm unlock %[1]d && qm destroy %[1]d, then run the same command again", vm.ID, vm.Host)
}
