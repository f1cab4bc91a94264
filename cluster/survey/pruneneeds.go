package survey

import (
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// NeedsToPrune is what removing ISOs from those storages needs: everything for a run's claim,
// and VM.Audit on every VM of the Proxmox cluster. It includes what uploads ISOs there, because
// an entry that grants the rest at a storage overrides those above it.
func NeedsToPrune(isoStorages, diskStorages []string) Needs {
	var needs Needs
	needs.common(nil)
	needs.claim()
	needs.isos(isoStorages)
	for _, storage := range isoStorages {
		needs.add("/storage/"+storage, "delete ISOs", nil, "Datastore.Allocate")
	}
	needs.diskImages(diskStorages)
	for _, storage := range diskStorages {
		needs.add("/storage/"+storage, "delete disk images", nil, "Datastore.Allocate")
	}
	return needs
}

// NeedsToFree is what freeing old system disks on those storages needs, and deleting the
// parking VMs that then own nothing: both first lift the protection. Proxmox requires
// Datastore.AllocateSpace to free a disk (qemu-server, QemuServer.pm, try_deallocate_drive).
func NeedsToFree(storages []string, parked ...cluster.VM) Needs {
	var needs Needs
	needs.common(nil)
	needs.claim()
	needs.freeing(storages, parked)
	needs.add("/vms", "delete parking VMs that own nothing any more", vmsAnd(parked), "VM.Allocate")
	return needs
}

// NeedsToClear is what deleting scratch VMs of killed runs needs; they may still be running.
func NeedsToClear(scratch ...cluster.VM) Needs {
	var needs Needs
	needs.add("/vms", "stop and delete scratch VMs", vmsAnd(scratch), "VM.Allocate", "VM.PowerMgmt")
	needs.add("/vms", "lift the protection of scratch VMs", vmsAnd(scratch), "VM.Config.Options")
	return needs
}

// vmsAnd are VMs in general, and these, which may have entries of their own.
func vmsAnd(vms []cluster.VM) []spot {
	spots := []spot{{path: "/vms", below: true}}
	for _, vm := range vms {
		spots = append(spots, spotOf(vm))
	}
	return spots
}

func spotOf(vm cluster.VM) spot {
	at := spot{path: fmt.Sprintf("/vms/%d", vm.ID)}
	if vm.Pool != "" {
		at.or = "/pool/" + vm.Pool
	}
	return at
}

// freeing adds what freeing parked disks on those storages needs.
func (n *Needs) freeing(storages []string, parked []cluster.VM) {
	if len(storages) == 0 {
		return
	}
	all := vmsAnd(parked)
	n.add("/vms", "free old system disks", all, "VM.Config.Disk")
	n.add("/vms", "lift the protection of parking VMs, write their records", all, "VM.Config.Options")
	for _, storage := range storages {
		n.add("/storage/"+storage, "free old system disks", nil, "Datastore.AllocateSpace")
		n.add("/storage/"+storage, "see that they are gone", nil, "Datastore.Audit")
	}
}

// NeedsToPublish is what uploading ISOs to those storages needs, and finding out for which hosts.
func NeedsToPublish(isoStorages, diskStorages []string) Needs {
	var needs Needs
	needs.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	needs.isos(isoStorages)
	needs.diskImages(diskStorages)
	return needs
}
