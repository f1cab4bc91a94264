package parking

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

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
