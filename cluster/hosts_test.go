package cluster

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// What Proxmox does not list may be shared.
func TestLocalStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin", Shared: true}}}
	got := []bool{o.Local("bulk"), o.Local("fast"), o.Local("unlisted")}
	if diff := cmp.Diff([]bool{true, false, false}, got); diff != "" {
		t.Error(diff)
	}
}

func parkingOn(id VMID, host string, open bool, kept ...string) Parking {
	p := Parking{VM: VM{ID: id, Name: "recast-parking-wk1", Host: host}, Record: Record{Node: "wk1", UUID: "u", Open: open}}
	for i, run := range kept {
		p.Record.Kept = append(p.Record.Kept, KeptDisk{Key: parkedAt(i), Run: run, Nth: map[string]int{"20260101-0000-aaaa": 1, "20260102-0000-aaaa": 2}[run]})
	}
	return p
}

func parkedAt(i int) string { return []string{"scsi30", "scsi29"}[i] }

func TestParkingVMsOfANode(t *testing.T) {
	t.Parallel()
	const (
		run1 = "20260101-0000-aaaa"
		run2 = "20260102-0000-aaaa"
	)
	other := parkingOn(9099, "pve1", true, run1)
	other.Record.Node = "wk2"
	cases := map[string]struct {
		parkings []Parking
		want     VMID // of the one that is taken for a VM on pve1
		last     string
		err      string
	}{
		"none":                       {parkings: []Parking{other}, last: " 0"},
		"beside the VM":              {parkings: []Parking{parkingOn(9001, "pve1", false, run1), other}, want: 9001, last: "scsi30 9001"},
		"left behind":                {parkings: []Parking{parkingOn(9001, "pve2", false, run1)}, last: "scsi30 9001"},
		"one on each host":           {parkings: []Parking{parkingOn(9001, "pve2", false, run1), parkingOn(9002, "pve1", false, run2)}, want: 9002, last: "scsi30 9002"},
		"the newer disk elsewhere":   {parkings: []Parking{parkingOn(9001, "pve2", false, run2), parkingOn(9002, "pve1", false, run1)}, want: 9002, last: "scsi30 9001"},
		"of several the last":        {parkings: []Parking{parkingOn(9001, "pve1", false, run1, "20260101-0000-0000")}, want: 9001, last: "scsi29 9001"},
		"the open one":               {parkings: []Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", true)}, want: 9002, last: "scsi30 9001"},
		"two open ones":              {parkings: []Parking{parkingOn(9001, "pve1", true), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs with an unfinished replacement: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`},
		"two on one host":            {parkings: []Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", false)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"an open and a closed there": {parkings: []Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"a copy on another host": {
			parkings: []Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", false, run2, run1)},
			err:      `two parking VMs say that they keep the system disk of node wk1 that run 20260101-0000-aaaa replaced: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Observation{
				VMs:     []VM{{ID: 101, Host: "pve1", Config: map[string]string{"smbios1": "uuid=u"}}},
				Nodes:   []KubeNode{{Name: "wk1", UUID: "u"}},
				Parking: tc.parkings,
			}
			f, err := MatchNodes(Wanted{Name: "wk1"}, &o, nil)
			if err != nil || tc.err != "" {
				if fault.KindOf(err) != fault.Refused || err.Error() != tc.err || len(fault.Hints(err)) == 0 {
					t.Errorf("err = %v, hints %q", err, fault.Hints(err))
				}
				return
			}
			var got VMID
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

func TestMovedInTheMiddle(t *testing.T) {
	t.Parallel()
	at := func(id VMID, host string, running bool) VM {
		return VM{ID: id, Name: "x", Host: host, Running: running}
	}
	away := &HostsAway{Hosts: []AwayHost{{"pve3", "is offline"}}, VMs: []VM{{ID: 101, Host: "pve3"}}}
	const moved = `it was begun on pve1, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed`
	cases := map[string]struct {
		vm   *VM
		park VM
		away *HostsAway
		want string
	}{
		"both there":                  {vm: new(at(101, "pve1", true)), park: at(9001, "pve1", false)},
		"deleted":                     {park: at(9001, "pve1", false)},
		"the VM":                      {vm: new(at(101, "pve2", false)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1")},
		"a VM that runs":              {vm: new(at(101, "pve2", true)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1 --online --with-local-disks")},
		"the parking VM":              {vm: new(at(101, "pve1", true)), park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"deleted, and the parking VM": {park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"both": {
			vm: new(at(101, "pve2", false)), park: at(9001, "pve2", false),
			want: fmt.Sprintf(moved, `VM 101 "x" on pve2 and VM 9001 "x" on pve2`, "on pve2: qm migrate 101 pve1; on pve2: qm migrate 9001 pve1"),
		},
		"to a host that is down": {park: at(9001, "pve1", false), away: away, want: "VM 101 is on pve3, and Proxmox host pve3 is offline: bring pve3 back first; nothing was destroyed"},
		"deleted while another host is down": {
			park: at(9001, "pve1", false), away: &HostsAway{Hosts: away.Hosts, VMs: []VM{{ID: 102, Host: "pve3"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, OnOtherHosts(tc.vm, tc.park, "pve1", tc.away, 101)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
