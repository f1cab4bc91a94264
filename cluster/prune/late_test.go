package prune

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
)

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
	for name, c := range map[string]struct {
		other, late parking.Parking
		want        []cluster.VMID
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vms := []cluster.VM{clustertest.Described(t, c.other), clustertest.Described(t, c.late)}
			found, err := parking.Parkings(vms, "c1")
			var got []cluster.VMID
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
