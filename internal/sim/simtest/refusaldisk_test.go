package simtest

import (
	"bytes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	wk1SystemDrive = wk1System + ",iothread=1,discard=on,ssd=1,serial=sys-wk1"
	rawDisk        = "/dev/disk/by-id/nvme-1"
)

// diskRefusals are drives that can't be moved, or could be the wrong ones.
func diskRefusals() []refusal {
	entangled := func(name string, bring edit, lift edit, reasons ...string) refusal {
		return refusal{name: name, bring: bring, lift: lift, both: reasons}
	}
	return append([]refusal{
		entangled("LUN", func(l *Lab) {
			l.World.AddStorage(world.Storage{ID: "san", Type: "iscsi", Shared: true, Content: []string{"images"}})
			must(l.t, l.World.AddLUN("san", "pve1", "0.0.1.scsi-36001405a", 1<<30, world.NewMedia(nil)))
			change("scsi2=san:0.0.1.scsi-36001405a,serial=lun-1")(l)
		}, remove("scsi2"), "scsi2 (san:0.0.1.scsi-36001405a) carries no VM's number, so its owner is unknown: give the node a volume instead"),
		{
			name: "device of the host", bring: func(l *Lab) {
				l.World.AddDevice("pve1", rawDisk, 1<<30, world.NewMedia(nil))
				change("scsi2=" + rawDisk + ",serial=nvme-1")(l)
			}, lift: remove("scsi2"),
			also: []string{"scsi2 is a device of the host (" + rawDisk + "), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage"},
		},
		entangled("data disk in two VMs", func(l *Lab) { l.DefineVM(9050, map[string]string{"name": "copy", "scsi0": wk1Data}) },
			func(l *Lab) { l.configure(world.ChangeRequest{ID: 9050, Delete: []string{"scsi0"}}) },
			"scsi1 ("+wk1Data+") is used in more than one place: detach it from scsi0 of VM 9050"),
		entangled("system disk in two VMs", func(l *Lab) { l.configure(world.ChangeRequest{ID: 9050, Set: map[string]string{"scsi3": wk1System}}) },
			func(l *Lab) { l.configure(world.ChangeRequest{ID: 9050, Delete: []string{"scsi3"}}) },
			"scsi0 ("+wk1System+") is used in more than one place: detach it from scsi3 of VM 9050"),
		entangled("disk under two keys", change("scsi2="+wk1Data+",serial=again"), remove("scsi2"),
			"scsi1 ("+wk1Data+") is used in more than one place: detach it from scsi2 of VM 9031",
			"scsi2 ("+wk1Data+") is used in more than one place: detach it from scsi1 of VM 9031",
			"the label u-data is there twice, on sdb and on sdc: relabel or delete what is not in use"),
		{
			name: "foreign disk", bring: func(l *Lab) {
				l.DefineVM(9051, map[string]string{"name": "data", "scsi0": "fast:1,serial=foreign"})
				change("scsi2=fast:9051/vm-9051-disk-0.raw,serial=foreign")(l)
			},
			both: []string{"scsi2 (fast:9051/vm-9051-disk-0.raw) belongs to VM 9051: name that as nodes[].holder, or reassign the disk to VM 9031"},
			lift: configuration("{name: wk1,", "{name: wk1, holder: 9051,"), undo: remove("scsi2"),
		},
		entangled("disk of nobody", func(l *Lab) {
			must(l.t, l.World.AddLUN("fast", "pve1", "9052/vm-9052-disk-0.raw", 1<<30, world.NewMedia(nil)))
			change("scsi2=fast:9052/vm-9052-disk-0.raw,serial=orphan")(l)
		}, remove("scsi2"), "scsi2 (fast:9052/vm-9052-disk-0.raw) carries the number of VM 9052, which does not exist: reassign it to VM 9031"),
		entangled("holder that does not exist", configuration("{name: wk1,", "{name: wk1, holder: 9999,"), configuration(" holder: 9999,", ""),
			"its holder, VM 9999, does not exist: correct nodes[].holder"),
		entangled("system disk of the holder", func(l *Lab) {
			l.DefineVM(9053, map[string]string{"name": "holder"})
			configuration("{name: wk1,", "{name: wk1, holder: 9053,")(l)
			whileOff(reassign(wk1, "scsi0", 9053, "scsi5"), change("scsi0=fast:9053/vm-9053-disk-0.raw,serial=sys-wk1"), change("boot=order=scsi0;ide2"))(l)
		}, whileOff(remove("scsi0"), reassign(9053, "scsi5", wk1, "scsi0"), change("boot=order=scsi0;ide2"), change("scsi0="+wk1SystemDrive)),
			"the system disk scsi0 (fast:9053/vm-9053-disk-0.raw) belongs to the holder, VM 9053: reassign it to VM 9031"),
		{
			name: "disk of a storage driver", bring: func(l *Lab) {
				must(l.t, l.World.AddLUN("fast", "pve1", "9999/vm-9999-pvc-0b5f.raw", 1<<30, world.NewMedia(nil)))
				change("scsi7=fast:9999/vm-9999-pvc-0b5f.raw")(l)
				proxmoxVolume("9999/vm-9999-pvc-0b5f.raw")(l)
			}, undo: all(remove("scsi7"), without(store.Volumes(), "", "pvc-proxmox")),
		},
	}, append(storageRefusals(), provenRefusals()...)...)
}

