package strategy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Candidate is a node whose machine was read, with everything that decides what can be done to it.
type Candidate struct {
	cluster.Wanted
	VM          cluster.VM
	Machine     cluster.Machine
	Found       observe.Found
	Observation observe.Observation
	Disks       []cluster.Disk
	DisksErr    error
	System      cluster.Disk
	SystemErr   error
	unseen      []loss // unknown data that may also be on the system disk
}

// Against says why each strategy that can be chosen can't be used; for recreate, also what lifts each reason.
func (c Candidate) Against() (all map[cluster.Strategy][]string, recreate []cluster.Obstacle) {
	if recreate = c.Doubled(); len(recreate) > 0 {
		return always(cluster.Texts(recreate)), recreate
	}
	both := c.againstReplacing()
	recreate = slices.Concat(both, inWords(c.AgainstArgs(cluster.Recreate)), c.Tied(), c.Replicated(cluster.Recreate),
		unwritable(c), c.unprovable(), inWords(c.Immovable(cluster.Recreate)))
	reimage := slices.Concat(both, inWords(c.AgainstArgs(cluster.Reimage)), c.Replicated(cluster.Reimage),
		inWords(c.Immovable(cluster.Reimage)))
	return map[cluster.Strategy][]string{
		cluster.Recreate: cluster.Texts(recreate), cluster.Reimage: cluster.Texts(reimage),
		cluster.InPlace: c.againstInPlace(),
	}, recreate
}

func always(reasons []string) map[cluster.Strategy][]string {
	out := map[cluster.Strategy][]string{}
	for _, s := range cluster.Strategies {
		out[s] = slices.Clip(reasons)
	}
	return out
}

func (c Candidate) againstInPlace() []string {
	out := slices.Concat(misfit(c), c.unreadable(false), unchangeable(c), c.AgainstArgs(cluster.InPlace))
	if n := c.Found.Node; n != nil && n.FailedBuild != "" && n.FailedBuild == c.Build.ID {
		out = append(out, fmt.Sprintf("build %s came back as the old system once, and is never tried again with the same image: "+
			"lock another version or other extensions, or use recreate or reimage", words.Short(n.FailedBuild)))
	}
	if n := c.Found.Node; c.Machine.PendingReboot() && (n == nil || n.Mark == nil || n.Mark.Build != c.Build.ID) {
		out = append(out, fmt.Sprintf("%s is installed and waits for a reboot, and another installation could remove the running system: reboot it first, or use recreate or reimage", c.Machine.NextBoot))
	}
	if c.Machine.ControlPlane && !c.Machine.InstallsApart() && len(c.Observation.ControlPlanes()) == 2 {
		out = append(out, fmt.Sprintf("Talos %s itself refuses to upgrade one of two control planes (etcd member count(2) is insufficient to maintain quorum if upgrade commences): use recreate or reimage", c.Machine.TalosVersion))
	}
	if c.SystemErr == nil && c.System.Flag("snapshot") {
		out = append(out, thrownAway("system disk "+c.System.Key))
	}
	out = append(out, c.oneWay()...)
	out = append(out, c.omni()...)
	if first, command := observe.BootsBefore(c.VM, c.System.Key); c.SystemErr == nil && first != "" {
		out = append(out, fmt.Sprintf("it boots from %s before its system disk %s, and in-place does not change that: %s", first, c.System.Key, command))
	}
	if size := c.System.SizeBytes(); c.SystemErr == nil && size > 0 && size < uint64(max(c.SystemGiB, 0))<<30 {
		out = append(out, fmt.Sprintf("in-place can't make the system disk %s larger (%s → %dG): remove nodes[].systemDisk.sizeGiB, or use recreate or reimage",
			c.System.Key, c.System.Option("size"), c.SystemGiB))
	}
	return out
}

// AgainstReshape says why the VM can't be stopped, given other settings, and started again.
func (c Candidate) AgainstReshape() []cluster.Obstacle {
	if twice := c.Doubled(); len(twice) > 0 {
		return twice
	}
	out := c.occupied(false)
	var err error
	if c.System, err = cluster.ProveSystemDisk(c.VM, c.Machine, c.SystemDisk); err != nil {
		return append(out, inWords(hinted(err))...)
	}
	if c.System.Flag("snapshot") {
		out = append(out, inWords([]string{thrownAway("system disk " + c.System.Key)})...)
	}
	if c = c.withDisks(); c.DisksErr != nil {
		return append(out, inWords([]string{c.DisksErr.Error()})...)
	}
	return append(out, c.Entangled()...)
}

// withDisks has the VM's disks, but for those of pods, which the drain detaches.
func (c Candidate) withDisks() Candidate {
	c.Disks, c.DisksErr = c.VM.Disks()
	c.Disks = slices.DeleteFunc(c.Disks, cluster.Disk.CSI)
	return c
}

func hinted(err error) []string {
	return []string{strings.Join(append([]string{err.Error()}, fault.Hints(err)...), ": ")}
}

// AgainstRemove says why the VM can't be emptied and deleted.
func (c Candidate) AgainstRemove() []string {
	if twice := c.Doubled(); len(twice) > 0 {
		return cluster.Texts(twice)
	}
	if c = c.withDisks(); c.DisksErr != nil {
		return []string{c.DisksErr.Error() + ": correct the VM's configuration"}
	}
	return slices.Concat(cluster.Texts(c.Occupied()), cluster.Texts(c.Entangled()), cluster.Texts(c.Replicated(cluster.Recreate)), c.Immovable(cluster.Recreate))
}

// Occupied says why Proxmox would not let us change the VM, or that another task is working on it.
func (c Candidate) Occupied() []cluster.Obstacle { return c.occupied(true) }

