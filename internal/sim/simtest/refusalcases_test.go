package simtest

import (
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// replicated is the refusal for a replication job of wk1, with the arguments to recreate it.
func replicated(args string) string {
	return "replication 9031-0 of the VM, with which Proxmox neither deletes the VM nor gives it a disk on storage fast: " +
		"on pve1 pvesr delete 9031-0, roll once pvesr list no longer shows it, then pvesr create-local-job 9031-0 " + args
}

// tiedRefusals are what Proxmox stores beside the VM and deletes with it.
func tiedRefusals() []refusal {
	acl := world.ACL{Path: "/vms/9031", Who: "alice@pve", Role: "PVEVMUser", Propagate: true}
	job := world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", Schedule: "*/15"}
	firewall := func(f world.Firewall) edit { return func(l *Lab) { l.World.SetFirewall(wk1, f) } }
	noFirewall := firewall(world.Firewall{})
	return []refusal{
		{
			name: "replication job", both: []string{replicated("pve2 --schedule '*/15'")},
			bring: func(l *Lab) { l.World.AddReplication(job) }, lift: func(l *Lab) { l.World.RemoveReplication(job.ID) },
		},
		{name: "a firewall", bring: firewall(wholeFirewall()), lift: noFirewall},
		{
			name: "firewall option of an editor's, and an ACL entry", bring: all(firewall(world.Firewall{Options: map[string]string{"ips": "1"}}), func(l *Lab) { l.World.Grant(acl) }),
			lift: all(noFirewall, func(l *Lab) { l.World.Revoke(acl) }),
			also: []string{
				"the VM has a firewall that Proxmox would not take again (option ips, which only an editor writes), which a delete would drop: remove it, or use reimage",
				"the VM has an ACL entry at /vms/9031 (PVEVMUser of user alice@pve), which a delete would drop: remove it, " +
					"and after the roll pveum acl modify /vms/9031 --users alice@pve --roles PVEVMUser; or use reimage",
			},
		},
		onVNet("VNet whose zone has IPAM", world.VNet{Name: "tenant1", Zone: "zone1", IPAM: true}, true,
			"the VM is on VNet tenant1, whose zone keeps its address (IPAM), frees it with the VM, and gives a new VM the next one: use reimage"),
		onVNet("VNet whose zone has no IPAM", world.VNet{Name: "tenant2", Zone: "zone1"}, true),
		onVNet("VNet that the token does not see", world.VNet{Name: "tenant3", Zone: "zone3"}, false, "the VM is on tenant3, which Proxmox does not show the token, "+
			"so it is unknown whether a zone of its SDN keeps the VM's address (IPAM): grant the token SDN.Use on it, or use reimage"),
	}
}

// onVNet attaches wk1's network card to a VNet.
func onVNet(name string, v world.VNet, shown bool, also ...string) refusal {
	plug := func(l *Lab, bridge string) {
		set := map[string]string{"net0": regexp.MustCompile(`bridge=\w+`).ReplaceAllString(l.vm(wk1).Config["net0"], "bridge="+bridge)}
		whileOff(func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Set: set}) })(l)
	}
	return refusal{
		name: name, also: also, lift: func(l *Lab) { plug(l, world.LocalBridge) },
		bring: func(l *Lab) {
			l.World.AddVNet(v)
			for _, who := range []string{"recast@pve", "recast@pve!roll"} {
				if !shown {
					l.World.Grant(world.ACL{Path: "/sdn/zones/" + v.Zone, Who: who, Role: world.NoAccess, Propagate: true})
				}
			}
			plug(l, v.Name)
		},
	}
}

// cloudRefusals end with a Node whose provider ID can't be reset.
func cloudRefusals() []refusal {
	return []refusal{{
		name: "provider ID", bring: func(l *Lab) {
			n := l.kubeNode("wk1").DeepCopy()
			n.Spec.ProviderID = "proxmox://lab/9031"
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), n, store.Main)))
		},
		also: []string{"its Node has providerID proxmox://lab/9031: a cloud controller deletes the Node with its VM: use reimage"},
	}}
}

const unseenMeta = "the VM has cicustom (meta=local:snippets/meta.yaml), without which file a new VM would not start, and the token does not see it: " +
	"grant it Datastore.Allocate on /storage/local, or remove that part, with which Talos' platform metadata goes; or use reimage"

func ofRoot(key string) string {
	return "its setting " + key + " can only be written by root@pam: use a resource mapping where there is one, or reimage"
}