// storageRefusals are disks on storages that can't reassign them to a parking VM.
func storageRefusals() []refusal {
	zfs := func(l *Lab) {
		l.World.AddStorage(world.Storage{ID: "zi", Type: "zfs", Shared: true, Content: []string{"images"}})
	}
	blind := world.ACL{Path: "/storage/dark", Who: "recast@pve!lab", Role: "Blind", Propagate: true}
	return []refusal{
		{
			name: "data disk on ZFS over iSCSI", bring: func(l *Lab) { zfs(l); change("scsi2=zi:1,serial=zi-1")(l) }, lift: discard("scsi2"),
			also: []string{"scsi2 (zi:vm-9031-disk-0) is on storage zi of type zfs, which can't give a disk to another VM: move it to another storage"},
		},
		{
			name: "system disk on ZFS over iSCSI", bring: whileOff(remove("scsi0"), change("scsi0=zi:10,serial=sys-wk1"), change("boot=order=scsi0;ide2"), func(l *Lab) {
				l.media("zi:vm-9031-disk-0").Write(l.media(wk1System).Bytes())
			}),
			both: []string{"scsi0 (zi:vm-9031-disk-0) is on storage zi of type zfs, which can't give a disk to another VM: move it to another storage"},
			lift: whileOff(discard("scsi0"), change("scsi0="+wk1SystemDrive), change("boot=order=scsi0;ide2")),
		},
		{
			name: "storage that the token may not see", bring: func(l *Lab) {
				l.World.AddStorage(world.Storage{ID: "dark", Type: "dir", Content: []string{"images"}})
				change("scsi2=dark:1,serial=dark-1")(l)
				l.World.AddRole("Blind", "VM.Audit")
				l.World.Grant(blind)
			},
			also: []string{"scsi2 (dark:9031/vm-9031-disk-0.raw) is on storage dark, which Proxmox does not list: grant the token Datastore.Audit there"},
			lift: func(l *Lab) { l.World.Revoke(blind) }, undo: discard("scsi2"),
		},
	}
}

func reassign(from int, key string, to int, toKey string) edit {
	return func(l *Lab) {
		l.t.Helper()
		upid, err := l.World.MoveDisk("", "pve1", world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey})
		must(l.t, err)
		if task, ok := l.World.WaitTask(upid); !ok || task.ExitStatus != "OK" {
			l.t.Fatalf("reassign %s of VM %d: %+v", key, from, task)
		}
	}
}

