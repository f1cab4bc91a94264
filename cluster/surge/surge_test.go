package surge_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/surge"
	"github.com/recast-sh/recast/internal/fault"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	there := func(name string) surge.Node { return surge.Node{Name: name, There: true} }
	fits := func(name string) surge.Node { return surge.Node{Name: name, Fits: true} }
	full := func(name string) surge.Node { return surge.Node{Name: name} }
	for name, c := range map[string]struct {
		nodes []surge.Node
		need  surge.Need
		want  *surge.Plan
		fails string
	}{
		"none asked for":           {[]surge.Node{fits("s1")}, surge.Need{Workers: 3, Out: 1}, nil, ""},
		"no worker taken out":      {[]surge.Node{fits("s1")}, surge.Need{Wanted: 1, Workers: 3}, nil, ""},
		"one":                      {[]surge.Node{fits("s1"), fits("s2")}, surge.Need{Wanted: 1, Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"two":                      {[]surge.Node{fits("s1"), fits("s2")}, surge.Need{Wanted: 2, Workers: 9, Out: 2}, &surge.Plan{Nodes: []string{"s1", "s2"}, Make: []string{"s1", "s2"}, Workers: 9, Least: 9}, ""},
		"more out than surge":      {[]surge.Node{fits("s1")}, surge.Need{Wanted: 1, Workers: 9, Out: 3}, &surge.Plan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 9, Least: 7}, ""},
		"one is there":             {[]surge.Node{fits("s1"), there("s2")}, surge.Need{Wanted: 1, Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"more are there":           {[]surge.Node{there("s1"), there("s2")}, surge.Need{Wanted: 1, Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{"s1", "s2"}, Workers: 3, Least: 3}, ""},
		"the first does not fit":   {[]surge.Node{full("s1"), fits("s2")}, surge.Need{Wanted: 1, Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{"s2"}, Make: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"none fits":                {[]surge.Node{full("s1")}, surge.Need{Wanted: 1, Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"left over":                {[]surge.Node{there("s1"), fits("s2")}, surge.Need{Wanted: 1, Workers: 3}, &surge.Plan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"left over, asked no more": {[]surge.Node{there("s1")}, surge.Need{Workers: 3, Out: 1}, &surge.Plan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"too few":                  {[]surge.Node{fits("s1")}, surge.Need{Wanted: 2, Workers: 9, Out: 1}, nil, "roll.surge asks for 2 surge nodes, and this roll has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := surge.Choose(c.nodes, c.need)
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

func TestLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plan *surge.Plan
		want []string
	}{
		"nothing": {nil, nil},
		"made":    {&surge.Plan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, []string{"s1: made before", "never fewer than 3 workers serve", "s1: removed"}},
		"there":   {&surge.Plan{Nodes: []string{"s1"}, Workers: 1, Least: 1}, []string{"never fewer than 1 worker serves", "s1: removed"}},
		"fewer":   {&surge.Plan{Nodes: []string{"s1"}, Workers: 9, Least: 7}, []string{"7 of 9 workers serve at the least: roll.maxUnavailable", "s1: removed"}},
		"left":    {&surge.Plan{Remove: []string{"s1", "s2"}}, []string{"s1, s2: left over by an earlier roll"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.plan.Lines(); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
