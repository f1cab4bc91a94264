package planning

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

func TestPlanFailsOnAnUnknownNode(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	_, err := New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk9"}})
	if fault.KindOf(err) != fault.Config {
		t.Errorf("err = %v", err)
	}
}

func TestPlanNeedsEveryAnswer(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	o.Found[2].Machine = nil
	if _, err := New("c1", wanted, o, clustertest.Past, Policy{}); err == nil {
		t.Error("a plan was made without the answer of wk2")
	}
	if _, err := New("c1", wanted, o, clustertest.Past, Policy{Exclude: []string{"wk2"}}); err != nil {
		t.Errorf("wk2 is left out, yet: %v", err)
	}
}

func TestPlanOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy Policy
		open   string
		want   string
	}{
		"control planes first":      {Policy{}, "", "cp1 wk1 wk2"},
		"workers first":             {Policy{WorkersFirst: true}, "", "wk1 wk2 cp1"},
		"unfinished before all":     {Policy{}, "wk2", "wk2 cp1 wk1"},
		"only":                      {Policy{Only: []string{"wk2"}}, "", "wk2"},
		"exclude":                   {Policy{Exclude: []string{"cp1"}}, "", "wk1 wk2"},
		"unfinished cannot be left": {Policy{Only: []string{"wk1"}}, "wk2", "wk2 wk1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			for i := range o.Found {
				if o.Found[i].Name == tc.open {
					packed, err := parking.Memory{}.Pack()
					if err != nil {
						t.Fatal(err)
					}
					o.Found[i].Parking = &parking.Parking{VM: cluster.VM{ID: 9090}, Record: parking.Record{Run: "r1", Open: true, Build: "b1", Memory: packed}}
				}
			}
			plan, err := New("c1", wanted, o, clustertest.Past, tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range plan.Nodes {
				got = append(got, n.Node)
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("order %q, want %q", s, tc.want)
			}
			if (plan.Run == "r1") != (tc.open != "") {
				t.Errorf("continues run %q", plan.Run)
			}
		})
	}
}

func TestPlanRecreatesTheStaleWorker(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	work := plan.Work()
	if len(work) != 1 || work[0].Node != "wk1" || work[0].Strategy != cluster.Recreate || len(work[0].Refused) > 0 {
		t.Fatalf("%+v", work)
	}
	if diff := cmp.Diff([]DiskPlan{{Key: "scsi1", Serial: "data-wk1", Volid: "fast:vm-9002-disk-1", Size: "20G"}}, work[0].Carried); diff != "" {
		t.Error(diff)
	}
	if work[0].System.Key != "scsi0" || work[0].Digest != "dwk1" || work[0].OutageSeconds == 0 {
		t.Errorf("%+v", work[0])
	}
}
