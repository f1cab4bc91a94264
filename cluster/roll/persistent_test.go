package roll

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
)

// TestABlankMachineShowsEachPersistentDiskInItsPlace: otherwise it gets no configuration.
func TestABlankMachineShowsEachPersistentDiskInItsPlace(t *testing.T) {
	t.Parallel()
	lun := func(n string) string { return "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:" + n }
	a, b := cluster.Volume{Device: "sdb1", Disk: "sdb", Label: "u-a", PartitionUUID: "pa", FilesystemUUID: "fa"}, cluster.Volume{Device: "sdc", Disk: "sdc", Format: cluster.FormatLVM, FilesystemLabel: "pv"}
	mem := parking.Memory{
		SystemKey: "scsi0", DiskSerial: "recast-1", Volumes: []cluster.Volume{a, b},
		VM: cluster.VM{ID: 1, Config: map[string]string{
			"scsihw": "virtio-scsi-single", "scsi0": "f:vm-1-disk-0,size=10G", "scsi1": "f:vm-1-disk-1,size=20G", "scsi2": "f:vm-1-disk-2,size=20G", "scsi3": "f:vm-1-disk-3,size=30G",
		}},
		Persistent: []parking.PersistentDisk{{Key: "scsi1", Device: "sdb", SizeBytes: 20 << 30, Blank: false}, {Key: "scsi2", Device: "sdc", SizeBytes: 20 << 30, Blank: false}, {Key: "scsi3", Device: "sdd", SizeBytes: 30 << 30, Blank: true}},
	}
	on := func(device string, v cluster.Volume) cluster.Volume {
		v.Disk, v.Device = device, strings.Replace(v.Device, v.Disk, device, 1)
		return v
	}
	blank := func(volumes ...cluster.Volume) cluster.Machine {
		return cluster.Machine{Volumes: volumes, Disks: []cluster.MachineDisk{
			{Device: "sda", WWID: "naa.37eb0b496c370925", SizeBytes: 10 << 30, Blank: true},
			{Device: "sdb", BusPath: lun("1"), SizeBytes: 20 << 30},
			{Device: "sdc", BusPath: lun("2"), SizeBytes: 20 << 30},
			{Device: "sdd", BusPath: lun("3"), SizeBytes: 30 << 30, Blank: true},
		}}
	}
	disks := func(m cluster.Machine, change func(disks []cluster.MachineDisk)) cluster.Machine {
		change(m.Disks)
		return m
	}
	const swapped = "the persistent volume u-a with partition UUID pa, filesystem UUID fa is on sdc, and not on sdb, which is scsi1\n" +
		"the persistent volume pv with partition UUID none, filesystem UUID none is on sdb, and not on sdc, which is scsi2"
	for name, tc := range map[string]struct {
		m          cluster.Machine
		configured bool
		want       string
	}{
		"as it was":                {m: blank(a, b)},
		"swapped":                  {m: blank(on("sdc", a), on("sdb", b)), want: swapped},
		"another LVM member":       {m: blank(a, cluster.Volume{Device: "sdc", Disk: "sdc", Format: cluster.FormatLVM, FilesystemLabel: "other"}), want: "the persistent volume pv with partition UUID none, filesystem UUID none is missing"},
		"a missing disk":           {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].BusPath = lun("7") }), want: "0 disks of the machine are the persistent disk scsi3, expected one"},
		"blank, of another size":   {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].SizeBytes = 31 << 30 }), want: "the persistent disk scsi3 is sdd with 33285996544 bytes, and had 32212254720 before"},
		"an enlarged disk":         {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[1].SizeBytes = 31 << 30 })},
		"no longer blank":          {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Label: "u-x"})), func(d []cluster.MachineDisk) { d[3].Blank = false }), want: "the persistent disk scsi3 is sdd, and had no volume before: now it has u-x with partition UUID none, filesystem UUID none"},
		"used by its own node":     {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Label: "u-x"})), func(d []cluster.MachineDisk) { d[3].Blank = false }), configured: true},
		"only now known":           {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Format: "btrfs"})), func(d []cluster.MachineDisk) { d[3].Blank = false })},
		"a partition table on one": {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].Blank = false }), want: "the persistent disk scsi3 is sdd, which is not as it was: blank false, before true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, clustertest.Message(errors.Join(mem.WrongBlank(tc.m, tc.configured, false)...))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
