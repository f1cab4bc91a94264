package parking

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestRecordSurvivesADescription(t *testing.T) {
	t.Parallel()
	rec := Record{
		Cluster: "c1", Node: "wk1", Run: "20261121-0421-3f2a", Build: "b", VMID: 9011, UUID: "u", VMName: "wk1", Open: true, Strategy: cluster.Recreate, Stage: StageServes, Left: true,
		Disks: []ParkedDisk{{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:9011/vm-9011-disk-0.raw", Options: "serial=a,size=10G", System: true}},
		Kept:  []KeptDisk{{Key: "scsi29", Run: "earlier"}},
	}
	text := must.Get(rec.Description())(t)
	must.Contain(t, "what a person reads", text, "wk1", "VM 9011", "c1", "Never start it")
	// Proxmox gives descriptions back with a line break at the end.
	got, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": text + "\n"}})
	if err != nil || !ok {
		t.Fatalf("ok %t, err %v", ok, err)
	}
	must.Equal(t, "got", rec, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func TestReadRecordOfOtherVMs(t *testing.T) {
	t.Parallel()
	if _, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": "web server\nsince 2019"}}); ok || err != nil {
		t.Errorf("ok %t, err %v", ok, err)
	}
	_, ok, err := ReadRecord(cluster.VM{ID: 9, Config: map[string]string{"description": RecordMark + `{"node":`}})
	if !ok || err == nil {
		t.Errorf("a damaged record: ok %t, err %v", ok, err)
	}
}

// TestRecordOfANewerRecast: what this recast does not know, it refuses, rather than to drop it when it writes
// the record again. The record of another cluster is none of its business.
func TestRecordOfANewerRecast(t *testing.T) {
	t.Parallel()
	rec := Record{Cluster: "c1", Node: "wk1", Run: "r1", VMID: 101, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: StageServes}
	text := must.Get(rec.Description())(t)
	for name, tc := range map[string]struct {
		old, fresh, want string
		whose            Record
	}{
		"another version": {`"version":1,`, `"version":2,"also":true,`, "a newer recast wrote it: its format is version 2, and this recast reads version 1", rec},
		"another field":   {`"version":1,`, `"version":1,"also":true,`, `this recast does not know the field "also": a newer one wrote it, or it was edited`, Record{}},
		"no version":      {`"version":1,`, "", "someone has edited it: it lacks its version", Record{}},
		"no strategy":     {`"strategy":"recreate",`, "", "someone has edited it: it lacks its strategy", Record{}},
		"no stage":        {`"stage":"serves"`, `"nth":1`, "someone has edited it: it lacks its stage", Record{}},
	} {
		if !strings.Contains(text, tc.old) {
			t.Fatalf("%s has no %s", text, tc.old)
		}
		vm := cluster.VM{ID: 9050, Config: map[string]string{"description": strings.Replace(text, tc.old, tc.fresh, 1)}}
		got, ok, err := ReadRecord(vm)
		if !ok || (tc.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tc.want) || fault.KindOf(err) != fault.Refused || !strings.Contains(fault.Hints(err)[0], "newer")) {
			t.Errorf("%s: ok %t, %v, hints %q", name, ok, err, fault.Hints(err))
		}
		must.Equal(t, name, tc.whose, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
		ours, err := AllParkings([]cluster.VM{vm}, "c1")
		if (err == nil) != (tc.want == "") || len(ours) > 0 != (err == nil) {
			t.Errorf("%s: %d parking VMs, %v", name, len(ours), err)
		}
		if _, err := AllParkings([]cluster.VM{vm}, "c2"); (err != nil) != (tc.whose.Cluster == "") {
			t.Errorf("%s, for another cluster: %v", name, err)
		}
		vm.Name = cluster.ParkingName("wk1")
		must.Equal(t, name+": damaged", strings.Contains(tc.want, "it lacks"), Damaged(vm))
	}
}

func TestRecordTooLargeForADescription(t *testing.T) {
	t.Parallel()
	rec := Record{Disks: []ParkedDisk{{Options: strings.Repeat("x", cluster.MaxDescription)}}}
	if _, err := rec.Description(); err == nil {
		t.Error("Proxmox would have refused this description in the middle of a roll")
	}
}

func TestMarkDescription(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ old, want string }{
		"none":            {"", "recast: run=r2 build=b"},
		"user's text":     {"mine\n\nyours\n", "mine\n\nyours\nrecast: run=r2 build=b"},
		"an earlier mark": {"mine\nrecast: run=r1 build=a\n", "mine\nrecast: run=r2 build=b"},
	} {
		got := MarkDescription(tc.old, "r2", "b")
		must.Equal(t, name, tc.want, got)
		must.Equal(t, name+": made by", "r2", (cluster.VM{Config: map[string]string{"description": got}}).MadeBy())
	}
}

func TestParkingKeys(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{"scsi1": true, "scsi30": true}
	for _, tc := range []struct {
		key    string
		system bool
		want   string
	}{{"scsi0", true, "scsi29"}, {"scsi1", false, "scsi0"}, {"scsi2", false, "scsi2"}, {"efidisk0", false, "efidisk0"}} {
		got := must.Get(parkingKey(tc.key, tc.system, taken))(t)
		must.Equal(t, fmt.Sprintf("%s (system %t)", tc.key, tc.system), tc.want, got)
		taken[got] = true
	}
	for i := range scsiKeys {
		taken["scsi"+strconv.Itoa(i)] = true
	}
	if _, err := parkingKey("scsi4", false, taken); err == nil {
		t.Error("no key is free, yet one was found")
	}
}
