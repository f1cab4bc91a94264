package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// TestParkingsOf: two clusters of one name on one Proxmox don't take each other's disks.
func TestParkingsOf(t *testing.T) {
	t.Parallel()
	other := func(open bool) Parking {
		return editedPark(prunePark(9901, "pve1", "wk1", "scsi30 r2"), func(p *Parking) { p.Record.UUID, p.Record.Open = "u-other", open })
	}
	for name, c := range map[string]struct {
		all  []Parking
		uuid string
		want []VMID
		err  string
	}{
		"its own":                      {all: []Parking{parkWK1("scsi30 r1")}, uuid: "u-wk1", want: []VMID{9900}},
		"another node's":               {all: []Parking{parkWK1("scsi30 r1"), prunePark(9902, "pve1", "wk2")}, uuid: "u-wk1", want: []VMID{9900}},
		"of another VM of that name":   {all: []Parking{parkWK1("scsi30 r1"), other(false)}, uuid: "u-wk1", want: []VMID{9900}},
		"whose it is can't be told":    {all: []Parking{parkWK1("scsi30 r1"), other(false)}, err: "two parking VMs on pve1"},
		"another one, being replaced":  {all: []Parking{other(true)}, uuid: "u-wk1", err: "whose SMBIOS UUID is u-other, not u-wk1"},
		"its own, Kubernetes not read": {all: []Parking{other(true)}, want: []VMID{9901}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, err := parkingsOf(c.all, "wk1", c.uuid)
			var got []VMID
			for _, p := range mine {
				got = append(got, p.VM.ID)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("parking VMs (-want +got):\n%s", diff)
			}
			if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || fault.KindOf(err) != fault.Refused) {
				t.Errorf("err = %v, want %q", err, c.err)
			}
		})
	}
}

// TestTouchedBy: an earlier run's tasks are about its own cluster's VMs.
func TestTouchedBy(t *testing.T) {
	t.Parallel()
	held := editedPark(prunePark(9901, "pve1", "wk2"), func(p *Parking) {
		p.Record.VMID, p.Record.Disks = 102, []ParkedDisk{{Key: "scsi1", Holder: 200}}
	})
	theirs := editedPark(prunePark(7901, "pve1", "wk1"), func(p *Parking) { p.Record.Cluster, p.Record.VMID = "another", 301 })
	vms := []VM{{ID: 101, Name: "wk1"}, {ID: 301, Name: "their-wk1"}}
	for _, p := range []Parking{held, theirs} {
		text, err := p.Record.Description()
		if err != nil {
			t.Fatal(err)
		}
		vms = append(vms, VM{ID: p.VM.ID, Config: map[string]string{"description": text}})
	}
	of, err := TouchedBy(vms, held.Record.Cluster, []Wanted{{Name: "wk1"}, {Name: "wk3", VMID: 103, Holder: 201}}, func(id VMID) bool { return id == 9000 })
	if err != nil {
		t.Fatal(err)
	}
	var got []VMID
	for _, id := range []VMID{101, 102, 103, 200, 201, 301, 7901, 9000, 9001, 9901} {
		if of(id) {
			got = append(got, id)
		}
	}
	if diff := cmp.Diff([]VMID{101, 102, 103, 200, 201, 9000, 9901}, got); diff != "" {
		t.Errorf("VMs (-want +got):\n%s", diff)
	}
}

func TestParked(t *testing.T) {
	t.Parallel()
	p := editedPark(parkWK1("scsi30 r1"), func(p *Parking) {
		p.Record.Disks = []ParkedDisk{{Key: "scsi0", ParkKey: "scsi29", System: true}, {Key: "scsi1", ParkKey: "scsi1"}, {Key: "scsi2", Holder: 9101}}
	})
	if got := p.parked(); got != nil {
		t.Errorf("before anything is handed over: %v", got)
	}
	p.VM.Config["scsi1"] = "dir:9900/vm-9900-disk-0.raw,size=8G"
	if diff := cmp.Diff([]string{"scsi1"}, p.parked()); diff != "" {
		t.Errorf("parked (-want +got):\n%s", diff)
	}
}

// TestAParkingVMThatCameLate: a request whose sender has died is carried out when the node has
// another parking VM. That nothing is in it, and nothing was ever written into it, tells it apart.
func TestAParkingVMThatCameLate(t *testing.T) {
	t.Parallel()
	park := func(id VMID, run string, edit func(*Parking)) Parking {
		p := prunePark(id, "pve1", "wk1")
		p.Record.Run, p.Record.Open = run, true
		if edit != nil {
			edit(&p)
		}
		return p
	}
	done := func(p *Parking) {
		p.Record.Open, p.Record.Written = false, 3
		p.Record.Kept = []KeptDisk{{Key: "scsi0", Run: p.Record.Run, Slot: "scsi0"}}
		p.VM.Config["scsi0"] = "fast:vm-9001-disk-0"
	}
	for name, c := range map[string]struct {
		other, late Parking
		want        []VMID
	}{
		"another one is done":        {park(9001, "r2", done), park(9002, "r1", nil), []VMID{9001}},
		"another one is at work":     {park(9001, "r2", func(p *Parking) { p.Record.Written = 1 }), park(9002, "r1", nil), []VMID{9001}},
		"neither was used":           {park(9002, "r2", nil), park(9001, "r1", nil), []VMID{9001}},
		"neither, of one run":        {park(9001, "r1", nil), park(9002, "r1", nil), []VMID{9001}},
		"a disk is in it":            {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.VM.Config["scsi1"] = "fast:vm-9002-disk-0" }), []VMID{9001, 9002}},
		"something was written":      {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.Record.Written = 1 }), []VMID{9001, 9002}},
		"a request has no answer":    {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.Record.Sent = Sent{sentShutdown: 9031} }), []VMID{9001, 9002}},
		"on another host":            {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.VM.Host = "pve2" }), []VMID{9001, 9002}},
		"of another VM of that name": {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.Record.UUID = "other" }), []VMID{9001, 9002}},
		"of another node":            {park(9001, "r2", done), park(9002, "r1", func(p *Parking) { p.Record.Node = "wk2" }), []VMID{9001, 9002}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vms := []VM{c.other.vm(t), c.late.vm(t)}
			found, err := Parkings(vms, "c1")
			var got []VMID
			for _, p := range found {
				got = append(got, p.VM.ID)
			}
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("parking VMs (-want +got):\n%s%v", diff, err)
			}
			_, verdicts := JudgeParked(vms, nil, Retention{Cluster: "c1", Nodes: []string{"wk1"}, Keep: 1})
			for _, v := range verdicts {
				if goes := len(v.Keep) == 0; goes == slices.Contains(c.want, v.VMID) && len(c.want) == 1 {
					t.Errorf("VM %d: goes %q, keep %q", v.VMID, v.Goes, v.Keep)
				}
			}
		})
	}
}
