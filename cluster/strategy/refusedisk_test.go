package strategy

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

func TestReplacingEntangledDisksIsImpossible(t *testing.T) {
	t.Parallel()
	hold := func(value string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi4"] = "fast:vm-200-disk-0,serial=held"
			o.VMs[1].Config["scsi1"] = value
		}
	}
	held := hold("fast:vm-200-disk-0,serial=held")
	ofPod := func(volid string) func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			set("scsi4", volid)(w, f, o)
			f.VM.Pods = []string{volid}
		}
	}
	check(t, map[string]refusalCase{
		"a holder's disk":                       {change: held},
		"a holder's disk that it does not name": {change: hold("none,media=cdrom")},
		"the same ISO in many VMs": {change: func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs[1].Config["ide2"] = "isos:iso/debian.iso,media=cdrom"
		}},
		"another VM's disk": both(set("scsi4", "fast:vm-200-disk-0,serial=held"),
			"scsi4 (fast:vm-200-disk-0) belongs to VM 200: name that as nodes[].holder, or reassign the disk to VM 9002"),
		"a disk of no VM that exists": both(set("scsi4", "fast:vm-9999-disk-0,serial=x"),
			"scsi4 (fast:vm-9999-disk-0) carries the number of VM 9999, which does not exist: reassign it to VM 9002"),
		"a disk of a pod": {change: ofPod("csi:vm-9999-pvc-1a2b")},
		"a disk of a pod that is named like any other": {change: ofPod("csi:vm-9999-disk-0")},
		"a disk that is named as a pod's": both(set("scsi4", "csi:vm-9999-pvc-1a2b"),
			"scsi4 (csi:vm-9999-pvc-1a2b) is named as a pod's volume, but no PersistentVolume that Kubernetes tells of has it, so no drain takes it away: "+
				"have Kubernetes answer, or make its PersistentVolume again; or, if it is not needed here, take it out of VM 9002, which keeps the volume, after kubectl drain: qm shutdown 9002 && qm set 9002 --delete scsi4 && qm start 9002"),
		"a disk without an owner": both(set("scsi4", "san:0.0.1.scsi-3600,serial=x"),
			"scsi4 (san:0.0.1.scsi-3600) carries no VM's number, so its owner is unknown: give the node a volume instead"),
		"no such holder": both(func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.Holder = 201 },
			"its holder, VM 201, does not exist: correct nodes[].holder"),
		"the system disk is a holder's": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi0"] = "fast:vm-200-disk-0,serial=sys,size=10G"
		}, "the system disk scsi0 (fast:vm-200-disk-0) belongs to the holder, VM 200: reassign it to VM 9002"),
		"a persistent disk that forgets": both(set("scsi1", "fast:vm-9002-disk-1,serial=data,size=20G,snapshot=1"), forgets("scsi1")),
		"a system disk that forgets": {
			change:   set("scsi0", "fast:vm-9002-disk-0,serial=sys,size=10G,snapshot=on"),
			recreate: forgets("scsi0"), reimage: forgets("scsi0"), inPlace: forgets("system disk scsi0"),
		},
		"a disk that does not": {change: set("scsi1", "fast:vm-9002-disk-1,serial=data,size=20G,snapshot=0")},
		"a disk image for a CD": both(set("ide2", "bulk:9002/vm-9002-disk-5.raw,media=cdrom"),
			"ide2 has a disk image for a CD (bulk:9002/vm-9002-disk-5.raw), which nothing else names: attach it as a disk"),
		"a host's CD drive": both(set("ide2", "cdrom,media=cdrom"), "ide2 is a CD drive of the host (cdrom), which recast can't give back: take it out of the VM"),
		"a host's file for a CD": both(set("ide2", "/dev/sr0,media=cdrom"),
			"ide2 is a CD drive of the host (/dev/sr0), which recast can't give back: take it out of the VM"),
		"an empty CD drive": {change: set("ide2", "none,media=cdrom")},
		"a drive that can't be read": {
			change:   set("scsi9", "serial=x"),
			recreate: unreadDrive, reimage: unreadDrive,
		},
	})
}