// occupied is Occupied for a change with which disks leave the VM, or stay.
func (c Candidate) occupied(disksLeave bool) []cluster.Obstacle {
	var out obstacles
	for _, vm := range c.Found.Unrecorded {
		set := fmt.Sprintf("qm set %d --name kept-%s", vm.ID, c.Name)
		out.add(set, "%s was its parking VM, and its Notes, which someone has edited, no longer say what its disks are (it has %s): put the Notes back as they were. "+
			"If nobody has them any more, %s has recast leave that VM and its disks alone, and make another one", vm, cluster.DrivesOf(vm), set)
	}
	if c.VM.Template {
		out.add("", "the VM is a template: a node can't be one")
	}
	if c.VM.Lock != "" {
		out.add("", "the VM is locked (%s): wait until that task has ended", c.VM.Lock)
	}
	if state := c.VM.Config["vmstate"]; state != "" {
		// A delete frees the saved state (PVE/QemuServer.pm, destroy_vm), a start resumes from it.
		out.add("", "the VM's memory is on disk (%s), as that of one that is suspended: resume it (qm resume %d)",
			state, c.VM.ID)
	}
	snapshots := c.Found.Ties.Snapshots
	if parent := c.VM.Config["parent"]; len(snapshots) == 0 && parent != "" {
		snapshots = []string{parent}
	}
	if len(snapshots) > 0 && disksLeave {
		commands := cluster.Each(snapshots, func(s string) string {
			return fmt.Sprintf("qm delsnapshot %d %s", c.VM.ID, words.Quote(s))
		})
		out.add(strings.Join(commands, " && "), "the VM has snapshots (%s), whose disks can't leave it: delete them first", strings.Join(snapshots, ", "))
	}
	for _, what := range c.Found.Ties.Busy {
		out.add("", "%s: wait until that is over", what)
	}
	// affinity only selects processors of the host: no proof about the machine depends on it.
	if pending := slices.DeleteFunc(slices.Clone(c.VM.Pending), func(key string) bool { return key == "affinity" }); len(pending) > 0 {
		out.add(fmt.Sprintf("qm set %d --revert %s", c.VM.ID, words.Quote(strings.Join(pending, ","))),
			"the VM has pending changes (%s): restart it or revert them", strings.Join(pending, ", "))
	}
	return append(out, missingBoot(c)...)
}

// Tied lists what would be deleted with the VM.
func (c Candidate) Tied() []cluster.Obstacle {
	var out obstacles
	for _, what := range c.Found.Ties.Dropped {
		out.add("", "the VM has %s, which a delete would drop: remove it, or use reimage", what)
	}
	for _, e := range c.Found.Ties.ACL {
		out.add("pveum acl delete "+e.Arguments(), "the VM has an ACL entry at %s (%s), which a delete would drop: remove it, and after the roll pveum acl modify %s; or use reimage",
			e.Path, e.Words(), e.Arguments()+e.Propagates())
	}
	for _, v := range c.Found.Ties.VNets {
		switch { // pve-network, PVE/Network/SDN/Vnets.pm, del_ips_from_mac and add_next_free_cidr
		case v.Hidden:
			out.add("", "the VM is on %s, which Proxmox does not show the token, so it is unknown whether a zone of its SDN keeps the VM's address (IPAM): grant the token SDN.Use on it, or use reimage", v.Name)
		case v.IPAM:
			out.add("", "the VM is on VNet %s, whose zone keeps its address (IPAM), frees it with the VM, and gives a new VM the next one: use reimage", v.Name)
		}
	}
	if n := c.Found.Node; n != nil && n.ProviderID != "" {
		out.add("", "its Node has providerID %s: a cloud controller deletes the Node with its VM: use reimage", n.ProviderID)
	}
	return out
}

func (c Candidate) againstReplacing() []cluster.Obstacle {
	out := append(misfit(c), c.unreadable(true)...)
	if c.SystemErr != nil {
		out = append(out, hinted(c.SystemErr)...)
	}
	if c.DisksErr != nil {
		out = append(out, c.DisksErr.Error()+": correct the VM's configuration")
	}
	return slices.Concat(inWords(out), c.Occupied(), c.Entangled(), inWords(c.Untellable()), c.Irreplaceable(),
		c.preconfigured(), inWords(c.keepsOmni()), c.unreachable(), inWords(sealed(c)), inWords(mislabelled(c)))
}

const would = "would configure the blank machine before recast can"

// preconfigured lists what would configure the blank machine before recast does, and so choose the
// disk to install on: see cluster.Build.OwnConfig.
func (c Candidate) preconfigured() []cluster.Obstacle {
	var out obstacles
	if custom := c.VM.Config["cicustom"]; strings.Contains(","+custom, ",user=") {
		out.add(keepCustom(c), "cicustom's user data (%s) %s: remove its user= part", custom, would)
	}
	if serial := c.VM.SMBIOS("serial"); strings.Contains(serial, "ds=nocloud") {
		out.add("", "the SMBIOS serial %q %s: remove it from smbios1", serial, would)
	}
	for _, sign := range []string{"ds=nocloud", "talos.config", "siderolink.api"} {
		if strings.Contains(c.VM.Config["args"], sign) {
			out.add("", "the VM's args name %s, which %s: remove that", sign, would)
		}
	}
	out = append(out, inWords(BringsConfig(c.Build))...)
	for _, arg := range c.Machine.ConfigArgs {
		if !slices.ContainsFunc(c.Build.KernelArgs, func(wanted string) bool { return cluster.ArgName(wanted) == cluster.ArgName(arg) }) {
			out.add("", "the machine was booted with the kernel argument %s, which %s: roll in-place once, to an image without it", cluster.ArgName(arg), would)
		}
	}
	return out
}

// Accepted lists the data of the system disk that may be lost, for the plan.
func (c Candidate) Accepted() []string {
	lost, _ := losses(c)
	accepted := cluster.Where(lost, func(l loss) bool { return l.accepted(c.AcceptLoss) })
	return cluster.Each(accepted, func(l loss) string { return l.what + " on the system disk will be lost" })
}

