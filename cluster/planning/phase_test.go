package planning

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

func TestOutageIsExpectedFromThePast(t *testing.T) {
	t.Parallel()
	took := func(node, role string, s cluster.Strategy, seconds int) cluster.Took {
		return cluster.Took{Node: node, Role: role, Strategy: s, OutageSeconds: seconds, WholeSeconds: seconds + 30}
	}
	for name, tc := range map[string]struct {
		past          []cluster.Took
		outage, whole int
		from          string
	}{
		"nothing is known":      {nil, 240, 0, "assumed"},
		"of it":                 {[]cluster.Took{took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk2", cluster.Worker, cluster.Recreate, 500)}, 100, 130, "an earlier roll of it"},
		"the median":            {[]cluster.Took{took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 900), took("wk1", cluster.Worker, cluster.Recreate, 200)}, 200, 230, "3 earlier rolls of it"},
		"of others of its role": {[]cluster.Took{took("wk2", cluster.Worker, cluster.Recreate, 100), took("cp1", cluster.ControlPlane, cluster.Recreate, 500), took("wk3", cluster.Worker, cluster.Recreate, 120)}, 120, 150, "2 earlier rolls of workers"},
		"by another strategy":   {[]cluster.Took{took("wk1", cluster.Worker, cluster.InPlace, 100)}, 240, 0, "assumed"},
		"the latest five": {[]cluster.Took{
			took("wk1", cluster.Worker, cluster.Recreate, 1), took("wk1", cluster.Worker, cluster.Recreate, 2), took("wk1", cluster.Worker, cluster.Recreate, 3), took("wk1", cluster.Worker, cluster.Recreate, 4), took("wk1", cluster.Worker, cluster.Recreate, 5),
			took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 100),
		}, 3, 33, "5 earlier rolls of it"},
	} {
		n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate}
		n.Estimate(tc.past)
		if n.OutageSeconds != tc.outage || n.WholeSeconds != tc.whole || n.OutageFrom != tc.from {
			t.Errorf("%s: %d, %d, %q", name, n.OutageSeconds, n.WholeSeconds, n.OutageFrom)
		}
	}
}
