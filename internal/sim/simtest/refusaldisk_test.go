package simtest

import (
	"bytes"
	"strings"

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
		{
			name: "device of the host", bring: func(l *Lab) {
				l.World.AddDevice("pve1", rawDisk, 1<<30, world.NewMedia(nil))
				change("scsi2=" + rawDisk + ",serial=nvme-1")(l)
			}, lift: remove("scsi2"),
			also: []string{"scsi2 is a device of the host (" + rawDisk + "), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage"},
		},
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
	blind := world.ACL{Path: "/storage/dark", Who: "recast@pve!lab", Role: "Blind", Propagate: true}
	return []refusal{
		{
			name: "data disk on ZFS over iSCSI", bring: func(l *Lab) {
				l.World.AddStorage(world.Storage{ID: "zi", Type: "zfs", Shared: true, Content: []string{"images"}})
				change("scsi2=zi:1,serial=zi-1")(l)
			}, lift: discard("scsi2"),
			also: []string{"scsi2 (zi:vm-9031-disk-0) is on storage zi of type zfs, which can't give a disk to another VM: move it to another storage"},
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
		l.done(l.World.MoveDisk("", "pve1", world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey}))
	}
}

// provenRefusals are system disks that can't be proven, and data disks that could not be afterwards.
func provenRefusals() []refusal {
	const (
		vm    = `VM 9031 "wk1" on pve1: system disk can't be proven: `
		names = ": give the drive a name of its own that Talos shows: with qm set 9031 add wwn=0x3 and 15 more hex digits to it (serial= if it is a virtioN), restart the VM once, and try again; with scsihw virtio-scsi-single SCSI drives need none"
		wwn   = ",wwn=0x3000000000000001"
	)
	return []refusal{
		{
			name: "two blank disks of one size", bring: change("scsi2=fast:3", "scsi3=fast:3"),
			also: []string{"the persistent disks scsi2 and scsi3 have one size, and nothing that tells them apart is on them, so the new VM could not prove that each came back to its place: " +
				"qm set 9031 --scsi3 fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3 gives one of them a name; the VM need not be restarted for that"},
			lift: change("scsi3=fast:9031/vm-9031-disk-4.raw,size=3G,serial=9031-scsi3"), undo: discard("scsi2", "scsi3"),
		},
		{
			name:  "neither serial nor address, and one size twice",
			bring: whileOff(change("scsihw=megasas", "scsi0="+wk1System, "scsi2=fast:10,serial=other")),
			both:  []string{vm + "no drive matches sda (no serial or WWID of a drive, and sdc has the same size)" + names},
			lift:  whileOff(change("scsi0=" + wk1SystemDrive + wwn)), undo: whileOff(discard("scsi2"), change("scsihw=virtio-scsi-single", "scsi0="+wk1SystemDrive)),
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
	onData := func(label string, reasons ...string) refusal {
		return refusal{
			name: label + " on the data disk", bring: whileOff(partitioned(wk1Data, labelled(label))), lift: whileOff(unpartitioned(wk1Data, 1)), both: reasons,
		}
	}
	const (
		user = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: cache\n" +
			"provisioning: {diskSelector: {match: system_disk}, minSize: 1GB, maxSize: 1GB}\n"
		existing = "apiVersion: v1alpha1\nkind: ExistingVolumeConfig\nname: old\ndiscovery: {volumeSelector: {match: volume.partition_label == 'scratch'}}\n"
	)
	unmade := whileOff(documents(), unpartitioned(wk1System, 1))
	twice := loss("u-data", "volume u-data", whileOff(partitioned(wk1System, labelled("u-data"))), nil)
	twice.name, twice.lost, twice.lift = "user volume twice", nil, unmade
	twice.both = append(twice.both, "the label u-data is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label")
	return append([]refusal{
		onData("META", "sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: delete that partition",
			"the label META is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label"),
		onData("ETCD"), // its configuration has etcd in a directory
		onData("IMAGECACHE", "sdb carries a IMAGECACHE partition (sdb2) that Talos does not use now and might use then: give that partition another label, which keeps what is on it"),
		onData("u-more"),
		twice,
		loss("u-cache", "volume u-cache", whileOff(documents(user)), unmade),
		loss("e-old", "volume e-old", whileOff(partitioned(wk1System, labelled("scratch")), documents(existing)), unmade),
	}, encryptionRefusals()...)
}

// encryptionRefusals are volumes whose keys would be lost.
func encryptionRefusals() []refusal {
	return []refusal{
		{
			name: "locked to STATE", bring: whileOff(encryptsData("", "nodeID: {}, lockToState: true")),
			both: []string{"volume u-data is encrypted with lockToState and would be unreadable once STATE is gone: add a key without lockToState and remove that one, or use in-place"},
			lift: whileOff(encryptsData("nodeID: {}, lockToState: true", "nodeID: {}")), undo: whileOff(encryptsData("nodeID: {}", "")),
		},
		{
			name: "TPM that is not Proxmox's", bring: whileOff(documents("apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\n"+encryption("tpm: {}")), change("args=-tpmdev emulator,id=tpm0,chardev=tpm")),
			both: []string{"volume STATE is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: add another key and remove that one, or use in-place"},
			also: []string{ofRoot("args")},
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

// encryptsData replaces the key of the user volume that every worker has, on the disk as well.
func encryptsData(old, key string) edit {
	const volume = "kind: UserVolumeConfig\nname: data\n"
	return configured(func(l *Lab, config []byte) []byte {
		state := ""
		if strings.Contains(key, "lockToState") {
			state = talosapi.StateUUID(l.media(wk1System).Bytes())
		}
		media := l.media(wk1Data)
		encrypted, err := talosapi.Encrypted(media.Bytes(), "u-data", l.node("wk1").UUID, state, key != "")
		must(l.t, err)
		media.Write(encrypted)
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
