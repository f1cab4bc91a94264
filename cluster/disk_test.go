package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestParseDisk(t *testing.T) {
	t.Parallel()
	type testCase struct {
		key, value string
		want       Disk
		bytes      uint64
		err        string
	}
	must.Each(t, map[string]testCase{
		"file storage": {
			"scsi1", "fast:9011/vm-9011-disk-1.raw,discard=on,serial=data-wk1,size=20G",
			Disk{Key: "scsi1", Volid: "fast:9011/vm-9011-disk-1.raw", Owner: 9011, Options: []string{"discard=on", "serial=data-wk1", "size=20G"}},
			20 << 30, "",
		},
		"block storage": {
			"virtio0", "thin:vm-100-disk-0,size=528K",
			Disk{Key: "virtio0", Volid: "thin:vm-100-disk-0", Owner: 100, Options: []string{"size=528K"}},
			528 << 10, "",
		},
		"linked clone is owned by the clone": {
			"scsi0", "st:400/base-400-disk-0.qcow2/401/vm-401-disk-0.qcow2",
			Disk{Key: "scsi0", Volid: "st:400/base-400-disk-0.qcow2/401/vm-401-disk-0.qcow2", Owner: 401},
			0, "",
		},
		"a file's directory": {"scsi2", "fast:9011/old-data.raw", Disk{Key: "scsi2", Volid: "fast:9011/old-data.raw", Owner: 9011}, 0, ""},
		"not a file's name":  {"scsi2", "fast:9011/vm-9012-disk-0.raw", Disk{Key: "scsi2", Volid: "fast:9011/vm-9012-disk-0.raw", Owner: 9011}, 0, ""},
		"file= prefix":       {"scsi0", "file=a:vm-5-disk-0", Disk{Key: "scsi0", Volid: "a:vm-5-disk-0", Owner: 5}, 0, ""},
		"volume= prefix":     {"scsi0", "volume=a:vm-5-disk-0", Disk{Key: "scsi0", Volid: "a:vm-5-disk-0", Owner: 5}, 0, ""},
		"the volume is last": {"scsi0", "iothread=on,,ssd=1,a:vm-5-disk-0", Disk{Key: "scsi0", Volid: "a:vm-5-disk-0", Owner: 5, Options: []string{"iothread=on", "ssd=1"}}, 0, ""},
		"two volumes":        {key: "scsi0", value: "a:vm-5-disk-0,file=a:vm-5-disk-1", err: `scsi0: two volumes in "a:vm-5-disk-0,file=a:vm-5-disk-1"`},
		"ISO has no owner":   {"ide2", "isos:iso/x.iso,media=cdrom", Disk{Key: "ide2", Volid: "isos:iso/x.iso", CDROM: true, Options: []string{"media=cdrom"}}, 0, ""},
		"empty drive":        {"ide2", "none,media=cdrom", Disk{Key: "ide2", Volid: "none", CDROM: true, Options: []string{"media=cdrom"}}, 0, ""},
		"cloud-init": {
			"ide0", "fast:9011/vm-9011-cloudinit.qcow2,media=cdrom",
			Disk{Key: "ide0", Volid: "fast:9011/vm-9011-cloudinit.qcow2", Owner: 9011, CDROM: true, Options: []string{"media=cdrom"}},
			0, "",
		},
		"an ISO named like a disk": {"ide2", "isos:iso/vm-9-disk.iso,media=cdrom", Disk{Key: "ide2", Volid: "isos:iso/vm-9-disk.iso", CDROM: true, Options: []string{"media=cdrom"}}, 0, ""},
		"host device":              {"scsi3", "/dev/sdb", Disk{Key: "scsi3", Volid: "/dev/sdb"}, 0, ""},
		"not a drive":              {key: "net0", value: "virtio=AA", err: `"net0" is not a drive`},
		"controller":               {key: "scsihw", value: "virtio-scsi-single", err: `"scsihw" is not a drive`},
		"no volume in":             {key: "scsi0", value: "size=3G", err: `scsi0: no volume in "size=3G"`},
	}, func(t *testing.T, tc testCase) {
		got, err := ParseDisk(tc.key, tc.value)
		msg := must.Text(err)
		must.Be(t, msg == tc.err, "error %q, want %q", msg, tc.err)
		must.Equal(t, "got", tc.want, got)
		must.Equal(t, "size", tc.bytes, got.SizeBytes())
		if err == nil && strings.HasPrefix(tc.value, got.Volid) && got.Value() != tc.value {
			t.Errorf("written back as %q", got.Value())
		}
	})
}