// Leaving returns the node with the system disk that a strategy now removes from it; leaves is false if there is no
// such disk. A machine that does not answer is judged by its record, so everything that is not proven to be on
// another disk counts.
func Leaving(s cluster.Strategy, w cluster.Wanted, f observe.Found) (c Candidate, leaves bool) {
	if !DiskLeaves(s, w) || f.VM == nil {
		return Candidate{}, false
	}
	c = Candidate{Wanted: w, VM: *f.VM, Found: f}
	if f.Machine != nil {
		c.Machine = *f.Machine
	}
	if !f.Open() {
		return c, f.Machine != nil // an unread machine is refused elsewhere
	}
	rec := f.Parking.Record
	mem, err := rec.ReadMemory(f.Parking.VM)
	if err != nil {
		return Candidate{}, false // refused elsewhere
	}
	if c.Machine.SystemDisk == "" {
		c.Machine = mem.Machine()
	}
	switch there, isNew := rec.SystemOn(*f.VM, mem); {
	case !there:
		return Candidate{}, false
	case s.From() != cluster.Halfway:
		return c, !isNew && !rec.SystemParked(f.Parking.VM)
	case !isNew || !rec.BecameNode(mem, f.Node):
		return Candidate{}, false
	}
	if why := rec.Unseen(f.Node, f.Machine); why != "" {
		c.unseen = append(c.unseen, loss{name: "unread/" + rec.Run, what: "data that can't be determined (" + why + ")"})
	}
	return c, true
}

// DiskLeaves says whether a strategy takes the node's system disk away, so that data on that disk alone has to be
// checked. A removed node keeps its disks, parked, unless it was there only for a roll.
func DiskLeaves(s cluster.Strategy, w cluster.Wanted) bool {
	return s.SwapsSystem() || s.VM() == cluster.VMGone && w.Surge
}

// SeenFromProxmox lists what prevents a strategy whatever the machine would say.
func (c Candidate) SeenFromProxmox() map[cluster.Strategy][]string {
	if twice := cluster.Texts(c.Doubled()); len(twice) > 0 {
		return always(twice)
	}
	var replacing []string
	if c.DisksErr != nil {
		replacing = append(replacing, c.DisksErr.Error())
	}
	replacing = slices.Concat(replacing, cluster.Texts(c.Occupied()), cluster.Texts(c.Entangled()), cluster.Texts(c.preconfigured()))
	return map[cluster.Strategy][]string{
		cluster.Recreate: slices.Concat(replacing, cluster.Texts(c.Tied()), cluster.Texts(unwritable(c)), c.Immovable(cluster.Recreate)),
		cluster.Reimage:  replacing,
	}
}

func (c Candidate) unreachable() []cluster.Obstacle {
	if len(readdressed(c)) > 0 {
		return nil // readdressed refuses every strategy in that case
	}
	if _, o := cluster.BlankAddress(c.Found.Addr, c.VM, c.Machine, c.Build); o.Text != "" {
		return []cluster.Obstacle{{Text: o.Text, Command: o.Command, Config: o.Config}}
	}
	return nil
}

// Entangled lists disks that do not belong to the node alone.
func (c Candidate) Entangled() []cluster.Obstacle {
	var out obstacles
	for _, d := range c.Disks {
		if d.Flag("snapshot") {
			out.add("", "%s", thrownAway(d.Key))
		}
		switch {
		case d.CDROM && !d.CloudInit():
			if why := strangeMedium(c, d); why != "" {
				out.add("", "%s", why)
			}
			continue
		case d.OfHost() && d.Key == c.System.Key:
			out.add("", "the system disk %s is a device of the host (%s), which can't be parked: give the node a volume for it, or use in-place", d.Key, d.Volid)
			continue
		case d.OfHost(): // stays with a VM that stays
		case d.LikeCSI() && d.Owner != c.VM.ID && d.Owner != c.Holder:
			out = append(out, d.Unclaimed(c.VM))
			continue
		case d.Owner == 0:
			out.add("", "%s (%s) carries no VM's number, so its owner is unknown: give the node a volume instead",
				d.Key, d.Volid)
		case d.Owner == c.VM.ID:
		case d.Owner != c.Holder && !exists(c, d.Owner):
			out.add("", "%s (%s) carries the number of VM %d, which does not exist: reassign it to VM %d",
				d.Key, d.Volid, d.Owner, c.VM.ID)
		case d.Owner != c.Holder:
			out.add("", "%s (%s) belongs to VM %d: name that as nodes[].holder, or reassign the disk to VM %d", d.Key, d.Volid, d.Owner, c.VM.ID)
		case exists(c, d.Owner) && heldElsewhere(c, d):
			out.add("", "%s (%s) carries the number of its holder, VM %d, but that is on another host and storage %s is not shared: what the holder has under that name is another volume. Reassign this one to VM %d",
				d.Key, d.Volid, d.Owner, d.Storage(), c.VM.ID)
		case d.Key == c.System.Key:
			out.add("", "the system disk %s (%s) belongs to the holder, VM %d: reassign it to VM %d",
				d.Key, d.Volid, d.Owner, c.VM.ID)
		}
	}
	if c.Holder != 0 && !exists(c, c.Holder) {
		out.add("", "its holder, VM %d, does not exist: correct nodes[].holder", c.Holder)
	}
	return out
}

