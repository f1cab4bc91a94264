package planning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// frees is what the node's roll gives back to a storage at its end. How much of a
// thin-provisioned disk was ever written can't be known: none of it counts.
func (n NodePlan) frees(s cluster.Storage) (bytes int64) {
	for _, f := range n.Frees {
		d := cluster.Disk{Volid: f.Volid, Options: []string{"size=" + f.Size}}
		if s.Thick && d.Storage() == s.Name {
			bytes += int64(d.SizeBytes())
		}
	}
	return bytes
}

// tellOfVM notes in the plan what else a new system disk changes in the VM. system is the old
// system disk.
func (n *NodePlan) tellOfVM(disks []cluster.Disk, system cluster.Disk) {
	vm := *n.Found.VM
	if n.Strategy.DeletesVM() {
		n.Renewed = vm.MadeAnew()
		for _, d := range disks {
			if d.Key != system.Key && d.Owner == vm.ID && !d.CDROM && !d.CSI() {
				n.Renewed = append(n.Renewed, "volid of "+d.Key)
			}
		}
	}
	note := func(format string, args ...any) { n.Notes = append(n.Notes, fmt.Sprintf(format, args...)) }
	if set := n.Found.BlankSetting(n.Wanted.Build); set != nil {
		note("its blank machine gets the node's address from the VM's cloud-init drive: %s is %s for that boot, and as before at the end", set.Key, set.Value)
	}
	if vm.Config["protection"] == "1" {
		note("the VM's protection is lifted meanwhile and set again at the end")
	}
	if cd := cluster.CDKey(vm.Config, disks); vm.Config[cd] != "" {
		if d, err := cluster.ParseDisk(cd, vm.Config[cd]); err == nil && d.Volid != "none" {
			if _, ours := cluster.BootISO(d); !ours {
				note("%s %sis empty at the end: %s is taken out", cd, map[bool]string{true: "gets the boot ISO and "}[n.Prepared == ""], d.Volid)
			}
		}
	}
	media, _ := vm.OtherMedia() // unreadable ones are refused
	for _, key := range slices.Sorted(maps.Keys(media)) {
		note("%s is empty until its node is healthy: %s is taken out, so that it does not configure the blank machine", key, media[key].Volid)
	}
	if boot := vm.Config["boot"]; strings.TrimSpace(boot) != "" && cluster.BootDevices(boot) == nil {
		note("its boot order of the old kind (%s) becomes one by device, its system disk first", boot)
	}
	have, want := system.SizeBytes(), uint64(max(n.Wanted.SystemGiB, 0))<<30
	switch {
	case n.System == nil || want == 0 || have == 0 || want == have:
	case want < have:
		note("the new system disk has %s like the old one, not the %dG wanted: recast never makes one smaller", system.Option("size"), n.Wanted.SystemGiB)
	default:
		n.System.NewSize = fmt.Sprintf("%dG", n.Wanted.SystemGiB)
	}
}

// numbers refuses the nodes whose parking VM can get no number, after the nodes before them in
// the plan have taken one each: a parking VM keeps its number as long as it holds disks. A
// number that is free now but taken later is handled when the parking VM is made.
func (p worldOf) numbers() {
	free := slices.DeleteFunc(slices.Clone(p.o.ParkingIDs), func(id cluster.VMID) bool {
		return slices.ContainsFunc(p.o.VMs, func(vm cluster.VM) bool { return vm.ID == id })
	})
	var need []*NodePlan
	for i := range p.Nodes {
		n := &p.Nodes[i]
		replaces := n.Strategy.Installs() || n.Strategy.VM() == cluster.VMGone || stopsVM(*n)
		if replaces && !n.Resume && len(n.Refused) == 0 && n.Found.Parking == nil {
			need = append(need, n)
		}
	}
	for _, n := range need[min(len(free), len(need)):] {
		n.Refused = append(n.Refused, fmt.Sprintf("no VMID is left for its parking VM: this roll takes %d, and %d of proxmox.vmids are free: widen it, or leave nodes out with --exclude",
			len(need), len(free)))
	}
}

// space refuses the nodes whose new system disk does not fit, with everything that the plan
// takes together: the old disks stay parked.
func (p worldOf) space() {
	var disks []observe.NewDisk
	for _, n := range p.Nodes {
		if n.Space != nil && !n.Resume {
			d := *n.Space
			d.Freed = n.frees(d.Storage)
			disks = append(disks, d)
		}
	}
	for _, use := range observe.SpaceUses(disks, p.o.Rooms) {
		for i, lack := range use.Lacks(max(1, p.MaxUnavailable)) {
			if lack == "" {
				continue
			}
			at := slices.IndexFunc(p.Nodes, func(n NodePlan) bool { return n.Node == use.Disks[i].Node })
			p.Nodes[at].Refused = append(p.Nodes[at].Refused, lack)
		}
		p.Warn = append(p.Warn, use.Warn()...)
	}
}
