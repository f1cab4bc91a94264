package cluster

import (
	"fmt"
)

// world is a cluster of one control plane and two workers whose first is stale.
func world() ([]Wanted, Observation) {
	var wanted []Wanted
	var o Observation
	o.Quorate = true
	o.ParkingIDs = []VMID{9091, 9092, 9093}
	o.Storages = []Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "nfs", Shared: true}}
	o.Rooms = map[string]Room{"pve1": {Storages: []StorageRoom{{Name: "fast", Active: true, Total: 1 << 40, Free: 1 << 39}}}}
	for i, name := range []string{"cp1", "wk1", "wk2"} {
		m := inSync()
		m.UUID = "u-" + name
		m.ControlPlane = name == "cp1"
		m.SystemDisk = "sda"
		m.Disks = []MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		if name == "wk1" {
			m.Schematic = SchematicEntry{"id-old", "recast.lock=" + oldHash}
		}
		id := VMID(9001 + i)
		vm := VM{ID: id, Name: name, Host: "pve1", Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   Disk{Volid: volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   Disk{Volid: volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.VMs = append(o.VMs, vm)
		o.Found = append(o.Found, Found{Name: name, VM: &o.VMs[i], Machine: &m})
		leased(&o.Found[i])
		wanted = append(wanted, Wanted{Name: name, Build: wantedBuild(), Strategy: Auto, ISOStorages: []string{"isos"}})
	}
	for i := range o.Found {
		o.Found[i].VM = &o.VMs[i]
	}
	return wanted, o
}

func volid(id VMID, n int) string {
	return fmt.Sprintf("fast:vm-%d-disk-%d", id, n)
}
