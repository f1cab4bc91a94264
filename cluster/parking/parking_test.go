package parking

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestPersistentDisksWithoutASerialAreProven, or the plan refuses them.
func TestPersistentDisksWithoutASerialAreProven(t *testing.T) {
	t.Parallel()
	lun := func(n string) string { return "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:" + n }
	machine := func(scsi1, scsi2 cluster.MachineDisk, volumes ...cluster.Volume) cluster.Machine {
		scsi1.Device, scsi1.BusPath, scsi2.Device, scsi2.BusPath = "sdb", lun("1"), "sdc", lun("2")
		return cluster.Machine{SystemDisk: "sda", Disks: []cluster.MachineDisk{{Device: "sda", BusPath: lun("0"), SizeBytes: 10 << 30}, scsi1, scsi2}, Volumes: volumes}
	}
	virtio := map[string]string{"scsihw": "virtio-scsi-single", "scsi0": "f:vm-1-disk-0,size=10G", "scsi1": "f:vm-1-disk-1,size=20G", "scsi2": "f:vm-1-disk-2,size=20G,ssd=1"}
	with := func(key, value string) map[string]string {
		c := map[string]string{key: value}
		for k, v := range virtio {
			if k != key {
				c[k] = v
			}
		}
		return c
	}
	sata := map[string]string{"sata0": "f:vm-1-disk-0,size=10G", "sata1": "f:vm-1-disk-1,size=20G", "sata2": "f:vm-1-disk-2,size=20G"}
	blank := cluster.MachineDisk{SizeBytes: 20 << 30, Blank: true}
	full := cluster.MachineDisk{SizeBytes: 20 << 30}
	xfs := func(disk, uuid string) cluster.Volume {
		return cluster.Volume{Device: disk + "1", Disk: disk, Label: "u-data", PartitionUUID: "p", FilesystemUUID: uuid}
	}
	const twins = "the persistent disks scsi1 and scsi2 have one size, and "
	const line = ", so the new VM could not prove that each came back to its place: qm set 1 --scsi2 f:vm-1-disk-2,size=20G,ssd=1,serial=1-scsi2 gives one of them a name; the VM need not be restarted for that"
	type row struct {
		config map[string]string
		m      cluster.Machine
		want   string
	}
	must.Each(t, map[string]row{
		"by content":                            {virtio, machine(full, full, xfs("sdb", "a"), xfs("sdc", "b")), ""},
		"by content, and one that is blank":     {virtio, machine(full, blank, xfs("sdb", "a")), ""},
		"blank, by size":                        {virtio, machine(blank, cluster.MachineDisk{SizeBytes: 21 << 30, Blank: true}), ""},
		"blank, of one size":                    {virtio, machine(blank, blank), twins + "nothing that tells them apart is on them" + line},
		"blank, of one size, one with a serial": {with("scsi2", "f:vm-1-disk-2,size=20G,serial=1-scsi2"), machine(blank, blank), ""},
		"a copy":                                {virtio, machine(full, full, xfs("sdb", "a"), xfs("sdc", "A")), twins + "one is a copy of the other" + line},
		"a copy that was enlarged":              {virtio, machine(full, cluster.MachineDisk{SizeBytes: 30 << 30}, xfs("sdb", "a"), xfs("sdc", "a")), ""},
		"what has no UUID, such as two OSDs of Ceph": {
			virtio, machine(full, full, cluster.Volume{Device: "sdb", Disk: "sdb", Format: "bluestore"}, cluster.Volume{Device: "sdc", Disk: "sdc", Format: "bluestore"}),
			twins + "nothing that tells them apart is on them" + line,
		},
		"LVM, by its label": {
			virtio, machine(full, full, cluster.Volume{Device: "sdb", Disk: "sdb", Format: cluster.FormatLVM, FilesystemLabel: "a"}, cluster.Volume{Device: "sdc", Disk: "sdc", Format: cluster.FormatLVM, FilesystemLabel: "b"}), "",
		},
		"a copy that a holder owns": {with("scsi2", "f:vm-200-disk-2,size=20G"), machine(blank, blank), ""},
		"nothing distinguishes them": {
			sata,
			cluster.Machine{SystemDisk: "sda", Disks: []cluster.MachineDisk{{Device: "sda", SizeBytes: 10 << 30}, {Device: "sdb", SizeBytes: 20 << 30, Blank: true}, {Device: "sdc", SizeBytes: 20 << 30, Blank: true}}},
			"which of the machine's disks is sata1 or sata2 can't be determined: qm set 1 --sata1 f:vm-1-disk-1,size=20G,serial=1-sata1,wwn=0x3684fdee2bb900a9, " +
				"then shut VM 1 down and start it (a reboot from inside is not enough), so that Talos shows the name",
		},
		"sizes alone": {
			map[string]string{"sata0": "f:vm-1-disk-0,size=10G", "sata1": "f:vm-1-disk-1,size=20G", "sata2": "f:vm-1-disk-2,size=30G"},
			cluster.Machine{SystemDisk: "sda", Disks: []cluster.MachineDisk{{Device: "sda", SizeBytes: 10 << 30}, {Device: "sdb", SizeBytes: 20 << 30}, {Device: "sdc", SizeBytes: 30 << 30}}},
			"",
		},
	}, func(t *testing.T, tc row) {
		vm := cluster.VM{ID: 1, Config: tc.config}
		system := must.Get(cluster.ProveSystemDisk(vm, tc.m, ""))(t)
		must.Equal(t, "unprovable", tc.want, strings.Join(cluster.Texts(must.Get(Unprovable(vm, tc.m, system.Key))(t)), "\n"))
	})
}

