package planning

import (
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
)

// stands says whether the node's VM is still as it was before the run.
func (n NodePlan) stands() bool {
	return n.Found.VM != nil && len(n.Refused) == 0 && (!n.Resume || n.Found.VM.MadeBy() != n.Run)
}

// Makes returns the VM that Proxmox is to create in place of the node's, which is deleted; nil: none.
func (n NodePlan) Makes() *cluster.VM {
	switch {
	case !n.stands():
		return nil
	case takesAway(n): // for a rebuild
		return new(shape.New(n.Wanted, n.VMID, ""))
	case n.Strategy.VM() == cluster.VMAgain:
		return n.Found.VM
	}
	return nil
}

// HandsOver returns the drives that the node's VM is to hand over to its parking VM: all drives of a VM that is
// deleted, else the system disk, in case a node that is upgraded in place has to be reimaged. What a cancelled
// replacement gives back was handed over before.
func (n NodePlan) HandsOver() []cluster.Disk {
	s := n.Strategy
	if !n.stands() || !s.DeletesVM() && !s.SwapsInVM() && !s.Upgrades() {
		return nil
	}
	disks, _ := n.Found.VM.Disks() // the planner refuses a VM whose drives can't be read
	return slices.DeleteFunc(disks, func(d cluster.Disk) bool {
		system := n.System != nil && n.System.Key == d.Key
		return d.CDROM || d.CSI() || d.Owner != n.Found.VM.ID || !system && !s.DeletesVM()
	})
}

// Then returns what follows on the same node: a control plane that a rebuild takes away is made again, and a node
// that does not come back from an upgrade in place may be reimaged. false: nothing follows.
func (n NodePlan) Then() (NodePlan, bool) {
	switch {
	case takesAway(n):
		n.Strategy = cluster.Create
	case n.Previous != nil:
		n.Strategy, n.Previous = cluster.Reimage, nil
	default:
		return n, false
	}
	return n, true
}

// Proofs says in a line what scratch VMs prove before the first node goes; "": nothing.
func (p Plan) Proofs() string {
	hosts, storages, makes := map[string]bool{}, map[string]bool{}, false
	for _, n := range p.Work() {
		if n.Makes() != nil {
			makes, hosts[n.Host] = true, true
		}
		for _, d := range n.HandsOver() {
			storages[d.Storage()], hosts[n.Host] = true, true
		}
	}
	var what []string
	if makes {
		what = append(what, "that VMs can be created again")
	}
	if len(storages) > 0 {
		what = append(what, "that volumes can be handed over on "+strings.Join(slices.Sorted(maps.Keys(storages)), ", "))
	}
	if len(what) == 0 {
		return ""
	}
	return "with scratch VMs on " + strings.Join(slices.Sorted(maps.Keys(hosts)), ", ") + " " + strings.Join(what, ", and ")
}
