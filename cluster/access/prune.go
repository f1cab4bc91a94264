package access

// NeedsToPrune is what removing ISOs from those storages takes: all that the
// claim of a run takes, and to see every VM of the Proxmox cluster. What puts
// ISOs there is part of it, because an entry that grants the rest at a storage
// takes the place of those above it.
func NeedsToPrune(isoStorages []string) Needs {
	var needs Needs
	needs.Common(nil)
	needs.Claim()
	needs.isos(isoStorages)
	for _, storage := range isoStorages {
		needs.add("/storage/"+storage, "delete ISOs", nil, "Datastore.Allocate")
	}
	return needs
}

// NeedsToFree is what freeing old system disks on those storages takes, and
// deleting the parking VMs that own nothing then: for either the protection is
// lifted first. Proxmox asks for Datastore.AllocateSpace to free a disk
// (qemu-server, QemuServer.pm, try_deallocate_drive).
func NeedsToFree(storages []string) Needs {
	var needs Needs
	needs.Common(nil)
	needs.Claim()
	needs.freeing(storages)
	all := []spot{{path: "/vms", below: true}}
	needs.add("/vms", "delete parking VMs that own nothing any more", all, "VM.Allocate")
	return needs
}

// NeedsToClear is what deleting scratch VMs of killed runs takes, which may run still.
func NeedsToClear() Needs {
	var needs Needs
	needs.add("/vms", "stop and delete scratch VMs", []spot{{path: "/vms", below: true}}, "VM.Allocate", "VM.PowerMgmt")
	needs.add("/vms", "lift the protection of scratch VMs", []spot{{path: "/vms", below: true}}, "VM.Config.Options")
	return needs
}

// freeing is what freeing parked disks on those storages takes.
func (n *Needs) freeing(storages []string) {
	if len(storages) == 0 {
		return
	}
	all := []spot{{path: "/vms", below: true}}
	n.add("/vms", "free old system disks", all, "VM.Config.Disk")
	n.add("/vms", "lift the protection of parking VMs, write their records", all, "VM.Config.Options")
	for _, storage := range storages {
		n.add("/storage/"+storage, "free old system disks", nil, "Datastore.AllocateSpace")
		n.add("/storage/"+storage, "see that they are gone", nil, "Datastore.Audit")
	}
}

// NeedsToPublish is what putting ISOs onto those storages takes, and finding out
// for which hosts.
func NeedsToPublish(isoStorages []string) Needs {
	var needs Needs
	needs.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	needs.isos(isoStorages)
	return needs
}