// Immovable lists disks that must be parked but whose storages can't do that.
func (c Candidate) Immovable(s cluster.Strategy) []string {
	var out []string
	for _, d := range parkedDisks(c.Disks, c.VM.ID, s, c.System.Key) {
		is := func(s cluster.Storage) bool { return s.Name == d.Storage() }
		on, listed := cluster.Find(c.Observation.Storages, is)
		switch {
		case !listed:
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s, which Proxmox does not list: grant the token Datastore.Audit there",
				d.Key, d.Volid, d.Storage()))
		case !on.CanReassign():
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s of type %s, which can't give a disk to another VM: move it to another storage",
				d.Key, d.Volid, d.Storage(), on.Type))
		case d.Key == c.System.Key && d.Option("model") != "":
			// The only option that drives on another bus can have and SCSI drives can't
			// (PVE/QemuServer/Drive.pm): Proxmox would not move it.
			out = append(out, fmt.Sprintf("the system disk %s has the option model=, which the SCSI drive that it is parked as can't have: remove it", d.Key))
		}
	}
	return out
}

// Untellable lists persistent volumes that could not be identified in the new machine.
func (c Candidate) Untellable() []string {
	if c.SystemErr != nil || c.DisksErr != nil {
		return nil // which drives are persistent is unknown, and already refused
	}
	drives := slices.DeleteFunc(slices.Clone(c.Disks), func(d cluster.Disk) bool { return !d.Bootable() })
	if _, err := cluster.PersistentVolumes(c.VM, drives, c.Machine, c.System); err != nil {
		return hinted(err)
	}
	return nil
}

func exists(c Candidate, id cluster.VMID) bool {
	_, away := c.Observation.Away.VM(id)
	return away || slices.ContainsFunc(c.Observation.VMs, func(vm cluster.VM) bool { return vm.ID == id })
}

// heldElsewhere says whether a holder's disk is on a host where the holder is not, so that no configuration of the
// holder can mean it.
func heldElsewhere(c Candidate, d cluster.Disk) bool {
	return c.Observation.Local(d.Storage()) && !slices.ContainsFunc(c.Observation.Namesakes(c.VM, d.Storage()), func(vm cluster.VM) bool { return vm.ID == d.Owner })
}

// rawDevices lists drives that a token can't give to a new VM (API2/Qemu.pm, check_storage_access).
func (c Candidate) rawDevices() []cluster.Obstacle {
	raw := cluster.Where(c.Disks, func(d cluster.Disk) bool { return d.OfHost() && !d.CDROM && d.Key != c.System.Key })
	return inWords(cluster.Each(raw, func(d cluster.Disk) string {
		return fmt.Sprintf("%s is a device of the host (%s), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage", d.Key, d.Volid)
	}))
}

// strangeMedium describes a medium in a CD drive that is no ISO. The boot ISO would replace it for good; a disk
// image would lose its only reference, since deleting a VM keeps CD media (PVE/QemuServer.pm, destroy_vm).
func strangeMedium(c Candidate, d cluster.Disk) string {
	switch {
	case d.Volid == "cdrom" || d.OfHost():
		return fmt.Sprintf("%s is a CD drive of the host (%s), which recast can't give back: take it out of the VM", d.Key, d.Volid)
	case d.Owner != 0:
		return fmt.Sprintf("%s has a disk image for a CD (%s), which nothing else names: attach it as a disk", d.Key, d.Volid)
	}
	return ""
}

func (c Candidate) unprovable() []cluster.Obstacle {
	if c.SystemErr != nil || c.DisksErr != nil || len(c.Untellable()) > 0 {
		return nil // already refused in other words
	}
	out, err := parking.Unprovable(c.VM, c.Machine, c.System.Key)
	if err != nil {
		return inWords([]string{err.Error()})
	}
	return out
}

// thrownAway is about QEMU's snapshot mode (PVE/QemuServer/Drive.pm): at every stop such a drive loses what was
// written since the start, and a roll stops the VM.
func thrownAway(what string) string {
	return what + " has snapshot=1, so what is written to it is thrown away when the VM stops: remove that option, and restart the VM once"
}

// Replicated lists what a replication job prevents. Proxmox does not delete a VM that has a job. A blank system
// disk gets the old name of the parked one, but the target still has a volume of that name, with which the new disk
// shares no snapshot: from then on the whole job fails (pve-guest-common, Replication.pm,
// find_common_replication_snapshot). To a VM with a job, Proxmox neither adds nor gives back a volume that can't be
// replicated (qemu-server, API2/Qemu.pm, move_disk).
func (c Candidate) Replicated(s cluster.Strategy) []cluster.Obstacle {
	jobs := c.Found.Ties.Jobs
	if len(jobs) == 0 || !s.DeletesVM() && c.SystemErr == nil && leftOut(c, c.System) {
		return nil
	}
	var ids, remove, again []string
	for _, j := range jobs {
		ids = append(ids, j.ID)
		remove = append(remove, "pvesr delete "+j.ID)
		again = append(again, j.Create())
	}
	why, lift := fmt.Sprintf("with which Proxmox neither deletes the VM nor gives it a disk on storage %s", c.System.Storage()), ""
	switch {
	case c.SystemErr != nil:
		why = "with which Proxmox does not delete the VM"
	case leftOut(c, c.System):
		why, lift = "with which Proxmox does not delete the VM", "; or use reimage"
	case onLocalZFS(c, c.System):
		why = fmt.Sprintf("with which Proxmox does not delete the VM, and which would fail for good: its target keeps the name that the new disk %s gets", c.System.Key)
		lift = fmt.Sprintf("; or leave %s out of it, and use reimage: qm set %d --%s %s",
			c.System.Key, c.VM.ID, c.System.Key, words.Quote(cluster.JoinOptions(c.System.Volid, strings.Join(c.System.With("replicate", "0"), ","))))
	}
	return []cluster.Obstacle{{Command: strings.Join(remove, " && "), Text: fmt.Sprintf("replication %s of the VM, %s: on %s %s, roll once pvesr list no longer shows it, then %s%s",
		strings.Join(ids, ", "), why, c.VM.Host, strings.Join(remove, " && "), strings.Join(again, " && "), lift)}}
}

