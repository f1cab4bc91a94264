package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// reassigns are the types of storage that can give a volume to another VM:
// those whose plugin has the feature "rename" (pve-storage, volume_has_feature
// in PVE/Storage/*Plugin.pm). ZFS over iSCSI ("zfs") and iSCSI itself have not,
// CephFS holds no disks, and what is not known here can't be relied upon.
var reassigns = []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"}

// immovable are disks that would have to be parked, on storages that can't do it.
func (c candidate) immovable(s Strategy) []string {
	var out []string
	for _, d := range parkedDisks(c.disks, c.vm.ID, s, c.system.Key) {
		i := slices.IndexFunc(c.world.Storages, func(s Storage) bool { return s.Name == d.Storage() })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s, which Proxmox does not list: grant the token Datastore.Audit there",
				d.Key, d.Volid, d.Storage()))
		case !slices.Contains(reassigns, c.world.Storages[i].Type):
			out = append(out, fmt.Sprintf("%s (%s) is on storage %s of type %s, which can't give a disk to another VM: move it to another storage",
				d.Key, d.Volid, d.Storage(), c.world.Storages[i].Type))
		}
	}
	return out
}

// entangled are disks that are not the node's alone.
func (c candidate) entangled() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, d := range c.disks {
		switch {
		case d.CDROM && !d.CloudInit():
			continue
		case strings.HasPrefix(d.Volid, "/"):
			add("%s is a device of the host (%s), which only root@pam can attach: give the node a volume instead", d.Key, d.Volid)
			continue
		case d.Owner == 0:
			add("%s (%s) carries no VM's number, so nobody can say whose it is: give the node a volume instead", d.Key, d.Volid)
		case d.Owner == c.vm.ID:
		case d.Owner != c.Holder && !c.exists(d.Owner):
			add("%s (%s) carries the number of VM %d, which does not exist: reassign it to VM %d",
				d.Key, d.Volid, d.Owner, c.vm.ID)
		case d.Owner != c.Holder:
			add("%s (%s) belongs to VM %d: name that as nodes[].holder, or reassign the disk to VM %d", d.Key, d.Volid, d.Owner, c.vm.ID)
		case d.Key == c.system.Key:
			add("the system disk %s (%s) belongs to the holder, VM %d: reassign it to VM %d", d.Key, d.Volid, d.Owner, c.vm.ID)
		}
		if others := c.otherUsers(d); len(others) > 0 {
			add("%s (%s) is used in more than one place: detach it from %s", d.Key, d.Volid, strings.Join(others, ", "))
		}
	}
	if c.Holder != 0 && !c.exists(c.Holder) {
		add("its holder, VM %d, does not exist: correct nodes[].holder", c.Holder)
	}
	return out
}

func (c candidate) exists(id VMID) bool {
	return slices.ContainsFunc(c.world.VMs, func(vm VM) bool { return vm.ID == id })
}

// otherUsers lists where a disk is named beside its own key. The one name that
// another owner has for it is none of them: that one is the holder, or is refused as such.
func (c candidate) otherUsers(d Disk) []string {
	own := place(c.vm.ID, d.Key)
	users := slices.DeleteFunc(referencedBy(d.Volid, c.world.VMs), func(user string) bool { return user == own })
	if d.Owner == c.vm.ID {
		return users
	}
	for _, vm := range c.world.VMs {
		if held := referencedBy(d.Volid, []VM{vm}); vm.ID == d.Owner && len(held) == 1 {
			return slices.DeleteFunc(users, func(user string) bool { return user == held[0] })
		}
	}
	return users
}

// referencedBy lists every place in the whole Proxmox cluster that names a volume.
func referencedBy(volid string, vms []VM) []string {
	var out []string
	for _, vm := range vms {
		for key, value := range vm.Config {
			if d, err := ParseDisk(key, value); err == nil && d.Volid == volid {
				out = append(out, place(vm.ID, key))
			}
		}
	}
	slices.Sort(out)
	return out
}

func place(vm VMID, key string) string { return fmt.Sprintf("%s of VM %d", key, vm) }

// unnamable are persistent disks that a new VM could not be proven to have got back.
func (c candidate) unnamable() []string {
	var out []string
	if c.systemErr != nil {
		return nil // which of them are persistent is not known, and that is refused already
	}
	for _, d := range c.disks {
		if d.Bootable() && d.Key != c.system.Key && d.Option("serial") == "" {
			out = append(out, fmt.Sprintf("persistent disk %s has no serial, so the new VM could not prove that it got it back: add serial= to it, or use reimage", d.Key))
		}
	}
	return out
}