func TestLostMetadata(t *testing.T) {
	t.Parallel()
	type row struct {
		remembered, now string
		want            bool
	}
	must.Each(t, map[string]row{
		"the same Node":      {"u1", "u1", false},
		"another Node":       {"u1", "u2", true},
		"none is remembered": {"", "u2", true},
	}, func(t *testing.T, c row) {
		must.Equal(t, "lost", c.want, (Memory{NodeUID: c.remembered}).LostMetadata(cluster.KubeNode{UID: c.now}))
	})
}

// TestPodVolumesAreRememberedAndDropped: a new VM gets no pod's volume, and a run in another
// process knows which volumes were pods'.
func TestPodVolumesAreRememberedAndDropped(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9031, Host: "pve1", Pods: []string{"fast:vm-9999-media"}, Config: map[string]string{
		"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media,size=1G", "scsi8": "fast:vm-9999-pvc-0b5f",
	}}
	vm.DropCSI()
	must.Equal(t, "got", map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi8": "fast:vm-9999-pvc-0b5f"}, vm.Config)
	packed := must.Get(Memory{VM: vm}.Pack())(t)
	mem := must.Get(UnpackMemory(packed))(t)
	must.Equal(t, "remembered", vm.Pods, mem.VM.Pods)
}

// TestBlankDiskIsIdentified, even if it was created without a WWN.
func TestBlankDiskIsIdentified(t *testing.T) {
	t.Parallel()
	const lun0 = "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:0"
	mem := func(key, scsihw string) Memory {
		return Memory{SystemKey: key, DiskSerial: "recast-1", VM: cluster.VM{Config: map[string]string{
			"scsihw": scsihw, key: "f:vm-1-disk-0,serial=sys,wwn=0x5000000000000001,size=10G", "scsi1": "f:vm-1-disk-1,serial=data,size=20G",
		}}}
	}
	for name, tc := range map[string]struct {
		mem  Memory
		disk cluster.MachineDisk
		want bool
	}{
		"WWID":                        {mem("scsi0", "lsi"), cluster.MachineDisk{WWID: "naa.37eb0b496c370925"}, true},
		"WWID of the old one":         {mem("scsi0", "virtio-scsi-single"), cluster.MachineDisk{WWID: "naa.5000000000000001", BusPath: lun0}, false},
		"no WWN, by address":          {mem("scsi0", "virtio-scsi-pci"), cluster.MachineDisk{BusPath: lun0, SizeBytes: 10 << 30}, true},
		"a newer kernel":              {mem("scsi0", "lsi"), cluster.MachineDisk{Serial: "recast-1"}, true},
		"its size proves nothing":     {mem("scsi0", "lsi"), cluster.MachineDisk{SizeBytes: 10 << 30}, false},
		"virtio-blk":                  {mem("virtio0", ""), cluster.MachineDisk{Serial: "recast-1"}, true},
		"virtio-blk of another run":   {mem("virtio0", ""), cluster.MachineDisk{Serial: "recast-2", SizeBytes: 10 << 30}, false},
		"SATA that was given no WWN":  {mem("sata0", ""), cluster.MachineDisk{WWID: "t10.ATA     QEMU HARDDISK                           recast-1"}, true},
		"SATA with the old disk's ID": {mem("sata0", ""), cluster.MachineDisk{WWID: "t10.ATA     QEMU HARDDISK                           sys"}, false},
	} {
		tc.disk.Device = "sda"
		got := len(tc.mem.BlankDisks(cluster.Machine{Disks: []cluster.MachineDisk{tc.disk, {Device: "sdb", Serial: "data", SizeBytes: 20 << 30}}}))
		must.Hold(t, got == 1 == tc.want, "%s: %d disks", name, got)
	}
}

