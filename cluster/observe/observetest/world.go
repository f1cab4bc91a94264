// Package observetest has the small worlds that tests of the rooms of cluster share: [World] is
// three nodes as they are observed, of which one is stale.
package observetest

import (
	"fmt"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
)

// World is a cluster of one control plane and two workers whose first is stale.
func World() ([]cluster.Wanted, observe.Observation) {
	var o observe.Observation
	o.Quorate = true
	o.ParkingIDs = []cluster.VMID{9091, 9092, 9093}
	o.Storages = []cluster.Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "nfs", Shared: true}}
	o.Rooms = map[string]cluster.Room{"pve1": {Storages: []cluster.StorageRoom{{Name: "fast", Active: true, Total: 1 << 40, Free: 1 << 39}}}}
	wanted := fill(&o, 3, func(i int) (string, cluster.VMID, string) {
		return []string{"cp1", "wk1", "wk2"}[i], cluster.VMID(9001 + i), "pve1"
	})
	for i := range o.Found {
		Leased(&o.Found[i])
	}
	o.Found[0].Machine.ControlPlane = true
	stale(o.Found[1].Machine)
	return wanted, o
}

// LargeWorld is a cluster of that many workers, all of them stale.
func LargeWorld(nodes int) ([]cluster.Wanted, observe.Observation) {
	_, o := World()
	room := o.Rooms["pve1"]
	wanted := fill(&o, nodes, func(i int) (string, cluster.VMID, string) {
		return fmt.Sprint("wk", i), cluster.VMID(1000 + i), fmt.Sprint("pve", i%9)
	})
	for _, f := range o.Found {
		stale(f.Machine)
		o.Rooms[f.VM.Host] = room
	}
	return wanted, o
}

// fill gives a world that many nodes, with the build that is wanted of them.
func fill(o *observe.Observation, nodes int, place func(i int) (name string, id cluster.VMID, host string)) []cluster.Wanted {
	o.VMs, o.Found = make([]cluster.VM, nodes), make([]observe.Found, nodes)
	wanted := make([]cluster.Wanted, nodes)
	for i := range nodes {
		name, id, host := place(i)
		m := clustertest.InSync()
		m.UUID, m.SystemDisk = "u-"+name, "sda"
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		o.VMs[i] = cluster.VM{ID: id, Name: name, Host: host, Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   cluster.Disk{Volid: clustertest.Volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   cluster.Disk{Volid: clustertest.Volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.Found[i] = observe.Found{Name: name, VM: &o.VMs[i], Machine: &m}
		wanted[i] = cluster.Wanted{Name: name, Build: clustertest.WantedBuild(), Strategy: cluster.Auto, ISOStorages: []string{"isos"}}
	}
	return wanted
}

func stale(m *cluster.Machine) {
	m.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
}

// Leased gives a node an address from DHCP, on its second network card.
func Leased(f *observe.Found) {
	f.Addr = netip.MustParseAddr("10.0.0.31")
	f.VM.Config["net1"] = "virtio=BC:24:11:00:00:31"
	f.Machine.Addresses = []cluster.MachineAddress{{
		Prefix: netip.MustParsePrefix("10.0.0.31/24"), Link: "eth0", MAC: "BC:24:11:00:00:31",
		Layer: cluster.LayerOperator, Lease: cluster.AddressLease{Operator: "dhcp4"}, Gateway: netip.MustParseAddr("10.0.0.1"),
	}}
}

// Static moves the node's address to the machine configuration.
func Static(f *observe.Found) {
	f.Machine.Addresses[0].Layer, f.Machine.Addresses[0].Lease = cluster.LayerConfiguration, cluster.AddressLease{}
}
