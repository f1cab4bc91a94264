package parking

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
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
		if got := len(tc.mem.BlankDisks(cluster.Machine{Disks: []cluster.MachineDisk{tc.disk, {Device: "sdb", Serial: "data", SizeBytes: 20 << 30}}})); got == 1 != tc.want {
			t.Errorf("%s: %d disks", name, got)
		}
	}
}
