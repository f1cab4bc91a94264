// Package strategy says by which strategies one node can be brought to its wanted state, and what prevents each.
// [Decide] takes the first possible one; a [Candidate] is the node with all that is known of it, and each obstacle
// is a method or function over it.
package strategy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Decide says how a stale node is brought to its wanted state, from the observation alone. system is its system
// disk, unless systemErr says that the disk could not be proven.
func Decide(w cluster.Wanted, f observe.Found, o observe.Observation, system cluster.Disk, systemErr error) Decision {
	d := Decision{Strategy: w.Strategy, Why: string(w.Strategy) + ": as configured"}
	if f.VM == nil || f.Machine == nil {
		d.Why, d.Refused = "it could not be read", []string{unreadText(f)}
		return d
	}
	c := Candidate{Wanted: w, VM: *f.VM, Machine: *f.Machine, Found: f, Observation: o, System: system, SystemErr: systemErr}
	c = c.withDisks()
	_, unknown := losses(c)
	against, recreate := c.Against()
	if slices.Contains(cluster.Strategies, w.Strategy) {
		d.Refused = against[w.Strategy]
	} else {
		d.Strategy, d.Why, d.Refused = firstPossible(against)
	}
	asked := w.Strategy == cluster.Auto || w.Strategy == cluster.Recreate
	if asked && (d.Strategy != cluster.Recreate || len(d.Refused) > 0) {
		d.ToRecreate = slices.Clone(recreate)
	}
	d.Notes = append(d.Notes, cluster.Each(unknown, c.lostNowhere)...)
	if len(d.Refused) == 0 {
		d.Notes = append(d.Notes, slices.Concat(changes(c), c.argsAccepted(d.Strategy))...)
	}
	if d.Strategy.Replaces() {
		d.WillLose = c.Accepted()
	}
	return d
}

// lostNowhere says that a name in acceptLoss names nothing that leaves with the system disk, and where what it
// names is.
func (c Candidate) lostNowhere(name string) string {
	for _, s := range c.Machine.VolumeStatuses {
		switch {
		case !slices.Contains(c.Machine.NamesOf(s), name), s.Disk == c.Machine.SystemDisk:
		case s.Disk != "":
			return fmt.Sprintf("acceptLoss names %s, which is on the disk %s: with another system disk it stays there", name, s.Disk)
		case s.Location != "":
			return fmt.Sprintf("acceptLoss names %s, which is %s: with another system disk it stays there", name, s.Location)
		}
	}
	for _, v := range c.Machine.Volumes {
		if slices.Contains(v.LossNames(), name) && v.Disk != c.Machine.SystemDisk {
			return fmt.Sprintf("acceptLoss names %s, which is on the disk %s: with another system disk it stays there", name, v.Disk)
		}
	}
	return fmt.Sprintf("acceptLoss names %s, but nothing of that name is on its system disk", name)
}

// Decision says how, and why so, a stale node is brought to its wanted state.
type Decision struct {
	Strategy cluster.Strategy // Auto when none is possible
	Why      string
	Refused  []string // why it can't be done, each with what lifts it
	WillLose []string // data lost with the system disk, as acceptLoss allows
	Notes    []string

	ToRecreate []cluster.Obstacle // what prevents recreate, if it is allowed but not chosen
}

func firstPossible(against map[cluster.Strategy][]string) (s cluster.Strategy, why string, refused []string) {
	recreate, reimage := against[cluster.Recreate], against[cluster.Reimage]
	also := slices.DeleteFunc(slices.Clone(recreate), func(r string) bool { return slices.Contains(reimage, r) })
	switch {
	case len(recreate) == 0:
		return cluster.Recreate, "recreate: possible, every persistent disk can be carried over", nil
	case len(reimage) == 0:
		return cluster.Reimage, fmt.Sprintf("reimage: recreate is impossible (%s)", strings.Join(recreate, "; ")), nil
	case len(against[cluster.InPlace]) == 0:
		why = fmt.Sprintf("in-place: recreate and reimage are impossible (%s)", strings.Join(reimage, "; "))
		if len(also) > 0 {
			why += fmt.Sprintf(", recreate also (%s)", strings.Join(also, "; "))
		}
		return cluster.InPlace, why, nil
	}
	for _, reason := range slices.Concat(reimage, also, against[cluster.InPlace]) {
		of := cluster.Where(cluster.Strategies, func(s cluster.Strategy) bool { return slices.Contains(against[s], reason) })
		names := cluster.Each(of, func(s cluster.Strategy) string { return string(s) })
		if text := strings.Join(names, ", ") + ": " + reason; !slices.Contains(refused, text) {
			refused = append(refused, text)
		}
	}
	return cluster.Auto, "no strategy is possible", refused
}

