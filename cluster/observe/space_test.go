package observe

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

var (
	thinStorage  = cluster.Storage{Name: "thin", Type: "lvmthin", Pool: "pve/data"}
	thickStorage = cluster.Storage{Name: "thick", Type: "lvm", Pool: "vg", Thick: true}
	sharedThick  = cluster.Storage{Name: "san", Type: "lvm", Pool: "san", Thick: true, Shared: true}
	plainStorage = cluster.Storage{Name: "dir", Type: "dir"}
)

func roomWith(totalGiB, freeGiB int64, pools ...cluster.ThinPool) cluster.Room {
	room := cluster.Room{ThinPools: pools}
	for _, s := range []cluster.Storage{plainStorage, sharedThick, thickStorage, thinStorage} {
		room.Storages = append(room.Storages, cluster.StorageRoom{Name: s.Name, Active: true, Total: totalGiB << 30, Free: freeGiB << 30})
	}
	return room
}

func newDisk(node, host string, s cluster.Storage, gib int64) NewDisk {
	return NewDisk{Node: node, Host: host, Storage: s, Bytes: gib << 30}
}

const spaceRemedy = "while the old one stays parked: free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage"

// roomCase is new disks on one storage.
type roomCase struct {
	disks  []NewDisk
	room   cluster.Room
	atOnce int
	want   []string // by disk
	warn   []string
}

func checkRoom(t *testing.T, tc roomCase) {
	t.Helper()
	uses := SpaceUses(tc.disks, map[string]cluster.Room{"pve1": tc.room})
	if len(uses) != 1 {
		t.Fatalf("%+v", uses)
	}
	must.Equal(t, "got", tc.want, uses[0].Lacks(tc.atOnce))
	must.Equal(t, "got", tc.warn, uses[0].Warn())
}

func TestRoomForThickDisks(t *testing.T) {
	t.Parallel()
	freeing := newDisk("a", "pve1", thickStorage, 10)
	freeing.Freed = 10 << 30
	must.Each(t, map[string]roomCase{
		"thick takes it all": {
			[]NewDisk{newDisk("a", "pve1", thickStorage, 10), newDisk("b", "pve1", thickStorage, 10), newDisk("c", "pve1", thickStorage, 10)},
			roomWith(100, 25), 1,
			[]string{"", "", "storage thick on pve1 has 25 GiB free, but a new system disk takes 10 GiB there besides 20 GiB for a, b before it " + spaceRemedy},
			nil,
		},
		"thick, to the last byte": {[]NewDisk{newDisk("a", "pve1", thickStorage, 25)}, roomWith(100, 25), 1, []string{""}, nil},
		"thick, alone too large": {
			[]NewDisk{newDisk("a", "pve1", thickStorage, 26)},
			roomWith(100, 25), 1,
			[]string{"storage thick on pve1 has 25 GiB free, but a new system disk takes 26 GiB there " + spaceRemedy},
			nil,
		},
		"what the one before frees": {[]NewDisk{freeing, newDisk("b", "pve1", thickStorage, 10)}, roomWith(100, 12), 1, []string{"", ""}, nil},
		"not while that is under way": {
			[]NewDisk{freeing, newDisk("b", "pve1", thickStorage, 10)},
			roomWith(100, 12), 2,
			[]string{"", "storage thick on pve1 has 12 GiB free, but a new system disk takes 10 GiB there besides 10 GiB for a before it " + spaceRemedy},
			nil,
		},
	}, checkRoom)
}

