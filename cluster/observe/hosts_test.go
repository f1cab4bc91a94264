package observe

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// A storage that Proxmox does not list may be shared.
func TestLocalStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin", Shared: true}}}
	got := []bool{o.Local("bulk"), o.Local("fast"), o.Local("unlisted")}
	if diff := cmp.Diff([]bool{true, false, false}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParkingVMsOfANode(t *testing.T) {
	t.Parallel()
	const (
		run1 = "20260101-0000-aaaa"
		run2 = "20260102-0000-aaaa"
	)
	other := parkingOn(9099, "pve1", true, run1)
	other.Record.Node = "wk2"
	cases := map[string]struct {
		parkings []parking.Parking
		want     cluster.VMID // of the one that is chosen for a VM on pve1
		last     string
		err      string
	}{
		"none":                       {parkings: []parking.Parking{other}, last: " 0"},
		"beside the VM":              {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), other}, want: 9001, last: "scsi30 9001"},
		"left behind":                {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run1)}, last: "scsi30 9001"},
		"one on each host":           {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run1), parkingOn(9002, "pve1", false, run2)}, want: 9002, last: "scsi30 9002"},
		"the newer disk elsewhere":   {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run2), parkingOn(9002, "pve1", false, run1)}, want: 9002, last: "scsi30 9001"},
		"of several the last":        {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1, "20260101-0000-0000")}, want: 9001, last: "scsi29 9001"},
		"the open one":               {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", true)}, want: 9002, last: "scsi30 9001"},
		"two open ones":              {parkings: []parking.Parking{parkingOn(9001, "pve1", true), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs with an unfinished replacement: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`},
		"two on one host":            {parkings: []parking.Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", false)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"an open and a closed there": {parkings: []parking.Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"two on one host, both written there": {
			parkings: []parking.Parking{written(parkingOn(9001, "pve1", false, run1)), written(parkingOn(9002, "pve1", false, run2))}, want: 9002, last: "scsi30 9002",
		},
		"two on one host, one a copy": {
			parkings: []parking.Parking{written(parkingOn(9001, "pve1", false, run1)), parkingOn(9002, "pve1", false, run2)},
			err:      `node wk1 has two parking VMs on pve1: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve1`,
		},
		"a copy on another host": {
			parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", false, run2, run1)},
			err:      `two parking VMs say that they keep the system disk of node wk1 that run 20260101-0000-aaaa replaced: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Observation{
				VMs:     []cluster.VM{{ID: 101, Host: "pve1", Config: map[string]string{"smbios1": "uuid=u"}}},
				Nodes:   []cluster.KubeNode{{Name: "wk1", UUID: "u"}},
				Parking: tc.parkings,
			}
			f, err := MatchNodes(cluster.Wanted{Name: "wk1"}, &o, nil)
			if err != nil || tc.err != "" {
				if fault.KindOf(err) != fault.Refused || err.Error() != tc.err || len(fault.Hints(err)) == 0 {
					t.Errorf("err = %v, hints %q", err, fault.Hints(err))
				}
				return
			}
			var got cluster.VMID
			if f.Parking != nil {
				got = f.Parking.VM.ID
			}
			last, on, _ := f.LastKept()
			if got != tc.want || fmt.Sprintf("%s %d", last.Key, on.ID) != tc.last {
				t.Errorf("takes %d, last kept %s of %d; want %d, %s", got, last.Key, on.ID, tc.want, tc.last)
			}
		})
	}
}

// written is a parking VM whose record says that it was written into that VM.
func written(p parking.Parking) parking.Parking {
	p.Record.Parking = p.VM.ID
	return p
}

func parkedAt(i int) string { return []string{"scsi30", "scsi29"}[i] }

func parkingOn(id cluster.VMID, host string, open bool, kept ...string) parking.Parking {
	p := parking.Parking{VM: cluster.VM{ID: id, Name: "recast-parking-wk1", Host: host}, Record: parking.Record{Node: "wk1", UUID: "u", Open: open}}
	for i, run := range kept {
		p.Record.Kept = append(p.Record.Kept, parking.KeptDisk{Key: parkedAt(i), Run: run, Nth: map[string]int{"20260101-0000-aaaa": 1, "20260102-0000-aaaa": 2}[run]})
	}
	return p
}