func TestReplacingWithADeviceOfTheHost(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"a device of the host": {
			change:   set("scsi4", "/dev/disk/by-id/ata-x,serial=x"),
			recreate: "scsi4 is a device of the host (/dev/disk/by-id/ata-x), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage",
		},
		"a device of another host's name": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.VM.Config["scsi4"] = "/dev/sdb,serial=x"
				o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve2", Config: map[string]string{"scsi4": "/dev/sdb"}})
			},
			recreate: "scsi4 is a device of the host (/dev/sdb), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage",
		},
		"a LUN of two hosts": {
			change: func(_ *cluster.Wanted, f *observe.Found, o *observe.Observation) {
				f.VM.Config["scsi4"] = "/dev/disk/by-id/wwn-0x1,serial=x"
				o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve2", Config: map[string]string{"scsi4": "/dev/disk/by-id/wwn-0x1"}})
			},
			recreate: lunOfTwo, reimage: lunOfTwo, inPlace: lunOfTwo,
		},
		"the system disk is a device of the host": both(set("scsi0", "/dev/disk/by-id/ata-x,serial=sys,size=10G"),
			"the system disk scsi0 is a device of the host (/dev/disk/by-id/ata-x), which can't be parked: give the node a volume for it, or use in-place"),
	})
}

const lunOfTwo = "the volume of scsi4 is also scsi4 of VM 300: qm set 300 --delete scsi4 (VM 300 is on pve2) keeps the volume"

func forgets(what string) string {
	return what + " has snapshot=1, so what is written to it is thrown away when the VM stops: remove that option, and restart the VM once"
}

// The system disk can't be proven in such a VM either.
const unreadDrive = `VM 9002 "wk1" on pve1: scsi9: no volume in "serial=x"` + "\n" +
	`VM 9002 "wk1" on pve1: scsi9: no volume in "serial=x": correct the VM's configuration`

func TestReplacingAnUnprovenSystemDiskIsImpossible(t *testing.T) {
	t.Parallel()
	check(t, map[string]refusalCase{
		"not named": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.SystemDisk = "" },
			`VM 9002 "wk1" on pve1: system disk can't be proven: the machine does not name it: `+cluster.NameDrives(cluster.VM{ID: 9002})),
		"not what the user says": both(func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.SystemDisk = "scsi1" },
			`VM 9002 "wk1" on pve1: system disk can't be proven: the configuration says scsi1, but the machine runs from scsi0 (serial sys): correct or remove nodes[].systemDisk.slot`),
	})
}

func TestParkingOnAStorageThatCannotReassign(t *testing.T) {
	t.Parallel()
	typed := func(storage, kind string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			i := slices.IndexFunc(o.Storages, func(s cluster.Storage) bool { return s.Name == storage })
			o.Storages[i].Type = kind
		}
	}
	const (
		bulk = "virtio3 (bulk:9002/vm-9002-disk-2.raw) is on storage bulk of type "
		cant = ", which can't give a disk to another VM: move it to another storage"
		sys  = "scsi0 (fast:vm-9002-disk-0) is on storage fast of type iscsidirect" + cant
	)
	cases := map[string]refusalCase{
		"a persistent disk on ZFS over iSCSI": {change: typed("bulk", "zfs"), recreate: bulk + "zfs" + cant},
		"a persistent disk on a plugin":       {change: typed("bulk", "linstor"), recreate: bulk + "linstor" + cant},
		"the system disk": {
			change:  typed("fast", "iscsidirect"),
			reimage: sys,
			recreate: "efidisk0 (fast:vm-9002-disk-3) is on storage fast of type iscsidirect" + cant + "\n" + sys + "\n" +
				"scsi1 (fast:vm-9002-disk-1) is on storage fast of type iscsidirect" + cant + "\n" +
				"unused0 (fast:vm-9002-disk-7) is on storage fast of type iscsidirect" + cant,
		},
		"a storage that is not listed": {
			change:   func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) { o.Storages = o.Storages[1:] },
			recreate: "virtio3 (bulk:9002/vm-9002-disk-2.raw) is on storage bulk, which Proxmox does not list: grant the token Datastore.Audit there",
		},
		"a system disk with a model": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Config["ide1"] = "fast:vm-9002-disk-0,serial=sys,size=10G,model=ACME"
			delete(f.VM.Config, "scsi0")
		}, "the system disk ide1 has the option model=, which the SCSI drive that it is parked as can't have: remove it"),
		"a holder's disk is not parked": {change: func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Holder = 200
			f.VM.Config["scsi4"] = "san:vm-200-disk-0,serial=held"
		}},
	}
	for _, kind := range []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"} {
		cases[kind] = refusalCase{change: typed("bulk", kind)}
	}
	check(t, cases)
}