// settingRefusals are settings that a token can't give to a new VM, or that are lost with the old one.
func settingRefusals() []refusal {
	settings := func(name string, pairs []string, also ...string) refusal {
		var keys []string
		for _, p := range pairs {
			key, _, _ := strings.Cut(p, "=")
			keys = append(keys, key)
		}
		return refusal{name: name, bring: whileOff(change(pairs...)), lift: whileOff(remove(keys...)), also: also}
	}
	roots := []string{
		"affinity=0-3", "amd-sev=type=std", "args=-cpu host,+vmx", "hookscript=local:snippets/hook.pl",
		"hostpci0=0000:01:00.0,pcie=1", "hostpci1=mapping=gpu,romfile=vbios.bin", "hugepages=1024", "intel-tdx=type=tdx", "ivshmem=size=32",
		"keephugepages=1", "parallel0=/dev/parport0", "serial1=/dev/ttyS0", "spice_enhancements=videostreaming=all", "usb0=host=1234:5678",
	}
	var refused []string
	for _, pair := range roots {
		key, _, _ := strings.Cut(pair, "=")
		refused = append(refused, ofRoot(key))
	}
	return []refusal{
		settings("settings of root@pam", roots, refused...),
		settings("what is written by others", []string{"cicustom=meta=local:snippets/meta.yaml", "cipassword=secret"},
			unseenMeta,
			"the VM has cipassword, which Proxmox never shows: remove it, or use reimage"),
		settings("mapped device", []string{"hostpci0=mapping=gpu,pcie=1"}),
		{name: "what a token may write", bring: whileOff(change("serial0=socket", "usb1=spice", "ciuser=talos", "ipconfig0=ip=dhcp", "numa=1", "protection=1"))},
	}
}

// occupiedRefusals are VMs that Proxmox would not let us change.
func occupiedRefusals() []refusal {
	return []refusal{
		{
			name: "snapshots", bring: all(snapshot("a", true), snapshot("b", false)), lift: all(noSnapshot("a"), noSnapshot("b")),
			both: []string{"the VM has snapshots (a, b), whose disks can't leave it: delete them first"},
		},
		{
			name: "backup running", bring: func(l *Lab) {
				l.World.StartBackup("root@pam", "pve1", 25*time.Second, wk1)
				time.Sleep(5 * time.Second)
			},
			lift: func(*Lab) { time.Sleep(time.Minute) },
			both: []string{
				"the VM is locked (backup): wait until that task has ended",
				"locked by a backup: wait until that is over", "running task vzdump 9031 on pve1: wait until that is over",
			},
		},
		{
			name: "backup due", bring: func(l *Lab) {
				l.World.AddBackupJob(world.BackupJob{ID: "backup-0b5f", VMIDs: []int{wk1}, Storage: "local", NextRun: time.Now().Add(29 * time.Minute)})
			},
			lift: func(l *Lab) { l.World.RemoveBackupJob("backup-0b5f") },
			both: []string{"backup job backup-0b5f due at TIME: wait until that is over"},
		},
		{
			name: "replication running", bring: func(l *Lab) {
				l.World.AddReplication(world.ReplicationJob{ID: "9031-0", Guest: wk1, Target: "pve2", NextSync: time.Now().Add(24 * time.Hour), Running: true})
			},
			lift: func(l *Lab) { l.World.RemoveReplication("9031-0") },
			both: []string{"replication job 9031-0 runs: wait until that is over", replicated("pve2")},
		},
		{
			name: "pending change", bring: change("memory=8192"),
			lift: func(l *Lab) { l.configure(world.ChangeRequest{ID: wk1, Revert: []string{"memory"}}) },
			both: []string{"the VM has pending changes (memory): restart it or revert them"},
		},
	}
}

func snapshot(name string, memory bool) edit {
	return func(l *Lab) { must(l.t, l.World.AddSnapshot(wk1, world.Snapshot{Name: name, Memory: memory})) }
}

func noSnapshot(name string) edit {
	return func(l *Lab) { must(l.t, l.World.DeleteSnapshot(wk1, name)) }
}

