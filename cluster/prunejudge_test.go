package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// prunePark is a parking VM of node with kept disks "key run"; each has its drive.
func prunePark(id VMID, host, node string, kept ...string) Parking {
	p := Parking{
		VM:     VM{ID: id, Name: "recast-parking-" + node, Host: host, Config: map[string]string{"protection": "1"}},
		Record: Record{Cluster: "c1", Node: node, VMID: 101, UUID: "u-" + node},
	}
	for i, k := range kept {
		key, run, _ := strings.Cut(k, " ")
		nth, _ := strconv.Atoi(strings.TrimPrefix(run, "r")) // 0 where it does not say
		p.Record.Kept = append(p.Record.Kept, KeptDisk{Key: key, Run: run, Nth: nth, Slot: "scsi0", Options: "serial=s" + run + ",size=10G", Talos: "v1.13.8"})
		p.VM.Config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,backup=0,serial=s%s,size=10G", id, i, run)
	}
	return p
}

// vm writes the record into the description.
func (p Parking) vm(t *testing.T) VM {
	t.Helper()
	description, err := p.Record.Description()
	if err != nil {
		t.Fatal(err)
	}
	p.VM.Config = maps.Clone(p.VM.Config)
	p.VM.Config["description"] = description
	return p.VM
}

func prunedNode(host string) VM {
	return VM{ID: 101, Name: "wk1", Host: host, Config: map[string]string{"smbios1": "uuid=u-wk1", "scsi0": "fast:vm-101-disk-0"}}
}

// judgeCase is what there is, and what is to become of it.
type judgeCase struct {
	keep     int // 0: 1; -1: none
	parkings []Parking
	others   []VM
	uses     []Use // beside the VMs' own
	holders  []VMID
	want     []string
}