// parkedDisks returns the drives that must be given to the parking VM. With a VM Proxmox deletes every volume that
// the VM owns, also detached ones. A holder's volumes stay its own: moving them would rename them under its
// configuration (qemu-server, API2/Qemu.pm, move_disk).
func parkedDisks(disks []cluster.Disk, vm cluster.VMID, s cluster.Strategy, system string) []cluster.Disk {
	return cluster.Where(disks, func(d cluster.Disk) bool {
		return !d.CDROM && d.Owner == vm && (s.DeletesVM() || s.Replaces() && d.Key == system)
	})
}

func unreadText(f observe.Found) string {
	if f.VM == nil {
		return "it has no VM"
	}
	why := cluster.Each(f.Errs, error.Error)
	return fmt.Sprintf("its machine could not be read: %s: bring it back first", words.OrNone(strings.Join(why, "; ")))
}

// EtcdRules says whether a control plane, of machine.type init or not, may be taken out of service in a
// cluster with n etcd members, including itself, and what to warn of. With three or more, only the health of
// the others counts; the gate checks that.
func EtcdRules(n int, dataOnSystemDisk, typeInit bool, s cluster.Strategy, acceptOutage bool) (refused, warn []string) {
	replaced := !s.KeepsVM() && s.From() != cluster.Halfway // those keep the data, or restore it
	if refused := AgainstInit(replaced && dataOnSystemDisk, typeInit); len(refused) > 0 {
		return refused, nil
	}
	switch {
	case n >= 3, n == 2 && s.VM() == cluster.VMGone: // once the node has left, the other member is enough
	case n < 1:
		refused = append(refused, "how many control planes there are can't be determined: no Node has the label node-role.kubernetes.io/control-plane")
	case n == 2 && !acceptOutage:
		refused = append(refused, "etcd has two members: without this one it has no quorum and the Kubernetes API is down, "+
			"and losing the other one meanwhile loses the cluster: allow it with --accept-outage")
	case n == 2:
		warn = append(warn, "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile")
	case replaced && dataOnSystemDisk:
		refused = append(refused, "the only etcd member's data would be lost with the system disk: use in-place, "+
			"or put etcd's data on a persistent disk (a VolumeConfig for ETCD or EPHEMERAL), with recast backup before the installation that this takes, and recast restore after it")
	default:
		warn = append(warn, "it is the only control plane: the Kubernetes API is down meanwhile")
	}
	return refused, warn
}

// AgainstInit refuses to empty the directory of etcd on a control plane of machine.type init. At the next
// start Talos does not let it join: etcd gets initial-cluster-state=new with this member alone, so that a
// second cluster with the same CA begins (argsForInit in services/etcd.go). A worker's type is never init.
func AgainstInit(emptied, typeInit bool) []string {
	if !emptied || !typeInit {
		return nil
	}
	return []string{"its machine.type is init: with an empty etcd directory " + BeginsAlone + ", beside the one that the others have. " +
		"First set machine.type: controlplane in its file in talos.machineConfigs and recast roll --what config, or: " +
		`talosctl patch machineconfig --mode staged -p '{"machine":{"type":"controlplane"}}', and reboot it`}
}

// BeginsAlone is what a control plane of machine.type init does without data.
const BeginsAlone = "Talos begins a new, empty etcd"

// EtcdOnSystemDisk says whether a control plane loses etcd's data with its system disk. Since Talos 1.14 the data
// can have its own volume ETCD; else it is on EPHEMERAL.
func EtcdOnSystemDisk(m cluster.Machine) (bool, error) {
	if m.SystemDisk == "" {
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: the machine does not name its system disk")
	}
	label := "EPHEMERAL"
	if m.EtcdVolume() == cluster.PartitionVolume {
		label = "ETCD"
	}
	switch on := m.DisksWith(label); len(on) {
	case 0:
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: the machine shows no partition %s", label)
	case 1:
		return on[0] == m.SystemDisk, nil
	default:
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: %s is on %s", label, strings.Join(on, " and on "))
	}
}

type obstacles []cluster.Obstacle

// add adds an obstacle that the command lifts; "": no single command does.
func (o *obstacles) add(command, format string, args ...any) {
	*o = append(*o, cluster.Obstacle{Text: fmt.Sprintf(format, args...), Command: command})
}

func inWords(texts []string) []cluster.Obstacle {
	return cluster.Each(texts, func(text string) cluster.Obstacle { return cluster.Obstacle{Text: text} })
}