func TestRoomForThinDisks(t *testing.T) {
	t.Parallel()
	pool := cluster.ThinPool{VG: "pve", Name: "data", Size: 100 << 30, MetaSize: 100 << 20, MetaUsed: 10 << 20}
	fullMeta := pool
	fullMeta.MetaUsed = pool.MetaSize - 1<<20
	must.Each(t, map[string]roomCase{
		"thin takes what is written": {
			[]NewDisk{newDisk("a", "pve1", plainStorage, 10), newDisk("b", "pve1", plainStorage, 40)},
			roomWith(1000, 12), 1,
			[]string{"", ""},
			[]string{"storage dir on pve1 would be 104% full if the new system disks filled up while the old ones are parked: " +
				"once it is full, every disk on it fails: extend it, or free old system disks with recast prune"},
		},
		"thin, too little": {
			[]NewDisk{newDisk("a", "pve1", plainStorage, 10), newDisk("b", "pve1", plainStorage, 50)},
			roomWith(1000, 12), 1,
			[]string{"", "storage dir on pve1 has 12 GiB free, but a new system disk takes 10 GiB there besides 4096 MiB for a before it " + spaceRemedy},
			[]string{"storage dir on pve1 would be 105% full if the new system disks filled up while the old ones are parked: " +
				"once it is full, every disk on it fails: extend it, or free old system disks with recast prune"},
		},
		"thin, a small disk": {[]NewDisk{newDisk("a", "pve1", plainStorage, 2)}, roomWith(100, 50), 1, []string{""}, nil},
		"a thin pool":        {[]NewDisk{newDisk("a", "pve1", thinStorage, 10)}, roomWith(100, 50, pool), 1, []string{""}, nil},
		"a thin pool's metadata": {
			[]NewDisk{newDisk("a", "pve1", thinStorage, 10)},
			roomWith(100, 50, fullMeta), 1,
			[]string{"the metadata of thin pool pve/data on pve1 has 1 MiB left, and the new system disks take 3 MiB: extend it (lvextend --poolmetadatasize)"},
			nil,
		},
		"a thin pool that is not listed": {
			[]NewDisk{newDisk("a", "pve1", thinStorage, 10)},
			roomWith(100, 50), 1,
			[]string{""},
			[]string{"how full the metadata of thin pool pve/data on pve1 is can't be determined: Proxmox does not list it"},
		},
		"thin pools that can't be read": {
			[]NewDisk{newDisk("a", "pve1", thinStorage, 10)},
			func() cluster.Room { r := roomWith(100, 50); r.ErrPools = errors.New("no lvs"); return r }(), 1,
			[]string{""},
			[]string{"how full the metadata of thin pool pve/data on pve1 is can't be determined: no lvs"},
		},
	}, checkRoom)
}

func TestRoomThatCantBeTold(t *testing.T) {
	t.Parallel()
	away := func(s string) cluster.Room {
		r := roomWith(100, 50)
		i := slices.IndexFunc(r.Storages, func(sr cluster.StorageRoom) bool { return sr.Name == s })
		r.Storages[i].Active = false
		return r
	}
	must.Each(t, map[string]roomCase{
		"not active": {[]NewDisk{newDisk("a", "pve1", thickStorage, 1)}, away("thick"), 1, []string{"storage thick is not active on pve1: see pvesm status there"}, nil},
		"not for disks": {
			[]NewDisk{newDisk("a", "pve1", cluster.Storage{Name: "isos"}, 1)},
			roomWith(100, 50), 1,
			[]string{"storage isos takes no disks on pve1: see its content, nodes and state (pvesm status)"},
			nil,
		},
		"a host that does not answer": {
			[]NewDisk{newDisk("a", "pve1", thickStorage, 1)},
			cluster.Room{Err: errors.New("no route")},
			1,
			[]string{"the room on pve1 can't be read: no route"},
			nil,
		},
		"a host that was not read": {[]NewDisk{newDisk("a", "pve2", thickStorage, 1)}, cluster.Room{}, 1, []string{"nobody asked pve2 for its room"}, nil},
		"a drive without size": {
			[]NewDisk{newDisk("a", "pve1", thickStorage, 0)},
			roomWith(100, 50), 1,
			[]string{"how large its new system disk is to be can't be determined: the drive has no size=: run qm disk rescan, or set nodes[].systemDisk.sizeGiB"},
			nil,
		},
	}, checkRoom)
}

// Storages on one pool are counted together, on all hosts.
func TestSpaceIsCountedOnce(t *testing.T) {
	t.Parallel()
	second := thickStorage
	second.Name = "thick2"
	sparse := cluster.Storage{Name: "dir2", Type: "dir"}
	disks := []NewDisk{
		newDisk("a", "pve1", thickStorage, 1), newDisk("b", "pve2", thickStorage, 2), newDisk("c", "pve1", second, 4),
		newDisk("d", "pve1", sharedThick, 8), newDisk("e", "pve2", sharedThick, 16), newDisk("f", "pve1", plainStorage, 1), newDisk("g", "pve1", sparse, 1),
	}
	var got []string
	for _, use := range SpaceUses(disks, nil) {
		var nodes []string
		for _, d := range use.Disks {
			nodes = append(nodes, d.Node)
		}
		got = append(got, use.Storage+" of "+use.Host+": "+strings.Join(nodes, " ")+", "+cluster.Size(use.Takes()))
	}
	want := []string{
		"thick of pve1: a c, 5120 MiB", "thick of pve2: b, 2048 MiB", "san of pve1: d e, 24 GiB",
		"dir of pve1: f, 1024 MiB", "dir2 of pve1: g, 1024 MiB",
	}
	must.Equal(t, "got", want, got)
}
