package gate

import (
	"errors"

	"github.com/recast-sh/recast/cluster"
)

// onCeph is a node with a disk on the Ceph of the hosts; blocked is what that lets wait.
func onCeph(blocked string) func(*scene) {
	return func(s *scene) {
		s.Plan.OnCeph = []string{"ceph"}
		s.PX.Space.Storages = append(s.PX.Space.Storages, cluster.StorageRoom{Name: "ceph", Active: true, Total: 1 << 40, Free: 1 << 40, Blocked: blocked})
	}
}

// cephRows test the last look at the hosts' own Ceph.
func cephRows() []row {
	return []row{
		{Do: "recreate", Change: onCeph("its Ceph cannot read or write some data"), Err: "has disks on storage ceph: its Ceph cannot read or write some data"},
		{Do: "recreate", Change: onCeph("")},
		{Do: "recreate", Change: all(onCeph(""), fails("Room", errors.New("no storage answers"))), Err: "read the room on"},
		{Do: "recreate", Change: all(onCeph("another Ceph is full"), func(s *scene) { s.Plan.OnCeph = nil })},
	}
}
