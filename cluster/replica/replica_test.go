package replica

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func healthy(node string) Replica    { return Replica{Node: node, Healthy: true} }
func failed(node string) Replica     { return Replica{Node: node} }
func rebuilding(node string) Replica { return Replica{Node: node, Rebuilt: true, Unused: true} }

// system has one volume, in use, with those replicas on nodes that serve.
func system(replicas ...Replica) System {
	v := Volume{Name: "ns/pvc-1", Wanted: 2, Replicas: replicas}
	s := System{Name: "Longhorn", Volumes: []Volume{v}}
	whole := 0
	for _, r := range replicas {
		if r.Healthy {
			whole++
		}
		s.Nodes = append(s.Nodes, Node{Name: r.Node})
	}
	s.Volumes[0].Robust = whole >= 2
	return s
}

func with(s System, change func(s *System, v *Volume)) []System {
	change(&s, &s.Volumes[0])
	return []System{s}
}

// majority has a volume need most of its copies, or half of them and most of the witnesses.
func majority(witnesses ...string) func(s *System, v *Volume) {
	return func(s *System, v *Volume) {
		v.Majority, v.Witnesses = true, witnesses
		for _, name := range witnesses {
			s.Nodes = append(s.Nodes, Node{Name: name})
		}
	}
}

func TestExposed(t *testing.T) {
	t.Parallel()
	only := "Longhorn volume ns/pvc-1 has its only healthy replica on it"
	none := "Longhorn volume ns/pvc-1 has no healthy replica"
	quorum := "Longhorn volume ns/pvc-1 loses its quorum without it"
	cases := map[string]struct {
		systems []System
		away    []string
		want    string // "": it may go
	}{
		"nothing installed":             {},
		"none here":                     {systems: []System{system(healthy("b"))}},
		"another healthy one":           {systems: []System{system(healthy("a"), healthy("b"))}},
		"another one, which is away":    {systems: []System{system(healthy("a"), healthy("b"))}, away: []string{"b"}, want: only + ": b is away"},
		"another one on the same node":  {systems: []System{system(healthy("a"), healthy("a"))}, want: only},
		"another one, which has failed": {systems: []System{system(healthy("a"), failed("b"))}, want: only + ": those on b have failed"},
		"another one is being rebuilt":  {systems: []System{system(healthy("a"), rebuilding("b"))}, want: only + ": another one is being rebuilt"},
		"this one is being rebuilt":     {systems: []System{system(rebuilding("a"), healthy("b"))}},
		"this one has failed":           {systems: []System{system(failed("a"), healthy("b"))}},
		"all have failed":               {systems: []System{system(failed("a"), failed("b"))}, want: none + ": those on b have failed"},
		"never used":                    {systems: []System{system(Replica{Node: "a", Unused: true}, Replica{Node: "b", Unused: true})}},
		"one is wanted":                 {systems: with(system(healthy("a")), func(_ *System, v *Volume) { v.Wanted = 1 }), want: only + ": it is to have one only"},
		"detached":                      {systems: with(system(healthy("a"), failed("b")), func(_ *System, v *Volume) { v.Idle = true }), want: only + ": Longhorn repairs the others only while it is attached"},
		"the other's node is down":      {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Nodes[1].Down = "is not ready" }), want: only + ": b is not ready"},
		"the other's node is unknown":   {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Nodes = s.Nodes[:1] }), want: only + ": b is not known to Longhorn"},
		"controllers away":              {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Away = "no manager" }), want: "Longhorn has 1 volume on it and does not say how they are now: no manager"},
		"controllers away, none here":   {systems: with(system(healthy("b")), func(s *System, _ *Volume) { s.Away = "no manager" })},
		"controllers away, may have":    {systems: with(system(healthy("b")), func(s *System, _ *Volume) { s.Away, s.Holders = "no controller", []string{"a"} }), want: "Longhorn may have volumes on it and does not say how they are now: no controller"},
		"a failed one's node is down":   {systems: with(system(healthy("a"), failed("b")), func(s *System, _ *Volume) { s.Nodes[1].Down = "is not ready" }), want: only + ": b is not ready"},
		"two of three, by majority":     {systems: with(system(healthy("a"), healthy("b"), healthy("c")), majority())},
		"one of three, by majority":     {systems: with(system(healthy("a"), healthy("b"), healthy("c")), majority()), away: []string{"b"}, want: quorum + ": b is away"},
		"one of three":                  {systems: []System{system(healthy("a"), healthy("b"), healthy("c"))}, away: []string{"b"}},
		"half, and the witness":         {systems: with(system(healthy("a"), healthy("b")), majority("c"))},
		"half, and no witness":          {systems: with(system(healthy("a"), healthy("b")), majority("c")), away: []string{"c"}, want: quorum + ": c is away"},
		"half, and half the witnesses":  {systems: with(system(healthy("a"), healthy("b")), majority("c", "d")), away: []string{"d"}, want: quorum + ": d is away"},
		"the witness, of all":           {systems: with(system(healthy("b"), healthy("c")), majority("a"))},
		"the witness, of half":          {systems: with(system(healthy("b"), healthy("c")), majority("a")), away: []string{"c"}, want: quorum + ": c is away"},
		"the witness of a failed one":   {systems: with(system(failed("b"), failed("c")), majority("a"))},
		"a claim":                       {systems: with(system(healthy("a")), func(_ *System, v *Volume) { v.Claim = "db/x" }), want: "Longhorn volume ns/pvc-1 (claim db/x) has its only healthy replica on it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, e := range Exposed(tc.systems, "a", func(node string) bool { return slices.Contains(tc.away, node) }) {
				if e.Remedy == "" {
					t.Errorf("no remedy for %s", e)
				}
				got = append(got, e.String())
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestUnhealed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		systems []System
		ailing  []string
		want    string
	}{
		"nothing installed": {},
		"no volumes":        {systems: []System{{Name: "Longhorn", Away: "no manager", Nodes: []Node{{Name: "a", Down: "is down"}}}}},
		"whole":             {systems: []System{system(healthy("a"), healthy("b"))}},
		"rebuilt here":      {systems: []System{system(rebuilding("a"), healthy("b"))}, want: "Longhorn: 1 of 2 replicas healthy, 1 being rebuilt; 1 volume not healthy: ns/pvc-1"},
		"half there": {
			systems: with(system(rebuilding("a"), healthy("b"), rebuilding("c")), func(_ *System, v *Volume) { v.Replicas[0].Percent, v.Replicas[2].Percent = 90, 11 }),
			want:    "Longhorn: 1 of 2 replicas healthy, 2 being rebuilt (50 %); 1 volume not healthy: ns/pvc-1",
		},
		"failed here":        {systems: []System{system(failed("a"), healthy("b"))}, ailing: []string{"ns/pvc-1"}, want: "Longhorn: 1 of 2 replicas healthy; 1 volume not healthy: ns/pvc-1"},
		"lacks one":          {systems: []System{system(healthy("b"))}, want: "Longhorn: 1 of 2 replicas healthy; 1 volume not healthy: ns/pvc-1"},
		"lacked one before":  {systems: []System{system(healthy("b"))}, ailing: []string{"ns/pvc-1"}},
		"rebuilt elsewhere":  {systems: []System{system(healthy("b"), rebuilding("c"))}, ailing: []string{"ns/pvc-1"}, want: "Longhorn: 1 of 2 replicas healthy, 1 being rebuilt; 1 volume not healthy: ns/pvc-1"},
		"detached":           {systems: with(system(failed("a"), healthy("b")), func(_ *System, v *Volume) { v.Idle = true })},
		"node not ready":     {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Nodes[0].Down = "is not ready" }), want: "Longhorn: a is not ready"},
		"disk not ready":     {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Nodes[0].Lacks = "its disk x is not ready" }), want: "Longhorn: its disk x is not ready"},
		"others' disk":       {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Nodes[1].Lacks = "its disk x is not ready" })},
		"controllers away":   {systems: with(system(healthy("a"), healthy("b")), func(s *System, _ *Volume) { s.Away = "no manager" }), want: "Longhorn: no manager"},
		"not robust, unread": {systems: with(system(healthy("a"), healthy("b")), func(_ *System, v *Volume) { v.Robust = false }), want: "Longhorn: 2 of 2 replicas healthy; 1 volume not healthy: ns/pvc-1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Unhealed(tc.systems, "a", tc.ailing)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
	if got, want := Ailing([]System{system(healthy("a")), system(healthy("a"), healthy("b"))}), []string{"ns/pvc-1"}; !slices.Equal(got, want) {
		t.Errorf("ailing: %q", got)
	}
}

// TestUnchecked: a health counts only once it was checked after the first look.
func TestUnchecked(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for i, checked := range []string{"1", "1", "2", "3"} {
		got := Unchecked(pool(func(v *Volume) { v.Checked = checked }), "a", seen)
		if want := i < 2; (got != "") != want {
			t.Errorf("look %d: %q", i, got)
		}
	}
	if got := Unchecked(pool(func(*Volume) {}), "d", map[string]string{}); got != "" {
		t.Errorf("of a node without OSDs: %q", got)
	}
	if got := Unchecked([]System{system(healthy("a"))}, "a", seen); got != "" {
		t.Errorf("one that always knows: %q", got)
	}
}
