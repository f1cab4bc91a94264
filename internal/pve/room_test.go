package pve

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

func TestStoragesTellHowTheyAllocate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Node(t, "pve1").On("GET /storage", data(`[
			{"storage":"a-dir","type":"dir","path":"/srv"},
			{"storage":"b-full","type":"dir","preallocation":"full"},
			{"storage":"c-metadata","type":"nfs","shared":1,"preallocation":"metadata"},
			{"storage":"d-lvm","type":"lvm","vgname":"vg0","saferemove":1},
			{"storage":"e-thin","type":"lvmthin","vgname":"pve","thinpool":"data"},
			{"storage":"f-zfs","type":"zfspool","pool":"rpool/data"},
			{"storage":"g-sparse","type":"zfspool","pool":"rpool/data","sparse":1},
			{"storage":"h-ceph","type":"rbd","shared":1},
			{"storage":"i-ceph","type":"rbd","shared":1,"pool":"vms","monhost":"10.0.0.1 10.0.0.2"},
			{"storage":"j-plugin","type":"linstor","shared":1}]`))
		got, err := s.client(t, "pve1").Storages(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []cluster.Storage{
			{Name: "a-dir", Type: "dir"},
			{Name: "b-full", Type: "dir", Thick: true},
			{Name: "c-metadata", Type: "nfs", Shared: true},
			{Name: "d-lvm", Type: "lvm", Thick: true, Pool: "vg0"},
			{Name: "e-thin", Type: "lvmthin", Pool: "pve/data"},
			{Name: "f-zfs", Type: "zfspool", Thick: true, Pool: "zfs rpool/data"},
			{Name: "g-sparse", Type: "zfspool", Pool: "zfs rpool/data"},
			{Name: "h-ceph", Type: "rbd", Shared: true, Pool: "rbd rbd of the hosts' own Ceph"},
			{Name: "i-ceph", Type: "rbd", Shared: true, Pool: "rbd vms of 10.0.0.1 10.0.0.2"},
			{Name: "j-plugin", Type: "linstor", Shared: true, Thick: true},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("storages (-want +got):\n%s", diff)
		}
	})
}

func TestRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("GET /nodes/pve1/storage?content=images", data(`[
			{"storage":"thin","type":"lvmthin","content":"images","active":1,"enabled":1,"total":100,"used":40,"avail":60,"used_fraction":0.4},
			{"storage":"nas","type":"nfs","active":0,"enabled":1,"total":0,"used":0,"avail":0},
			{"storage":"fs","type":"cephfs","active":1,"total":2e15,"avail":"1.5e+15"}]`))
		pve1.On("GET /nodes/pve1/disks/lvmthin", data(`[{"lv":"data","vg":"pve","lv_size":100,"used":40,"metadata_size":10,"metadata_used":1}]`))
		pve1.On("GET /nodes/pve2/storage?content=images", data(`[{"storage":"thin","type":"lvmthin","active":1,"total":100,"avail":60}]`))
		pve1.On("GET /nodes/pve2/disks/lvmthin", raw("500 got no thin pools", ""))
		c := s.client(t, "pve1")
		got, err := c.Room(t.Context(), "pve1")
		if err != nil {
			t.Fatal(err)
		}
		want := cluster.Room{
			Storages: []cluster.StorageRoom{
				{Name: "fs", Active: true, Total: 2e15, Free: 15e14},
				{Name: "nas"},
				{Name: "thin", Active: true, Total: 100, Free: 60},
			},
			ThinPools: []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 40, MetaSize: 10, MetaUsed: 1}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("room (-want +got):\n%s", diff)
		}
		if got, err := c.Room(t.Context(), "pve2"); err != nil || got.ErrPools == nil || len(got.Storages) != 1 {
			t.Errorf("thin pools that can't be read: %+v, error %v", got, err)
		}
	})
}
