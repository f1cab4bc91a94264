package sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Node is one Talos machine of the lab.
type Node struct {
	Name         string
	ControlPlane bool
	VMID         int
	Host         string
	UUID         string
	MAC          string
	Addr         netip.Addr
	Schematic    string // name in recast.yaml
	Persistent   bool   // has a persistent disk
	Holder       int    // VMID of the data VM that owns the first of them; 0: the node's own VM
	bus          string // of its disks
	data         int    // persistent disks
	seabios      bool   // its firmware, instead of OVMF
	noSerials    bool   // its drives have no serial=
	scsi         string // its SCSI controller
	filesystem   string // of the first persistent disk
}

// nodes spreads the machines over the hosts and numbers them.
func (o Options) nodes() []Node {
	var out []Node
	add := func(prefix string, n, firstID, firstAddr int, cp bool, schematic string) {
		for i := range n {
			id := firstID + i
			layout := o.layout(len(out))
			if cp {
				layout.Data = 0
				if o.EtcdOnData {
					layout.Data = 1
				}
			}
			holder := 0
			if o.Holder {
				holder = o.firstHolder() + len(out)%o.Hosts
			}
			name := fmt.Sprintf("%s%d", prefix, i+1)
			if v, own := o.VMs[name]; own {
				layout = Layout{Bus: v.bus()}
			}
			out = append(out, Node{
				Holder: holder, Name: name, ControlPlane: cp, VMID: id, Host: hostName(len(out) % o.Hosts),
				UUID: fmt.Sprintf("5ec0ffee-0000-4000-8000-%012d", id), MAC: fmt.Sprintf("BC:24:11:00:%02X:%02X", id>>8&0xff, id&0xff),
				Addr: o.addr(firstAddr + i), Schematic: schematic, Persistent: layout.Data > 0, bus: layout.Bus, data: layout.Data, seabios: layout.SeaBIOS,
				noSerials: layout.NoSerials, scsi: cmp.Or(layout.SCSI, "virtio-scsi-single"),
				filesystem: cmp.Or(layout.Filesystem, "xfs"),
			})
		}
	}
	add("cp", o.ControlPlanes, firstControlPlaneID, firstControlPlane, true, "default")
	add("wk", o.Workers, firstWorkerID, firstWorker, false, "storage")
	return out
}

// layout is the disk layout of node i.
func (o Options) layout(i int) Layout {
	if len(o.Layouts) == 0 {
		return Layout{Bus: o.DiskBus, Data: 1}
	}
	l := o.Layouts[i%len(o.Layouts)]
	l.Bus = cmp.Or(l.Bus, o.DiskBus)
	return l
}

func hostName(i int) string { return fmt.Sprintf("pve%d", i+1) }

// The VMIDs of the first of each kind.
const (
	firstControlPlaneID = 9001
	firstWorkerID       = 9031
)

// firstHolder is the VMID of the first host's data VM, above those of the workers.
func (o Options) firstHolder() int { return max(9201, firstWorkerID+o.Workers) }

// config is the VM's configuration as a person would write it. data is the holder's
// volume that is its persistent disk; "" makes one of its own.
func (n Node) config(data string) map[string]string {
	c := map[string]string{
		"name": n.Name, "cores": "2", "memory": "4096", "cpu": "host", "machine": "q35", "bios": "ovmf", "ostype": "l26", "agent": "1",
		"onboot": "1", "scsihw": n.scsi, "smbios1": "uuid=" + n.UUID, "tags": "talos",
		"net0": "virtio=" + n.MAC + ",bridge=vmbr0", "ide2": "none,media=cdrom", "boot": "order=" + n.drive(0) + ";ide2",
		"description": "Talos node " + n.Name + " of cluster " + ClusterName,
		"efidisk0":    DiskStorage + ":1,efitype=4m,pre-enrolled-keys=0",
	}
	if n.seabios {
		c["bios"] = "seabios"
		delete(c, "efidisk0")
	}
	options := map[string]string{"scsi": ",iothread=1,discard=on,ssd=1", "virtio": ",iothread=1,discard=on"}[n.bus]
	c[n.drive(0)] = DiskStorage + ":10" + options + n.serial("sys-"+n.Name)
	if n.Persistent {
		c[n.drive(1)] = cmp.Or(data, DiskStorage+":20") + options + n.serial(n.dataSerial())
	}
	for i := 2; i <= n.data; i++ {
		c[n.drive(i)] = fmt.Sprintf("%s:%d%s%s", DiskStorage, firstDataGiB-1+i, options, n.serial(n.moreSerial(i)))
	}
	return c
}

// firstDataGiB is the size of a node's first persistent disk; each further one is 1 GiB
// larger.
const firstDataGiB = 20

// drive is the key of the node's disk i: 0 is the system disk, the others are
// persistent.
func (n Node) drive(i int) string { return n.bus + strconv.Itoa(i) }

// serial is a drive's serial option, or "" for a node without serials.
func (n Node) serial(name string) string {
	if n.noSerials {
		return ""
	}
	return ",serial=" + name
}

// moreSerial is the serial of a further persistent disk: 2, 3, …
func (n Node) moreSerial(i int) string { return fmt.Sprintf("data%d-%s", i, n.Name) }

func (n Node) dataSerial() string { return "data-" + n.Name }

// onData is the configuration document that puts a volume of Talos on the persistent
// disk. It selects by size, because Talos shows no serial for SCSI disks.
func (n Node) onData(volume string) string {
	return "apiVersion: v1alpha1\nkind: VolumeConfig\nname: " + volume + "\nprovisioning:\n  diskSelector:\n    match: disk.size > 15u * GB && !disk.cdrom\n"
}

// userVolume is the configuration document of the volume on the first persistent disk, as
// people write it (see layouts): Talos finds it by its label, u-data. Talos 1.13 has no
// volumes in other formats (FilesystemSpec.Validate in user_volume_config.go).
func (n Node) userVolume() []string {
	if n.filesystem != "xfs" && n.filesystem != "ext4" {
		return nil
	}
	return []string{"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning:\n  diskSelector:\n    match: '!system_disk'\n  minSize: 10GB\nfilesystem:\n  type: " + n.filesystem + "\n"}
}

// content is the user data on a node's persistent disk.
func (n Node) content(disk string) []byte {
	return []byte(strings.Repeat("what only "+n.Name+" has"+disk+"\n", 100))
}

// SystemDrive is the key of the node's system disk.
func (n Node) SystemDrive() string { return n.drive(0) }