func TestParked(t *testing.T) {
	t.Parallel()
	p := editedPark(parkWK1("scsi30 r1"), func(p *Parking) {
		p.Record.Disks = []ParkedDisk{{Key: "scsi0", ParkKey: "scsi29", System: true}, {Key: "scsi1", ParkKey: "scsi1"}, {Key: "scsi2", Holder: 9101}}
	})
	got := p.Parked()
	must.Hold(t, got == nil, "before anything is handed over: %v", got)
	p.VM.Config["scsi1"] = "dir:9900/vm-9900-disk-0.raw,size=8G"
	must.Equal(t, "parked", []string{"scsi1"}, p.Parked())
}

// TestWhatADiskWas: only what is known to be a system disk is called one. Of a node that was removed, every disk is kept.
func TestWhatADiskWas(t *testing.T) {
	t.Parallel()
	for want, k := range map[string]KeptDisk{
		"previous system disk":                     {Run: "r1", Talos: "v1.13.9"},
		"system disk of a cancelled replacement":   {Run: "r1", GivenUp: true},
		"disk of the node that was removed":        {Run: "r1", Slot: "scsi1", Options: "serial=data-wk1", Removed: true},
		"system disk of the node that was removed": {Run: "r1", Slot: "scsi0", Talos: "v1.13.9", Removed: true},
	} {
		must.Equal(t, fmt.Sprintf("%+v", k), want, k.What())
	}
}

// prunePark is a parking VM of node with kept disks "key run"; each has its drive.
func prunePark(id cluster.VMID, host, node string, kept ...string) Parking {
	p := Parking{
		VM:     cluster.VM{ID: id, Name: "recast-parking-" + node, Host: host, Config: map[string]string{"protection": "1"}},
		Record: Record{Cluster: "c1", Node: node, VMID: 101, UUID: "u-" + node},
	}
	for i, k := range kept {
		key, run, _ := strings.Cut(k, " ")
		nth, _ := strconv.Atoi(strings.TrimPrefix(run, "r")) // 0 if run has no number
		p.Record.Kept = append(p.Record.Kept, KeptDisk{Key: key, Run: run, Nth: nth, Slot: "scsi0", Options: "serial=s" + run + ",size=10G", Talos: "v1.13.8"})
		p.VM.Config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,backup=0,serial=s%s,size=10G", id, i, run)
	}
	return p
}

func parkWK1(kept ...string) Parking { return prunePark(9900, "pve1", "wk1", kept...) }

func editedPark(p Parking, edit func(*Parking)) Parking { edit(&p); return p }

// TestStaleEntriesKeepTheirKeys: while the record has an entry for a drive that someone removed,
// nothing else is parked under its key.
func TestStaleEntriesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	p := parkWK1("scsi30 r1", "scsi29 r2")
	delete(p.VM.Config, "scsi30")
	mem := Memory{SystemKey: "scsi0", VM: cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G", "scsi30": "fast:vm-101-disk-1,size=10G"}}}
	rec := must.Get(Record{Cluster: "c1", Node: "wk1", Strategy: cluster.Recreate}.Opened(mem, &p))(t)
	got := map[string]string{}
	for _, d := range rec.Disks {
		got[d.Key] = d.ParkKey
	}
	must.Equal(t, "parked as", map[string]string{"scsi0": "scsi28", "scsi30": "scsi0"}, got)
}

func TestRemembered(t *testing.T) {
	t.Parallel()
	was := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"ide2": "local:iso/a.iso,media=cdrom"}}
	packed := must.Get(Memory{VM: was, SystemKey: "scsi0"}.Pack())(t)
	must.Equal(t, "remembered", was, must.Get(Record{Node: "wk1", Memory: packed}.Remembered())(t))
	for _, broken := range []string{"", "?", packed[:len(packed)/2]} {
		_, err := (Record{Node: "wk1", VMID: 101, Memory: broken}).Remembered()
		must.Hold(t, err != nil, "reads %q", broken)
	}
}

func TestMadeFrom(t *testing.T) {
	t.Parallel()
	for description, want := range map[string]string{
		"":                                  "",
		"mine":                              "",
		MarkDescription("mine", "r1", "ab"): "ab",
		"a\nrecast: run=r1 build=cd more":   "cd",
		"recast: run=r1":                    "",
		"text recast: run=r1 build=cd":      "",
	} {
		must.Equal(t, description, want, (cluster.VM{Config: map[string]string{"description": description}}).MadeFrom())
	}
}

