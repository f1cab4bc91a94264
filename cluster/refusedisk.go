package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// reassigns are the types of storage that can give a volume to another VM:
// those whose plugin has the feature "rename" (pve-storage, volume_has_feature
// in PVE/Storage/*Plugin.pm). ZFS over iSCSI ("zfs") and iSCSI itself have not,
// CephFS holds no disks, and what is not known here can't be relied upon.
var reassigns = []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"}

// Immovable are disks that would have to be parked, on storages that can't do it.
func (c Candidate) Immovable(s Strategy) []string {
	var out []string
	for _, d := range parkedDisks(c.Disks, c.VM.ID, s, c.System.Key) {
		i := slices.IndexFunc(c.Observation.Storages, func(s Storage) bool { return s.Name == d.Storage() })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s, which Proxmox does not list: grant the token Datastore.Audit there",
				d.Key, d.Volid, d.Storage()))
		case !slices.Contains(reassigns, c.Observation.Storages[i].Type):
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s of type %s, which can't give a disk to another VM: move it to another storage",
				d.Key, d.Volid, d.Storage(), c.Observation.Storages[i].Type))
		case d.Key == c.System.Key && d.Option("model") != "":
			// The one option that a drive on another bus has and a SCSI drive has not
			// (PVE/QemuServer/Drive.pm): Proxmox would not move it.
			out = append(out, fmt.Sprintf("the system disk %s has the option model=, which the SCSI drive that it is parked as can't have: remove it", d.Key))
		}
	}
	return out
}

// Entangled are disks that are not the node's alone.
func (c Candidate) Entangled() []Obstacle {
	var out []Obstacle
	add := func(format string, args ...any) { out = append(out, Obstacle{Text: fmt.Sprintf(format, args...)}) }
	for _, d := range c.Disks {
		if d.Flag("snapshot") {
			add("%s", thrownAway(d.Key))
		}
		switch {
		case d.CDROM && !d.CloudInit():
			if why := c.strangeMedium(d); why != "" {
				add("%s", why)
			}
			continue
		case d.ofHost() && d.Key == c.System.Key:
			add("the system disk %s is a device of the host (%s), which can't be parked: give the node a volume for it, or use in-place", d.Key, d.Volid)
			continue
		case d.ofHost(): // stays with a VM that stays
		case d.LikeCSI() && d.Owner != c.VM.ID && d.Owner != c.Holder:
			out = append(out, d.unclaimed(c.VM))
			continue
		case d.Owner == 0:
			add("%s (%s) carries no VM's number, so nobody can say whose it is: give the node a volume instead", d.Key, d.Volid)
		case d.Owner == c.VM.ID:
		case d.Owner != c.Holder && !c.exists(d.Owner):
			add("%s (%s) carries the number of VM %d, which does not exist: reassign it to VM %d",
				d.Key, d.Volid, d.Owner, c.VM.ID)
		case d.Owner != c.Holder:
			add("%s (%s) belongs to VM %d: name that as nodes[].holder, or reassign the disk to VM %d", d.Key, d.Volid, d.Owner, c.VM.ID)
		case c.exists(d.Owner) && c.heldElsewhere(d):
			add("%s (%s) carries the number of its holder, VM %d, but that is on another host and storage %s is not shared: what the holder has under that name is another volume. Reassign this one to VM %d",
				d.Key, d.Volid, d.Owner, d.Storage(), c.VM.ID)
		case d.Key == c.System.Key:
			add("the system disk %s (%s) belongs to the holder, VM %d: reassign it to VM %d", d.Key, d.Volid, d.Owner, c.VM.ID)
		}
		if others := c.OtherUsers(d); len(others) > 0 {
			add("%s (%s) is used in more than one place: detach it from %s", d.Key, d.Volid, strings.Join(others, ", "))
		}
	}
	if c.Holder != 0 && !c.exists(c.Holder) {
		add("its holder, VM %d, does not exist: correct nodes[].holder", c.Holder)
	}
	return out
}

// strangeMedium is what is in a CD drive and is no ISO. The boot ISO would take
// its place for good; a disk image would lose its only name, since a delete
// leaves CD media alone (PVE/QemuServer.pm, destroy_vm).
func (c Candidate) strangeMedium(d Disk) string {
	switch {
	case d.Volid == "cdrom" || d.ofHost():
		return fmt.Sprintf("%s is a CD drive of the host (%s), which recast can't give back: take it out of the VM", d.Key, d.Volid)
	case d.Owner != 0:
		return fmt.Sprintf("%s has a disk image for a CD (%s): attach it as a disk, or take it out of the VM", d.Key, d.Volid)
	}
	return ""
}

