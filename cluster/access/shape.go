package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
)

// privilegeOf is what changing a setting of a VM needs on it (qemu-server, API2/Qemu.pm,
// check_vm_modify_config_perm).
func privilegeOf(setting string) string {
	bus := strings.TrimRight(setting, "0123456789")
	switch {
	case cluster.IsDiskKey(setting):
		return "VM.Config.Disk"
	case bus == "net":
		return "VM.Config.Network"
	case slices.Contains([]string{"cores", "sockets", "vcpus", "cpu", "cpuunits", "numa"}, setting):
		return "VM.Config.CPU"
	case slices.Contains([]string{"memory", "balloon", "shares"}, setting):
		return "VM.Config.Memory"
	case bus == "hostpci", slices.Contains([]string{"machine", "bios", "scsihw"}, setting):
		return "VM.Config.HWType"
	}
	return "VM.Config.Options"
}

// shape adds what the changes of a node's VM need.
func (n *Needs) shape(p planning.NodePlan) {
	vm := p.Found.VM
	if p.Strategy.From() == cluster.Nowhere && !p.Resume {
		n.config(shape.New(p.Wanted, p.VMID, "").Config)
		for _, d := range p.Wanted.Shape.Disks {
			n.add("/storage/"+d.Storage, "make the new disks", nil, "Datastore.AllocateSpace")
		}
		if pool := p.Wanted.Shape.Pool; pool != "" {
			n.add("/pool/"+pool, "make VMs in their pool", nil, "VM.Allocate")
		}
	}
	if len(p.VM) == 0 || vm == nil {
		return
	}
	if len(p.VM.At(shape.Off)) > 0 && (p.Strategy.KeepsVM() || p.Strategy.Reshapes()) {
		n.Node(cluster.Reshape, p.Wanted, p.Found, nil)
	}
	pool := ""
	if vm.Pool != "" {
		pool = "/pool/" + vm.Pool
	}
	at := []spot{{path: fmt.Sprintf("/vms/%d", vm.ID), or: pool}}
	for _, setting := range p.VM.Changed() {
		n.add("/vms", "change "+setting+" of the node's VM", at, privilegeOf(setting))
	}
	set, err := shape.Settings(*vm, p.Wanted.Shape, p.VM)
	if err != nil {
		return // such a plan is refused
	}
	n.config(set)
	for _, d := range p.Wanted.Shape.Disks {
		on := d.Storage
		if have, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); err == nil {
			on = have.Storage()
		}
		if slices.Contains(p.VM.Changed(), d.Key) {
			n.add("/storage/"+on, "make and grow disks", nil, "Datastore.AllocateSpace")
		}
	}
	for _, d := range p.VM {
		switch {
		case d.Key == "pool":
			n.add("/pool/"+d.Wanted, "put the node's VM into its pool", nil, "Pool.Allocate")
			n.add("/vms", "put the node's VM into its pool", at, "VM.Allocate")
		case d.Key == "host" && d.When != shape.Never:
			n.add("/vms", "migrate the node's VM", at, "VM.Migrate")
		case strings.HasPrefix(d.Key, "ha "):
			n.add("/", "change what Proxmox HA has of VMs", nil, "Sys.Console")
		}
	}
}