// leftOut says whether replication skips a disk that Proxmox would nevertheless give back to a VM with a job.
func leftOut(c Candidate, d cluster.Disk) bool {
	on, said := cluster.ParseBoolean(d.Option("replicate"))
	return said && !on && onLocalZFS(c, d)
}

// onLocalZFS says whether a disk is on local ZFS, the only storage that can replicate (pve-storage,
// storage_can_replicate).
func onLocalZFS(c Candidate, d cluster.Disk) bool {
	return slices.ContainsFunc(c.Observation.Storages, func(s cluster.Storage) bool { return s.Name == d.Storage() && s.Type == "zfspool" && !s.Shared })
}

// Irreplaceable lists the data of the system disk that acceptLoss does not name.
func (c Candidate) Irreplaceable() []cluster.Obstacle {
	var out obstacles
	lost, _ := losses(c)
	for _, l := range lost {
		what, remedy := "is on the system disk", "move it to a disk of its own"
		switch {
		case l.accepted(c.AcceptLoss):
			continue
		case slices.ContainsFunc(c.unseen, func(o loss) bool { return o.name == l.name }):
			what, remedy = "may be on the system disk", "check that it answers"
		case l.lift != "":
			remedy = l.lift + "; or " + remedy
		}
		out.add(l.command, "%s %s and would be lost: %s, or name %s in nodes[].acceptLoss", l.what, what, remedy, l.name)
	}
	return out
}

// losses lists the data that only the system disk has, and the names in acceptLoss that match none of that data.
func losses(c Candidate) (lost []loss, unknown []string) {
	for _, v := range c.Machine.Volumes {
		if v.Disk != c.Machine.SystemDisk || v.ID == "" && slices.Contains(cluster.TalosLabels, v.Label) || slices.Contains(cluster.TalosLabels, v.ID) || strings.HasPrefix(v.Label, cluster.SwapVolume) {
			continue
		}
		names := v.LossNames()
		what := "volume " + names[0]
		if v.ID == "" && v.Label == "" {
			what = "partition " + v.Device
		}
		lost = append(lost, loss{name: names[0], also: names[1:], what: what})
	}
	for _, s := range c.Machine.VolumeStatuses {
		if s.Type == cluster.DirectoryVolume && strings.HasPrefix(s.ID, cluster.UserVolume) && slices.Contains(c.Machine.DisksWith("EPHEMERAL"), c.Machine.SystemDisk) {
			lost = append(lost, loss{name: s.ID, what: "volume " + s.ID + ", a directory on EPHEMERAL,"})
		}
	}
	for _, l := range slices.Concat(c.Found.Local, extensionData(c.Machine)) {
		listed := slices.ContainsFunc(lost, func(o loss) bool { return o.accepted([]string{l.Name}) })
		if !listed && onSystemDisk(c, l) {
			lost = append(lost, loss{name: l.Name, what: l.What, lift: l.Lift, command: l.Command})
		}
	}
	lost = append(lost, c.unseen...)
	args, _, _ := c.Machine.InstallArgs()
	for _, name := range c.AcceptLoss {
		if slices.ContainsFunc(args, func(arg string) bool { return name == kernelArg+cluster.ShownArg(arg) }) {
			continue
		}
		if !slices.ContainsFunc(lost, func(l loss) bool { return l.accepted([]string{name}) }) {
			unknown = append(unknown, name)
		}
	}
	return lost, unknown
}

// mislabelled lists partitions on persistent disks that Talos would treat as its own once the
// system disk is blank: it finds its volumes by their labels on any disk.
func mislabelled(c Candidate) []string {
	if c.Machine.SystemDisk == "" {
		return nil // the system disk is not proven: refused for that already
	}
	var out []string
	seen := map[string]int{}
	for _, v := range c.Machine.Volumes {
		stays := v.Disk != c.Machine.SystemDisk
		switch {
		case stays && v.Label == "META":
			out = append(out, fmt.Sprintf("%s carries a META partition (%s): the boot ISO would take Talos for installed and halt: %s", v.Disk, v.Device, putRight(c.Machine, v)))
		case stays && slices.Contains(cluster.SystemOnly, v.Label),
			stays && slices.Contains(cluster.TalosLabels, v.Label) && v.Phase == "" && !c.leavesAlone(v.Label):
			out = append(out, fmt.Sprintf("%s carries a %s partition (%s) that Talos does not use now and might use then: %s", v.Disk, v.Label, v.Device, putRight(c.Machine, v)))
		}
		managed := slices.Contains(cluster.TalosLabels, v.Label) || strings.HasPrefix(v.Label, cluster.UserVolume) || strings.HasPrefix(v.Label, cluster.RawVolume)
		if seen[v.Label]++; managed && seen[v.Label] == 2 {
			out = append(out, fmt.Sprintf("the label %s is there twice, on %s: %s", v.Label, strings.Join(c.Machine.DisksWith(v.Label), " and on "), tellApart(c.Machine, v.Label)))
		}
	}
	return out
}

// leavesAlone says whether the node's configuration makes the system volume a directory on EPHEMERAL: Talos then looks
// for no partition with its label (block.VolumeConfigController). A partition stays there if its document was dropped.
func (c Candidate) leavesAlone(label string) bool {
	s, shown := c.Machine.VolumeStatus(label)
	directory := shown && s.Type == cluster.DirectoryVolume
	if file := c.Found.File; file != nil {
		directory = directory && !slices.ContainsFunc(file.Volumes, func(v cluster.ConfigVolume) bool { return v.ID == label && v.Type != cluster.DirectoryVolume })
	}
	return directory && slices.Contains(cluster.OnPartition, label)
}

