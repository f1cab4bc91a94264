package rollingtest

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// AsCP makes the node the control plane cp1.
func AsCP(s *Scene) {
	s.Plan.Node, s.Plan.Role, s.Plan.Addr = "cp1", cluster.ControlPlane, Addr(11)
	k := s.Nodes["wk1"]
	k.Name, k.ControlPlane = "cp1", true
	s.Nodes["cp1"], s.UUIDs[Addr(11)], s.Machine.Nodename = k, "u", "cp1"
	delete(s.Nodes, "wk1")
	s.Mem.ControlPlane, s.Mem.EtcdID, s.Mem.EtcdMembers = true, 1, 3
	if s.Rec != nil {
		s.Rec.Node = "cp1"
	}
}

// Begun opens the replacement's record; the disks are still where they were.
func Begun(s *Scene) {
	s.Rec = &parking.Record{Cluster: "c1", Node: s.Plan.Node, Run: "r1", VMID: 101, Open: true, Strategy: s.Plan.Strategy, Stage: parking.StageServes, Disks: []parking.ParkedDisk{
		{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-101-disk-0", System: true}, {Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-101-disk-1"},
	}}
}

// Is sets the strategy.
func Is(s cluster.Strategy) func(*Scene) { return func(c *Scene) { c.Plan.Strategy = s } }

// All makes the changes in order.
func All(changes ...func(*Scene)) func(*Scene) {
	return func(s *Scene) {
		for _, change := range changes {
			change(s)
		}
	}
}

// Resumed makes the run one that resumes an earlier one.
func Resumed(s *Scene) { s.Plan.Resume = true }

// Swapped puts the new system disk on the VM, and parks the old one.
func Swapped(s *Scene) {
	s.PX.Guests[9900] = cluster.VM{ID: 9900, Host: "pve1", Config: KV{"scsi30": "fast:vm-9900-disk-0,backup=0"}}
	On(101, KV{"scsi0": "fast:vm-101-disk-5,serial=blank", "description": "recast: run=r1 build=b"})(s)
}

// On changes settings of a VM; "" removes one.
func On(id cluster.VMID, config KV) func(*Scene) { return func(s *Scene) { s.PX.Set(id, config) } }

// Off switches the VM off.
func Off(s *Scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Running = false }) }

// Previous adds a build to fall back to.
func Previous(s *Scene) {
	b := s.Want.Build
	b.ISOName = "old.iso"
	s.Plan.Previous = &b
}

// Waiting makes another node not Ready.
func Waiting(s *Scene) { OnNode("cp3", func(k *cluster.KubeNode) { k.Ready = false })(s) }

// Joined makes the new system a member of etcd.
func Joined(s *Scene) { s.Mem.EtcdID = 9 }

// OnNode changes a Node object.
func OnNode(name string, change func(*cluster.KubeNode)) func(*Scene) {
	return func(s *Scene) {
		k := s.Nodes[name]
		change(&k)
		s.Nodes[name] = k
	}
}

// Silent makes the machine not answer with the cluster's certificates.
func Silent(s *Scene) { s.UUIDs[s.Plan.Addr] = "" }

// Saved puts the node's machine configuration into the journal, and its sum into the record.
func Saved(s *Scene) { SavedAs("machine: {}")(s) }

// SavedAs is Saved with that configuration.
func SavedAs(config string) func(*Scene) {
	return func(s *Scene) {
		s.Config["journal"] = cluster.Secret(config)
		if s.Rec != nil {
			s.Rec.Config = cluster.ConfigSum(s.Config["journal"])
		}
	}
}

// Filed puts the node's configuration in a file that the plan has shown.
func Filed(s *Scene) {
	text := cluster.Secret("version: v1alpha1\nmachine: {}\n")
	s.Config["file"], s.Config["runs"] = text, text
	s.Plan.ConfigFile = &cluster.ConfigFile{Hash: hashOf(text), Runs: cluster.ConfigSum(text), Applied: true}
	s.Blank.SystemDisk, s.Blank.FromISO = "sda", false
}

// Paused gives a Node the mark that keeps it from being taken out.
func Paused(k *cluster.KubeNode) { k.Pause = "mine" }

// Controlled makes a Node one that Cluster API replaces.
func Controlled(k *cluster.KubeNode) {
	k.Metadata.Annotations = map[string]string{"cluster.x-k8s.io/machine": "wk-7"}
}

// NoQuorum takes the quorum from the Proxmox cluster.
func NoQuorum(s *Scene) { s.PX.NoQuorum = true }

// NoISO removes all volumes.
func NoISO(s *Scene) { s.PX.Volumes = nil }

// Stays puts data of a PersistentVolume on the system disk.
func Stays(s *Scene) {
	s.Local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1", Path: "/var/x"}}
}

// Fails makes each call of that name fail.
func Fails(call string, err error) func(*Scene) {
	return func(s *Scene) { s.PX.Fail = map[string]error{call: err} }
}

// hashOf returns the hash by which a plan knows a file.
func hashOf(text cluster.Secret) string {
	hash, err := cluster.Text(text)
	if err != nil {
		panic(err)
	}
	return hash
}

// Without takes a member out of etcd.
func Without(name string) func(*Scene) {
	return func(s *Scene) {
		s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m cluster.EtcdMember) bool { return m.Name == name })
	}
}

// Dead has the etcd of cp2 not answer.
func Dead(s *Scene) { delete(s.Status, Addr(12)) }

// Mute has the etcd of cp1 not answer.
func Mute(s *Scene) { delete(s.Status, Addr(11)) }

// Twins has two members of etcd with the name of cp1.
func Twins(s *Scene) { s.Members[1].Name = "cp1" }

// Runs has another member of etcd run on cp1.
func Runs(id uint64) func(*Scene) {
	return func(s *Scene) { s.Status[Addr(11)] = cluster.EtcdStatus{MemberID: id, Leader: 2, Version: "3.6.4"} }
}