// controllers create and delete VMs themselves, and mark the Nodes of those VMs.
var controllers = []struct{ name, mark, instead string }{
	{"Cluster API", "cluster.x-k8s.io/machine", "its TalosControlPlane or MachineDeployment rolls it: change the template there"},
	{"Karpenter", "karpenter.sh/nodepool", "its NodePool replaces it: change the NodeClass there"},
}

// Controlled says which other controller creates and deletes a node, and what to do instead; "" for none. n may be nil.
func Controlled(n *cluster.KubeNode) (by, instead string) {
	if n == nil {
		return "", ""
	}
	for _, c := range controllers {
		if mark := n.Metadata.Annotations[c.mark] + n.Metadata.Labels[c.mark]; mark != "" {
			return c.name + " (" + c.mark + ": " + mark + "), which creates and deletes its VM", c.instead
		}
	}
	return "", ""
}

// Uncontrolled refuses a node that another controller creates and deletes: the controller would take the node's VM,
// once replaced, for lost, or a new VM for surplus. n may be nil.
func Uncontrolled(n *cluster.KubeNode) error {
	by, instead := Controlled(n)
	if by == "" {
		return nil
	}
	return fault.WithHint(fault.Refusedf("node %s is of %s", n.Name, by), "%s", instead)
}

// Doubled returns the obstacle of a VM with a volume in a second slot, its own or another VM's. The machine may
// show each partition of such a volume twice, so nothing else that follows from what it shows is worth saying, and
// chance decides which of the two it mounts at its next boot. It returns at most one obstacle.
func (c Candidate) Doubled() []cluster.Obstacle {
	var said []string
	out := removal{node: c.VM}
	apart := true
	for _, twice := range c.doubles() {
		// The volume stays in the slot for which most speaks, and has to leave the others.
		slices.SortStableFunc(twice, func(a, b slot) int { return cmp.Compare(b.rank, a.rank) })
		keep, rest := twice[0], twice[1:]
		also := cluster.Each(rest, func(s slot) string { return s.in(c.VM.ID) })
		apart = apart && !slices.ContainsFunc(rest, func(s slot) bool { return !s.removable(keep) })
		out.slots = append(out.slots, rest...)
		said = append(said, fmt.Sprintf("the volume of %s is also %s", keep.in(c.VM.ID), strings.Join(also, " and ")))
	}
	if len(said) == 0 {
		return c.shownTwice()
	}
	what := strings.Join(said, ", ")
	if !apart {
		return inWords([]string{what + ": both may be in use: find out whose it is, and take it out of the other VM while that is off"})
	}
	command := out.command()
	return []cluster.Obstacle{{Command: command, Text: fmt.Sprintf("%s: %s%s keeps the volume", what, command, out.hosts())}}
}

// shownTwice is about a second slot that is gone from the configuration, but not yet from the running guest:
// Proxmox removes a drive only from a VM that is off, unless the drive's bus can be hotplugged.
func (c Candidate) shownTwice() []cluster.Obstacle {
	gone := slices.ContainsFunc(c.VM.Pending, func(key string) bool { return cluster.IsDiskKey(key) && c.VM.Config[key] == "" })
	seen := map[string]bool{}
	for _, d := range c.Machine.Disks {
		content := c.Machine.Identity(d.Device)
		if gone && content != "" && seen[content] {
			command := fmt.Sprintf("qm shutdown %d && qm start %[1]d", c.VM.ID)
			return []cluster.Obstacle{{Command: command, Text: fmt.Sprintf("a drive that was taken out of the VM stays in it until it is off, and its machine still shows that volume twice: %s", command)}}
		}
		seen[content] = true
	}
	return nil
}

// slot is a drive of a VM that names a volume which another slot names, too.
type slot struct {
	cluster.Disk
	vm     cluster.VM
	use    cluster.DiskUse
	rank   int  // how much speaks for the volume to stay in the slot
	beside bool // the VM has the volume in another slot, too
	holds  bool // the VM is the node's holder, and on: it has to be off
	boots  bool // the VM boots from it
}

func (s slot) in(id cluster.VMID) string {
	if s.vm.ID == id {
		return s.Key
	}
	return cluster.PlaceOf(s.vm.ID, s.Key)
}

// removable says whether the volume can be taken out of the slot, if need be while the VM is off, without taking it
// from a guest that has it in no other slot, and without freeing it.
func (s slot) removable(keep slot) bool {
	switch {
	case s.Key == "efidisk0", s.Key == "tpmstate0":
		return false
	case s.holds:
		return true // by switching it off
	case s.vm.ID == keep.vm.ID, s.beside:
		return true // the guest has the same content in the other slot
	case s.boots, s.use == cluster.Used:
		return false
	}
	return !s.Detached() || s.Owner != s.vm.ID // Proxmox frees an unusedN of its owner
}

