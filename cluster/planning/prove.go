package planning

import (
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
)

// reliesOn is what a strategy finds out too late unless scratch VMs prove it before the first node goes.
type reliesOn struct {
	// makes is the VM that takes the place of the node's, which is deleted; nil: none does.
	makes func(NodePlan) *cluster.VM
	// hands says whether the VM hands that drive of its own over to its parking VM.
	hands func(NodePlan, cluster.Disk) bool
}

// reliances has a row for each strategy that deletes a VM or hands a disk over. PutBack has none: the disks
// that it gives back were handed over before, and it deletes no VM.
var reliances = map[cluster.Strategy]reliesOn{
	cluster.Recreate: {itself, everyDrive},
	cluster.Remove:   {rebuilt, everyDrive},
	cluster.Reimage:  {nil, systemDisk},
	cluster.Rollback: {nil, systemDisk},
	cluster.InPlace:  {nil, systemDisk}, // which has none but for a reimage if the node does not come back
}

func itself(n NodePlan) *cluster.VM { return n.Found.VM }

// rebuilt is the new VM of a control plane that is taken away for a rebuild.
func rebuilt(n NodePlan) *cluster.VM {
	if !takesAway(n) {
		return nil
	}
	return new(shape.New(n.Wanted, n.VMID, ""))
}

func everyDrive(NodePlan, cluster.Disk) bool { return true }

func systemDisk(n NodePlan, d cluster.Disk) bool { return n.System != nil && n.System.Key == d.Key }

// stands says whether the node's VM is still as it was before the run.
func (n NodePlan) stands() bool {
	return n.Found.VM != nil && len(n.Refused) == 0 && (!n.Resume || n.Found.VM.MadeBy() != n.Run)
}

// Makes is the VM that Proxmox is to create in place of the node's, which is deleted; nil: none.
func (n NodePlan) Makes() *cluster.VM {
	makes := reliances[n.Strategy].makes
	if makes == nil || !n.stands() {
		return nil
	}
	return makes(n)
}

// HandsOver are the drives that the node's VM is to hand over to its parking VM.
func (n NodePlan) HandsOver() []cluster.Disk {
	hands := reliances[n.Strategy].hands
	if hands == nil || !n.stands() {
		return nil
	}
	disks, _ := n.Found.VM.Disks() // the planner refuses a VM whose drives can't be read
	return slices.DeleteFunc(disks, func(d cluster.Disk) bool {
		return d.CDROM || d.CSI() || d.Owner != n.Found.VM.ID || !hands(n, d)
	})
}

// Then is what follows on the same node: a control plane that a rebuild takes away is made again, and one that does
// not come back from an upgrade in place may be reimaged. false: nothing does.
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
