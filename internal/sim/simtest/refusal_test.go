package simtest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// refusal is a property of wk1 that prevents recreate, or also reimage.
type refusal struct {
	inPlace bool // what both says is against an upgrade in place, too
	name    string
	bring   edit
	// both are the reasons against recreate and reimage, also those against recreate alone:
	// exactly, in order. With neither nothing is refused.
	both, also []string
	lift       edit     // the remedy in the reasons; nil: only another strategy helps
	lost       []string // what the plan lists as lost afterwards
	undo       edit     // cleans up afterwards; nil: not needed
}

// refusals are groups of them; a group is played sequentially in one lab.
func refusals() map[string][]refusal {
	return map[string][]refusal{
		"kept outside of the VM":  tiedRefusals(),
		"cloud controller":        cloudRefusals(),
		"settings of the VM":      settingRefusals(),
		"occupied":                occupiedRefusals(),
		"disks":                   diskRefusals(),
		"foreign configuration":   preconfiguredRefusals(),
		"data on the system disk": lossRefusals(),
		"data of pods and pools":  localRefusals(),
		"partitions":              partitionRefusals(),
	}
}

// TestEveryRefusal plays everything that prevents the recreation of a node, and then
// applies the remedy in the refusal.
func TestEveryRefusal(t *testing.T) {
	long(t)
	t.Parallel()
	n := 0
	for group, list := range refusals() {
		for _, r := range list {
			n += len(r.both) + len(r.also)
		}
		t.Run(group, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.World.AddMapping("pci", "gpu", "pve1")
				lab.installLonghorn()
				lab.Kube.Define(cephClusters)
				lab.installPiraeus()
				lab.Patch(sim.PatchedExtension)
				for _, r := range list {
					requireRefusal(t, lab, r)
				}
				if _, err := lab.Client().Roll(t.Context(), planning.Policy{}); err != nil {
					t.Fatalf("with everything lifted: %v", err)
				}
				requireInSync(t, lab)
			})
		})
	}
	t.Attr("refusals", strconv.Itoa(n))
	if n < 60 {
		t.Errorf("only %d refusals", n)
	}
}

func requireRefusal(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	t.Logf("%s", r.name)
	config := lab.Read("recast.yaml")
	r.bring(lab)
	requireAuto(t, lab, r)
	brought := lab.Read("recast.yaml")
	for s, want := range map[cluster.Strategy][]string{cluster.Recreate: slices.Concat(r.both, r.also), cluster.Reimage: r.both} {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
		requireAsked(t, lab, r.name, s, want)
		lab.Write("recast.yaml", brought)
	}
	if r.lift != nil {
		r.lift(lab)
		n := planOf(t, lab, "wk1")
		if diff := cmp.Diff(r.lost, n.WillLose); n.Strategy != cluster.Recreate || len(n.Refused) > 0 || diff != "" {
			t.Errorf("%s: once it is lifted: %s (%s) %q, lost (-want +got):\n%s", r.name, n.Strategy, n.Why, n.Refused, diff)
		}
	}
	if r.undo != nil {
		r.undo(lab)
	}
	lab.Write("recast.yaml", config)
}

// requireAuto checks the result of strategy auto, and the reason.
func requireAuto(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	n := planOf(t, lab, "wk1")
	if r.inPlace {
		requireNoWayIn(t, lab, r.both...)
		return
	}
	strategy, why := cluster.Recreate, "recreate: possible, every persistent disk can be carried over"
	switch {
	case len(r.both) > 0:
		strategy, why = cluster.InPlace, "in-place: recreate and reimage are impossible ("+strings.Join(r.both, "; ")+")"
		if len(r.also) > 0 {
			why += ", recreate also (" + strings.Join(r.also, "; ") + ")"
		}
	case len(r.also) > 0:
		strategy, why = cluster.Reimage, "reimage: recreate is impossible ("+strings.Join(r.also, "; ")+")"
	}
	if n.Strategy != strategy || len(n.Refused)+len(n.WillLose) > 0 {
		t.Errorf("%s: auto takes %s, want %s; refused %q, lost %q", r.name, n.Strategy, strategy, n.Refused, n.WillLose)
	}
	requireSame(t, why, masked(n.Why), "%s: why (-want +got)", r.name)
}

// requireAsked checks the result of a requested strategy; if it is refused, a roll does
// nothing but say so.
func requireAsked(t *testing.T, lab *Lab, name string, s cluster.Strategy, want []string) {
	t.Helper()
	if len(want) == 0 {
		if n := planOf(t, lab, "wk1"); n.Strategy != s || len(n.Refused) > 0 {
			t.Errorf("%s: %s asked for, planned as %s, refused %q", name, s, n.Strategy, n.Refused)
		}
		return
	}
	before := len(lab.Recorder.Calls())
	rep, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
	var got []string
	for _, n := range rep.Plan.Nodes {
		for _, reason := range n.Refused {
			got = append(got, masked(reason))
		}
	}
	requireSame(t, want, got, "%s: %s is refused (-want +got)", name, s)
	text := "the plan can't be carried out:\n  wk1: " + strings.Join(want, "\n  wk1: ")
	if diff := cmp.Diff(text, masked(fmt.Sprint(err))); diff != "" || fault.KindOf(err) != fault.Refused {
		t.Errorf("%s: a roll by %s ended with kind %d (-want +got):\n%s", name, s, fault.KindOf(err), diff)
	}
	for _, call := range lab.Recorder.Calls()[before:] {
		if call.Mutation && !ofClaim(call) {
			t.Errorf("%s: a roll by %s sent %s %s %s all the same", name, s, call.Proto, call.Method, call.Path)
		}
	}
}

func planOf(t *testing.T, lab *Lab, node string) planning.NodePlan {
	t.Helper()
	plan := lab.plan(planning.Policy{Only: []string{node}})
	if len(plan.Nodes) != 1 {
		t.Fatalf("a plan for %s: %+v", node, plan.Nodes)
	}
	return plan.Nodes[0]
}

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