func (c Candidate) doubles() [][]slot {
	var out [][]slot
	var listed []string
	for _, d := range drives(c.VM) {
		if slices.Contains(listed, d.Key) {
			continue
		}
		same := c.slotsOf(d)
		for _, s := range same {
			if s.vm.ID == c.VM.ID {
				listed = append(listed, s.Key)
			}
		}
		if len(same) > 1 {
			out = append(out, same)
		}
	}
	return out
}

// drives returns the VM's drives with a volume, by key. A drive that can't be read is refused elsewhere.
func drives(vm cluster.VM) []cluster.Disk {
	var out []cluster.Disk
	for _, key := range slices.SortedFunc(maps.Keys(vm.Config), cluster.CompareKeys) {
		d, err := cluster.ParseDisk(key, vm.Config[key])
		if d.Pod = slices.Contains(vm.Pods, d.Volid); err == nil && d.NamesVolume() {
			out = append(out, d)
		}
	}
	return out
}

// mentions says whether a setting of the VM can name the volume. Every node asks this of every VM.
func mentions(vm cluster.VM, d cluster.Disk) bool {
	for _, value := range vm.Config {
		if d.Mentions(value) {
			return true
		}
	}
	return false
}

// slotsOf lists the slots that name a volume of the VM, one of the VM's own for each. The owner's name for the
// volume does not count if the owner is another VM whose guest does not have the volume: so a holder keeps its
// disks. A pod's volume may be with two VMs for a while.
func (c Candidate) slotsOf(d cluster.Disk) []slot {
	var out []slot
	storages := c.Observation.Storages
	for _, own := range drives(c.VM) {
		if cluster.SameVolume(d, own, storages) {
			out = append(out, c.slot(c.VM, own))
		}
	}
	if d.Pod || d.LikeCSI() {
		return out
	}
	for _, vm := range c.Observation.Namesakes(c.VM, d.Storage()) {
		if vm.ID == c.VM.ID || !mentions(vm, d) {
			continue
		}
		same := cluster.Where(drives(vm), func(other cluster.Disk) bool { return !other.Pod && cluster.SameVolume(d, other, storages) })
		there := cluster.Each(same, func(other cluster.Disk) slot { return c.slot(vm, other) })
		if vm.ID == c.Holder && vm.Running {
			for j := range there {
				there[j].holds, there[j].rank = true, there[j].rank-500
			}
		}
		if i := slices.IndexFunc(there, func(s slot) bool { return !s.Detached() }); len(there) > 0 && d.Owner == vm.ID && (i < 0 || !vm.Running) {
			there = slices.Delete(there, max(0, i), max(0, i)+1)
			for j := range there {
				if there[j].beside = i >= 0; there[j].beside {
					there[j].rank -= 500
				}
			}
		}
		out = append(out, there...)
	}
	return out
}

// slot ranks a slot: what firmware and boot loader start from stays, then what the guest uses, then what is with
// the volume's owner.
func (c Candidate) slot(vm cluster.VM, d cluster.Disk) slot {
	s := slot{Disk: d, vm: vm, use: c.useOf(vm, d)}
	order := cluster.BootDevices(vm.Config["boot"])
	if i := slices.Index(order, d.Key); i >= 0 && (vm.Running || d.Owner == vm.ID) { // else it is off, and can't call the volume its own
		s.boots = true
		s.rank += 100 - i
	}
	switch {
	case d.Key == "efidisk0", d.Key == "tpmstate0":
		s.rank += 1000
	case vm.ID == c.VM.ID && d.Key == cmp.Or(c.SystemDisk, c.provenSystem()):
		s.rank += 400
	case d.Detached():
		s.rank -= 200
	case d.CDROM:
		s.rank -= 100
	}
	if s.use == cluster.Used {
		s.rank += 50
	}
	if d.Owner == vm.ID {
		s.rank += 20
	}
	return s
}

func (c Candidate) provenSystem() string {
	system, _ := cluster.ProveSystemDisk(c.VM, c.Machine, c.SystemDisk)
	return system.Key
}

