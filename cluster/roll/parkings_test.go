package roll

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
)

// TestTouchedBy: tasks of an earlier run concern only VMs of its own cluster.
func TestTouchedBy(t *testing.T) {
	t.Parallel()
	held := clustertest.Edited(clustertest.Park(9901, "pve1", "wk2"), func(p *parking.Parking) {
		p.Record.VMID, p.Record.Disks = 102, []parking.ParkedDisk{{Key: "scsi1", Holder: 200}}
	})
	theirs := clustertest.Edited(clustertest.Park(7901, "pve1", "wk1"), func(p *parking.Parking) { p.Record.Cluster, p.Record.VMID = "another", 301 })
	vms := []cluster.VM{{ID: 101, Name: "wk1"}, {ID: 301, Name: "their-wk1"}}
	for _, p := range []parking.Parking{held, theirs} {
		text, err := p.Record.Description()
		if err != nil {
			t.Fatal(err)
		}
		vms = append(vms, cluster.VM{ID: p.VM.ID, Config: map[string]string{"description": text}})
	}
	of, err := exchange.TouchedBy(vms, held.Record.Cluster, []cluster.Wanted{{Name: "wk1"}, {Name: "wk3", VMID: 103, Holder: 201}}, func(id cluster.VMID) bool { return id == 9000 })
	if err != nil {
		t.Fatal(err)
	}
	var got []cluster.VMID
	for _, id := range []cluster.VMID{101, 102, 103, 200, 201, 301, 7901, 9000, 9001, 9901} {
		if of(id) {
			got = append(got, id)
		}
	}
	if diff := cmp.Diff([]cluster.VMID{101, 102, 103, 200, 201, 9000, 9901}, got); diff != "" {
		t.Errorf("VMs (-want +got):\n%s", diff)
	}
}
