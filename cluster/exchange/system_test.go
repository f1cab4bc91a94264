package exchange

import (
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/clustertest/vmsetting"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestBlankDiskGrowsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	d := cluster.Disk{Key: "scsi0", Volid: "thin:vm-1-disk-0", Options: []string{"size=10240M"}}
	for gib, want := range map[int]string{0: "thin:10,serial=s,wwn=", 5: "thin:10,serial=s,wwn=", 32: "thin:32,serial=s,wwn="} {
		got := (&Replace{SystemGiB: gib, Serial: "s"}).blankDisk(d)
		must.Equal(t, fmt.Sprint(gib, " GiB wanted"), want+cluster.WWN("s"), got)
	}
}

func TestNewConfigCarriesEverythingButDisks(t *testing.T) {
	t.Parallel()
	got := must.Get(replacement().newConfig("isos:iso/recast-new.iso"))(t)
	want := map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=AB", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "onboot": "0", "protection": "1",
		"scsi0": "fast:10,discard=on,iothread=1,format=qcow2,serial=recast-1,wwn=0x37eb0b496c370925", "ide2": "isos:iso/recast-new.iso,media=cdrom",
		"ide0": "fast:cloudinit,format=qcow2", "boot": "order=scsi0;ide2;scsi1;net0", "scsihw": "virtio-scsi-single", "pool": "talos",
		"description": "mine\nrecast: run=r1 build=b1",
	}
	must.Equal(t, "got", want, got)
}

func TestNewConfigRefusesBeforeAnythingIsGone(t *testing.T) {
	t.Parallel()
	r := replacement()
	r.VM.Config["description"] = strings.Repeat("x", cluster.MaxDescription)
	if _, err := r.newConfig("isos:iso/recast-new.iso"); err == nil {
		t.Error("Proxmox would refuse this description after the old VM was deleted")
	}
	r = replacement()
	r.Disks[1].System = false
	if _, err := r.newConfig("isos:iso/recast-new.iso"); err == nil {
		t.Error("a VM without a system disk was accepted")
	}
}

func oldVM() cluster.VM {
	return cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Pool: "talos", Config: map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=AB", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "onboot": "1",
		"scsi0": "fast:9011/vm-9011-disk-0.qcow2,discard=on,iothread=1,serial=old,size=10G", "scsi1": "fast:9011/vm-9011-disk-1.raw,serial=data,size=20G",
		"efidisk0": "fast:9011/vm-9011-disk-2.raw,efitype=4m,size=528K", "ide2": "isos:iso/recast-old.iso,media=cdrom,size=300M",
		"ide0": "fast:9011/vm-9011-cloudinit.qcow2,media=cdrom,size=4M", "boot": "order=scsi1;scsi0;net0",
		"description": "mine", "tags": "talos", "vmgenid": "x", "meta": "creation-qemu=9", "scsihw": "virtio-scsi-single",
	}}
}

func replacement() *Replace {
	return &Replace{
		Run: "r1", Build: "b1", VM: oldVM(), Serial: "recast-1", Parking: 9090,
		Disks: []parking.ParkedDisk{{Key: "efidisk0"}, {Key: "scsi0", System: true}, {Key: "scsi1"}},
	}
}

// TestEverySettingIsCarried: the new VM gets every setting that recreate allows, or Proxmox
// generates it again. No setting turns out to be lost, or read-only, after the old VM is deleted.
func TestEverySettingIsCarried(t *testing.T) {
	t.Parallel()
	for key, setting := range vmsetting.Every {
		if setting.Fate == vmsetting.Never {
			continue
		}
		r := replacement()
		r.VM.Config[key] = setting.Value
		config := must.Get(r.newConfig("isos:iso/recast-new.iso"))(t)
		given, carried := config[key]
		if carried != (setting.Fate == vmsetting.Kept) || carried && given != setting.Value {
			t.Errorf("%s: the new VM gets %q (%t), want %q %s", key, given, carried, setting.Value, setting.Fate)
		}
	}
}

