package discover

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
)

// Own are the VMs that recast made for itself when it worked on this cluster: parking VMs of
// its nodes, and all VMs whose record, claim or mark names the cluster.
func (d Discovery) Own(name string) []cluster.VM {
	named := func(of string) bool { return of != "" && of == name || d.Cluster != "" && of == d.Cluster }
	var own []cluster.VM
	for _, vm := range d.VMs {
		rec, parking, _ := parking.ReadRecord(vm) // of one that a newer recast wrote, the cluster is known
		claim, held, _ := claim.Read(vm)
		if parking && (named(rec.Cluster) || slices.Contains(d.uuids, rec.UUID)) || held && named(claim.Cluster) {
			own = append(own, vm)
		}
	}
	for _, s := range planning.ScratchVMs(d.VMs, name) {
		own = append(own, s.VM)
	}
	return own
}

// IsClaim says whether the VM is the claim of a cluster, even an unreadable one.
func IsClaim(vm cluster.VM) bool {
	_, held, _ := claim.Read(vm)
	return held
}