func TestRecordSurvivesADescription(t *testing.T) {
	t.Parallel()
	rec := Record{
		Cluster: "c1", Node: "wk1", Run: "20261121-0421-3f2a", Build: "b", VMID: 9011, UUID: "u", VMName: "wk1", Open: true, Strategy: cluster.Recreate, Stage: StageServes, Left: true,
		Disks: []ParkedDisk{{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:9011/vm-9011-disk-0.raw", Options: "serial=a,size=10G", System: true}},
		Kept:  []KeptDisk{{Key: "scsi29", Run: "earlier"}},
	}
	text := must.Get(rec.Description())(t)
	must.Contain(t, "what a person reads", text, "wk1", "VM 9011", "c1", "Never start it")
	// Proxmox gives descriptions back with a line break at the end.
	got, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": text + "\n"}})
	must.Be(t, err == nil && ok, "ok %t, err %v", ok, err)
	must.Equal(t, "got", rec, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func TestReadRecordOfOtherVMs(t *testing.T) {
	t.Parallel()
	if _, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": "web server\nsince 2019"}}); ok || err != nil {
		t.Errorf("ok %t, err %v", ok, err)
	}
	_, ok, err := ReadRecord(cluster.VM{ID: 9, Config: map[string]string{"description": cluster.RecordMark + `{"node":`}})
	must.Hold(t, ok && err != nil, "a damaged record: ok %t, err %v", ok, err)
}

// TestRecordOfANewerRecast: what this recast does not know, it refuses, rather than to drop it when it writes
// the record again. The record of another cluster is none of its business.
func TestRecordOfANewerRecast(t *testing.T) {
	t.Parallel()
	rec := Record{Cluster: "c1", Node: "wk1", Run: "r1", VMID: 101, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: StageServes}
	text := must.Get(rec.Description())(t)
	for name, tc := range map[string]struct {
		old, fresh, want string
		whose            Record
	}{
		"another version": {`"version":1,`, `"version":2,"also":true,`, "a newer recast wrote it: its format is version 2, and this recast reads version 1", rec},
		"another field":   {`"version":1,`, `"version":1,"also":true,`, `this recast does not know the field "also": a newer one wrote it, or it was edited`, Record{}},
		"no version":      {`"version":1,`, "", "someone has edited it: it lacks its version", Record{}},
		"no strategy":     {`"strategy":"recreate",`, "", "someone has edited it: it lacks its strategy", Record{}},
		"no stage":        {`"stage":"serves"`, `"nth":1`, "someone has edited it: it lacks its stage", Record{}},
	} {
		must.Be(t, strings.Contains(text, tc.old), "%s has no %s", text, tc.old)
		vm := cluster.VM{ID: 9050, Config: map[string]string{"description": strings.Replace(text, tc.old, tc.fresh, 1)}}
		got, ok, err := ReadRecord(vm)
		must.Hold(t, ok && (tc.want == "") == (err == nil) && (err == nil || strings.Contains(err.Error(), tc.want) && fault.KindOf(err) == fault.Refused && strings.Contains(fault.Hints(err)[0], "newer")),
			"%s: ok %t, %v, hints %q", name, ok, err, fault.Hints(err))
		must.Equal(t, name, tc.whose, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
		ours, err := AllParkings([]cluster.VM{vm}, "c1")
		must.Hold(t, (err == nil) == (tc.want == "") && len(ours) > 0 == (err == nil),
			"%s: %d parking VMs, %v", name, len(ours), err)
		if _, err := AllParkings([]cluster.VM{vm}, "c2"); (err != nil) != (tc.whose.Cluster == "") {
			t.Errorf("%s, for another cluster: %v", name, err)
		}
		vm.Name = cluster.ParkingName("wk1")
		must.Equal(t, name+": damaged", strings.Contains(tc.want, "it lacks"), Damaged(vm))
	}
}

func TestRecordTooLargeForADescription(t *testing.T) {
	t.Parallel()
	rec := Record{Disks: []ParkedDisk{{Options: strings.Repeat("x", cluster.MaxDescription)}}}
	_, err := rec.Description()
	must.Hold(t, err != nil, "Proxmox would have refused this description in the middle of a roll")
}

func TestMarkDescription(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ old, want string }{
		"none":            {"", "recast: run=r2 build=b"},
		"user's text":     {"mine\n\nyours\n", "mine\n\nyours\nrecast: run=r2 build=b"},
		"an earlier mark": {"mine\nrecast: run=r1 build=a\n", "mine\nrecast: run=r2 build=b"},
	} {
		got := MarkDescription(tc.old, "r2", "b")
		must.Equal(t, name, tc.want, got)
		must.Equal(t, name+": made by", "r2", (cluster.VM{Config: map[string]string{"description": got}}).MadeBy())
	}
}

func TestParkingKeys(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{"scsi1": true, "scsi30": true}
	for _, tc := range []struct {
		key    string
		system bool
		want   string
	}{{"scsi0", true, "scsi29"}, {"scsi1", false, "scsi0"}, {"scsi2", false, "scsi2"}, {"efidisk0", false, "efidisk0"}} {
		got := must.Get(parkingKey(tc.key, tc.system, taken))(t)
		must.Equal(t, fmt.Sprintf("%s (system %t)", tc.key, tc.system), tc.want, got)
		taken[got] = true
	}
	for i := range scsiKeys {
		taken["scsi"+strconv.Itoa(i)] = true
	}
	_, err := parkingKey("scsi4", false, taken)
	must.Hold(t, err != nil, "no key is free, yet one was found")
}

func TestWrongBlank(t *testing.T) {
	t.Parallel()
	volume := cluster.Volume{Label: "DATA", Device: "sdb1", PartitionUUID: "p1", Format: "xfs"}
	labelled := func(label string) func(*Memory, *cluster.Machine) {
		return func(_ *Memory, m *cluster.Machine) {
			m.Volumes = []cluster.Volume{{Label: label, Device: "sdb1", PartitionUUID: "p1"}, {Label: label, Device: "sdb2", PartitionUUID: "p2"}}
		}
	}
	type row struct {
		change func(*Memory, *cluster.Machine)
		err    string
	}
	must.Each(t, map[string]row{
		"as it should be":     {func(*Memory, *cluster.Machine) {}, ""},
		"no blank disk":       {func(_ *Memory, m *cluster.Machine) { m.Disks[0].Serial = "other" }, "0 disks of the machine are the blank system disk"},
		"two of them":         {func(_ *Memory, m *cluster.Machine) { m.Disks = append(m.Disks, m.Disks[0]) }, "2 disks of the machine are the blank system disk"},
		"it has data":         {func(_ *Memory, m *cluster.Machine) { m.Disks[0].Blank = false }, "the new system disk sda is not blank"},
		"a volume is missing": {func(mem *Memory, _ *cluster.Machine) { mem.Volumes = []cluster.Volume{volume} }, "the persistent volume"},
		"a volume is there": {func(mem *Memory, m *cluster.Machine) {
			mem.Volumes, m.Volumes = []cluster.Volume{volume}, []cluster.Volume{volume}
		}, ""},
		"a label of Talos, twice": {labelled("STATE"), "the label STATE is on sdb1 and on sdb2"},
		"another label, twice":    {labelled("mine"), ""},
	}, func(t *testing.T, c row) {
		mem := Memory{
			VM:        cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-101-disk-0", "scsi1": "fast:vm-101-disk-1,serial=data"}},
			SystemKey: "scsi0", DiskSerial: "blank",
		}
		m := cluster.Machine{Disks: []cluster.MachineDisk{{Device: "sda", Serial: "blank", Blank: true}, {Device: "sdb", Serial: "data"}}}
		c.change(&mem, &m)
		checkWrong(t, mem.WrongBlank(m, false, false), c.err)
	})
}

func checkWrong(t *testing.T, wrong []error, want string) {
	t.Helper()
	kind := fault.Refused
	if want == "" {
		kind = fault.KindOf(nil)
	}
	must.FailAs(t, errors.Join(wrong...), kind, want)
}

// TestWrongPrepared: a prepared disk has the partitions of its image, and the machine runs from it.
func TestWrongPrepared(t *testing.T) {
	t.Parallel()
	image := func(m *cluster.Machine, labels ...string) {
		for _, label := range labels {
			m.Volumes = append(m.Volumes, cluster.Volume{Label: label, Disk: "sda", Device: "sda" + label})
		}
	}
	type row struct {
		change     func(*cluster.Machine)
		configured bool
		err        string
	}
	must.Each(t, map[string]row{
		"as it should be":       {func(m *cluster.Machine) { image(m, "EFI", "META") }, false, ""},
		"for a BIOS, too":       {func(m *cluster.Machine) { image(m, "EFI", "BIOS", "BOOT", "META") }, false, ""},
		"cut short":             {func(m *cluster.Machine) { image(m, "EFI") }, false, "it was not imported whole"},
		"without EFI":           {func(m *cluster.Machine) { image(m, "META") }, false, "it was not imported whole"},
		"used":                  {func(m *cluster.Machine) { image(m, "EFI", "META", "STATE") }, false, "it was used before"},
		"begun to be used":      {func(m *cluster.Machine) { image(m, "EFI", "META", "STATE", "EPHEMERAL") }, true, ""},
		"booted from elsewhere": {func(m *cluster.Machine) { image(m, "EFI", "META"); m.SystemDisk = "sdb" }, false, "is not the one that the machine booted, which is sdb"},
		"booted from an ISO":    {func(m *cluster.Machine) { image(m, "EFI", "META"); m.FromISO = true }, false, "is not the one that the machine booted"},
		"of another serial":     {func(m *cluster.Machine) { m.Disks[0].Serial = "other" }, false, "0 disks of the machine are the prepared system disk"},
	}, func(t *testing.T, c row) {
		mem := Memory{VM: cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}, SystemKey: "scsi0", DiskSerial: "new"}
		m := cluster.Machine{SystemDisk: "sda", Disks: []cluster.MachineDisk{{Device: "sda", Serial: "new"}}}
		c.change(&m)
		checkWrong(t, mem.WrongBlank(m, c.configured, true), c.err)
	})
}

// undoRecord returns the open record of a VM's recreation, with its memory.
func undoRecord(t *testing.T, vm cluster.VM, in *Intent) Record {
	t.Helper()
	rec := must.Get(Record{Cluster: "c1", Node: vm.Name, Run: "20261121-0421-3f2a", Build: strings.Repeat("3f2a", 16), Strategy: cluster.Recreate, Parking: 9900}.
		Opened(Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab"}, nil))(t)
	rec.Intent = in
	return rec
}

func TestWayBack(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Pool: "talos", Config: map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=a", "net0": "virtio=BC:24:11:00:00:11,bridge=vmbr0", "tags": "a;b", "ide0": "fast:vm-9011-cloudinit,media=cdrom,size=4M",
		"ide2": "none,media=cdrom", "boot": "order=scsi0;ide2", "onboot": "1", "protection": "1", "description": "it's\n100%41\n", "sshkeys": "ssh-ed25519%20AAAA",
		"scsi0": "fast:vm-9011-disk-0,size=10G", "scsi1": "fast:vm-9011-disk-1,backup=0,serial=d,size=20G", "scsi2": "fast:vm-200-disk-0,serial=h", "unused3": "fast:vm-9011-disk-7",
		"vmgenid": "x", "meta": "y", "digest": "z", "cipassword": "**********",
	}}
	in := &Intent{From: 9011, Key: "scsi1", Volid: "fast:vm-9011-disk-1", To: 9900, ToKey: "scsi1", Options: "backup=0,serial=d", Unnamed: []string{"fast:vm-9011-disk-3", "fast:vm-9900-disk-0"}}
	text := must.Get(undoRecord(t, vm, in).Description())(t)
	_, block, _ := strings.Cut(text, "```sh\n")
	block, rest, _ := strings.Cut(block, "```\n")
	var lines []string
	for line := range strings.Lines(block) {
		if !strings.Contains(line, "() {") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		`has 9011 'lock: create' && lacks 9011 '.*vm-' && qm unlock 9011 && qm destroy 9011`,
		`has 9011 && lacks 9011 'smbios1:.*a' && exit 1`,
		`has 9011 && qm shutdown 9011 --timeout 120 --forceStop 1`,
		`has 9011 && qm set 9011 --onboot 0 --protection 0`,
		`has 9900 && lacks 9011 && qm create 9011 --ide0 fast:cloudinit --ide2 none,media=cdrom --memory 4096 --name wk1 --net0 virtio=BC:24:11:00:00:11,bridge=vmbr0 --pool talos --smbios1 uuid=a`,
		`lacks 9011 sshkeys: && pvesh set /nodes/localhost/qemu/9011/config --sshkeys "$(printf %b 'ssh-ed25519\004520AAAA')"`,
		`has 9900 unused3: && qm disk move 9900 unused3 --target-vmid 9011 --target-disk unused3`,
		`has 9011 'scsi1: fast:vm-9011-disk-1\b' && gone fast:vm-9011-disk-1 && qm set 9011 --delete scsi1`,
		`has 9011 'unused[0-9]*: fast:vm-9011-disk-1\b' && gone fast:vm-9011-disk-1 && qm set 9011 --delete "$(key 9011 fast:vm-9011-disk-1)"`,
		`lacks 9011 scsi1: && lacks 9900 scsi1: && lost 9900 fast "$(printf %b 'fast:vm-9011-disk-3\nfast:vm-9900-disk-0')" && qm set 9900 --scsi1 "$(lost 9900 fast "$(printf %b 'fast:vm-9011-disk-3\nfast:vm-9900-disk-0')")",backup=0,serial=d`,
		`has 9900 scsi1: && qm disk move 9900 scsi1 --target-vmid 9011 --target-disk scsi1`,
		`lacks 9011 scsi2: && qm set 9011 --scsi2 fast:vm-200-disk-0,serial=h`,
		`has 9011 'scsi0:.*serial=recast-0123456789ab' && lacks 9900 scsi29: && qm disk move 9011 scsi0 --target-vmid 9900 --target-disk scsi29`,
		`has 9011 'scsi0:.*serial=recast-0123456789ab' && qm set 9011 --delete scsi0`,
		`has 9900 scsi30: && qm disk move 9900 scsi30 --target-vmid 9011 --target-disk scsi0`,
		`qm set 9011 --scsi0 "$(vol 9011 scsi0)",size=10G`,
		`qm set 9011 --ide2 none,media=cdrom`,
		`qm set 9011 --boot 'order=scsi0;ide2' --description "$(printf %b 'it'\''s\n100\004541')" --onboot 1 --protection 1 --tags 'a;b'`,
		`qm start 9011`,
		`# unusedN before: unused3`,
	}
	must.Equal(t, "-want +got", want, lines)
	if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, cluster.RecordMark) || strings.Contains(rest, "\n") {
		t.Errorf("the record is not the one last line: %q", rest)
	}
	encoded := regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	must.Hold(t, !encoded.MatchString(text), "Proxmox before 9 would decode %q", encoded.FindString(text))
}

// manyDrives returns a VM with ten disks, four network cards and everything else that a VM may have.
func manyDrives(keys, description int) cluster.VM {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(62)])
		}
		return b.String()
	}
	vm := cluster.VM{ID: 90110, Name: "worker-zone-a-17", Host: "pve1", Pool: "talos-production", Config: map[string]string{
		"name": "worker-zone-a-17", "memory": "65536", "balloon": "0", "cores": "16", "sockets": "1", "cpu": "x86-64-v3", "numa": "1", "machine": "q35", "bios": "ovmf",
		"ostype": "l26", "agent": "1,fstrim_cloned_disks=1", "scsihw": "virtio-scsi-single", "smbios1": "uuid=5ec0ffee-0000-4000-8000-000000090110", "tags": "production;talos;worker;zone-a",
		"onboot": "1", "protection": "1", "startup": "order=3,up=30,down=120", "boot": "order=scsi0;ide2;net0", "ide2": "none,media=cdrom", "ide0": "ceph-nvme:vm-90110-cloudinit,media=cdrom,size=4M",
		"serial0": "socket", "vga": "serial0", "rng0": "source=/dev/urandom", "hostpci0": "mapping=gpu,pcie=1", "ciuser": "talos", "searchdomain": "cluster.example.org", "nameserver": "10.0.0.1",
		"efidisk0": "ceph-nvme:vm-90110-disk-0,efitype=4m,pre-enrolled-keys=0,size=528K", "tpmstate0": "ceph-nvme:vm-90110-disk-1,size=4M,version=v2.0",
		"description": random(description),
	}}
	for i := range 4 {
		vm.Config[fmt.Sprintf("net%d", i)] = fmt.Sprintf("virtio=BC:24:11:%02X:%02X:%02X,bridge=vmbr%d,firewall=1,mtu=9000,queues=8,tag=%d", r.IntN(256), r.IntN(256), r.IntN(256), i, 100+i)
		vm.Config[fmt.Sprintf("ipconfig%d", i)] = fmt.Sprintf("gw=10.%d.0.1,ip=10.%d.0.17/16", i, i)
	}
	for range keys {
		vm.Config["sshkeys"] += "ssh-rsa%20" + random(372) + "%20admin%40example.org%0A"
	}
	for i := range 10 {
		vm.Config[fmt.Sprintf("scsi%d", i)] = fmt.Sprintf("ceph-nvme:vm-90110-disk-%d,aio=io_uring,cache=none,discard=on,iothread=1,serial=data-%s,size=%dG,ssd=1", i+2, random(8), 100+i)
	}
	return vm
}

