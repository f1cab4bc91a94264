package planning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
)

// frees returns what the node's roll gives back to a storage at its end. How much of a thin-provisioned disk was
// ever written is unknown: none of it counts.
func (n NodePlan) frees(s cluster.Storage) (bytes int64) {
	for _, f := range n.Frees {
		d := cluster.Disk{Volid: f.Volid, Options: []string{"size=" + f.Size}}
		if s.Thick && d.Storage() == s.Name {
			bytes += int64(d.SizeBytes())
		}
	}
	return bytes
}

// tellOfVM notes in the plan what else a new system disk changes in the VM. system is the old system disk.
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

// numbers refuses the nodes whose parking VM can get no number, after each node before them in the plan has taken
// one: a parking VM keeps its number as long as it holds disks. A number that is free now but taken later is
// handled when the parking VM is created.
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

// space refuses the nodes whose new system disk does not fit, with everything that the plan takes together: the old
// disks stay parked.
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

// planReshape gives a node whose system is right another VM around it.
func planReshape(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.Reshape, true, "reshape: only its VM is not as wanted"
	if len(n.Found.Shape.At(shape.Off)) == 0 {
		n.Why += "; it stays up"
		return
	}
	n.Why += "; it takes a VM that is off"
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.Reshape, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

// planShape shows what changes in the VM along with the node, and refuses what recast does not do.
func planShape(n *NodePlan, o observe.Observation, p Policy) {
	if n.Strategy.From() != cluster.Serving || !n.Strategy.BringsShape() || n.Resume || !p.does(VM) {
		return
	}
	n.VM = n.Found.Shape
	planMove(n)
	for _, d := range n.VM.At(shape.Never) {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s", d, d.Why))
	}
	if n.Strategy.Replaces() || len(n.Found.Shape) == 0 {
		return // the same obstacles block both
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
	if len(n.VM.At(shape.Off)) == 0 {
		if lock := n.Found.VM.Lock; lock != "" {
			n.Refused = append(n.Refused, fmt.Sprintf("the VM is locked (%s): wait until that task has ended", lock))
		}
		return
	}
	for _, reason := range slices.Concat(cluster.Texts(c.AgainstReshape()), o.Hidden(*n.Found.VM)) {
		if !slices.ContainsFunc(n.Refused, func(said string) bool { return strings.HasSuffix(said, reason) }) { // auto prefixes strategies
			n.Refused = append(n.Refused, reason)
		}
	}
}

// planMove plans a node whose VM is migrated while it runs, before anything else, on its new host. The node's old
// system disks stay parked on the old host.
func planMove(n *NodePlan) {
	for _, d := range n.VM.At(shape.Off) { // disks can be handed over on one host only
		if d.Why != "" && n.Strategy.Replaces() {
			n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s. Disks can be handed over on one host only: recast roll --what vm first, then roll again", d, d.Why))
		}
	}
	to := n.VM.Moves(shape.Live)
	if to == "" {
		return
	}
	n.Host = to
	if strings.HasPrefix(strings.TrimPrefix(n.Found.VM.Config["cpu"], "cputype="), "host") {
		n.Notes = append(n.Notes, fmt.Sprintf("its CPU type is host: whether the processors of %s are like those of %s enough for a guest that runs, recast can't see", to, n.Found.VM.Host))
	}
	if n.Space != nil {
		n.Space.Host = to
	}
	n.Found.Parking, n.Found.Elsewhere = observe.TakeParking(n.Found.Parkings(), func(p parking.Parking) bool { return p.VM.Host == to })
}

// stopsVM says whether the VM is switched off to get its shape, by whatever strategy.
func stopsVM(n NodePlan) bool { return len(n.VM.At(shape.Off)) > 0 }

// FreesOn lists the storages of the disks that are freed.
func (n NodePlan) FreesOn() []string {
	var out []string
	for _, f := range n.Frees {
		if storage, _, ok := strings.Cut(f.Volid, ":"); ok && !slices.Contains(out, storage) {
			out = append(out, storage)
		}
	}
	if !n.Wanted.Surge {
		return out
	}
	for _, d := range n.Wanted.Shape.Disks { // the surge node's system disk, when the node is removed
		if d.Storage != "" && !slices.Contains(out, d.Storage) {
			out = append(out, d.Storage)
		}
	}
	return out
}

// planFrees shows which old system disks are superseded once the node's roll has succeeded: all but the newest
// keep, counting the present one. Disks that were given up (KeptDisk.GivenUp) are no way back: they are superseded
// and do not count. An in-place upgrade supersedes no disk; it only completes what an earlier roll began to free.
func (n *NodePlan) planFrees(o observe.Observation, keep int) {
	p := n.Found.Parking
	if p == nil || len(n.Refused) > 0 {
		return
	}
	replaces := n.Strategy.Replaces()
	if !replaces && !n.Strategy.KeepsVM() {
		return
	}
	there := 0
	for _, k := range p.Record.Kept {
		if _, found := p.VM.Config[k.Key]; found && !k.GivenUp && !k.Removed {
			there++
		}
	}
	for _, k := range p.Record.Kept {
		if k.Removed {
			continue // no roll frees a disk of a removed node
		}
		f := parking.FreePlan{Parking: p.VM.ID, Key: k.Key, Run: k.Run, GivenUp: k.GivenUp, Talos: k.Talos}
		disk, against := p.Freeable(k, o.VMs)
		f.Volid, f.Size = disk.Volid, disk.Option("size")
		switch superseded := replaces && (f.Volid == "" || k.GivenUp || there >= max(1, keep)); {
		case !superseded && !k.Going:
			continue
		case !k.Going && len(against) > 0:
			n.Notes = append(n.Notes, fmt.Sprintf("%s stays, although it is superseded: %s", f, strings.Join(against, "; ")))
		default:
			n.Frees = append(n.Frees, f)
		}
		if f.Volid != "" && !k.GivenUp {
			there--
		}
	}
}
