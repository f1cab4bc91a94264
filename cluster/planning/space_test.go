package planning

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
)

const spaceRemedy = "while the old one stays parked: free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage"

func TestPlanRefusesWithoutRoom(t *testing.T) {
	t.Parallel()
	room := func(free int64) map[string]cluster.Room {
		return map[string]cluster.Room{"pve1": {Storages: []cluster.StorageRoom{{Name: "fast", Active: true, Total: 100 << 30, Free: free << 30}}}}
	}
	for name, tc := range map[string]struct {
		free  int64
		inAll int // how many of the three nodes are stale
		want  string
	}{
		"room for all": {40, 2, ""},
		"for one":      {15, 2, "wk2: storage fast on pve1 has 15 GiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"for none": {5, 2, "wk1: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there " + spaceRemedy + "\n" +
			"wk2: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"nothing to do": {0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			o.Storages[0].Thick, o.Rooms = true, room(tc.free)
			for i, f := range o.Found[1:] {
				f.Machine.Schematic.YAML = "recast.lock=" + clustertest.WantedBuild().LockHash
				f.Machine.Schematic.ID = clustertest.WantedBuild().SchematicID
				if i < tc.inAll {
					f.Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
				}
			}
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(plan.Refused(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatARollGivesBack(t *testing.T) {
	t.Parallel()
	n := NodePlan{Frees: []parking.FreePlan{{Volid: "thick:vm-1-disk-0", Size: "10G"}, {Volid: "thick:vm-1-disk-1", Size: "512M"}, {Volid: "dir:1/vm-1-disk-0.raw", Size: "7G"}, {Key: "scsi3"}}}
	thick := cluster.Storage{Name: "thick", Type: "lvm", Pool: "vg", Thick: true}
	shared := cluster.Storage{Name: "san", Type: "lvm", Pool: "san", Thick: true, Shared: true}
	plain := cluster.Storage{Name: "dir", Type: "dir"}
	for s, want := range map[cluster.Storage]int64{thick: 10<<30 + 512<<20, plain: 0, shared: 0} {
		if got := n.frees(s); got != want {
			t.Errorf("%s gets %d back, want %d", s.Name, got, want)
		}
	}
}