// TestWayBackFits: the commands fit for a VM with many settings, and never prevent a record from being written.
func TestWayBackFits(t *testing.T) {
	t.Parallel()
	type row struct {
		keys, description int
		commands          bool
	}
	must.Each(t, map[string]row{
		"a big VM":            {1, 200, true},
		"with three SSH keys": {3, 20, true},
		"with a description that leaves no room for commands": {1, 3000, false},
		"nor for a reference to the document":                 {1, 3340, false},
	}, func(t *testing.T, c row) {
		vm := manyDrives(c.keys, c.description)
		in := &Intent{From: 90110, Key: "scsi9", Volid: "ceph-nvme:vm-90110-disk-11", To: 9900, ToKey: "scsi9", Options: strings.Repeat("x", 120)}
		rec := undoRecord(t, vm, in)
		text := must.Get(rec.Description())(t)
		must.Hold(t, len(text) <= cluster.MaxDescription, "%d bytes", len(text))
		must.Equal(t, "commands", c.commands, strings.Contains(text, "qm create 90110 "))
		must.Hold(t, c.commands || len(text)+len(noRoom) >= cluster.MaxDescription || strings.Contains(text, "see docs/notes/proxmox.md"),
			"it does not say where else to look: %s", text)
		got, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": text}})
		must.Hold(t, err == nil && ok && got.Memory == rec.Memory && len(got.Disks) == 12, "ok %t, %v", ok, err)
	})
}