func (tc judgeCase) judge(t *testing.T) {
	t.Helper()
	var vms []VM
	for _, p := range tc.parkings {
		vms = append(vms, p.vm(t))
	}
	vms = append(vms, tc.others...)
	keep := max(0, map[int]int{0: 1}[tc.keep]+tc.keep)
	kept, parks := JudgeParked(vms, append(UsesOf(vms), tc.uses...), Retention{Cluster: "c1", Nodes: []string{"wk1"}, Keep: keep, Holders: tc.holders, Except: 9999})
	var got []string
	for _, v := range kept {
		got = append(got, verdictText(fmt.Sprintf("%d %s", v.Parking, v.Key), v.Goes, v.Keep))
		if v.Volid != "" && (!strings.HasPrefix(v.Volid, "fast:vm-") || v.Talos != "v1.13.8" || v.Host == "") {
			t.Errorf("verdict %+v", v)
		}
	}
	for _, v := range parks {
		got = append(got, verdictText(fmt.Sprint(v.VMID), v.Goes, v.Keep))
	}
	if diff := cmp.Diff(tc.want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

var threeKept = []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}

const newestKept = "stays: the way back: recast rollback wk1"

func parkWK1(kept ...string) Parking { return prunePark(9900, "pve1", "wk1", kept...) }

func editedPark(p Parking, edit func(*Parking)) Parking { edit(&p); return p }

func TestJudgeParked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]judgeCase{
		"nothing":                 {},
		"one disk":                {parkings: []Parking{parkWK1("scsi30 r1")}, want: []string{"9900 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"three disks":             {parkings: []Parking{parkWK1(threeKept...)}, want: []string{"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"three disks, two stay":   {keep: 2, parkings: []Parking{parkWK1(threeKept...)}, want: []string{"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 stays: node wk1 has only 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1"}},
		"none stays":              {keep: -1, parkings: []Parking{parkWK1("scsi30 r1")}, want: []string{"9900 scsi30 goes: none is to stay: the way back of node wk1 is a roll to the previous lock then", "9900 goes: it owns nothing any more"}},
		"nothing is parked there": {parkings: []Parking{parkWK1()}, want: []string{"9900 goes: it owns nothing any more"}},
		"a node that is gone":     {parkings: []Parking{prunePark(9901, "pve1", "wk9", "scsi30 r1")}, want: []string{"9901 scsi30 goes: recast.yaml has no node wk9 any more", "9901 goes: it owns nothing any more"}},
		"a node of another recast.yaml": {others: []VM{{ID: 101, Name: "wk9", Host: "pve1", Config: map[string]string{"smbios1": "uuid=u-wk9"}}}, parkings: []Parking{prunePark(9901, "pve1", "wk9", "scsi30 r1")}, want: []string{
			`9901 scsi30 stays: recast.yaml has no node wk9, but its VM is there: VM 101 "wk9" on pve1. Another recast.yaml may say cluster: c1 as well`, "9901 stays: it keeps 1 old system disk of node wk9",
		}},
		"a node of that name twice": {parkings: []Parking{parkWK1("scsi30 r1"), editedPark(prunePark(9901, "pve2", "wk1", "scsi30 r2"), func(p *Parking) { p.Record.UUID = "u-other" })}, want: []string{
			"9900 scsi30 " + newestKept, "9901 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"another cluster":    {parkings: []Parking{editedPark(parkWK1("scsi30 r1"), func(p *Parking) { p.Record.Cluster = "c2" })}},
		"the claim":          {parkings: []Parking{prunePark(9999, "pve1", "wk1", threeKept...)}},
		"a VM of somebody's": {others: []VM{{ID: 7, Name: "db", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-7-disk-0", "description": "mine"}}}},
		"a later run on a machine whose clock is a day behind": {parkings: []Parking{editedPark(parkWK1("scsi30 r1", "scsi29 r2"), func(p *Parking) {
			p.Record.Kept[0].Run, p.Record.Kept[1].Run = "20260102-0000-aaaa", "20260101-0000-bbbb"
		})}, want: []string{"9900 scsi30 goes: node wk1 has 1 newer", "9900 scsi29 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1"}},
		"a later run with such a clock, on another host": {parkings: []Parking{
			editedPark(parkWK1("scsi30 r1"), func(p *Parking) { p.Record.Kept[0].Run = "20260102-0000-aaaa" }),
			editedPark(prunePark(9901, "pve2", "wk1", "scsi30 r2"), func(p *Parking) { p.Record.Kept[0].Run = "20260101-0000-bbbb" }),
		}, others: []VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 goes: node wk1 has 1 newer", "9901 scsi30 " + newestKept, "9900 goes: it owns nothing any more", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"which of two is newer is not known": {parkings: []Parking{parkWK1("scsi30 a1"), prunePark(9901, "pve2", "wk1", "scsi30 a2")}, others: []VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 " + newestKept, "9901 scsi30 " + newestKept, "9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"a record that can't be read": {others: []VM{{ID: 9902, Name: "x", Host: "pve1", Config: map[string]string{"description": "recast-record: {"}}}, want: []string{`9902 stays: VM 9902 "x" on pve1: record in its description can't be read: unexpected end of JSON input`}},
		"two hosts, the VM on the newer one": {parkings: []Parking{parkWK1("scsi30 r1"), prunePark(9901, "pve2", "wk1", "scsi30 r2")}, others: []VM{prunedNode("pve2")}, want: []string{
			"9900 scsi30 goes: node wk1 has 1 newer", "9901 scsi30 " + newestKept, "9900 goes: it owns nothing any more", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
		"two hosts, the VM back on the older one": {parkings: []Parking{parkWK1("scsi30 r1", "scsi29 r2"), prunePark(9901, "pve2", "wk1", "scsi30 r3")}, others: []VM{prunedNode("pve1")}, want: []string{
			"9900 scsi30 goes: node wk1 has 2 newer", "9900 scsi29 stays: the VM of node wk1 is on pve1, and it is the newest one there: what recast rollback wk1 boots", "9901 scsi30 " + newestKept,
			"9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.judge(t)
		})
	}
}

// TestJudgeParkedNotAsLeft: what is not provably as recast left it stays.
func TestJudgeParkedNotAsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]judgeCase{
		"a drive that is in no record": {keep: -1, parkings: []Parking{editedPark(parkWK1("scsi30 r1"), func(p *Parking) { p.VM.Config["unused0"] = "fast:vm-9900-disk-7" })}, want: []string{"9900 scsi30 goes: none is to stay: the way back of node wk1 is a roll to the previous lock then", "9900 stays: unused0 (fast:vm-9900-disk-7) is in no record of recast: not ours, look at it"}},
		"a drive that is gone": {parkings: []Parking{editedPark(parkWK1("scsi30 r1", "scsi29 r2"), func(p *Parking) { delete(p.VM.Config, "scsi29") })}, want: []string{
			"9900 scsi30 " + newestKept, "9900 scsi29 goes: VM 9900 has no scsi29 any more: only its entry in the record goes", "9900 stays: it keeps 1 old system disk of node wk1",
		}},
		"another volume under the key, of another VM": {parkings: []Parking{editedPark(parkWK1(threeKept...), func(p *Parking) { p.VM.Config["scsi30"] = "fast:vm-7-disk-0,backup=0,serial=sr1,size=10G" })}, want: []string{
			"9900 scsi30 stays: fast:vm-7-disk-0 is not VM 9900's own: look at it", "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"another disk under the key": {parkings: []Parking{editedPark(parkWK1("scsi30 r1", "scsi29 r2"), func(p *Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-5,serial=data,size=10G" })}, want: []string{
			"9900 scsi30 stays: it has the options serial=data,size=10G, its record says serial=sr1,size=10G,backup=0: somebody changed it, look at it", "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"the newest is not what it was: it is no way back": {parkings: []Parking{editedPark(parkWK1("scsi30 r1", "scsi29 r2"), func(p *Parking) { p.VM.Config["scsi29"] = "fast:vm-9900-disk-1,size=10G" })}, want: []string{
			"9900 scsi30 " + newestKept, "9900 scsi29 stays: it has the options size=10G, its record says serial=sr2,size=10G,backup=0: somebody changed it, look at it", "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"two entries for one drive": {parkings: []Parking{editedPark(parkWK1("scsi30 r1"), func(p *Parking) { p.Record.Kept = append(p.Record.Kept, p.Record.Kept[0]); p.Record.Kept[1].Run = "r2" })}, want: []string{
			"9900 scsi30 stays: 2 entries of the record are about scsi30: which one can't be told", "9900 scsi30 stays: 2 entries of the record are about scsi30: which one can't be told", "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"an open record": {parkings: []Parking{editedPark(parkWK1(threeKept...), func(p *Parking) { p.Record.Open, p.Record.Run = true, "r4" })}, want: []string{
			`9900 scsi30 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 scsi29 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 scsi28 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			`9900 stays: VM 9900 "recast-parking-wk1" on pve1 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
		}},
		"an open record on another host": {
			parkings: []Parking{parkWK1("scsi30 r1"), editedPark(prunePark(9901, "pve2", "wk1"), func(p *Parking) { p.Record.Open, p.Record.Run = true, "r4" })},
			want: []string{
				`9900 scsi30 stays: VM 9901 "recast-parking-wk1" on pve2 holds the unfinished replacement of node wk1`, "9900 stays: it keeps 1 old system disk of node wk1",
				`9901 stays: VM 9901 "recast-parking-wk1" on pve2 holds the unfinished replacement of node wk1 by run r4: recast roll finishes it`,
			},
		},
		"not at rest": {keep: -1, holders: []VMID{9900}, parkings: []Parking{editedPark(parkWK1("scsi30 r1"), func(p *Parking) {
			p.VM.Running, p.VM.Lock, p.VM.Template, p.VM.HA, p.VM.Pending = true, "backup", true, true, []string{"memory"}
			p.VM.Config["parent"] = "before"
		})}, want: []string{
			`9900 scsi30 stays: VM 9900 "recast-parking-wk1" on pve1 runs, though a parking VM is never started: look at it; ` + atRest, `9900 stays: VM 9900 "recast-parking-wk1" on pve1 runs, though a parking VM is never started: look at it; ` + atRest,
		}},
		"another VM names it": {parkings: []Parking{parkWK1(threeKept...)}, others: []VM{{ID: 7, Name: "db", Host: "pve2", Config: map[string]string{"sata0": "file=fast:vm-9900-disk-0,size=10G"}}}, want: []string{
			`9900 scsi30 stays: VM 7 "db" on pve2 refers to it as well`, "9900 scsi29 goes: node wk1 has 1 newer", "9900 scsi28 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"a second key names it": {parkings: []Parking{editedPark(parkWK1("scsi30 r1", "scsi29 r2"), func(p *Parking) { p.VM.Config["unused0"] = "fast:vm-9900-disk-0" })}, want: []string{
			"9900 scsi30 stays: unused0 of VM 9900 refers to it as well", "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1; unused0 (fast:vm-9900-disk-0) is in no record of recast: not ours, look at it",
		}},
		"a snapshot names it": {parkings: []Parking{parkWK1("scsi30 r1", "scsi29 r2")}, uses: []Use{{By: `snapshot s of VM 7 "db" on pve2`, Values: []string{"fast:vm-9900-disk-0,size=10G"}}}, want: []string{
			`9900 scsi30 stays: snapshot s of VM 7 "db" on pve2 refers to it as well`, "9900 scsi29 " + newestKept, "9900 stays: it keeps 2 old system disks of node wk1",
		}},
		"a copy": {keep: -1, parkings: []Parking{parkWK1("scsi30 r1"), prunePark(9901, "pve1", "wk1", "scsi30 r1")}, want: []string{
			"9900 scsi30 stays: VM 9901 has a record of the same disk: one of them is a copy (clone, restore), look at both", "9901 scsi30 stays: VM 9900 has a record of the same disk: one of them is a copy (clone, restore), look at both",
			"9900 stays: it keeps 1 old system disk of node wk1", "9901 stays: it keeps 1 old system disk of node wk1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.judge(t)
		})
	}
}

const atRest = `VM 9900 "recast-parking-wk1" on pve1 is locked (backup); VM 9900 "recast-parking-wk1" on pve1 is a template; ` +
	`VM 9900 "recast-parking-wk1" on pve1 is managed by Proxmox HA; VM 9900 "recast-parking-wk1" on pve1 has snapshots; ` +
	`VM 9900 "recast-parking-wk1" on pve1 has pending changes: memory; VM 9900 "recast-parking-wk1" on pve1 is a holder in recast.yaml`

func verdictText(what, goes string, keep []string) string {
	if len(keep) > 0 {
		if goes != "" {
			return what + " both stays and goes"
		}
		return what + " stays: " + strings.Join(keep, "; ")
	}
	return what + " goes: " + goes
}

func TestPlanFrees(t *testing.T) {
	t.Parallel()
	three := []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}
	for name, tc := range map[string]struct {
		strategy Strategy
		refused  bool
		keep     int
		kept     []string
		edit     func(*Parking)
		others   []VM
		want     []string
		notes    int
	}{
		"the first roll":           {strategy: Recreate},
		"the second":               {strategy: Recreate, kept: []string{"scsi30 r1"}, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"two stay":                 {strategy: Reimage, keep: 2, kept: []string{"scsi30 r1"}},
		"two of three stay":        {strategy: Reimage, keep: 2, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1"}},
		"never none":               {strategy: Recreate, keep: -3, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1", "scsi28 fast:vm-9900-disk-2"}},
		"a node that stays":        {kept: three},
		"refused":                  {strategy: Recreate, refused: true, kept: three},
		"a rollback":               {strategy: Rollback, kept: three},
		"a put-back":               {strategy: PutBack, kept: three},
		"in place":                 {strategy: InPlace, kept: three},
		"in place, begun before":   {strategy: InPlace, kept: three, edit: func(p *Parking) { p.Record.Kept[0].Going = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"begun, the drive is gone": {strategy: InPlace, kept: three, edit: func(p *Parking) { p.Record.Kept[0].Going = true; delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"an unfinished one":        {strategy: Recreate, kept: []string{"scsi30 r1"}, edit: func(p *Parking) { p.Record.Open = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"a drive that is gone":     {strategy: Recreate, keep: 2, kept: []string{"scsi30 r1", "scsi29 r2"}, edit: func(p *Parking) { delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"somebody's":               {strategy: Recreate, kept: []string{"scsi30 r1"}, edit: func(p *Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-4,serial=other" }, notes: 1},
		"named twice":              {strategy: Recreate, kept: []string{"scsi30 r1"}, others: []VM{{ID: 7, Config: map[string]string{"sata0": "fast:vm-9900-disk-0"}}}, notes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := prunePark(9900, "pve1", "wk1", tc.kept...)
			if tc.edit != nil {
				tc.edit(&p)
			}
			n := NodePlan{Node: "wk1", Strategy: tc.strategy}
			if tc.kept != nil {
				n.found.Parking = &p
			}
			if tc.refused {
				n.Refused = []string{"no"}
			}
			n.planFrees(Observation{VMs: append(tc.others, p.vm(t))}, tc.keep)
			var got []string
			for _, f := range n.Frees {
				got = append(got, f.Key+" "+f.Volid)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || len(n.Notes) != tc.notes {
				t.Errorf("frees (-want +got):\n%s\nnotes %q", diff, n.Notes)
			}
		})
	}
}

// TestSupersededIsTidy: what a roll that was killed had begun to free is all that
// there is to do, and no other reason for it.
func TestSupersededIsTidy(t *testing.T) {
	t.Parallel()
	p := prunePark(9900, "pve1", "wk1", "scsi30 r1", "scsi29 r2")
	if got := diffKept(p); len(got) > 0 {
		t.Errorf("drift %v", got)
	}
	p.Record.Kept[0].Going = true
	d := Drift{Reasons: diffKept(p)}
	if !d.tidy() || len(d.Reasons) != 1 || d.Reasons[0].Code != "superseded-disk" {
		t.Errorf("drift %+v: tidy %t", d, d.tidy())
	}
	p.Record.Open = true
	if got := diffKept(p); len(got) > 0 {
		t.Errorf("drift of an unfinished replacement: %v", got)
	}
}

// TestStaleEntriesKeepTheirKeys: while the record has an entry for a drive that
// somebody took away, nothing else is parked under its key.
func TestStaleEntriesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	p := parkWK1("scsi30 r1", "scsi29 r2")
	delete(p.VM.Config, "scsi30")
	mem := memory{SystemKey: "scsi0", VM: VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G", "scsi30": "fast:vm-101-disk-1,size=10G"}}}
	rec, err := Record{Cluster: "c1", Node: "wk1", Strategy: Recreate}.open(mem, &p)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range rec.Disks {
		got[d.Key] = d.ParkKey
	}
	if diff := cmp.Diff(map[string]string{"scsi0": "scsi28", "scsi30": "scsi0"}, got); diff != "" {
		t.Errorf("parked as (-want +got):\n%s", diff)
	}
}

func TestFreeingNeeds(t *testing.T) {
	t.Parallel()
	idle := NodePlan{Node: "wk1", Strategy: InPlace, Host: "pve1"}
	tidy := idle
	tidy.Frees = []FreePlan{{Key: "scsi30", Volid: "fast:vm-9900-disk-0"}}
	for name, tc := range map[string]struct {
		needs Needs
		want  bool
	}{
		"a roll that frees":     {NeedsOf(Plan{Nodes: []NodePlan{tidy}}, false), true},
		"a roll that does not":  {NeedsOf(Plan{Nodes: []NodePlan{idle}}, false), false},
		"prune":                 {NeedsToFree([]string{"fast"}), true},
		"prune without a disk":  {NeedsToFree(nil), false},
		"prune of ISOs":         {NeedsToPrune([]string{"fast"}), false},
		"prune of other disks'": {NeedsToFree([]string{"slow"}), false},
	} {
		has := func(path, privilege string) bool {
			return slices.ContainsFunc(tc.needs, func(n Need) bool { return n.Path == path && n.Privilege == privilege })
		}
		if got := has("/vms", "VM.Config.Disk") && has("/storage/fast", "Datastore.AllocateSpace"); got != tc.want {
			t.Errorf("%s: freeing is %t among %v", name, got, tc.needs)
		}
	}
}