// putRight says what to do about a partition that Talos might take for its own. The partition is to be deleted only
// if nothing uses it, and nothing of worth can be on it.
func putRight(m cluster.Machine, v cluster.Volume) string {
	same, copied := cluster.Find(m.Volumes, func(o cluster.Volume) bool {
		return o.Disk != v.Disk && v.PartitionUUID != "" && o.SameContent(v)
	})
	switch {
	case copied:
		return fmt.Sprintf("it is the same as %s, so one disk is a copy of the other: find out which, and take the copy out of the VM while that is off", same.Device)
	case v.Phase != "" || v.Mount != "" || v.Format == cluster.FormatLVM || v.Format == cluster.FormatZFS:
		return "something uses it: find out what before you change it"
	case !slices.Contains(cluster.SystemOnly, v.Label):
		return "give that partition another label, which keeps what is on it"
	}
	return "delete that partition"
}

func tellApart(m cluster.Machine, label string) string {
	used := cluster.Where(m.Volumes, func(v cluster.Volume) bool { return v.Label == label && v.Phase == "ready" })
	if len(used) != 1 {
		return "find out which one is in use, and give the other one another label"
	}
	return fmt.Sprintf("Talos uses the one on %s: give the other one another label", used[0].Disk)
}

// onSystemDisk says whether data of the node is lost with the system disk. Data that is not proven to be on another
// disk counts as on the system disk.
func onSystemDisk(c Candidate, l cluster.LocalData) bool {
	if l.Path == "" {
		return !c.Machine.PoolElsewhere(l.Format, l.Group) && !c.Machine.BareSystemDisk()
	}
	at := path.Clean("/" + l.Path)
	if c.Machine.OnHost(at) {
		return false
	}
	on := c.Machine.DisksOf(at)
	return len(on) == 0 || c.Machine.SystemDisk == "" || slices.Contains(on, c.Machine.SystemDisk)
}

// sealed lists encrypted volumes that could not be opened afterwards: a key locked to STATE is lost
// with the system disk, and a key sealed to a TPM needs the state of that TPM.
func sealed(c Candidate) []string {
	var out []string
	tpm := c.VM.Config["tpmstate0"] != ""
	for _, e := range c.Machine.Encryption {
		on := c.Machine.DisksWith(e.Volume)
		stays := len(on) == 0 || slices.ContainsFunc(on, func(disk string) bool { return disk != c.Machine.SystemDisk })
		if e.LockToState && stays {
			out = append(out, fmt.Sprintf("volume %s is encrypted with lockToState and would be unreadable once STATE is gone: "+
				"add a key without lockToState and remove that one, or use in-place", e.Volume))
		}
		if slices.Contains(e.Keys, "tpm") && !tpm {
			out = append(out, fmt.Sprintf("volume %s is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: "+
				"add another key and remove that one, or use in-place", e.Volume))
		}
	}
	return out
}

type loss struct {
	name          string   // what acceptLoss calls it
	also          []string // other names for it
	what          string
	lift, command string // as in LocalData
}

func (l loss) accepted(names []string) bool {
	return slices.Contains(names, l.name) || slices.ContainsFunc(l.also, func(name string) bool { return slices.Contains(names, name) })
}

// extensionState is where official extensions keep what nobody can make again: the node's identity in a network of
// their own (each FILE.yaml in siderolabs/extensions, network/NAME/NAME.yaml). The other directories below /var
// that extensions write to, of soci-snapshotter, stargz-snapshotter, nvidia-fabricmanager, cachefilesd,
// iscsi-tools, nfs-utils and zfs, have caches, logs, and what the node's mounts make again.
var extensionState = map[string]struct{ path, what string }{
	"tailscale": {"/var/lib/tailscale", "its node key and login"},
	"zerotier":  {"/var/lib/zerotier-one", "its identity"},
	"netbird":   {"/var/lib/netbird", "its key and login"},
}

func extensionData(m cluster.Machine) (data []cluster.LocalData) {
	for _, e := range m.Extensions {
		if state, keeps := extensionState[e.Name]; keeps {
			data = append(data, cluster.LocalData{Name: "extension/" + e.Name, What: "state of extension " + e.Name + " (" + state.what + ", " + state.path + ")", Path: state.path})
		}
	}
	return data
}

// BringsConfig lists what in a build's image would configure a blank machine, and what to do about it.
func BringsConfig(b cluster.Build) []string { return cluster.Each(b.OwnConfig(), bringsConfig) }

func bringsConfig(what string) string {
	if what == cluster.EmbeddedConfig {
		return fmt.Sprintf("the schematic embeds a machine configuration, which %s: remove embeddedMachineConfiguration from it", would)
	}
	return fmt.Sprintf("the schematic's %s %s: remove it from the schematic", what, would)
}

// oneWay lists what the wanted image brings that the machine does not have yet, and that would prevent recreating
// or reimaging the machine from then on. The refusal of an upgrade in place uses the same words.
func (c Candidate) oneWay() []string {
	brings := c.Build.OwnConfig()
	if len(brings) == 0 {
		return nil
	}
	has := c.Machine.OwnConfig()
	brings = slices.DeleteFunc(brings, func(what string) bool { return slices.Contains(has, what) })
	return cluster.Each(brings, bringsConfig)
}

// omni says why Omni would undo an upgrade in place. An image without the kernel argument ends that.
func (c Candidate) omni() []string {
	var out []string
	for _, what := range c.Machine.OmniAfter(c.Build) {
		lift := "take the machine out of Omni, and the argument out of the schematic: in-place rolls to an image without it"
		switch {
		case what == cluster.OmniDocument:
			out = append(out, omniDocument)
			continue
		case !slices.ContainsFunc(c.Build.KernelArgs, cluster.GivesConfig):
			lift = "take the machine out of Omni, and the argument out of what its system is booted with (args of the VM, machine.install.extraKernelArgs)"
		}
		out = append(out, fmt.Sprintf("Omni looks after the machine (%s) and would undo this: %s", what, lift))
	}
	return out
}

