package exchange

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

func TestBlankDiskGrowsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	d := cluster.Disk{Key: "scsi0", Volid: "thin:vm-1-disk-0", Options: []string{"size=10240M"}}
	for gib, want := range map[int]string{0: "thin:10,serial=s,wwn=", 5: "thin:10,serial=s,wwn=", 32: "thin:32,serial=s,wwn="} {
		if got := (&Replace{SystemGiB: gib, Serial: "s"}).blankDisk(d); got != want+cluster.WWN("s") {
			t.Errorf("%d GiB wanted: %q, want %q", gib, got, want)
		}
	}
}

func TestNewConfigCarriesEverythingButDisks(t *testing.T) {
	t.Parallel()
	got, err := replacement().newConfig("isos:iso/recast-new.iso")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=AB", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "onboot": "0", "protection": "1",
		"scsi0": "fast:10,discard=on,iothread=1,format=qcow2,serial=recast-1,wwn=0x37eb0b496c370925", "ide2": "isos:iso/recast-new.iso,media=cdrom",
		"ide0": "fast:cloudinit,format=qcow2", "boot": "order=scsi0;ide2;scsi1;net0", "scsihw": "virtio-scsi-single", "pool": "talos",
		"description": "mine\nrecast: run=r1 build=b1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
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
