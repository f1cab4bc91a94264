package cluster

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// memory is what the world can no longer tell once the VM is gone. It is in the
// journal before anything is taken down.
type memory struct {
	VM          VM           // as it was; its Config is what the new VM gets
	SystemKey   string       // the proven system disk
	BootID      string       // of the boot that ends here
	Volumes     []Volume     // partitions and filesystems on persistent disks
	Metadata    NodeMetadata // of the Kubernetes Node
	DiskSerial  string       // of the blank system disk to come
	WasCordoned bool         // by somebody else: stays so
}

const machineConfigKey = "machine-config"

// memory reads what was remembered of the node.
func (n *nodeRoll) memory() (memory, error) {
	var m memory
	found, err := n.Journal.Get(n.key("memory"), &m)
	if err != nil {
		return m, fmt.Errorf("journal: %w", err)
	}
	if !found {
		err := fault.Refusedf("node %s: run %s left its disks parked, but the journal of that run is not here", n.plan.Node, n.Run)
		return m, fault.WithHint(err, "run recast where that run was started (its .recast directory); the parking VM's description says which disk is whose")
	}
	return m, nil
}

// disks are the VM's drives as remembered, without CD and cloud-init drives.
func (m memory) disks() ([]Disk, error) {
	all, err := m.VM.Disks()
	return slices.DeleteFunc(all, func(d Disk) bool { return d.CDROM }), err
}

func (n *nodeRoll) machineConfig() (Secret, error) {
	if n.MachineConfig != nil {
		if config, found, err := n.MachineConfig(n.plan.Node); err != nil || found {
			return config, err
		}
	}
	b, found, err := n.Journal.Secret(n.key(machineConfigKey))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if !found {
		return nil, fault.Refusedf("node %s: its machine configuration is neither in the journal nor in talos.machineConfigs", n.plan.Node)
	}
	return Secret(b), nil
}
