package clustertest

import (
	"fmt"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/reach"
)

// The hashes of the lock before and now.
const (
	OldHash = "sha256-old"
	NewHash = "sha256-new"
)

// World is a cluster of one control plane and two workers whose first is stale.
func World() ([]cluster.Wanted, cluster.Observation) {
	var wanted []cluster.Wanted
	var o cluster.Observation
	o.Quorate = true
	o.ParkingIDs = []cluster.VMID{9091, 9092, 9093}
	o.Storages = []cluster.Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "nfs", Shared: true}}
	o.Rooms = map[string]cluster.Room{"pve1": {Storages: []cluster.StorageRoom{{Name: "fast", Active: true, Total: 1 << 40, Free: 1 << 39}}}}
	for i, name := range []string{"cp1", "wk1", "wk2"} {
		m := InSync()
		m.UUID = "u-" + name
		m.ControlPlane = name == "cp1"
		m.SystemDisk = "sda"
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		if name == "wk1" {
			m.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + OldHash}
		}
		id := cluster.VMID(9001 + i)
		vm := cluster.VM{ID: id, Name: name, Host: "pve1", Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   cluster.Disk{Volid: Volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   cluster.Disk{Volid: Volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.VMs = append(o.VMs, vm)
		o.Found = append(o.Found, cluster.Found{Name: name, VM: &o.VMs[i], Machine: &m})
		Leased(&o.Found[i])
		wanted = append(wanted, cluster.Wanted{Name: name, Build: WantedBuild(), Strategy: cluster.Auto, ISOStorages: []string{"isos"}})
	}
	for i := range o.Found {
		o.Found[i].VM = &o.VMs[i]
	}
	return wanted, o
}

// Volid is the name of the nth volume of a VM.
func Volid(id cluster.VMID, n int) string {
	return fmt.Sprintf("fast:vm-%d-disk-%d", id, n)
}

// WantedBuild is what every node of World is to run.
func WantedBuild() cluster.Build {
	return cluster.Build{
		ID: "b1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SchematicID: "id-new", LockHash: NewHash,
		Extensions: []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:bbbbbbbbbbbbbbbb"}},
	}
}

// InSync is a machine that runs WantedBuild.
func InSync() cluster.Machine {
	return cluster.Machine{
		UUID: "u1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), Schematic: cluster.SchematicEntry{ID: "id-new", YAML: "customization:\n  extraKernelArgs:\n    - recast.lock=" + NewHash + "\n"},
		Extensions: []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}},
	}
}

// Past knows the extensions of OldHash.
func Past(hash string) ([]cluster.LockedExtension, bool) {
	if hash == OldHash {
		return []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:aaaaaaaaaaaaaaaa"}}, true
	}
	return nil, false
}

// Leased gives a node an address that DHCP has given to its second network card.
func Leased(f *cluster.Found) {
	f.Addr = netip.MustParseAddr("10.0.0.31")
	f.VM.Config["net1"] = "virtio=BC:24:11:00:00:31"
	f.Machine.Addresses = []reach.Address{{
		Prefix: netip.MustParsePrefix("10.0.0.31/24"), Link: "eth0", MAC: "BC:24:11:00:00:31",
		Layer: reach.Operator, Lease: reach.Lease{Operator: "dhcp4"}, Gateway: netip.MustParseAddr("10.0.0.1"),
	}}
}

// Static is the node with its address in the machine configuration.
func Static(f *cluster.Found) {
	f.Machine.Addresses[0].Layer, f.Machine.Addresses[0].Lease = reach.Configuration, reach.Lease{}
}

// Message is what err says, or nothing.
func Message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// LargeWorld is one of so many workers, every one of them stale.
func LargeWorld(nodes int) ([]cluster.Wanted, cluster.Observation) {
	_, o := World()
	o.VMs, o.Found = make([]cluster.VM, nodes), make([]cluster.Found, nodes)
	wanted := make([]cluster.Wanted, nodes)
	for i := range nodes {
		name, id, host := fmt.Sprint("wk", i), cluster.VMID(1000+i), fmt.Sprint("pve", i%9)
		m := InSync()
		m.UUID, m.SystemDisk = "u-"+name, "sda"
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		m.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + OldHash}
		o.VMs[i] = cluster.VM{ID: id, Name: name, Host: host, Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   cluster.Disk{Volid: Volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   cluster.Disk{Volid: Volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.Found[i] = cluster.Found{Name: name, VM: &o.VMs[i], Machine: &m}
		o.Rooms[host] = o.Rooms["pve1"]
		wanted[i] = cluster.Wanted{Name: name, Build: WantedBuild(), Strategy: cluster.Auto, ISOStorages: []string{"isos"}}
	}
	return wanted, o
}
