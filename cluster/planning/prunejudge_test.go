package planning

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
)

func TestPlanFrees(t *testing.T) {
	t.Parallel()
	three := []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}
	for name, tc := range map[string]struct {
		strategy cluster.Strategy
		refused  bool
		keep     int
		kept     []string
		edit     func(*parking.Parking)
		others   []cluster.VM
		want     []string
		notes    int
	}{
		"the first roll":           {strategy: cluster.Recreate},
		"the second":               {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"two stay":                 {strategy: cluster.Reimage, keep: 2, kept: []string{"scsi30 r1"}},
		"two of three stay":        {strategy: cluster.Reimage, keep: 2, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1"}},
		"never none":               {strategy: cluster.Recreate, keep: -3, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1", "scsi28 fast:vm-9900-disk-2"}},
		"a node that stays":        {kept: three},
		"refused":                  {strategy: cluster.Recreate, refused: true, kept: three},
		"a rollback":               {strategy: cluster.Rollback, kept: three},
		"a put-back":               {strategy: cluster.PutBack, kept: three},
		"in place":                 {strategy: cluster.InPlace, kept: three},
		"in place, begun before":   {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"begun, the drive is gone": {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true; delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"an unfinished one":        {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.Record.Open = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"a drive that is gone":     {strategy: cluster.Recreate, keep: 2, kept: []string{"scsi30 r1", "scsi29 r2"}, edit: func(p *parking.Parking) { delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"another disk":             {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-4,serial=other" }, notes: 1},
		"named twice":              {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, others: []cluster.VM{{ID: 7, Config: map[string]string{"sata0": "fast:vm-9900-disk-0"}}}, notes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := clustertest.Park(9900, "pve1", "wk1", tc.kept...)
			if tc.edit != nil {
				tc.edit(&p)
			}
			n := NodePlan{Node: "wk1", Strategy: tc.strategy}
			if tc.kept != nil {
				n.Found.Parking = &p
			}
			if tc.refused {
				n.Refused = []string{"no"}
			}
			n.planFrees(observe.Observation{VMs: append(tc.others, clustertest.Described(t, p))}, tc.keep)
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