func leavesOmni(c Candidate) []string {
	after := c.Machine.OmniAfter(c.Build)
	left := cluster.Where(c.Machine.Omni(), func(arg string) bool { return !slices.Contains(after, arg) })
	return cluster.Each(left, func(arg string) string {
		return fmt.Sprintf("its image no longer joins it to Omni (%s): remove the machine in Omni, too", arg)
	})
}

// keepsOmni says why Omni would undo a new system disk: the node gets back the configuration that joins it to Omni.
// If a kernel argument does that, preconfigured says so.
func (c Candidate) keepsOmni() []string {
	file := c.Found.File
	if !slices.Contains(c.Machine.Omni(), cluster.OmniDocument) || file != nil && file.Err == nil && !file.Omni {
		return nil
	}
	return []string{omniDocument}
}

const omniDocument = "Omni looks after the machine (" + cluster.OmniDocument + ") and would undo this: take the machine out of Omni, and that document out of its configuration (recast roll --what config)"

// SealedBy lists volumes that a configuration encrypts in such a way that the node could not be recreated or
// reimaged from then on, unless the running configuration already does so.
func (c Candidate) SealedBy(wanted []cluster.Encryption) []string {
	after := c
	after.Machine.Encryption = wanted
	has := sealed(c)
	return slices.DeleteFunc(sealed(after), func(text string) bool { return slices.Contains(has, text) })
}

const kernelArg = "kernel-arg/"

// AgainstArgs lists kernel arguments that the running kernel has from the machine configuration, and that the next
// kernel would not have: the loss would be silent, and without net.ifnames=0, say, the network card has another name.
func (c Candidate) AgainstArgs(s cluster.Strategy) []string {
	why := c.DropsArgs(c.VM, c.Machine, s)
	if why == "" {
		return nil
	}
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		shown := cluster.ShownArg(arg)
		if !slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, fmt.Sprintf("its kernel has %s from machine.install.extraKernelArgs, and the next one would not have it (%s): "+
				"add it to customization.extraKernelArgs of schematic %s and run recast lock --update, or name %s%s in nodes[].acceptLoss", shown, why, c.Schematic, kernelArg, shown))
		}
	}
	return out
}

func (c Candidate) argsAccepted(s cluster.Strategy) []string {
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		if shown := cluster.ShownArg(arg); c.DropsArgs(c.VM, c.Machine, s) != "" && slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, "its next kernel will not have "+shown)
		}
	}
	return out
}

func changes(c Candidate) []string {
	var out []string
	if replatformed(c) {
		out = append(out, fmt.Sprintf("platform %s → %s: network settings that are in neither its machine configuration nor DHCP will change", c.Machine.Platform, c.Build.Platform))
	}
	if securing(c) {
		out = append(out, "the boot ISO enrols its keys in the VM's firmware, which then boots signed systems only: the present one can't be put back if it is not signed")
	}
	return append(out, leavesOmni(c)...)
}

// misfit says why the wanted image can't run on the machine, or why the machine would not be reachable with it,
// whatever the strategy. What the machine does not say is no obstacle, except with an image that requires Secure Boot.
func misfit(c Candidate) []string {
	return slices.Concat(c.Found.Unsupported, otherArch(c), readdressed(c), unverifiable(c))
}

// unreadable says why the wanted Talos would not boot with the configuration that the node has, or gets back with a
// new system disk. A file that comes with a new system disk is checked by itself.
func (c Candidate) unreadable(newDisk bool) []string {
	err := c.Found.ConfigRefused
	if file := c.Found.File; err == nil || newDisk && file != nil && (file.Err != nil || file.Differs()) {
		return nil
	}
	return hinted(err)
}

// otherArch says how architectures differ. Only the locked architecture of an installer was verified, even if the
// installer has several.
func otherArch(c Candidate) []string {
	const text = "the images are for %s, and %s: set images.arch to %s, then recast lock"
	var out []string
	if arch := c.Machine.Arch; arch != "" && arch != c.Build.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the machine is "+arch, arch))
	}
	// Without that option a VM has its host's architecture (get_vm_arch in PVE/QemuServer.pm).
	if arch := c.VM.Arch(); arch != "" && arch != c.Build.Arch && arch != c.Machine.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the VM is arch="+c.VM.Config["arch"], arch))
	}
	return out
}

// readdressed says why a node would lose its address: nocloud reads it from Proxmox' cloud-init
// drive, the other platforms do not (internal/app/machined/pkg/runtime/v1alpha1/platform of Talos).
func readdressed(c Candidate) []string {
	if !replatformed(c) {
		return nil
	}
	fixed := c.VM.FixedAddress()
	if fixed == "" || c.Build.Platform == "nocloud" && strings.Contains(fixed, "="+c.Found.Addr.String()+"/") {
		return nil // both platforms give the same address
	}
	return []string{fmt.Sprintf("the VM's cloud-init drive gives a fixed address (%s), which platforms %s and %s do not both read: keep platform %s (images.platform), or have DHCP give the node its address and remove that",
		fixed, c.Machine.Platform, c.Build.Platform, c.Machine.Platform)}
}

func replatformed(c Candidate) bool {
	return c.Machine.Platform != "" && c.Machine.Platform != c.Build.Platform
}

func securing(c Candidate) bool { return c.Build.SecureBoot && !c.Machine.Secured() }

// unchangeable lists what an in-place upgrade can't change. Without systemd-boot the installer writes the running
// platform to GRUB's configuration (upgrade in v1alpha1_sequencer_tasks.go of Talos), and keys are only on the boot
// ISO.
func unchangeable(c Candidate) []string {
	var out []string
	if replatformed(c) && c.Machine.BootEntry == "" {
		out = append(out, fmt.Sprintf("systemd-boot did not boot it, and with GRUB in-place keeps platform %s: use recreate or reimage, or keep the platform (images.platform)", c.Machine.Platform))
	}
	if securing(c) {
		out = append(out, "Secure Boot is not on, and in-place enrols no keys: use recreate or reimage, whose boot ISO does")
	}
	return out
}

