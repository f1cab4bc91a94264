package cluster

// NeedsToPrune is what removing ISOs from those storages takes: all that the
// claim of a run takes, and to see every VM of the Proxmox cluster. What puts
// ISOs there is part of it, because an entry that grants the rest at a storage
// takes the place of those above it.
func NeedsToPrune(isoStorages []string) Needs {
	var needs Needs
	needs.common(nil)
	needs.isos(isoStorages)
	for _, storage := range isoStorages {
		needs.add("/storage/"+storage, "delete ISOs", nil, "Datastore.Allocate")
	}
	return needs
}

// NeedsToPublish is what putting ISOs onto those storages takes, and finding out
// for which hosts.
func NeedsToPublish(isoStorages []string) Needs {
	var needs Needs
	needs.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	needs.isos(isoStorages)
	return needs
}
