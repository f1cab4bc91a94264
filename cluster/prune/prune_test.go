package prune

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestJudgeParked(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]judgeCase{
		"nothing":                 {},
		"one disk":                {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1")}, want: []string{"9900 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"three disks":             {parkings: []parking.Parking{clustertest.ParkWK1(threeKept...)}, want: []string{"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"three disks, two stay":   {keep: 2, parkings: []parking.Parking{clustertest.ParkWK1(threeKept...)}, want: []string{"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 stays: node wk1 has only 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1"}},
		"none stays":              {keep: -1, parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1")}, want: []string{"9900 scsi30 goes: none is to stay: the way back of node wk1 is a roll to the previous lock then", "9900 goes: it owns nothing any more"}},
		"nothing is parked there": {parkings: []parking.Parking{clustertest.ParkWK1()}, want: []string{"9900 goes: it owns nothing any more"}},
		"a removed node":          {parkings: []parking.Parking{clustertest.Park(9901, "pve1", "wk9", "scsi30 r1")}, want: []string{"9901 scsi30 goes: recast.yaml has no node wk9 any more", "9901 goes: it owns nothing any more"}},
		"a node of another recast.yaml": {others: []cluster.VM{{ID: 101, Name: "wk9", Host: "pve1", Config: map[string]string{"smbios1": "uuid=u-wk9"}}}, parkings: []parking.Parking{clustertest.Park(9901, "pve1", "wk9", "scsi30 r1")}, want: []string{
			`9901 scsi30 stays: recast.yaml has no node wk9, but its VM is there: VM 101 "wk9" on pve1. Another recast.yaml may say cluster: c1 as well`, "9901 stays: it keeps 1 old system disk of node wk9",
		}},
		"a node of that name twice": {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Edited(clustertest.Park(9901, "pve2", "wk1", "scsi30 r2"), func(p *parking.Parking) { p.Record.UUID = "u-other" })}, want: []string{
			"9900 scsi30 " + newestKept, "9901 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"another cluster":   {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1"), func(p *parking.Parking) { p.Record.Cluster = "c2" })}},
		"the claim":         {parkings: []parking.Parking{clustertest.Park(9999, "pve1", "wk1", threeKept...)}},
		"someone else's VM": {others: []cluster.VM{{ID: 7, Name: "db", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-7-disk-0", "description": "mine"}}}},
		"a later run on a machine whose clock is a day behind": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), func(p *parking.Parking) {
			p.Record.Kept[0].Run, p.Record.Kept[1].Run = "20260102-0000-aaaa", "20260101-0000-bbbb"
		})}, want: []string{"9900 scsi30 goes: node wk1 has 1 newer", "9900 scsi29 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"a later run with such a clock, on another host": {parkings: []parking.Parking{
			clustertest.Edited(clustertest.ParkWK1("scsi30 r1"), func(p *parking.Parking) { p.Record.Kept[0].Run = "20260102-0000-aaaa" }),
			clustertest.Edited(clustertest.Park(9901, "pve2", "wk1", "scsi30 r2"), func(p *parking.Parking) { p.Record.Kept[0].Run = "20260101-0000-bbbb" }),
		}, others: []cluster.VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 goes: node wk1 has 1 newer", "9901 scsi30 " + newestKept, "9900 goes: it owns nothing any more", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"which of two is newer is not known": {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 a1"), clustertest.Park(9901, "pve2", "wk1", "scsi30 a2")}, others: []cluster.VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 " + newestKept, "9901 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"a record that can't be read": {others: []cluster.VM{{ID: 9902, Name: "x", Host: "pve1", Config: map[string]string{"description": "recast-record: {"}}}, want: []string{`9902 stays: VM 9902 "x" on pve1: record in its description can't be read: unexpected end of JSON input`}},
		"two hosts, the VM on the newer one": {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Park(9901, "pve2", "wk1", "scsi30 r2")}, others: []cluster.VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 goes: node wk1 has 1 newer", "9901 scsi30 " + newestKept, "9900 goes: it owns nothing any more", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"two hosts, the VM back on the older one": {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), clustertest.Park(9901, "pve2", "wk1", "scsi30 r3")}, others: []cluster.VM{prunedNode("pve1")}, want: []string{
			"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 stays: the VM of node wk1 is on pve1, and it is the newest one there: what recast undo wk1 boots", "9901 scsi30 " + newestKept,
			"9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
	}, checkJudged)
}

