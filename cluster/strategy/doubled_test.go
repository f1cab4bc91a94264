package strategy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// twin has the machine show the volumes of one disk at another device, as it does for a volume in two slots;
// Talos uses the first.
func twin(of, at string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Disks = append(f.Machine.Disks, cluster.MachineDisk{Device: at, Serial: at})
		for _, v := range f.Machine.Volumes {
			if v.Disk == of {
				v.Disk, v.Device, v.Phase, v.Mount = at, strings.Replace(v.Device, of, at, 1), "", ""
				f.Machine.Volumes = append(f.Machine.Volumes, v)
			}
		}
	}
}

func mounted(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
	f.Machine.Volumes[4].Mount = "/var/mnt/data"
}

// otherVM has VM 200 hold the value in that slot.
func otherVM(running bool, key, value string, config ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
		o.VMs[1].Running, o.VMs[1].Config[key] = running, value
		for i := 0; i < len(config); i += 2 {
			o.VMs[1].Config[config[i]] = config[i+1]
		}
	}
}

func TestOneVolumeInTwoSlots(t *testing.T) {
	t.Parallel()
	held := func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		w.Holder, f.VM.Config["scsi4"] = 200, "fast:vm-200-disk-0,serial=held"
		o.VMs[1].Config["scsi1"] = "fast:vm-200-disk-0,serial=held"
	}
	bothUse := ": both may be in use: find out whose it is, and take it out of the other VM while that is off"
	check(t, map[string]refusalCase{
		"the system disk": everywhere(inTurn(set("boot", "order=scsi0"), set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"two volumes": everywhere(inTurn(mounted, set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"), set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde")),
			"the volume of scsi0 is also scsi5, the volume of scsi1 is also scsi6: qm set 9002 --delete scsi5,scsi6 keeps the volume"),
		"in three slots": everywhere(inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"), set("virtio6", "fast:vm-9002-disk-0,serial=sde"), twin("sda", "sde")),
			"the volume of scsi0 is also scsi5 and virtio6: qm set 9002 --delete scsi5,virtio6 keeps the volume"),
		"Talos uses the later one": everywhere(inTurn(mounted, set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[4].Phase, f.Machine.Volumes[4].Mount, f.Machine.Volumes[6].Phase, f.Machine.Volumes[6].Mount = "", "", "ready", "/var/mnt/data"
		}), "the volume of scsi6 is also scsi1: qm set 9002 --delete scsi1 keeps the volume"),
		"none tells which is used": everywhere(set("scsi6", "fast:vm-9002-disk-1,serial=data"),
			"the volume of scsi1 is also scsi6: qm shutdown 9002 && qm set 9002 --delete scsi6 && qm start 9002 keeps the volume"),
		"a raw volume": everywhere(inTurn(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[4].Label = "r-osd"
		},
			set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde")),
			"the volume of scsi1 is also scsi6: qm shutdown 9002 && qm set 9002 --delete scsi6 && qm start 9002 keeps the volume"),
		"on a bus without hotplug": everywhere(inTurn(set("sata1", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also sata1: qm shutdown 9002 && qm set 9002 --delete sata1 && qm start 9002 keeps the volume"),
		"the EFI variables": everywhere(set("scsi7", "fast:vm-9002-disk-3"),
			"the volume of efidisk0 is also scsi7: qm shutdown 9002 && qm set 9002 --delete scsi7 && qm start 9002 keeps the volume"),
		"as a CD": everywhere(inTurn(set("ide2", "fast:vm-9002-disk-1,media=cdrom")),
			"the volume of scsi1 is also ide2: qm shutdown 9002 && qm set 9002 --delete ide2 && qm start 9002 keeps the volume"),
		"detached": everywhere(set("unused5", "fast:vm-9002-disk-1"), "the volume of scsi1 is also unused5: qm disk rescan --vmid 9002 keeps the volume"),
		"a protected VM": everywhere(inTurn(set("protection", "1"), set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also scsi5: qm set 9002 --protection 0 && qm set 9002 --delete scsi5 && qm set 9002 --protection 1 keeps the volume"),
		"a slot that is only pending": everywhere(inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=later"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Pending = []string{"scsi5"}
			f.Machine.Disks[0].BusPath = "/devices/pci0000:00/0000:00:05.0/virtio2/host2/target2:0:0/2:0:0:0"
		}), "the volume of scsi0 is also scsi5: qm set 9002 --revert scsi5 keeps the volume"),
		"a slot that leaves with the next stop": everywhere(inTurn(twin("sda", "sdd"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Pending = []string{"sata1"}
		}), "a drive that was taken out of the VM stays in it until it is off, and its machine still shows that volume twice: qm shutdown 9002 && qm start 9002"),
		"with file=":      everywhere(inTurn(set("scsi5", "discard=on,file=fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")), "the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"a linked clone":  everywhere(inTurn(set("virtio4", "bulk:100/base-100-disk-0.raw/9002/vm-9002-disk-2.raw")), "the volume of virtio3 is also virtio4: qm shutdown 9002 && qm set 9002 --delete virtio4 && qm start 9002 keeps the volume"),
		"by its path":     everywhere(inTurn(set("scsi5", "/dev/mapper/pve-vm--9002--disk--0,serial=sdd"), twin("sda", "sdd")), "the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"another VM, off": everywhere(otherVM(false, "scsi5", "fast:vm-9002-disk-1"), "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"),
		"another VM, on": everywhere(otherVM(true, "scsi5", "fast:vm-9002-disk-1"),
			"the volume of scsi1 is also scsi5 of VM 200: qm shutdown 200 && qm set 200 --delete scsi5 && qm start 200 keeps the volume"),
		"another VM, detached":       everywhere(otherVM(true, "unused0", "fast:vm-9002-disk-1"), "the volume of scsi1 is also unused0 of VM 200: qm set 200 --delete unused0 keeps the volume"),
		"another VM boots from it":   everywhere(otherVM(true, "scsi5", "fast:vm-9002-disk-1", "boot", "order=scsi5"), "the volume of scsi5 of VM 200 is also scsi1"+bothUse),
		"a copy that is off":         everywhere(otherVM(false, "scsi5", "fast:vm-9002-disk-1", "boot", "order=scsi5"), "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"),
		"a disk of a VM that is on":  everywhere(inTurn(set("scsi4", "fast:vm-200-disk-0,serial=x"), otherVM(true, "scsi1", "fast:vm-200-disk-0")), "the volume of scsi1 of VM 200 is also scsi4: qm shutdown 9002 && qm set 9002 --delete scsi4 && qm start 9002 keeps the volume"),
		"a holder's disk, once each": {change: held},
		"a holder that is on":        everywhere(inTurn(held, otherVM(true, "scsi1", "fast:vm-200-disk-0"), used("scsi4", "held")), "the volume of scsi4 is also scsi1 of VM 200: qm shutdown 200 keeps the volume"),
		"a holder that names it twice": everywhere(inTurn(held, otherVM(false, "unused0", "fast:vm-200-disk-0")),
			"the volume of scsi4 is also unused0 of VM 200: qm disk rescan --vmid 200 keeps the volume"),
		"a holder with two slots": everywhere(inTurn(held, otherVM(false, "scsi2", "fast:vm-200-disk-0")), "the volume of scsi4 is also scsi2 of VM 200: qm set 200 --delete scsi2 keeps the volume"),
		"a third VM names a holder's": everywhere(inTurn(held, func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve1", Config: map[string]string{"unused0": "fast:vm-200-disk-0"}})
		}), "the volume of scsi4 is also unused0 of VM 300: qm set 300 --delete unused0 keeps the volume"),
		"the same ISO":       {change: inTurn(set("ide2", "isos:iso/debian.iso,media=cdrom"), set("ide3", "isos:iso/debian.iso,media=cdrom"))},
		"cloud-init twice":   {change: inTurn(set("ide0", "fast:vm-9002-cloudinit,media=cdrom"), set("ide1", "fast:vm-9002-cloudinit,media=cdrom"))},
		"two empty drives":   {change: inTurn(set("ide2", "none,media=cdrom"), set("ide3", "none,media=cdrom"))},
		"namesakes on other": {change: otherVM(true, "scsi5", "bulk:vm-9002-disk-1")},
	})
}

// used has the machine show that Talos uses the drive with that serial.
func used(_, serial string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Disks = append(f.Machine.Disks, cluster.MachineDisk{Device: "sdh", Serial: serial})
		f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: "sdh1", Disk: "sdh", Label: "u-held", Phase: "ready", Mount: "/var/mnt/held"})
	}
}

func TestNoOtherStrategyTouchesAVolumeInTwoSlots(t *testing.T) {
	t.Parallel()
	_, f, o := staleNode()
	inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"))(nil, &f, &o)
	c := Candidate{VM: *f.VM, Machine: *f.Machine, Found: f, Observation: o}
	want := []string{"the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"}
	for name, got := range map[string][]string{
		"reshape": cluster.Texts(c.AgainstReshape()), "remove": c.AgainstRemove(), "unread": c.SeenFromProxmox()[cluster.InPlace],
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
