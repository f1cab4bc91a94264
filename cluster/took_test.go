package cluster

import "testing"

func TestOutageIsExpectedFromThePast(t *testing.T) {
	t.Parallel()
	took := func(node, role string, s Strategy, seconds int) Took {
		return Took{Node: node, Role: role, Strategy: s, OutageSeconds: seconds, WholeSeconds: seconds + 30}
	}
	for name, tc := range map[string]struct {
		past          []Took
		outage, whole int
		from          string
	}{
		"nothing is known":      {nil, 240, 0, "assumed"},
		"of it":                 {[]Took{took("wk1", Worker, Recreate, 100), took("wk2", Worker, Recreate, 500)}, 100, 130, "an earlier roll of it"},
		"the median":            {[]Took{took("wk1", Worker, Recreate, 100), took("wk1", Worker, Recreate, 900), took("wk1", Worker, Recreate, 200)}, 200, 230, "3 earlier rolls of it"},
		"of others of its role": {[]Took{took("wk2", Worker, Recreate, 100), took("cp1", ControlPlane, Recreate, 500), took("wk3", Worker, Recreate, 120)}, 120, 150, "2 earlier rolls of workers"},
		"by another strategy":   {[]Took{took("wk1", Worker, InPlace, 100)}, 240, 0, "assumed"},
		"the latest five": {[]Took{
			took("wk1", Worker, Recreate, 1), took("wk1", Worker, Recreate, 2), took("wk1", Worker, Recreate, 3), took("wk1", Worker, Recreate, 4), took("wk1", Worker, Recreate, 5),
			took("wk1", Worker, Recreate, 100), took("wk1", Worker, Recreate, 100), took("wk1", Worker, Recreate, 100),
		}, 3, 33, "5 earlier rolls of it"},
	} {
		n := NodePlan{Node: "wk1", Role: Worker, Strategy: Recreate}
		n.Estimate(tc.past)
		if n.OutageSeconds != tc.outage || n.WholeSeconds != tc.whole || n.OutageFrom != tc.from {
			t.Errorf("%s: %d, %d, %q", name, n.OutageSeconds, n.WholeSeconds, n.OutageFrom)
		}
	}
}