// useOf says whether the VM's guest uses what it has in that slot. That is proven unused if the VM is off, if the
// slot waits for the VM to be off, or if Talos has each volume there at another device.
func (c Candidate) useOf(vm cluster.VM, d cluster.Disk) cluster.DiskUse {
	m, known := c.machineOf(vm.ID)
	switch {
	case !vm.Running && !known, d.Detached():
		return cluster.Unused
	case !known:
		return cluster.MayBeUsed
	}
	bootable, err := vm.Bootable()
	if err != nil {
		return cluster.MayBeUsed
	}
	on := m.MachineDisks(vm, bootable, d.Key)
	switch {
	case len(on) == 0 && slices.Contains(vm.Pending, d.Key):
		return cluster.Unused
	case len(on) != 1:
		return cluster.MayBeUsed
	}
	return m.UseOf(on[0].Device)
}

func (c Candidate) machineOf(id cluster.VMID) (cluster.Machine, bool) {
	if id == c.VM.ID && c.Machine.UUID != "" {
		return c.Machine, true
	}
	f, known := cluster.Find(c.Observation.Found, func(f observe.Found) bool {
		return f.VM != nil && f.VM.ID == id && f.Machine != nil
	})
	if !known {
		return cluster.Machine{}, false
	}
	return *f.Machine, true
}

type removal struct {
	node  cluster.VM
	slots []slot
}

// command goes through one VM after the other. Proxmox removes a drive from a running guest only if the drive can
// be hotplugged, and recast allows that only for a drive that is proven unused. Nothing is removed from the owner
// of a node's disk: the owner has to be off.
func (r removal) command() string {
	var out []string
	for _, vm := range r.vms() {
		var keys, reverted []string
		off, rescan := false, false
		for _, s := range r.slots {
			switch waits := slices.Contains(vm.Pending, s.Key) && s.use == cluster.Unused; {
			case s.vm.ID != vm.ID:
			case s.Detached() && s.Owner == vm.ID:
				rescan = true // removes unusedN whose volume a drive names (PVE/QemuServer.pm, update_disk_config)
			case s.holds:
				out = append(slices.DeleteFunc(out, func(line string) bool { return line == shutdown(vm) }), shutdown(vm))
			case waits && vm.Running:
				reverted = append(reverted, s.Key)
			default:
				keys = append(keys, s.Key)
				off = off || vm.Running && !s.Detached() && (s.use != cluster.Unused || !hotplugs(vm, s.Key))
			}
		}
		out = append(out, lines(vm, keys, reverted, off, rescan)...)
	}
	return strings.Join(out, " && ")
}

func shutdown(vm cluster.VM) string { return fmt.Sprintf("qm shutdown %d", vm.ID) }

func lines(vm cluster.VM, keys, reverted []string, off, rescan bool) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	protected, _ := cluster.ParseBoolean(vm.Config["protection"])
	if off {
		add("%s", shutdown(vm))
	}
	remove := fmt.Sprintf("qm set %d --delete %s", vm.ID, strings.Join(keys, ","))
	switch {
	case len(keys) == 0:
	case protected:
		add("qm set %d --protection 0 && %s && qm set %[1]d --protection 1", vm.ID, remove)
	default:
		add("%s", remove)
	}
	if len(reverted) > 0 {
		add("qm set %d --revert %s", vm.ID, strings.Join(reverted, ","))
	}
	if rescan {
		add("qm disk rescan --vmid %d", vm.ID)
	}
	if off {
		add("qm start %d", vm.ID)
	}
	return out
}

func (r removal) vms() []cluster.VM {
	var out []cluster.VM
	for _, s := range r.slots {
		if !slices.ContainsFunc(out, func(vm cluster.VM) bool { return vm.ID == s.vm.ID }) {
			out = append(out, s.vm)
		}
	}
	return out
}

func (r removal) hosts() string {
	away := cluster.Where(r.vms(), func(vm cluster.VM) bool { return vm.Host != r.node.Host })
	if len(away) == 0 {
		return ""
	}
	on := cluster.Each(away, func(vm cluster.VM) string {
		return fmt.Sprintf("VM %d is on %s", vm.ID, words.OrNone(vm.Host))
	})
	return " (" + strings.Join(on, ", ") + ")"
}

// hotplugs says whether Proxmox can remove that drive from a running guest: SCSI and VirtIO drives, unless the VM's
// setting hotplug lacks disk (PVE/QemuServer.pm, vmconfig_hotplug_pending and vm_deviceunplug).
func hotplugs(vm cluster.VM, key string) bool {
	set, has := vm.Config["hotplug"]
	if on, is := cluster.ParseBoolean(set); is {
		has = !on
		set = ""
	}
	return (strings.HasPrefix(key, "scsi") || strings.HasPrefix(key, "virtio")) && (!has || strings.Contains(set, "disk"))
}