func TestTheBlankDiskHasEveryOption(t *testing.T) {
	t.Parallel()
	const names = "serial=recast-1,wwn=0x37eb0b496c370925"
	type row struct{ volid, size, want string }
	must.Each(t, map[string]row{
		"qcow2":                 {"fast:9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"raw":                   {"fast:9011/vm-9011-disk-0.raw", "10G", "fast:10," + driveOptions + ",format=raw," + names},
		"vmdk":                  {"fast:9011/vm-9011-disk-0.vmdk", "10G", "fast:10," + driveOptions + ",format=vmdk," + names},
		"a block storage":       {"thin:vm-9011-disk-0", "10G", "thin:10," + driveOptions + "," + names},
		"LVM with qcow2":        {"vg:vm-9011-disk-0.qcow2", "10G", "vg:10," + driveOptions + ",format=qcow2," + names},
		"a linked clone":        {"fast:400/base-400-disk-0.qcow2/9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"megabytes":             {"thin:vm-9011-disk-0", "10752M", "thin:10.5," + driveOptions + "," + names},
		"kilobytes":             {"thin:vm-9011-disk-0", "10485764K", "thin:10.000003814697266," + driveOptions + "," + names},
		"terabytes":             {"thin:vm-9011-disk-0", "2T", "thin:2048," + driveOptions + "," + names},
		"bytes":                 {"thin:vm-9011-disk-0", "10737418240", "thin:10," + driveOptions + "," + names},
		"decimals":              {"thin:vm-9011-disk-0", "1.5G", "thin:1.5," + driveOptions + "," + names},
		"an odd size, imported": {"thin:vm-9011-disk-0", "10737418241", "thin:10.000000000931323," + driveOptions + "," + names},
	}, func(t *testing.T, tc row) {
		d := must.Get(cluster.ParseDisk("scsi0", tc.volid+","+driveOptions+",serial=old,wwn=0x5000c50015ea71aa,size="+tc.size))(t)
		got := (&Replace{Serial: "recast-1"}).blankDisk(d)
		must.Equal(t, "got", tc.want, got)
		// Proxmox multiplies by 2^20 and rounds up to whole KiB (pve-common, Tools.pm, convert_size).
		blank := must.Get(cluster.ParseDisk("scsi0", strings.Replace(got, ":", ":x,size=", 1)))(t)
		if gib := (cluster.Disk{Options: []string{"size=" + blank.Option("size") + "G"}}); gib.SizeBytes() < d.SizeBytes() {
			t.Errorf("%s makes a disk of %d bytes, smaller than %d", got, gib.SizeBytes(), d.SizeBytes())
		}
	})
}

func TestTheNewBootOrder(t *testing.T) {
	t.Parallel()
	for old, want := range map[string]string{
		"":                               "order=scsi0;ide2",
		"order=scsi1;scsi0;net0":         "order=scsi0;ide2;scsi1;net0",
		"cdn":                            "order=scsi0;ide2", // which is Proxmox's default too, and names no device
		"c":                              "order=scsi0;ide2",
		"legacy=cdn":                     "order=scsi0;ide2",
		"legacy=c,order=scsi0;net0":      "order=scsi0;ide2;net0",
		"order=scsi0;net0,legacy=c":      "order=scsi0;ide2;net0",
		"order=scsi0;hostpci0;usb1;net9": "order=scsi0;ide2;hostpci0;usb1;net9",
		" ":                              "order=scsi0;ide2", // of a VM whose disks were all reassigned
		"order= ":                        "order=scsi0;ide2",
	} {
		must.Equal(t, old, want, bootOrder(old, "scsi0", "ide2"))
	}
}

// driveOptions is every option that a disk can have (qemu-server, PVE/QemuServer/Drive.pm,
// $alldrive_fmt), except file, size, serial, wwn and format.
const driveOptions = "aio=native,backup=0,bps=1048576,bps_max_length=2,bps_rd=1,bps_rd_max_length=2,bps_wr=1,bps_wr_max_length=2,cache=writeback,cyls=1," +
	"detect_zeroes=0,discard=on,heads=1,iops=10,iops_max=20,iops_max_length=2,iops_rd=5,iops_rd_max=6,iops_rd_max_length=2,iops_wr=5,iops_wr_max=6," +
	"iops_wr_max_length=2,iothread=1,mbps=1.5,mbps_max=2,mbps_rd=1,mbps_rd_max=2,mbps_wr=1,mbps_wr_max=2,media=disk,model=DISK%201,product=disk one," +
	"queues=4,replicate=0,rerror=report,ro=0,scsiblock=0,secs=1,shared=1,snapshot=0,ssd=1,trans=lba,vendor=acme,werror=stop"

// TestBlankSettingIsTemporary: the VM has the setting from the blank boot until finish.
func TestBlankSettingIsTemporary(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"had another value": "ip=dhcp", "had none": ""} {
		vm := cluster.VM{ID: 9011, Config: map[string]string{"name": "wk1", "scsi0": "fast:vm-9011-disk-0,size=10G", "smbios1": "uuid=a"}}
		if was != "" {
			vm.Config["ipconfig0"] = was
		}
		mem := parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab", Blank: &cluster.BlankSetting{Key: "ipconfig0", Value: "ip=10.0.0.31/24"}}
		packed := must.Get(mem.Pack())(t)
		mem = must.Get(parking.UnpackMemory(packed))(t) // as if another machine resumed
		rec := parking.Record{Strategy: cluster.Recreate, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}}
		r := Of(nil, mem, rec, 9900)
		made := must.Get(r.newConfig("isos:iso/a.iso"))(t)
		back, _, err := r.oldConfig()
		must.Do(t, err)
		must.Equal(t, name+": new VM and restored VM", []string{"ip=10.0.0.31/24", was}, []string{made["ipconfig0"], back["ipconfig0"]})
	}
}

// TestReplaceWithoutItsPreparedDisk: the node is down, so the error says how its old system disk comes back.
func TestReplaceWithoutItsPreparedDisk(t *testing.T) {
	t.Parallel()
	_, err := calls["give"].run(t, on(9900, kv{"scsi29": ""}), clustertest.Which{})
	must.Contain(t, "the hints", strings.Join(fault.Hints(err), "; "), "recast undo wk1 gives the VM its old system disk back")
}