// provenRefusals are system disks that can't be proven, and data disks that could not be afterwards.
func provenRefusals() []refusal {
	const (
		vm    = `VM 9031 "wk1" on pve1: system disk can't be proven: `
		names = ": give the drive a name of its own that Talos shows: with qm set 9031 add wwn=0x3 and 15 more hex digits to it (serial= if it is a virtioN), restart the VM once, and try again; with scsihw virtio-scsi-single SCSI drives need none"
		wwn   = ",wwn=0x3000000000000001"
	)
	data := func(serial string) edit {
		return whileOff(change("scsi1=" + wk1Data + ",iothread=1,discard=on,ssd=1" + serial))
	}
	return []refusal{
		{name: "data disk without serial", bring: data(""), undo: data(",serial=data-wk1")},
		{
			name: "two blank disks of one size", bring: change("scsi2=fast:3", "scsi3=fast:3"),
			also: []string{"the persistent disks scsi2 and scsi3 have one size, and nothing that tells them apart is on them, so the new VM could not prove that each came back to its place: " +
				"qm set 9031 --scsi3 fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3 gives one of them a name; the VM need not be restarted for that"},
			lift: change("scsi3=fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3"), undo: discard("scsi2", "scsi3"),
		},
		{
			name: "system disk known by its address", bring: whileOff(change("scsi0=" + wk1System)), undo: whileOff(change("scsi0=" + wk1SystemDrive)),
		},
		{
			name:  "neither serial nor address, and one size twice",
			bring: whileOff(change("scsihw=megasas", "scsi0="+wk1System, "scsi2=fast:10,serial=other")),
			both:  []string{vm + "no drive matches sda (no serial or WWID of a drive, and sdc has the same size)" + names},
			lift:  whileOff(change("scsi0=" + wk1SystemDrive + wwn)), undo: whileOff(discard("scsi2"), change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive)),
		},
		{
			name: "known by its size", bring: whileOff(change("scsihw=megasas", "scsi0="+wk1System)),
			undo: whileOff(change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive)),
		},
		{
			name: "WWN twice", bring: whileOff(change("scsi0="+wk1SystemDrive+wwn, "scsi2=fast:1,serial=other"+wwn)), lift: whileOff(discard("scsi2")),
			both: []string{vm + "2 drives match sda (WWID naa.3000000000000001)" + names}, undo: whileOff(change("scsi0=" + wk1SystemDrive)),
		},
		{
			name:  "data disk that could be either",
			bring: whileOff(change("scsihw=megasas", "scsi0="+wk1SystemDrive+wwn, "scsi2=fast:20,serial=other")),
			both: []string{"what is on sdb (u-data) could be on scsi1 or scsi2, and which of the machine's disks that is can't be determined: " +
				"qm set 9031 --scsi1 " + wk1Data + ",discard=on,iothread=1,size=20G,ssd=1,serial=9031-scsi1,wwn=0x3eb37482376a108b, then shut VM 9031 down and start it (a reboot from inside is not enough), so that Talos shows the name"},
			lift: whileOff(change("scsi1=" + wk1Data + ",discard=on,iothread=1,size=20G,ssd=1,serial=9031-scsi1,wwn=0x3eb37482376a108b")),
			undo: whileOff(discard("scsi2"), change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive,
				"scsi1="+wk1Data+",iothread=1,discard=on,ssd=1,serial=data-wk1")),
		},
		{
			name: "another slot configured", bring: configuration("{name: wk1,", "{name: wk1, systemDisk: {slot: scsi1},"),
			both: []string{vm + "the configuration says scsi1, but the machine runs from scsi0 (address /pci0000:00/0000:00:1e.0/0000:05:04.0/0000:09:01.0/virtio2/host2/target2:0:0/2:0:0:0): correct or remove nodes[].systemDisk.slot"},
			lift: configuration("slot: scsi1", "slot: scsi0"),
		},
	}
}