// TestShellFunctionsAreExplained: the document shows each of them word for word.
func TestShellFunctionsAreExplained(t *testing.T) {
	t.Parallel()
	doc := must.Get(os.ReadFile("../../docs/notes/proxmox.md"))(t)
	for _, f := range shellFunctions {
		must.Contain(t, "the document", string(doc), "\n"+f.body+"\n")
	}
}

// proxmoxCommands are stand-ins for the commands of a Proxmox host, by name.
var proxmoxCommands = map[string]string{
	"qm": `case "$1 $2" in
"config 9011") printf '%s\n' 'description: a%3A b' 'scsi1: data:9011/vm-9011-disk-1.raw,serial=a' 'scsi10: data:9011/vm-9011-disk-5.raw' 'unused0: data:9011/vm-9011-disk-7.raw' ;;
"config 9900") echo 'scsi30: data:9900/vm-9900-disk-0.raw' ;;
"config 404") echo "Configuration file 'nodes/pve1/qemu-server/404.conf' does not exist" >&2; exit 2 ;;
"disk rescan") [ "$4 $5 $6" = '9011 --dryrun 1' ] || exit 1
	printf '%s\n' "NOTE: running in dry-run mode, won't write changes out!" 'rescan volumes...'
	printf "VM 9011 add unreferenced volume '%s' as 'unused1' to config\n" data:9011/vm-9011-disk-3.raw data:9011/vm-9011-disk-4.raw fast:vm-9011-disk-0 ;;
*) echo "qm $*" ;;
esac`,
	"pvesm": `[ "$2" != away ] || exit 255
echo 'Volid                         Format  Type             Size VMID'
[ "$2" = empty ] || echo 'data:9011/vm-9011-disk-1.raw  raw     images     1073741824 9011'`,
	"ha-manager": `printf 'vm:9011\n\tstate started\n\nvm:90112\n\tstate stopped\n'`,
}

