package cluster

import "slices"

// Own are the VMs that recast has made for its own ends when it worked on this
// cluster: parking VMs of its nodes, and whatever says that it is of a cluster of
// that name.
func (d Discovery) Own(cluster string) []VM {
	named := func(name string) bool { return name == cluster || d.Cluster != "" && name == d.Cluster }
	var own []VM
	for _, vm := range d.VMs {
		rec, parking, errRecord := ReadRecord(vm)
		claim, held, errClaim := readClaim(vm)
		if parking && errRecord == nil && (named(rec.Cluster) || slices.Contains(d.uuids, rec.UUID)) ||
			held && errClaim == nil && named(claim.Cluster) {
			own = append(own, vm)
		}
	}
	for _, s := range ScratchVMs(d.VMs, cluster) {
		own = append(own, s.VM)
	}
	return own
}

// IsClaim says whether the VM is the claim of a cluster, be it one that can't be read.
func IsClaim(vm VM) bool {
	_, held, _ := readClaim(vm)
	return held
}