// TestJudgeParkedNotAsLeft: a disk or VM that is not provably as recast left it stays.
func TestJudgeParkedNotAsLeft(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]judgeCase{
		"a drive that is in no record": {keep: -1, parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1"), func(p *parking.Parking) { p.VM.Config["unused0"] = "fast:vm-9900-disk-7" })}, want: []string{"9900 scsi30 goes: none is to stay: the way back of node wk1 is a roll to the previous lock then", "9900 stays: unused0 (fast:vm-9900-disk-7) is in no record of recast: not ours, look at it"}},
		"a drive that is gone": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), func(p *parking.Parking) { delete(p.VM.Config, "scsi29") })}, want: []string{
			"9900 scsi30 " + newestKept, "9900 scsi29 goes: VM 9900 has no scsi29 any more: only its entry in the record goes", "9900 stays: it keeps 1 old system disk of node wk1",
		}},
		"another volume under the key, of another VM": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1(threeKept...), func(p *parking.Parking) { p.VM.Config["scsi30"] = "fast:vm-7-disk-0,backup=0,serial=sr1,size=10G" })}, want: []string{
			"9900 scsi30 stays: fast:vm-7-disk-0 is not VM 9900's own: look at it", "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"another disk under the key": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), func(p *parking.Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-5,serial=data,size=10G" })}, want: []string{
			"9900 scsi30 stays: it has the options serial=data,size=10G, its record says serial=sr1,size=10G,backup=0: someone changed it, look at it", "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"the newest has changed, so it is not for a rollback": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), func(p *parking.Parking) { p.VM.Config["scsi29"] = "fast:vm-9900-disk-1,size=10G" })}, want: []string{
			"9900 scsi30 " + newestKept, "9900 scsi29 stays: it has the options size=10G, its record says serial=sr2,size=10G,backup=0: someone changed it, look at it", "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"two entries for one drive": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1"), func(p *parking.Parking) {
			p.Record.Kept = append(p.Record.Kept, p.Record.Kept[0])
			p.Record.Kept[1].Run = "r2"
		})}, want: []string{
			"9900 scsi30 stays: 2 entries of the record are about scsi30: which one can't be determined", "9900 scsi30 stays: 2 entries of the record are about scsi30: which one can't be determined", "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"an open record": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1(threeKept...), func(p *parking.Parking) { p.Record.Open, p.Record.Run = true, "r4" })}, want: []string{
			`9900 scsi30 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 scsi29 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 scsi28 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
		}},
		"an open record on another host": {
			parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Edited(clustertest.Park(9901, "pve2", "wk1"), func(p *parking.Parking) { p.Record.Open, p.Record.Run = true, "r4" })},
			want: []string{
				`9900 scsi30 stays: VM 9901 "recast-parking-wk1" on pve2 holds the unfinished replacement of node wk1`, "9900 stays: it keeps 1 old system disk of node wk1",
				`9901 stays: VM 9901 "recast-parking-wk1" on pve2 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			},
		},
		"not at rest": {keep: -1, holders: []cluster.VMID{9900}, parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1"), func(p *parking.Parking) {
			p.VM.Running, p.VM.Lock, p.VM.Template, p.VM.HA, p.VM.Pending = true, "backup", true, true, []string{"memory"}
			p.VM.Config["parent"] = "before"
		})}, want: []string{
			`9900 scsi30 stays: VM 9900 "recast-parking-wk1" on pve1 runs, though a parking VM is never started: look at it; ` + atRest, `9900 stays: VM 9900 "recast-parking-wk1" on pve1 runs, though a parking VM is never started: look at it; ` + atRest,
		}},
		"another VM names it": {parkings: []parking.Parking{clustertest.ParkWK1(threeKept...)}, others: []cluster.VM{{ID: 7, Name: "db", Host: "pve2", Config: map[string]string{"sata0": "file=fast:vm-9900-disk-0,size=10G"}}}, want: []string{
			`9900 scsi30 stays: VM 7 "db" on pve2 refers to it as well`, "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"a second key names it": {parkings: []parking.Parking{clustertest.Edited(clustertest.ParkWK1("scsi30 r1", "scsi29 r2"), func(p *parking.Parking) { p.VM.Config["unused0"] = "fast:vm-9900-disk-0" })}, want: []string{
			"9900 scsi30 stays: unused0 of VM 9900 refers to it as well", "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1; unused0 (fast:vm-9900-disk-0) is in no record of recast: not ours, look at it",
		}},
		"a snapshot names it": {parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1", "scsi29 r2")}, uses: []cluster.Use{{By: `snapshot s of VM 7 "db" on pve2`, Values: []string{"fast:vm-9900-disk-0,size=10G"}}}, want: []string{
			`9900 scsi30 stays: snapshot s of VM 7 "db" on pve2 refers to it as well`, "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"a copy": {keep: -1, parkings: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Park(9901, "pve1", "wk1", "scsi30 r1")}, want: []string{
			"9900 scsi30 stays: VM 9901 has a record of the same disk: one of them is a copy (clone, restore), look at both", "9901 scsi30 stays: VM 9900 has a record of the same disk: one of them is a copy (clone, restore), look at both",
			"9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
	}, checkJudged)
}

const atRest = `VM 9900 "recast-parking-wk1" on pve1 is locked (backup); VM 9900 "recast-parking-wk1" on pve1 is a template; ` +
	`VM 9900 "recast-parking-wk1" on pve1 is managed by Proxmox HA; VM 9900 "recast-parking-wk1" on pve1 has snapshots; ` +
	`VM 9900 "recast-parking-wk1" on pve1 has pending changes: memory; VM 9900 "recast-parking-wk1" on pve1 is a holder in recast.yaml`