// TestShellFunctions runs the functions of the undo commands in a real shell.
func TestShellFunctions(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for name, body := range proxmoxCommands {
		must.Do(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	}
	var functions strings.Builder
	for _, f := range shellFunctions {
		functions.WriteString(strings.NewReplacer("PARKING", "9900", "VMID", "9011").Replace(f.body) + "\n")
	}
	const volumes = "data:9011/vm-9011-disk-"
	tests := map[string]struct {
		want string // what it prints
		no   bool   // it fails
	}{
		"has 9011":                               {},
		"has 404":                                {no: true},
		"lacks 404 scsi1:":                       {},
		"lacks 9011 scsi1:":                      {no: true},
		"has 9011 scsi0:":                        {no: true},
		`has 9011 'scsi1:.*serial=a'`:            {},
		`has 9011 'scsi1: ` + volumes + `1\b'`:   {},
		`has 9011 'unused[0-9]*: data.*7.raw\b'`: {},
		"vol 9011 scsi1":                         {want: volumes + "1.raw"},
		"vol 9011 scsi10":                        {want: volumes + "5.raw"},
		"key 9011 " + volumes + "7.raw":          {want: "unused0"},
		"lost 9011 data":                         {want: volumes + "3.raw\n" + volumes + "4.raw"},
		"lost 9011 data " + volumes + "3.raw":    {want: volumes + "4.raw"},
		`lost 9011 data "$(printf %b '` + volumes + `3.raw\n` + volumes + `4.raw')"`: {no: true},
		"lost 9011 fast":             {want: "fast:vm-9011-disk-0"},
		"lost 9011 slow":             {no: true},
		"gone " + volumes + "1.raw":  {no: true},
		"gone " + volumes + "10.raw": {},
		"gone empty:9011/a.raw":      {},
		"gone away:9011/a.raw":       {no: true}, // the storage can't be read
		"ha 9011":                    {},
		"ha 901":                     {no: true},
		"back scsi30 scsi0":          {want: "qm disk move 9900 scsi30 --target-vmid 9011 --target-disk scsi0"},
		"back scsi1":                 {},
	}
	for call, test := range tests {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", functions.String()+call)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.Output()
			got := strings.TrimSpace(string(out))
			must.Hold(t, got == test.want && (err != nil) == test.no, "%q, %v", got, err)
		})
	}
}
