package planning

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// CephRemedy is what to do about a Ceph of the Proxmox hosts that lets reads or writes wait; it names a host.
const CephRemedy = "wait until it has repaired that, or see what ceph health detail says on %s"

// ceph refuses nodes that go while a disk of their VM is on a Ceph that lets reads or writes wait, and notes what may
// become worse.
func (p worldOf) ceph() {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy == "" || n.Resume || !n.takenOut() && n.Strategy.From() != cluster.Nowhere {
			continue
		}
		for _, s := range p.o.Rooms[n.Host].Storages {
			if !s.Ceph || !slices.Contains(storagesOf(n), s.Name) {
				continue
			}
			n.OnCeph = append(n.OnCeph, s.Name)
			if s.Blocked != "" {
				n.Refused = append(n.Refused, fmt.Sprintf("storage %s has disks of its VM, and %s: "+CephRemedy, s.Name, s.Blocked, n.Host))
			}
			for _, note := range s.Notes {
				if !slices.Contains(p.Warn, note) {
					p.Warn = append(p.Warn, note)
				}
			}
		}
	}
}

// storagesOf are those with disks of the node's VM, or with its new system disk.
func storagesOf(n *NodePlan) (names []string) {
	if n.Space != nil {
		names = append(names, n.Space.Storage.Name)
	}
	if n.Found.VM == nil {
		return names
	}
	disks, err := n.Found.VM.Disks()
	if err != nil {
		return names // refused elsewhere
	}
	for _, d := range disks {
		if !d.CDROM {
			names = append(names, d.Storage())
		}
	}
	return names
}
