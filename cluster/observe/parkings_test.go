package observe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// TestParkingsOf: two clusters of one name on one Proxmox don't take each other's disks.
func TestParkingsOf(t *testing.T) {
	t.Parallel()
	other := func(open bool) parking.Parking {
		return clustertest.Edited(clustertest.Park(9901, "pve1", "wk1", "scsi30 r2"), func(p *parking.Parking) { p.Record.UUID, p.Record.Open = "u-other", open })
	}
	for name, c := range map[string]struct {
		all  []parking.Parking
		uuid string
		want []cluster.VMID
		err  string
	}{
		"its own":                      {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"another node's":               {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Park(9902, "pve1", "wk2")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"of another VM of that name":   {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"owner unknown":                {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, err: "two parking VMs on pve1"},
		"another one, being replaced":  {all: []parking.Parking{other(true)}, uuid: "u-wk1", err: "whose SMBIOS UUID is u-other, not u-wk1"},
		"its own, Kubernetes not read": {all: []parking.Parking{other(true)}, want: []cluster.VMID{9901}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, err := parkingsOf(c.all, "wk1", c.uuid)
			var got []cluster.VMID
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