// partitionRefusals are Talos' volumes on the disks that would be lost, could not be
// unlocked again, or would be mistaken for others.
func partitionRefusals() []refusal {
	stale := func(label string) string {
		return "sdb carries a " + label + " partition (sdb2) that Talos does not use now and might use then: delete that partition"
	}
	twice := func(label string) string {
		return "the label " + label + " is there twice, on sda and on sdb: relabel or delete what is not in use"
	}
	onData := func(label string, reasons ...string) refusal {
		return refusal{
			name: label + " on the data disk", bring: whileOff(partitioned(wk1Data, labelled(label))), lift: whileOff(unpartitioned(wk1Data, 1)), both: reasons,
		}
	}
	lost := func(name, what string, bring, undo edit) refusal {
		return refusal{
			name: what, bring: bring, lift: acceptLoss(name), undo: undo, lost: []string{what + " on the system disk will be lost"},
			both: []string{what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"},
		}
	}
	const onSystem = "provisioning: {diskSelector: {match: system_disk}, minSize: 1GB, maxSize: 1GB}\n"
	made := func(kind, name string) (bring, undo edit) {
		doc := "apiVersion: v1alpha1\nkind: " + kind + "\nname: " + name + "\n" + onSystem
		return whileOff(documents(doc)), whileOff(documents(), unpartitioned(wk1System, 1))
	}
	userBring, userUndo := made("UserVolumeConfig", "cache")
	rawBring, rawUndo := made("RawVolumeConfig", "blob")
	swapBring, swapUndo := made("SwapVolumeConfig", "swap")
	existing := documents("apiVersion: v1alpha1\nkind: ExistingVolumeConfig\nname: old\ndiscovery: {volumeSelector: {match: volume.partition_label == 'scratch'}}\n")
	unmade := whileOff(documents(), unpartitioned(wk1System, 1))
	twoVolumes := lost("u-data", "volume u-data", whileOff(partitioned(wk1System, labelled("u-data"))), nil)
	twoVolumes.name, twoVolumes.lost, twoVolumes.both, twoVolumes.lift = "user volume twice", nil, append(twoVolumes.both, twice("u-data")), unmade
	return append([]refusal{
		onData("META", "sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: delete that partition", twice("META")),
		onData("STATE", stale("STATE"), twice("STATE")),
		onData("EPHEMERAL", stale("EPHEMERAL"), twice("EPHEMERAL")),
		onData("ETCD", stale("ETCD")),
		onData("KUBELET", stale("KUBELET")),
		onData("u-more"),
		twoVolumes,
		lost("u-cache", "volume u-cache", userBring, userUndo),
		lost("r-blob", "volume r-blob", rawBring, rawUndo),
		lost("scratch", "volume scratch", whileOff(partitioned(wk1System, labelled("scratch")), existing), unmade),
		lost("sda5", "partition sda5", whileOff(partitioned(wk1System, artefact.Partition{UUID: "0b5f0000-0000-4000-8000-000000000003"})), unmade),
		{name: "swap", bring: swapBring, undo: swapUndo},
	}, encryptionRefusals()...)
}

// encryptionRefusals are volumes whose keys would be lost.
func encryptionRefusals() []refusal {
	encrypted := func(name, key string) edit {
		return documents("apiVersion: v1alpha1\nkind: VolumeConfig\nname: " + name + "\n" + encryption(key))
	}
	plain := whileOff(documents())
	return []refusal{
		{
			name: "locked to STATE", bring: whileOff(encryptsData("", "nodeID: {}, lockToState: true")),
			both: []string{"volume u-data is encrypted with lockToState and would be unreadable once STATE is gone: add a key without lockToState and remove that one, or use in-place"},
			lift: whileOff(encryptsData("nodeID: {}, lockToState: true", "nodeID: {}")), undo: whileOff(encryptsData("nodeID: {}", "")),
		},
		{name: "locked to STATE, and gone with it", bring: whileOff(encrypted("EPHEMERAL", "nodeID: {}, lockToState: true")), undo: plain},
		{
			name: "TPM that is not Proxmox's", bring: whileOff(encrypted("STATE", "tpm: {}"), change("args=-tpmdev emulator,id=tpm0,chardev=tpm")),
			both: []string{"volume STATE is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: add another key and remove that one, or use in-place"},
			also: []string{"its setting args can only be written by root@pam: use a resource mapping where there is one, or reimage"},
			lift: whileOff(remove("args"), change("tpmstate0=fast:1,version=v2.0")), undo: whileOff(documents(), discard("tpmstate0")),
		},
	}
}

// encryption is the section of a volume's document that gives it a key; "" for none.
func encryption(key string) string {
	if key == "" {
		return ""
	}
	return "encryption: {provider: luks2, keys: [{slot: 0, " + key + "}]}\n"
}

// encryptsData replaces the key of the user volume that every worker has.
func encryptsData(old, key string) edit {
	const volume = "kind: UserVolumeConfig\nname: data\n"
	return configured(func(l *Lab, config []byte) []byte {
		if !bytes.Contains(config, []byte(volume+encryption(old))) {
			l.t.Fatalf("no %q in\n%s", volume+encryption(old), config)
		}
		return bytes.Replace(config, []byte(volume+encryption(old)), []byte(volume+encryption(key)), 1)
	})
}

// documents makes these the only additional documents of wk1's machine configuration.
func documents(docs ...string) edit {
	return configured(func(_ *Lab, config []byte) []byte { return withDocuments(config, docs) })
}

// configured changes wk1's machine configuration on its disk.
func configured(change func(l *Lab, config []byte) []byte) edit {
	return func(l *Lab) {
		l.t.Helper()
		media := l.media(wk1System)
		b, err := talosapi.WithMachineConfig(media.Bytes(), func(config []byte) []byte { return change(l, config) })
		must(l.t, err)
		media.Write(b)
	}
}
