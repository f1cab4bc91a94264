package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

func TestChooseSurge(t *testing.T) {
	t.Parallel()
	there := func(name string) foundSurge { return foundSurge{Name: name, There: true} }
	fits := func(name string) foundSurge { return foundSurge{Name: name, Fits: true} }
	full := func(name string) foundSurge { return foundSurge{Name: name} }
	for name, c := range map[string]struct {
		nodes []foundSurge
		need  surgeNeed
		want  *SurgePlan
		fails string
	}{
		"none asked for":           {[]foundSurge{fits("s1")}, surgeNeed{Workers: 3, Out: 1}, nil, ""},
		"no worker taken out":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 3}, nil, ""},
		"one":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"two":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 2, Workers: 9, Out: 2}, &SurgePlan{Nodes: []string{"s1", "s2"}, Make: []string{"s1", "s2"}, Workers: 9, Least: 9}, ""},
		"more out than surge":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 9, Out: 3}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 9, Least: 7}, ""},
		"one is there":             {[]foundSurge{fits("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"more are there":           {[]foundSurge{there("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1", "s2"}, Workers: 3, Least: 3}, ""},
		"the first does not fit":   {[]foundSurge{full("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Make: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"none fits":                {[]foundSurge{full("s1")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"left over":                {[]foundSurge{there("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"left over, asked no more": {[]foundSurge{there("s1")}, surgeNeed{Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"too few":                  {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 2, Workers: 9, Out: 1}, nil, "roll.surge asks for 2 surge nodes, and this roll has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := chooseSurge(c.nodes, c.need)
			if c.fails != "" {
				if err == nil || err.Error() != c.fails || fault.KindOf(err) != fault.Config {
					t.Errorf("error %v, want %q", err, c.fails)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("(-want +got) %s, %v", diff, err)
			}
		})
	}
}

func TestSurgeLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plan *SurgePlan
		want []string
	}{
		"nothing": {nil, nil},
		"made":    {&SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, []string{"s1: made before", "never fewer than 3 workers serve", "s1: removed"}},
		"there":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 1, Least: 1}, []string{"never fewer than 1 worker serves", "s1: removed"}},
		"fewer":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 9, Least: 7}, []string{"7 of 9 workers serve at the least: roll.maxUnavailable", "s1: removed"}},
		"left":    {&SurgePlan{Remove: []string{"s1", "s2"}}, []string{"s1, s2: left over by an earlier roll"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.plan.Lines(); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
