package access

import "slices"

// DownloadURL is the option that hosts download ISOs themselves. Sys.Audit and Sys.Modify on /
// are also enough (pve-storage, API2/Storage/Status.pm).
const DownloadURL = "download-url"

// Option is something that a roll can do without, with its needs.
type Option struct {
	Name    string
	Without string // what happens if it is not granted
	Needs   Needs  // without those of a roll
}

// Options are the optional privileges of a token.
func Options(isoStorages, diskStorages, hosts []string) []Option {
	var download, prune Needs
	for _, host := range hosts {
		// Since pve-access-control 8.1.2; a role with an unknown privilege can't be created.
		download.add("/nodes/"+host, "have the host download boot ISOs itself", nil, "Sys.AccessNetwork")
	}
	for _, storage := range isoStorages {
		// API2/Storage/Content.pm requires no less to delete an ISO.
		prune.add("/storage/"+storage, "delete boot ISOs that nothing uses", nil, "Datastore.Allocate")
	}
	for _, storage := range diskStorages {
		prune.add("/storage/"+storage, "delete disk images that nothing uses", nil, "Datastore.Allocate")
	}
	return []Option{
		{DownloadURL, "boot ISOs are uploaded from here", download},
		{"prune", "recast prune refuses, and prints the commands that grant it; a roll does not need it. It also lets the token delete any volume there", prune},
		{"claim in Proxmox", "the claim of a run is a Lease in Kubernetes, which serves where all nodes are upgraded in place", NeedsToClaim()},
	}
}

// With returns both.
func (n Needs) With(others Needs) Needs {
	out := slices.Clone(n)
	for _, o := range others {
		for _, why := range o.Why {
			out.add(o.Path, why, o.spots, o.Privilege)
		}
	}
	return out
}

// Of returns what is missing of some of the needs.
func (m Missing) Of(some Needs) Missing {
	m.Lacks = slices.DeleteFunc(slices.Clone(m.Lacks), func(l Lack) bool {
		_, found := slices.BinarySearchFunc(some, l.Need, compareNeeds)
		return !found
	})
	return m
}
