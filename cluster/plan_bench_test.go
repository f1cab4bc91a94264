package cluster

import (
	"fmt"
	"testing"
)

// largeWorld is one of so many workers, every one of them stale.
func largeWorld(nodes int) ([]Wanted, Observation) {
	_, o := world()
	o.VMs, o.Found = make([]VM, nodes), make([]Found, nodes)
	wanted := make([]Wanted, nodes)
	for i := range nodes {
		name, id, host := fmt.Sprint("wk", i), VMID(1000+i), fmt.Sprint("pve", i%9)
		m := inSync()
		m.UUID, m.SystemDisk = "u-"+name, "sda"
		m.Disks = []MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		m.Schematic = SchematicEntry{"id-old", "recast.lock=" + oldHash}
		o.VMs[i] = VM{ID: id, Name: name, Host: host, Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   Disk{Volid: volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   Disk{Volid: volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.Found[i] = Found{Name: name, VM: &o.VMs[i], Machine: &m}
		o.Rooms[host] = o.Rooms["pve1"]
		wanted[i] = Wanted{Name: name, Build: wantedBuild(), Strategy: Auto, ISOStorages: []string{"isos"}}
	}
	return wanted, o
}

// BenchmarkDiff compares 500 nodes with the lock.
func BenchmarkDiff(b *testing.B) {
	wanted, o := largeWorld(500)
	b.ReportAllocs()
	for b.Loop() {
		for i, w := range wanted {
			if !Diff(w, o.Found[i], past).Stale {
				b.Fatal("in sync")
			}
		}
	}
}
