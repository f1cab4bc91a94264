package strategy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Entangled lists disks that do not belong to the node alone.
func (c Candidate) Entangled() []cluster.Obstacle {
	var out []cluster.Obstacle
	add := func(format string, args ...any) {
		out = append(out, cluster.Obstacle{Text: fmt.Sprintf(format, args...)})
	}
	for _, d := range c.Disks {
		if d.Flag("snapshot") {
			add("%s", thrownAway(d.Key))
		}
		switch {
		case d.CDROM && !d.CloudInit():
			if why := strangeMedium(c, d); why != "" {
				add("%s", why)
			}
			continue
		case d.OfHost() && d.Key == c.System.Key:
			add("the system disk %s is a device of the host (%s), which can't be parked: give the node a volume for it, or use in-place", d.Key, d.Volid)
			continue
		case d.OfHost(): // stays with a VM that stays
		case d.LikeCSI() && d.Owner != c.VM.ID && d.Owner != c.Holder:
			out = append(out, d.Unclaimed(c.VM))
			continue
		case d.Owner == 0:
			add("%s (%s) carries no VM's number, so its owner is unknown: give the node a volume instead", d.Key, d.Volid)
		case d.Owner == c.VM.ID:
		case d.Owner != c.Holder && !exists(c, d.Owner):
			add("%s (%s) carries the number of VM %d, which does not exist: reassign it to VM %d",
				d.Key, d.Volid, d.Owner, c.VM.ID)
		case d.Owner != c.Holder:
			add("%s (%s) belongs to VM %d: name that as nodes[].holder, or reassign the disk to VM %d", d.Key, d.Volid, d.Owner, c.VM.ID)
		case exists(c, d.Owner) && heldElsewhere(c, d):
			add("%s (%s) carries the number of its holder, VM %d, but that is on another host and storage %s is not shared: what the holder has under that name is another volume. Reassign this one to VM %d",
				d.Key, d.Volid, d.Owner, d.Storage(), c.VM.ID)
		case d.Key == c.System.Key:
			add("the system disk %s (%s) belongs to the holder, VM %d: reassign it to VM %d", d.Key, d.Volid, d.Owner, c.VM.ID)
		}
	}
	if c.Holder != 0 && !exists(c, c.Holder) {
		add("its holder, VM %d, does not exist: correct nodes[].holder", c.Holder)
	}
	return out
}

// Immovable lists disks that must be parked but whose storages can't do that.
func (c Candidate) Immovable(s cluster.Strategy) []string {
	var out []string
	for _, d := range parkedDisks(c.Disks, c.VM.ID, s, c.System.Key) {
		i := slices.IndexFunc(c.Observation.Storages, func(s cluster.Storage) bool { return s.Name == d.Storage() })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s, which Proxmox does not list: grant the token Datastore.Audit there",
				d.Key, d.Volid, d.Storage()))
		case !slices.Contains(cluster.Reassigns, c.Observation.Storages[i].Type):
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s of type %s, which can't give a disk to another VM: move it to another storage",
				d.Key, d.Volid, d.Storage(), c.Observation.Storages[i].Type))
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
		return []string{strings.Join(append([]string{err.Error()}, fault.Hints(err)...), ": ")}
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
	var out []cluster.Obstacle
	for _, d := range c.Disks {
		if d.OfHost() && !d.CDROM && d.Key != c.System.Key {
			out = append(out, cluster.Obstacle{Text: fmt.Sprintf("%s is a device of the host (%s), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage", d.Key, d.Volid)})
		}
	}
	return out
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

// unprovable lists persistent disks that can't be proven to come back to a new VM.
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

// leftOut says whether replication skips a disk that Proxmox would nevertheless give back to a VM
// with a job.
func leftOut(c Candidate, d cluster.Disk) bool {
	on, said := cluster.ParseBoolean(d.Option("replicate"))
	return said && !on && onLocalZFS(c, d)
}

// onLocalZFS says whether a disk is on local ZFS, the only storage that can replicate (pve-storage,
// storage_can_replicate).
func onLocalZFS(c Candidate, d cluster.Disk) bool {
	return slices.ContainsFunc(c.Observation.Storages, func(s cluster.Storage) bool { return s.Name == d.Storage() && s.Type == "zfspool" && !s.Shared })
}