func TestDisksAreOrderedByBusAndNumber(t *testing.T) {
	t.Parallel()
	vm := VM{ID: 1, Config: map[string]string{"scsi10": "a:vm-1-disk-3", "scsi2": "a:vm-1-disk-2", "efidisk0": "a:vm-1-disk-0", "scsihw": "lsi", "name": "x"}}
	disks := must.Get(vm.Disks())(t)
	keys := Each(disks, func(d Disk) string { return d.Key })
	must.Equal(t, "got", []string{"efidisk0", "scsi2", "scsi10"}, keys)
}

func FuzzParseDisk(f *testing.F) {
	f.Add("scsi0", "fast:9011/vm-9011-disk-1.raw,discard=on,size=20G")
	f.Add("ide2", "none,media=cdrom")
	f.Fuzz(func(t *testing.T, key, value string) {
		d, err := ParseDisk(key, value)
		if err != nil {
			return
		}
		again := must.Get(ParseDisk(key, d.Value()))(t)
		must.Equal(t, "got", d, again)
	})
}

func TestProveSystemDisk(t *testing.T) {
	t.Parallel()
	const scsi = "virtio-scsi-single"
	must.Each(t, map[string]proof{
		"by serial": {
			config:  map[string]string{"scsihw": scsi, "scsi0": "f:vm-1-disk-0,serial=sys,size=10G", "scsi1": "f:vm-1-disk-1,serial=data,size=10G"},
			machine: Machine{SystemDisk: "sdb", Disks: []MachineDisk{{Device: "sda", Serial: "data"}, {Device: "sdb", Serial: "sys"}}},
			want:    "scsi0",
		},
		"by SCSI address": {
			config:  map[string]string{"scsihw": scsi, "scsi0": "f:vm-1-disk-0,size=10G", "scsi3": "f:vm-1-disk-1,size=10G"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", BusPath: "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:3"}, {Device: "sdb"}}},
			want:    "scsi3",
		},
		"by unique size": {
			config:  map[string]string{"virtio0": "f:vm-1-disk-0,size=10G", "virtio1": "f:vm-1-disk-1,size=20G"},
			machine: Machine{SystemDisk: "vdb", Disks: []MachineDisk{{Device: "vda", SizeBytes: 10 << 30}, {Device: "vdb", SizeBytes: 20 << 30}}},
			want:    "virtio1",
		},
		"same size twice is ambiguous": {
			config:  map[string]string{"virtio0": "f:vm-1-disk-0,size=10G", "virtio1": "f:vm-1-disk-1,size=10G"},
			machine: Machine{SystemDisk: "vdb", Disks: []MachineDisk{{Device: "vda", SizeBytes: 10 << 30}, {Device: "vdb", SizeBytes: 10 << 30}}},
			err:     `VM 1 "" on : system disk can't be proven: no drive matches vdb (no serial or WWID of a drive, and vda has the same size)`,
		},
		"one serial twice is ambiguous": {
			config:  map[string]string{"scsi0": "f:vm-1-disk-0,serial=s", "scsi1": "f:vm-1-disk-1,serial=s"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", Serial: "s"}}},
			err:     `VM 1 "" on : system disk can't be proven: 2 drives match sda (serial s)`,
		},
		"the user's word must agree": {
			config:  map[string]string{"scsi0": "f:vm-1-disk-0,serial=sys", "scsi1": "f:vm-1-disk-1,serial=data"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", Serial: "sys"}}}, slot: "scsi1",
			err: `VM 1 "" on : system disk can't be proven: the configuration says scsi1, but the machine runs from scsi0 (serial sys)`,
		},
		"the machine does not say": {
			config: map[string]string{"scsi0": "f:vm-1-disk-0,serial=sys"},
			err:    `VM 1 "" on : system disk can't be proven: the machine does not name it`,
		},
		"EFI variables and detached disks are none": {
			config:  map[string]string{"efidisk0": "f:vm-1-disk-0,size=4M", "unused0": "f:vm-1-disk-5", "virtio1": "f:vm-1-disk-1,size=20G"},
			machine: Machine{SystemDisk: "vda", Disks: []MachineDisk{{Device: "vda", SizeBytes: 20 << 30}}},
			want:    "virtio1",
		},
		// Talos shows no serial of SCSI and SATA; that of IDE has another form.
		"by address, whatever serial and WWN it was given since the start": {
			config:  map[string]string{"scsihw": scsi, "scsi0": "f:vm-1-disk-0,serial=a,wwn=0x3000000000000001", "scsi3": "f:vm-1-disk-1,serial=b,wwn=0x3000000000000002"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", BusPath: "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:3"}}},
			want:    "scsi3",
		},
		"by WWID": {
			config:  map[string]string{"scsi0": "f:vm-1-disk-0,serial=a,wwn=0x3ABCDEF000000001", "scsi3": "f:vm-1-disk-1,serial=b,wwn=0x3000000000000002"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", WWID: "naa.3abcdef000000001"}}},
			want:    "scsi0",
		},
		"an address with another WWID": {
			config:  map[string]string{"scsihw": scsi, "scsi0": "f:vm-1-disk-0,serial=a"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", WWID: "naa.3abcdef000000001", BusPath: "/virtio1/host0/target0:0:0/0:0:0:0"}}},
			err:     `VM 1 "" on : system disk can't be proven: no drive matches sda (address /virtio1/host0/target0:0:0/0:0:0:0)`,
		},
		"an address with another serial": {
			config:  map[string]string{"scsihw": scsi, "scsi0": "f:vm-1-disk-0,serial=a"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", Serial: "b", BusPath: "/virtio1/host0/target0:0:0/0:0:0:0"}}},
			err:     `VM 1 "" on : system disk can't be proven: no drive matches sda (address /virtio1/host0/target0:0:0/0:0:0:0)`,
		},
		"by the model and serial of SATA": {
			config:  map[string]string{"sata0": "f:vm-1-disk-0,serial=a%20b", "sata1": "f:vm-1-disk-1,serial=b"},
			machine: Machine{SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", WWID: "t10.ATA     QEMU HARDDISK                           a b"}}},
			want:    "sata0",
		},
		"by the serial of IDE": {
			config:  map[string]string{"ide0": "f:vm-1-disk-0,serial=a", "ide1": "f:vm-1-disk-1,serial=b"},
			machine: Machine{SystemDisk: "sdb", Disks: []MachineDisk{{Device: "sdb", Serial: "QEMU_HARDDISK_b"}}},
			want:    "ide1",
		},
	}, checkProof)
}

// TestProveSystemDiskByAddress: a disk on another bus does not match the drive whose number is in its address.
func TestProveSystemDiskByAddress(t *testing.T) {
	t.Parallel()
	two := func(scsihw, a, b string) map[string]string {
		return map[string]string{"scsihw": scsihw, a: "f:vm-1-disk-0,size=10G", b: "f:vm-1-disk-1,size=10G"}
	}
	on := func(paths ...string) Machine {
		m := Machine{SystemDisk: "a"}
		for i, path := range paths {
			m.Disks = append(m.Disks, MachineDisk{Device: string(rune('a' + i)), BusPath: path, SizeBytes: 10 << 30})
		}
		return m
	}
	unproven := func(how string) string {
		return `VM 1 "" on : system disk can't be proven: no drive matches a (` + how + ")"
	}
	const size = "no serial or WWID of a drive, and b has the same size"
	const pci = "/pci0000:00/0000:00:"
	must.Each(t, map[string]proof{
		"a SATA disk is not scsi0": {
			config:  map[string]string{"scsihw": "virtio-scsi-single", "scsi0": "f:vm-1-disk-0,size=20G", "sata0": "f:vm-1-disk-1,size=10G"},
			machine: Machine{SystemDisk: "a", Disks: []MachineDisk{{Device: "a", SizeBytes: 10 << 30, BusPath: pci + "07.0/ata1/host0/target0:0:0/0:0:0:0"}, {Device: "b", SizeBytes: 20 << 30}}},
			want:    "sata0",
		},
		"nor is a USB disk, nor one of the network": {
			config: two("virtio-scsi-single", "scsi0", "sata0"), machine: on(pci+"1d.0/usb1/1-1/1-1:1.0/host3/target3:0:0/3:0:0:0", "/platform/host4/session1/target4:0:0/4:0:0:0"),
			err: unproven(size),
		},
		"virtio-blk on i440fx":         {config: two("", "virtio0", "virtio1"), machine: on(pci+"0b.0/virtio3", pci+"0a.0/virtio2"), want: "virtio1"},
		"virtio-blk on q35":            {config: two("", "virtio0", "virtio5"), machine: on(pci + "1e.0/0000:05:01.0/0000:06:0f.0/virtio3"), want: "virtio5"},
		"virtio-blk on the second bus": {config: two("", "virtio6", "virtio7"), machine: on(pci + "1f.0/0000:01:02.0/virtio3"), want: "virtio7"},
		"virtio0 has the slot of virtio15": {
			config: two("", "virtio0", "virtio15"), machine: on(pci + "0a.0/virtio3"),
			err: `VM 1 "" on : system disk can't be proven: 2 drives match a (address ` + pci + "0a.0/virtio3)",
		},
		"a network card's slot":          {config: two("", "virtio0", "virtio1"), machine: on(pci+"12.0/virtio3", pci+"0a.0/virtio2"), err: unproven("address " + pci + "12.0/virtio3")},
		"LSI":                            {config: two("", "scsi1", "scsi3"), machine: on(pci + "05.0/host2/target2:0:3/2:0:3:0"), want: "scsi3"},
		"the second LSI":                 {config: two("lsi53c810", "scsi3", "scsi10"), machine: on(pci + "1e.0/0000:05:01.0/0000:06:06.0/host3/target3:0:3/3:0:3:0"), want: "scsi10"},
		"another controller":             {config: two("lsi", "scsi0", "scsi1"), machine: on(pci+"10.0/host2/target2:0:0/2:0:0:0", pci+"10.0/host2/target2:0:1/2:0:1:0"), err: unproven(size)},
		"PVSCSI":                         {config: two("pvscsi", "scsi1", "scsi9"), machine: on(pci + "05.0/host2/target2:0:9/2:0:9:0"), want: "scsi9"},
		"MegaRAID counts in its own way": {config: two("megasas", "scsi0", "scsi1"), machine: on(pci+"05.0/host2/target2:0:0/2:0:0:0", pci+"05.0/host2/target2:0:1/2:0:1:0"), err: unproven(size)},
		"by a size that only another, known one has": {
			config: map[string]string{"sata0": "f:vm-1-disk-0,size=10G", "sata1": "f:vm-1-disk-1,serial=known,size=10G"},
			machine: Machine{SystemDisk: "a", Disks: []MachineDisk{
				{Device: "a", SizeBytes: 10 << 30, WWID: "t10.ATA     QEMU HARDDISK                           QM00013"},
				{Device: "b", SizeBytes: 10 << 30, WWID: "t10.ATA     QEMU HARDDISK                           known"},
			}},
			want: "sata0",
		},
	}, checkProof)
}

type proof struct {
	config  map[string]string
	machine Machine
	slot    string
	want    string
	err     string
}

func checkProof(t *testing.T, tc proof) {
	got, err := ProveSystemDisk(VM{ID: 1, Config: tc.config}, tc.machine, tc.slot)
	msg := must.Text(err)
	must.Be(t, msg == tc.err, "error %q, want %q", msg, tc.err)
	must.Equal(t, "proved", tc.want, got.Key)
}

func TestPersistentVolumesAreThoseOfTheVMsOwnDisks(t *testing.T) {
	t.Parallel()
	vm := VM{ID: 1, Config: map[string]string{"scsi0": "f:vm-1-disk-0,serial=sys", "scsi1": "f:vm-1-disk-1,serial=data"}}
	m := Machine{
		SystemDisk: "sda", Disks: []MachineDisk{{Device: "sda", Serial: "sys"}, {Device: "sdb", Serial: "data"}, {Device: "sdc", Serial: "iscsi-lun"}, {Device: "sdd"}},
		Volumes: []Volume{{Device: "sda4", Disk: "sda", Label: "EPHEMERAL"}, {Device: "sdb1", Disk: "sdb", Label: "u-data"}, {Device: "sdc", Disk: "sdc"}, {Device: "sdd1", Disk: "sdd"}},
	}
	drives := must.Get(vm.Bootable())(t)
	got := must.Get(PersistentVolumes(vm, drives, m, Disk{Key: "scsi0"}))(t)
	must.Equal(t, "got", []Volume{{Device: "sdb1", Disk: "sdb", Label: "u-data"}}, got)
}

// TestOptionsAsProxmoxReadsThem: options are the same only if Proxmox reads the same drive from both spellings.
func TestOptionsAsProxmoxReadsThem(t *testing.T) {
	t.Parallel()
	type testCase struct {
		a, b string
		same bool
	}
	must.Each(t, map[string]testCase{
		"as written":             {"iothread=1,serial=a", "iothread=1,serial=a", true},
		"in another order":       {"serial=a,iothread=1", "iothread=1,serial=a", true},
		"the size is not its":    {"size=10G,serial=a", "serial=a,size=20480M", true},
		"on and 1":               {"iothread=on,ssd=TRUE,backup=no", "backup=0,iothread=1,ssd=1", true},
		"on and 0":               {"iothread=on", "iothread=0", false},
		"on and nothing":         {"iothread=on", "", false},
		"no boolean":             {"discard=on", "discard=1", false},
		"not to be read as one":  {"iothread=maybe", "iothread=1", false},
		"pre-enrolled keys":      {"efitype=4m,pre-enrolled-keys=yes", "efitype=4m,pre-enrolled-keys=1", true},
		"a serial that says on":  {"serial=on", "serial=1", false},
		"another name":           {"iops_rd_length=2", "iops_rd_max_length=2", true},
		"bytes":                  {"bps_rd=1048576", "mbps_rd=0.000", true},
		"geometry":               {"cyls=1,heads=1,secs=1,trans=lba,serial=a", "serial=a", true},
		"empty parts":            {"serial=a,,", "serial=a", true},
		"one more":               {"serial=a", "serial=a,ssd=1", false},
		"another value":          {"serial=a", "serial=b", false},
		"without a name":         {"serial=a,x", "serial=a", false},
		"twice, Proxmox refuses": {"serial=a,serial=b", "serial=b", false},
	}, func(t *testing.T, tc testCase) {
		a, b := SplitOptions(tc.a), SplitOptions(tc.b)
		must.Equal(t, tc.a+" is "+tc.b, tc.same, SameOptions(a, b))
		must.Equal(t, tc.b+" is "+tc.a, tc.same, SameOptions(b, a))
	})
}

// TestSameVolume: a format that only one of two releases of Talos detects is no difference; everything else is one.
func TestSameVolume(t *testing.T) {
	t.Parallel()
	part := func(format, uuid string) Volume {
		return Volume{Device: "sdb1", Disk: "sdb", Label: "u-data", PartitionUUID: "P", Format: format, FilesystemUUID: uuid}
	}
	whole := func(format, uuid string) Volume {
		return Volume{Device: "sdb", Disk: "sdb", Format: format, FilesystemUUID: uuid}
	}
	type testCase struct {
		want  Volume
		talos string
		have  []Volume
		lacks bool
	}
	must.Each(t, map[string]testCase{
		"as it was":                        {part("xfs", "f"), "v1.14.1", []Volume{part("xfs", "F")}, false},
		"another filesystem":               {part("xfs", "f"), "v1.14.1", []Volume{part("xfs", "g")}, true},
		"no filesystem any more":           {part("xfs", "f"), "v1.14.1", []Volume{part("", "")}, true},
		"btrfs, newly detected":            {part("", ""), "v1.13.9", []Volume{part("btrfs", "b")}, false},
		"btrfs where there was xfs":        {part("xfs", "f"), "v1.14.1", []Volume{part("btrfs", "b")}, true},
		"btrfs of a UUID that is recorded": {part("", "b"), "v1.14.1", []Volume{part("btrfs", "c")}, true},
		"btrfs of another partition":       {part("", ""), "v1.14.1", []Volume{{Label: "u-data", PartitionUUID: "q", Format: "btrfs", FilesystemUUID: "b"}}, true},
		"btrfs, no longer detected":        {part("btrfs", "b"), "v1.13.4", []Volume{part("", "")}, false},
		"btrfs that should be detected":    {part("btrfs", "b"), "v1.13.5", []Volume{part("", "")}, true},
		"ext4 where nothing was shown":     {part("", ""), "v1.14.1", []Volume{part("ext4", "e")}, true},
		"a RAID, newly detected":           {part("xfs", "f"), "v1.14.0", []Volume{part("linux_raid_member", "m")}, false},
		"a RAID of others":                 {part("linux_raid_member", "m"), "v1.14.0", []Volume{part("linux_raid_member", "n")}, true},
		"a RAID, no longer detected":       {part("linux_raid_member", "m"), "v1.13.9", []Volume{part("xfs", "f")}, false},
		"a disk of btrfs":                  {whole("btrfs", "b"), "v1.12.6", nil, false},
		"a disk of btrfs that is gone":     {whole("btrfs", "b"), "v1.13.9", nil, true},
		"a disk of xfs that is gone":       {whole("xfs", "f"), "v1.12.6", nil, true},
		"no version":                       {whole("btrfs", "b"), "", nil, true},
	}, func(t *testing.T, c testCase) {
		m := Machine{RunningSystem: RunningSystem{TalosVersion: c.talos}, Volumes: c.have}
		if _, there := m.Find(c.want); (!there && m.Shows(c.want.Format)) != c.lacks {
			t.Errorf("%+v is missed: %v, found: %v", c.want, !c.lacks, there)
		}
	})
}

func TestPodVolumesAreThoseThatHandlesName(t *testing.T) {
	t.Parallel()
	type testCase struct {
		value, handle string
		want          bool
	}
	must.Each(t, map[string]testCase{
		"on the host":                {"fast:vm-9999-media,size=1G", "lab/pve1/fast/vm-9999-media", true},
		"under the VM's own number":  {"fast:vm-9031-disk-7", "lab/pve1/fast/vm-9031-disk-7", true},
		"on a shared storage":        {"ceph:vm-9999-media", "lab//ceph/vm-9999-media", true},
		"in a file":                  {"nfs:9999/vm-9999-media.qcow2", "lab//nfs/9999/vm-9999-media.qcow2", true},
		"on another host":            {"fast:vm-9999-media", "lab/pve2/fast/vm-9999-media", false},
		"made on another host":       {"ceph:vm-9999-pvc-0b5f", "lab/pve2/ceph/vm-9999-pvc-0b5f", true},
		"on another storage":         {"slow:vm-9999-media", "lab/pve1/fast/vm-9999-media", false},
		"another one":                {"fast:vm-9999-media", "lab/pve1/fast/vm-9999-media-2", false},
		"named so, and of no handle": {"fast:vm-9999-pvc-0b5f", "lab/pve1/fast/vm-9999-pvc-77", false},
		"a handle that is none":      {"fast:vm-9999-media", "vm-9999-media", false},
		"a CD drive":                 {"fast:vm-9999-media,media=cdrom", "lab/pve1/fast/vm-9999-media", false},
	}, func(t *testing.T, c testCase) {
		vm := VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": c.value}}
		vm.Pods = vm.PodVolumes([]string{"x/y/z/a", c.handle})
		disks := must.Get(vm.Disks())(t)
		d := disks[1]
		must.Equal(t, d.Volid+" is a pod's", []bool{false, c.want}, []bool{disks[0].CSI(), d.CSI()})
	})
}

func TestInitiatorName(t *testing.T) {
	t.Parallel()
	const id = "4c4c4544004f5a10805ac7c04f4a3233"
	for protocol, want := range map[string]string{
		ISCSI:  "iqn.2017-11.dev.talos:" + id,
		NVMeoF: "nqn.2017-11.dev.talos:uuid:34633463-3435-3434-3030-346635613130",
	} {
		must.Equal(t, string(protocol), want, InitiatorName(protocol, id))
	}
	must.Equal(t, "of an unknown machine", "", InitiatorName(ISCSI, ""))
}

// TestHalfMade: what looks like the rest of a creation is to be deleted only if a delete would free nothing.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	type testCase struct {
		change  func(*VM)
		deletes bool
	}
	must.Each(t, map[string]testCase{
		"nothing but its lock": {func(*VM) {}, true},
		"a drive":              {func(vm *VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, false},
		"a detached one":       {func(vm *VM) { vm.Config["unused0"] = "fast:vm-9000-disk-0" }, false},
		"a snapshot":           {func(vm *VM) { vm.Config["parent"] = "a" }, false},
		"a saved state":        {func(vm *VM) { vm.Config["vmstate"] = "fast:vm-9000-state-a" }, false},
		"its power not read":   {func(vm *VM) { vm.Running = true }, true}, // see VMConfig
		"a template":           {func(vm *VM) { vm.Template = true }, false},
	}, func(t *testing.T, c testCase) {
		vm := VM{ID: 9000, Host: "pve1", Lock: "create", Config: map[string]string{"lock": "create"}}
		c.change(&vm)
		hint := strings.Join(fault.Hints(HalfMade(vm)), "\n")
		if strings.Contains(hint, "qm destroy") != c.deletes || !strings.HasPrefix(hint, "pvesh get /nodes/pve1/tasks --source active --vmid 9000 lists") {
			t.Error(hint)
		}
	})
}

// TestUnlock: the hint looks first, and keeps a saved state.
func TestUnlock(t *testing.T) {
	t.Parallel()
	for lock, want := range map[string]string{
		"backup":    "pvesh get /nodes/pve1/tasks --source active --vmid 101 lists its tasks that still run; where none does, its task has died, and qm unlock 101 on pve1 takes the lock away",
		"suspended": "it is suspended: qm resume 101 continues it; qm unlock 101 discards the saved state",
	} {
		must.Equal(t, lock, want, (VM{ID: 101, Host: "pve1", Lock: lock}).Unlock())
	}
}

func TestCDKeyIsFree(t *testing.T) {
	t.Parallel()
	config := map[string]string{"ide2": "fast:vm-1-cloudinit,media=cdrom", "ide0": "fast:vm-1-disk-0"}
	disks := must.Get(VM{Config: config}.Disks())(t)
	must.Equal(t, "the boot ISO goes into", "ide1", CDKey(config, disks))
}

func TestRootOnlyIsSorted(t *testing.T) {
	t.Parallel()
	must.Hold(t, slices.IsSorted(RootOnly) && slices.IsSorted(Reassigns),
		"the lists are compared by eye with Proxmox's source: keep them sorted")
}

func TestMovedInTheMiddle(t *testing.T) {
	t.Parallel()
	at := func(id VMID, host string, running bool) VM {
		return VM{ID: id, Name: "x", Host: host, Running: running}
	}
	away := &HostsAway{Hosts: []AwayHost{{"pve3", "is offline"}}, VMs: []VM{{ID: 101, Host: "pve3"}}}
	const moved = `it was begun on pve1, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed`
	type testCase struct {
		vm   *VM
		park VM
		away *HostsAway
		want string
	}
	must.Each(t, map[string]testCase{
		"both there":                  {vm: new(at(101, "pve1", true)), park: at(9001, "pve1", false)},
		"deleted":                     {park: at(9001, "pve1", false)},
		"the VM":                      {vm: new(at(101, "pve2", false)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1")},
		"a VM that runs":              {vm: new(at(101, "pve2", true)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1 --online --with-local-disks")},
		"the parking VM":              {vm: new(at(101, "pve1", true)), park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"deleted, and the parking VM": {park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"both": {
			vm: new(at(101, "pve2", false)), park: at(9001, "pve2", false),
			want: fmt.Sprintf(moved, `VM 101 "x" on pve2 and VM 9001 "x" on pve2`, "on pve2: qm migrate 101 pve1; on pve2: qm migrate 9001 pve1"),
		},
		"to a host that is down": {park: at(9001, "pve1", false), away: away, want: "VM 101 is on pve3, and Proxmox host pve3 is offline: bring pve3 back first; nothing was destroyed"},
		"deleted while another host is down": {
			park: at(9001, "pve1", false), away: &HostsAway{Hosts: away.Hosts, VMs: []VM{{ID: 102, Host: "pve3"}}},
		},
	}, func(t *testing.T, tc testCase) {
		must.Equal(t, "got", tc.want, OnOtherHosts(tc.vm, tc.park, "pve1", tc.away, 101))
	})
}

// quorum answers for the hosts of a Proxmox cluster.
type quorum struct {
	HostReader
	has bool
	err error
}

func (q quorum) Quorate(context.Context) (bool, error) { return q.has, q.err }

func TestRequireQuorum(t *testing.T) {
	t.Parallel()
	silent := errors.New("no answer")
	must.Pass(t, RequireQuorum(t.Context(), quorum{has: true}))
	must.FailAs(t, RequireQuorum(t.Context(), quorum{}), fault.Refused)
	must.FailIs(t, RequireQuorum(t.Context(), quorum{has: true, err: silent}), silent)
}

func TestRequireRemakeable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config  map[string]string
		refused bool
	}{
		"what a token may set":   {map[string]string{"memory": "4096", "scsi0": "fast:vm-1-disk-0", "arch": "x86_64"}, false},
		"only root may set":      {map[string]string{"args": "-S"}, true},
		"another's architecture": {map[string]string{"arch": "aarch64"}, true},
		"a device of the host":   {map[string]string{"serial0": "/dev/ttyS0"}, true},
	} {
		err := RequireRemakeable(VM{ID: 1, Config: c.config}, "x86_64")
		must.Hold(t, (fault.KindOf(err) == fault.Refused) == c.refused && (err != nil) == c.refused, "%s: %v", name, err)
	}
}

// TestRequireBooted: one difference from the build is enough.
func TestRequireBooted(t *testing.T) {
	t.Parallel()
	b := Build{TalosVersion: "v1.13.9", SchematicID: "id", LockHash: "sha256-lock", Arch: "amd64", Platform: "nocloud"}
	for name, c := range map[string]struct {
		change   func(*RunningSystem)
		problems int
	}{
		"as built":           {func(*RunningSystem) {}, 0},
		"another lock":       {func(m *RunningSystem) { m.Schematic.YAML = "recast.lock=sha256-other" }, 1},
		"another schematic":  {func(m *RunningSystem) { m.Schematic.ID = "other" }, 1},
		"another Talos":      {func(m *RunningSystem) { m.TalosVersion = "v1.13.8" }, 1},
		"for other machines": {func(m *RunningSystem) { m.Arch, m.Platform = "arm64", "metal" }, 2},
	} {
		m := RunningSystem{TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", Schematic: SchematicEntry{ID: "id", YAML: "recast.lock=sha256-lock"}}
		c.change(&m)
		must.Equal(t, name+": problems", c.problems, len(b.CheckBooted(m)))
	}
}