// judgeCase is a set of parking VMs, and the expected verdicts.
type judgeCase struct {
	keep     int // 0: 1; -1: none
	parkings []parking.Parking
	others   []cluster.VM
	uses     []cluster.Use // in addition to the VMs' own
	holders  []cluster.VMID
	want     []string
}

func checkJudged(t *testing.T, tc judgeCase) {
	t.Helper()
	vms := cluster.Each(tc.parkings, func(p parking.Parking) cluster.VM { return clustertest.Described(t, p) })
	vms = append(vms, tc.others...)
	keep := max(0, map[int]int{0: 1}[tc.keep]+tc.keep)
	kept, parks := JudgeParked(vms, append(parking.UsesOf(vms), tc.uses...), Retention{Cluster: "c1", Nodes: []string{"wk1"}, Keep: keep, Holders: tc.holders, Except: 9999})
	var got []string
	for _, v := range kept {
		got = append(got, verdictText(fmt.Sprintf("%d %s", v.Parking, v.Key), v.Goes, v.Keep))
		must.Hold(t, v.Volid == "" || strings.HasPrefix(v.Volid, "fast:vm-") && v.Talos == "v1.13.8" && v.Host != "",
			"verdict %+v", v)
	}
	for _, v := range parks {
		got = append(got, verdictText(fmt.Sprint(v.VMID), v.Goes, v.Keep))
	}
	must.Equal(t, "verdicts", tc.want, got)
}

const newestKept = "stays: the way back: recast undo wk1"

func prunedNode(host string) cluster.VM {
	return cluster.VM{ID: 101, Name: "wk1", Host: host, Config: map[string]string{"smbios1": "uuid=u-wk1", "scsi0": "fast:vm-101-disk-0"}}
}

var threeKept = []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}

func verdictText(what, goes string, keep []string) string {
	if len(keep) > 0 {
		if goes != "" {
			return what + " both stays and goes"
		}
		return what + " stays: " + strings.Join(keep, "; ")
	}
	return what + " goes: " + goes
}

// TestParkingVMCreatedLate: Proxmox carries out the request of a dead process when the node already
// has another parking VM. The late one is empty and was never written to: that identifies it.
func TestParkingVMCreatedLate(t *testing.T) {
	t.Parallel()
	park := func(id cluster.VMID, run string, edit func(*parking.Parking)) parking.Parking {
		p := clustertest.Park(id, "pve1", "wk1")
		p.Record.Run, p.Record.Open = run, true
		if edit != nil {
			edit(&p)
		}
		return p
	}
	done := func(p *parking.Parking) {
		p.Record.Open, p.Record.Written = false, 3
		p.Record.Kept = []parking.KeptDisk{{Key: "scsi0", Run: p.Record.Run, Slot: "scsi0"}}
		p.VM.Config["scsi0"] = "fast:vm-9001-disk-0"
	}
	type row struct {
		other, late parking.Parking
		want        []cluster.VMID
	}
	must.Each(t, map[string]row{
		"the other is done":          {park(9001, "r2", done), park(9002, "r1", nil), []cluster.VMID{9001}},
		"the other is in use":        {park(9001, "r2", func(p *parking.Parking) { p.Record.Written = 1 }), park(9002, "r1", nil), []cluster.VMID{9001}},
		"neither was used":           {park(9002, "r2", nil), park(9001, "r1", nil), []cluster.VMID{9001}},
		"neither, of one run":        {park(9001, "r1", nil), park(9002, "r1", nil), []cluster.VMID{9001}},
		"a disk is in it":            {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.VM.Config["scsi1"] = "fast:vm-9002-disk-0" }), []cluster.VMID{9001, 9002}},
		"something was written":      {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.Record.Written = 1 }), []cluster.VMID{9001, 9002}},
		"a request has no answer":    {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.Record.Sent = parking.Sent{cluster.SentShutdown: 9031} }), []cluster.VMID{9001, 9002}},
		"on another host":            {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.VM.Host = "pve2" }), []cluster.VMID{9001, 9002}},
		"of another VM of that name": {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.Record.UUID = "other" }), []cluster.VMID{9001, 9002}},
		"of another node":            {park(9001, "r2", done), park(9002, "r1", func(p *parking.Parking) { p.Record.Node = "wk2" }), []cluster.VMID{9001, 9002}},
	}, func(t *testing.T, c row) {
		vms := []cluster.VM{clustertest.Described(t, c.other), clustertest.Described(t, c.late)}
		found, err := parking.Parkings(vms, "c1")
		got := cluster.Each(found, func(p parking.Parking) cluster.VMID { return p.VM.ID })
		slices.Sort(got)
		must.Do(t, err)
		must.Equal(t, "parking VMs", c.want, got)
		_, verdicts := JudgeParked(vms, nil, Retention{Cluster: "c1", Nodes: []string{"wk1"}, Keep: 1})
		for _, v := range verdicts {
			if goes := len(v.Keep) == 0; goes == slices.Contains(c.want, v.VMID) && len(c.want) == 1 {
				t.Errorf("VM %d: goes %q, keep %q", v.VMID, v.Goes, v.Keep)
			}
		}
	})
}
