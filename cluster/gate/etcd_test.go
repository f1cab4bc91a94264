package gate

import (
	"github.com/recast-sh/recast/cluster"
)

// etcdRows test the membership of a control plane in etcd.
func etcdRows() []row {
	without := func(name string) func(*scene) {
		return func(s *scene) {
			for i, m := range s.Members {
				if m.Name == name {
					s.Members = append(s.Members[:i:i], s.Members[i+1:]...)
					return
				}
			}
		}
	}
	dead := func(s *scene) { delete(s.Status, addr(12)) }
	mute := func(s *scene) { delete(s.Status, addr(11)) }
	twins := func(s *scene) { s.Members[1].Name = "cp1" }
	runs := func(id uint64) func(*scene) {
		return func(s *scene) { s.Status[addr(11)] = cluster.EtcdStatus{MemberID: id, Leader: 2, Version: "3.6.4"} }
	}
	alone := func(s *scene) {
		s.Plan.ControlPlanes, s.Members, s.Plan.EtcdKept = s.Plan.ControlPlanes[:1], s.Members[:1], true
	}
	two := all(without("cp3"), func(s *scene) { s.Plan.ControlPlanes = s.Plan.ControlPlanes[:2]; delete(s.Nodes, "cp3") })
	elsewhere := func(s *scene) { s.Members[0].Peers = []string{"https://10.0.0.98:2380"}; s.UUIDs[addr(98)] = "other" }
	silentMembers := fails("EtcdMembers", cluster.ErrNotNow)
	kept := func(s *scene) { s.Plan.EtcdKept = true }
	left := all(without("cp1"), mute)
	typeInit := func(s *scene) {
		m := *s.Plan.Found.Machine
		m.TypeInit = true
		s.Plan.Found.Machine = &m
	}
	had := func(text string) func(*scene) {
		return all(joined, func(s *scene) { s.Rec.Left, s.Config["journal"] = true, cluster.Secret(text) })
	}
	return []row{
		{Do: "recreate", Change: dead},
		{Do: "cp", Change: dead, Err: "etcd would not survive losing cp1: cp2 does not answer"},
		{Do: "cp", Change: silentMembers, Err: "can't be determined"},
		{Do: "cp", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "cp", Change: all(alone, func(s *scene) {
			s.Status[addr(11)] = cluster.EtcdStatus{MemberID: 1, Leader: 1, Version: "3.6.4", Errors: []string{"NOSPACE"}}
		}), Err: "NOSPACE"},
		{Do: "cp", Change: alone},
		{Do: "cp", Change: left},
		{Do: "cp", Change: all(left, kept), Err: "is no member of etcd"},
		{Do: "cp", Change: two, Err: "etcd has two members"},
		{Do: "cp", Change: without("cp3"), Err: "the cluster has 3 control planes, but etcd without cp1 only these members: cp2"},
		{Do: "cp", Change: all(without("cp1"), runs(2)), Err: "which is named cp2"},
		{Do: "cp", Change: all(without("cp1"), runs(7)), Err: "which the others (cp2, cp3) do not know"},
		{Do: "cp", Change: runs(7), Err: "but is not what runs on 10.0.0.11"},
		{Do: "cp", Change: func(s *scene) {
			statuses := 0
			s.PX.At = func() {
				if s.PX.Made != nil && s.PX.Made[len(s.PX.Made)-1] == "EtcdStatus" {
					if statuses++; statuses == 3 {
						delete(s.Status, addr(11))
					}
				}
			}
		}, Err: "but is not what runs on 10.0.0.11"},
		{Do: "cp", Change: mute},
		{Do: "cp", Change: all(mute, elsewhere), Err: "etcd member 1 is named cp1, but runs on 10.0.0.98"},
		{Do: "cp", Change: typeInit, Err: "its machine.type is init"},
		{Do: "cp", Change: all(left, typeInit), Err: "its machine.type is init"},
		{Do: "cp", Change: all(typeInit, kept)},
		{Do: "put back cp", Change: had("machine: {type: init}"), Err: "is of machine.type init, and its etcd directory is empty"},
		{Do: "put back cp", Change: all(had("machine: {type: init}"), func(s *scene) { s.Mem.EtcdKept = true })},
		{Do: "put back cp", Change: all(had("machine: {type: init}"), func(s *scene) { s.Mem.EtcdMembers = 1 }), Err: "is of machine.type init"},
		{Do: "put back cp", Change: all(had("machine: {type: controlplane}"), fails("Secret", cluster.ErrNotNow)), Err: "journal: no answer just now"},
		{Do: "put back cp", Change: had("machine: {type: controlplane}")},
		{Do: "put back cp", Change: joined, Err: "which is no member any more"},
		{Do: "put back cp", Change: without("cp1"), Err: "which is no member any more"},
		{Do: "put back cp", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "put back cp", Change: silentMembers, Err: "no answer just now"},
		{Do: "put back cp", Change: all(joined, func(s *scene) { s.Rec.Left = true })},
	}
}
