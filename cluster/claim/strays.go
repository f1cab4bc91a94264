package claim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// strays refuses if another recast.yaml has parked disks: parking VMs of our cluster outside
// our range, and unfinished replacements of our nodes under another cluster name.
func (c *Claim) strays(vms []cluster.VM) error {
	if c.Parked {
		return nil
	}
	return Strays(vms, c.Cluster, c.VMIDs, c.Nodes)
}

// Strays is the refusal of parking VMs that were made with another recast.yaml of the same
// Talos cluster; nil if there are none. Parking VMs of a cluster with that name must be within
// vmids. One of another cluster name counts while its record is open and names one of the
// nodes' VMs.
func Strays(vms []cluster.VM, name string, vmids cluster.VMIDRange, nodes []cluster.VMID) error {
	var found []string
	first, last, renamed := vmids.First, vmids.Last, false
	for _, vm := range vms {
		rec, ok, err := parking.ReadRecord(vm)
		switch {
		case !ok, err != nil && rec.Cluster == "": // the code that reads the records reports it
		case rec.Cluster == name && !vmids.Contains(vm.ID):
			found = append(found, fmt.Sprintf("%s %s node %s for run %s, with proxmox.vmids %s", vm, holds(rec), rec.Node, rec.Run, rec.VMIDs))
			first, last = min(first, vm.ID), max(last, vm.ID)
		case rec.Cluster != name && rec.Open && slices.Contains(nodes, rec.VMID):
			found = append(found, fmt.Sprintf("%s %s node %s (VM %d) of cluster %s for run %s, with proxmox.vmids %s", vm, holds(rec), rec.Node, rec.VMID, rec.Cluster, rec.Run, rec.VMIDs))
			renamed = true
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := fault.ClaimHeld.Refusedf("another recast.yaml was at work on cluster %s; this one has proxmox.vmids %s:\n  %s", name, vmids, strings.Join(found, "\n  "))
	if renamed {
		err = fault.WithHint(err, "finish the replacement with the recast.yaml that began it (recast roll), then give the Talos cluster one name in every recast.yaml")
	}
	if first != vmids.First || last != vmids.Last {
		err = fault.WithHint(err, "use the same proxmox.vmids in every recast.yaml of the cluster: %s holds them all, if the other numbers in it are free; recast prune deletes those that nothing needs any more. "+
			"Another Talos cluster on this Proxmox cluster needs another name (cluster)", cluster.VMIDRange{First: first, Last: last})
	}
	return err
}

// holds says what a record's parking VM contains.
func holds(r parking.Record) string {
	if r.Open {
		return "holds, in an unfinished replacement, the disks of"
	}
	return r.Keeps()
}
