package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// VMIDRange is the range of numbers that a recast.yaml gives recast: proxmox.vmids.
type VMIDRange struct{ First, Last VMID }

// String is as recast.yaml has it, "9000-9099"; "" of no range.
func (r VMIDRange) String() string {
	if r == (VMIDRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

func (r VMIDRange) contains(id VMID) bool { return r.First <= id && id <= r.Last }

// madeWith says with which proxmox.vmids something was made.
func madeWith(vmids string) string {
	if vmids == "" {
		return "other proxmox.vmids" // by a recast that did not write them down
	}
	return "proxmox.vmids " + vmids
}

// strays refuses while what another recast.yaml has parked is to be seen: parking VMs
// of our cluster outside our range, and unfinished replacements of our nodes under
// another name.
func (c *Claim) strays(vms []VM) error {
	if c.Parked {
		return nil
	}
	return Strays(vms, c.Cluster, c.VMIDs, c.Nodes)
}

// Strays is the refusal of parking VMs that were made with another recast.yaml of the
// same Talos cluster; nil where there are none. Those of a cluster with that name have
// to be within vmids. One of another name counts while its record is open and names
// one of the nodes' VMs.
func Strays(vms []VM, cluster string, vmids VMIDRange, nodes []VMID) error {
	var found []string
	first, last, renamed := vmids.First, vmids.Last, false
	for _, vm := range vms {
		rec, ok, err := ReadRecord(vm)
		switch {
		case err != nil, !ok: // who reads the records says so
		case rec.Cluster == cluster && !vmids.contains(vm.ID):
			found = append(found, fmt.Sprintf("%s %s node %s for run %s, with %s", vm, rec.holds(), rec.Node, rec.Run, madeWith(rec.VMIDs)))
			first, last = min(first, vm.ID), max(last, vm.ID)
		case rec.Cluster != cluster && rec.Open && slices.Contains(nodes, rec.VMID):
			found = append(found, fmt.Sprintf("%s %s node %s (VM %d) of cluster %s for run %s, with %s", vm, rec.holds(), rec.Node, rec.VMID, rec.Cluster, rec.Run, madeWith(rec.VMIDs)))
			renamed = true
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := fault.ClaimHeld.Refusedf("another recast.yaml was at work on cluster %s; this one has proxmox.vmids %s:\n  %s", cluster, vmids, strings.Join(found, "\n  "))
	if renamed {
		err = fault.WithHint(err, "finish the replacement with the recast.yaml that began it (recast roll), then give the Talos cluster one name in every recast.yaml")
	}
	if first != vmids.First || last != vmids.Last {
		err = fault.WithHint(err, "use the same proxmox.vmids in every recast.yaml of the cluster: %s holds them all, if the other numbers in it are free; or have recast prune free what is no longer needed. "+
			"Another Talos cluster on this Proxmox cluster needs another name (cluster)", VMIDRange{first, last})
	}
	return err
}

// holds says what the parking VM of the record has.
func (r Record) holds() string {
	if r.Open {
		return "holds, in an unfinished replacement, the disks of"
	}
	return "keeps old system disks of"
}