// loss is the refusal to lose what exists only on the system disk: acceptLoss lifts it, and then it is listed.
func loss(name, what string, bring, undo edit) refusal {
	return refusal{
		name: what, bring: bring, lift: acceptLoss(name), undo: undo, lost: []string{what + " on the system disk will be lost"},
		both: []string{what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"},
	}
}

// lossRefusals are Kubernetes data that exist only on the system disk.
func lossRefusals() []refusal {
	noVolume := without(store.Volumes(), "", "pvc-1")
	noLonghorn := without(longhornNodes.GroupVersionResource, "longhorn-system", "wk1")
	noRook := func(l *Lab) {
		without(cephClusters.GroupVersionResource, "rook-ceph", "ceph")(l)
		must(l.t, errOf(l.Kube.Store().Delete(l.t.Context(), store.Pods(), "rook-ceph", "rook-ceph-mon-a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})))
	}
	return []refusal{
		loss("pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)", volume("pvc-1", local("/var/local-path/pvc-1")), noVolume),
		loss("longhorn/var/lib/longhorn", "Longhorn disk default (2 replicas)", longhorn("/var/lib/longhorn/"), noLonghorn),
		loss("rook/var/lib/rook", "Rook's directory of CephCluster rook-ceph/ceph (rook-ceph-mon)", rook("/var/lib/rook"), noRook),
		{name: "volume on another disk", bring: volume("pvc-1", local("/var/mnt/data/pvc-1")), undo: noVolume},
		{name: "Longhorn on another disk", bring: longhorn("/var/mnt/data/longhorn/"), undo: noLonghorn},
	}
}

// preconfiguredRefusals are whatever would configure the blank machine before recast does.
func preconfiguredRefusals() []refusal {
	const would = "would configure the blank machine before recast can"
	row := func(name string, bring, lift edit, both string, also ...string) refusal {
		return refusal{name: name, bring: bring, lift: lift, both: []string{both}, also: also}
	}
	smbios := func(more string) edit {
		return whileOff(change("smbios1=uuid=5ec0ffee-0000-4000-8000-000000009031" + more))
	}
	userData, noUserData := setting("cicustom", "user=local:snippets/user.yaml,meta=local:snippets/meta.yaml")
	args, noArgs := setting("args", "-smbios type=1,serial=ds=nocloud-net;s=http://10.0.0.1/")
	const (
		kernel   = "  extraKernelArgs: ['talos.config=https://10.0.0.1/wk1.yaml']\n"
		embedded = "  embeddedMachineConfiguration: |\n    version: v1alpha1\n"
	)
	return []refusal{
		row("cloud-init user data", userData, noUserData,
			"cicustom's user data (user=local:snippets/user.yaml,meta=local:snippets/meta.yaml) "+would+": remove its user= part", unseenMeta),
		row("SMBIOS serial in base64", smbios(",base64=1,serial=ZHM9bm9jbG91ZDtzPWh0dHA6Ly8xMC4wLjAuMS8="), smbios(""),
			`the SMBIOS serial "ds=nocloud;s=http://10.0.0.1/" `+would+": remove it from smbios1"),
		row("SMBIOS serial in args", args, noArgs, "the VM's args name ds=nocloud, which "+would+": remove that", ofRoot("args")),
		{name: "kernel argument", bring: schematic(kernel), lift: plainSchematic(kernel), both: []string{bringsArg("talos.config")}, inPlace: true},
		{
			name: "embedded configuration", bring: schematic(embedded), lift: plainSchematic(embedded), inPlace: true,
			both: []string{"the schematic embeds a machine configuration, which " + would + ": remove embeddedMachineConfiguration from it"},
		},
		{name: "another SMBIOS serial", bring: smbios(",serial=rack-7"), undo: smbios("")},
	}
}

const (
	wk1SystemDrive = wk1System + ",iothread=1,discard=on,ssd=1,serial=sys-wk1"
	rawDisk        = "/dev/disk/by-id/nvme-1"
)

// diskRefusals are drives that can't be moved, or could be the wrong ones.
func diskRefusals() []refusal {
	return append([]refusal{
		{
			name: "device of the host", bring: func(l *Lab) {
				l.World.AddDevice("pve1", rawDisk, 1<<30, world.NewMedia(nil))
				change("scsi2=" + rawDisk + ",serial=nvme-1")(l)
			}, lift: remove("scsi2"),
			also: []string{"scsi2 is a device of the host (" + rawDisk + "), which only root@pam can attach, so a new VM could not have it: give the node a volume instead, or use reimage"},
		},
		{
			name: "system disk of the holder", bring: func(l *Lab) {
				l.DefineVM(9053, map[string]string{"name": "holder"})
				configuration("{name: wk1,", "{name: wk1, holder: 9053,")(l)
				whileOff(reassign(wk1, "scsi0", 9053, "scsi5"), change("scsi0=fast:9053/vm-9053-disk-0.raw,serial=sys-wk1"), change("boot=order=scsi0;ide2"))(l)
			}, lift: whileOff(remove("scsi0"), reassign(9053, "scsi5", wk1, "scsi0"), change("boot=order=scsi0;ide2"), change("scsi0="+wk1SystemDrive)),
			both: []string{
				"the system disk scsi0 (fast:9053/vm-9053-disk-0.raw) belongs to the holder, VM 9053: reassign it to VM 9031",
			},
		},
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