func unverifiable(c Candidate) []string {
	switch {
	case c.Machine.Secured() && !c.Build.SecureBoot:
		return []string{"its firmware boots only what is signed (Secure Boot), and the images are not: set images.secureBoot to true, then recast lock, or turn Secure Boot off in its firmware first"}
	case !securing(c):
		return nil
	}
	lacks := c.VM.LacksSecureBoot()
	if lacks == "" {
		return nil
	}
	return []string{fmt.Sprintf("Secure Boot needs bios=ovmf and an efidisk0 with efitype=4m and without keys of others (pre-enrolled-keys=0), but %s: change that, or set images.secureBoot to false, then recast lock", lacks)}
}

// customised lists parts of cicustom with which a new VM might not start, or might have another address. Proxmox
// does not start a VM without these files (PVE/QemuServer/Cloudinit.pm, read_cloudinit_snippets_file), and a
// network file may say what the machine never used.
func customised(c Candidate) []cluster.Obstacle {
	var out obstacles
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		kind, volid, _ := strings.Cut(part, "=")
		storage, _, _ := strings.Cut(volid, ":")
		switch {
		case kind == "" || kind == "user": // none, or refused elsewhere
		case kind == "network":
			out.add("", "the VM has cicustom (%s), whose content recast can't read: remove it, or use reimage", part)
		case !slices.Contains(c.Found.Ties.Snippets, volid):
			out.add(keepCustom(c), "the VM has cicustom (%s), without which file a new VM would not start, and the token does not see it: grant it Datastore.Allocate on /storage/%s, "+
				"or remove that part, with which Talos' platform metadata goes; or use reimage", part, storage)
		}
	}
	return out
}

// keepCustom returns the command that leaves in cicustom what a new VM can have, and the network part, which may
// make the machine reachable.
func keepCustom(c Candidate) string {
	gone := []string{"user"}
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		if kind, volid, _ := strings.Cut(part, "="); kind != "network" && !slices.Contains(c.Found.Ties.Snippets, volid) {
			gone = append(gone, kind)
		}
	}
	return c.VM.WithoutCustom(gone...)
}

// missingBoot lists devices in the boot order that the VM does not have. Proxmox accepts such an order on create
// but not on update ("invalid bootorder", API2/Qemu.pm, update_vm_api): the order could not be restored.
func missingBoot(c Candidate) []cluster.Obstacle {
	var out obstacles
	order := cluster.BootDevices(c.VM.Config["boot"])
	have := slices.DeleteFunc(slices.Clone(order), func(key string) bool { return c.VM.Config[key] == "" })
	for _, key := range order {
		if _, there := c.VM.Config[key]; !there {
			out.add(fmt.Sprintf("qm set %d --boot %s", c.VM.ID, words.Quote("order="+strings.Join(have, ";"))),
				"its boot order names %s, which the VM does not have: set the boot order again", key)
		}
	}
	return out
}

func unwritable(c Candidate) []cluster.Obstacle {
	out := c.rawDevices()
	add := func(key, format string, args ...any) {
		o := cluster.Obstacle{Text: fmt.Sprintf(format, args...)}
		if o.Command = c.VM.MapDevice(key, c.VM.Config[key]); slices.Contains(spared, key) {
			o.Command = fmt.Sprintf("qm set %d --delete %s", c.VM.ID, key)
		}
		out = append(out, o)
	}
	for _, key := range c.VM.ForRoot(c.Found.Ties.HostArch) {
		add(key, "its setting %s can only be written by root@pam: use a resource mapping where there is one, or reimage", key)
	}
	for key, value := range c.VM.Config {
		switch {
		case slices.Contains(cluster.RootOnly, key) || cluster.RawDevice(key, value): // reported above
		case !cluster.IsDiskKey(key) && cluster.NumberedBus(key) == "" && !slices.Contains(carried, key) && !slices.Contains(hidden, key) && !slices.Contains(cluster.NeverCarried, key):
			add(key, "recast does not know its setting %s, so whether a new VM can be given it can't be determined: remove it, or use reimage", key)
		}
	}
	out = append(out, customised(c)...)
	if c.VM.Config["cipassword"] != "" {
		add("cipassword", "the VM has cipassword, which Proxmox never shows: remove it, or use reimage")
	}
	slices.SortFunc(out, func(a, b cluster.Obstacle) int { return strings.Compare(a.Text, b.Text) })
	return out
}

var // carried are settings that a new VM gets as the old one had them. Some need
// privileges of their own: see Needs.config.
carried = []string{
	"acpi", "agent", "allow-ksm", "audio0", "autostart", "balloon", "bios", "boot", "bootdisk", "citype", "ciupgrade", "ciuser", "cores",
	"cpu", "cpulimit", "cpuunits", "description", "freeze", "hotplug", "keyboard", "kvm", "localtime", "machine", "memory",
	"migrate_downtime", "migrate_speed", "name", "nameserver", "numa", "onboot", "ostype", "protection", "reboot", "rng0", "scsihw",
	"searchdomain", "shares", "smbios1", "smp", "sockets", "sshkeys", "startdate", "startup", "tablet", "tags", "tdf", "template", "vcpus",
	"vga", "vmstatestorage", "watchdog",
}

var // hidden are settings whose value does not show what they set.
hidden = []string{"cicustom", "cipassword"}

// spared are settings that make no difference to a Talos machine: if such a setting is an obstacle, a command may
// remove it. Removing args or a passed-through device makes another machine.
var spared = []string{"affinity", "cipassword", "hookscript"}