// thrownAway is QEMU's snapshot mode (PVE/QemuServer/Drive.pm): such a drive
// forgets at every stop what was written since the start, and a roll stops the VM.
func thrownAway(what string) string {
	return what + " has snapshot=1, so what is written to it is thrown away when the VM stops: remove that option, and restart the VM once"
}

func (c Candidate) exists(id VMID) bool {
	_, away := c.Observation.Away.VM(id)
	return away || slices.ContainsFunc(c.Observation.VMs, func(vm VM) bool { return vm.ID == id })
}

// heldElsewhere says whether a holder's disk is on a host that the holder is not
// on, where nobody else can mean it.
func (c Candidate) heldElsewhere(d Disk) bool {
	return c.Observation.local(d.Storage()) && !slices.ContainsFunc(c.Observation.namesakes(c.VM, d.Storage()), func(vm VM) bool { return vm.ID == d.Owner })
}

// OtherUsers lists where a disk is to be taken away from, since it is named there
// beside its own key. The name that its owner has for it is none of them: another
// owner is the holder, or is refused as such.
func (c Candidate) OtherUsers(d Disk) []string {
	own, vms := PlaceOf(c.VM.ID, d.Key), c.Observation.namesakes(c.VM, d.Storage())
	users := slices.DeleteFunc(ReferencedBy(d.Volid, vms), func(user string) bool { return user == own })
	i := slices.IndexFunc(vms, func(vm VM) bool { return vm.ID == d.Owner })
	if i < 0 || len(users) == 0 {
		return users
	}
	owner := vms[i]
	keys := UsersOf(d.Volid, owner)
	if len(keys) > 0 && (d.Owner != c.VM.ID || d.Detached()) {
		stays := PlaceOf(owner.ID, keys[max(0, slices.IndexFunc(keys, func(key string) bool { return !(Disk{Key: key}).Detached() }))])
		users = slices.DeleteFunc(users, func(user string) bool { return user == stays })
	}
	for _, key := range keys {
		if at := slices.Index(users, PlaceOf(owner.ID, key)); at >= 0 && (Disk{Key: key}).Detached() {
			users[at] += fmt.Sprintf(" (by taking its line out of /etc/pve/nodes/%s/qemu-server/%d.conf: qm set --delete %s would free the volume for good)", owner.Host, owner.ID, key)
		}
	}
	return users
}

// ReferencedBy lists every place in these VMs that names a volume.
func ReferencedBy(volid string, vms []VM) []string {
	var out []string
	for _, vm := range vms {
		for key, value := range vm.Config {
			if !strings.Contains(value, volid) {
				continue // to take every value apart would cost the square of the VMs
			}
			if d, err := ParseDisk(key, value); err == nil && d.Volid == volid {
				out = append(out, PlaceOf(vm.ID, key))
			}
		}
	}
	slices.Sort(out)
	return out
}

func PlaceOf(vm VMID, key string) string { return fmt.Sprintf("%s of VM %d", key, vm) }

// Untellable are persistent volumes that could not be looked for in the new machine.
func (c Candidate) Untellable() []string {
	if c.SystemErr != nil || c.DisksErr != nil {
		return nil // which of them are persistent is not known, and that is refused already
	}
	drives := slices.DeleteFunc(slices.Clone(c.Disks), func(d Disk) bool { return !d.Bootable() })
	if _, err := PersistentVolumes(c.VM, drives, c.Machine, c.System); err != nil {
		return []string{strings.Join(append([]string{err.Error()}, fault.Hints(err)...), ": ")}
	}
	return nil
}

// ofHost says whether the drive is a device or a file of the host, by its path.
func (d Disk) ofHost() bool { return strings.HasPrefix(d.Volid, "/") }

// rawDevices are drives that a token can't give to a new VM (API2/Qemu.pm, check_storage_access).
func (c Candidate) rawDevices() []Obstacle {
	var out []Obstacle
	for _, d := range c.Disks {
		if d.ofHost() && !d.CDROM && d.Key != c.System.Key {
			out = append(out, Obstacle{Text: fmt.Sprintf("%s is a device of the host (%s), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage", d.Key, d.Volid)})
		}
	}
	return out
}

// unprovable are persistent disks that a new VM could not be proven to have got back.
func (c Candidate) unprovable() []Obstacle {
	if c.SystemErr != nil || c.DisksErr != nil || len(c.Untellable()) > 0 {
		return nil // what is refused already would only be said in other words
	}
	out, err := Unprovable(c.VM, c.Machine, c.System.Key)
	if err != nil {
		return inWords([]string{err.Error()})
	}
	return out
}
