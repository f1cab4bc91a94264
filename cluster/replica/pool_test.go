package replica

import (
	"fmt"
	"strings"
	"testing"
)

// pool is one with parts on a, b and c.
func pool(change func(v *Volume)) []System {
	v := Volume{Name: "ns/ceph", Robust: true, Checked: "1", Replicas: []Replica{healthy("a"), healthy("b"), healthy("c")}}
	change(&v)
	return []System{{Name: "Ceph", Pools: true, Nodes: []Node{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}, Volumes: []Volume{v}}}
}

func TestPools(t *testing.T) {
	t.Parallel()
	degraded := func(v *Volume) { v.Robust, v.Why = false, "PG_DEGRADED" }
	down := func(i int) func(v *Volume) { return func(v *Volume) { v.Replicas[i].Healthy = false } }
	placed := func(copies, needs, on int) func(v *Volume) {
		return func(v *Volume) {
			v.Placements = []Placement{{Pool: "pool x", Domain: "osd", Copies: copies, Needs: needs, On: map[string]int{"a": on}}}
		}
	}
	monitors := func(out string, nodes ...string) func(v *Volume) {
		return func(v *Volume) {
			for i, node := range nodes {
				v.Voters = append(v.Voters, Voter{Name: fmt.Sprintf("m%d", i), Node: node, Votes: node != out})
			}
		}
	}
	const quorum = "Ceph cluster ns/ceph loses the quorum of its monitors without it: "
	const only = "Ceph cluster ns/ceph may have the only healthy replica of some data on it: "
	cases := map[string]struct {
		change            func(v *Volume)
		away              string
		exposed, unhealed string
	}{
		"whole":           {change: func(*Volume) {}},
		"degraded":        {change: degraded, exposed: only + "PG_DEGRADED", unhealed: "Ceph cluster ns/ceph: PG_DEGRADED"},
		"another is down": {change: down(1), exposed: only + "b does not serve all of its own"},
		"another is away": {change: func(*Volume) {}, away: "c", exposed: only + "c is away"},
		"it is down":      {change: down(0), unhealed: "Ceph cluster ns/ceph: a does not serve all of its data yet"},
		"of two OSDs":     {change: placed(2, 1, 2), exposed: "Ceph cluster ns/ceph may have 2 of the 2 copies of data of pool x on it (failureDomain osd), and 1 must be there"},
		"of one OSD":      {change: placed(2, 1, 1)},
		"of two of three": {change: placed(3, 2, 2), exposed: "Ceph cluster ns/ceph may have 2 of the 3 copies of data of pool x on it (failureDomain osd), and 2 must be there"},
		"of one of three": {change: placed(3, 2, 1)},
		"one copy":        {change: placed(1, 1, 1), exposed: "Ceph cluster ns/ceph needs 1 of 1 copies of pool x, and may have one on it (noted)"},
		"none of a class": {change: placed(1, 1, 0)},
		"the only node":   {change: func(v *Volume) { v.Replicas = v.Replicas[:1] }, exposed: "Ceph cluster ns/ceph has all its data on it (noted)"},
		"a sole monitor":  {change: monitors("", "a"), exposed: "Ceph cluster ns/ceph has its only monitor on it (noted)"},
		"one of two":      {change: monitors("", "a", "b"), exposed: "Ceph cluster ns/ceph has 1 of its 2 monitors on it (noted)"},
		"one of three":    {change: monitors("", "a", "b", "c")},
		"none of three":   {change: monitors("c", "b", "c", "d")},
		"all of three":    {change: monitors("", "a", "a", "a"), exposed: "Ceph cluster ns/ceph has 3 of its 3 monitors on it (noted)"},
		"two on it":       {change: monitors("", "a", "b", "a"), exposed: quorum + "2 of 3 are on it"},
		"one is out":      {change: monitors("c", "a", "b", "c"), exposed: quorum + "monitor m2 on c is not in quorum"},
		"this one is out": {change: monitors("a", "a", "b", "c"), unhealed: "Ceph cluster ns/ceph: monitor m0 on a is not in quorum yet"},
		"two of five out": {change: monitors("c", "a", "b", "b", "c", "c"), exposed: quorum + "monitor m3 on c is not in quorum, monitor m4 on c is not in quorum"},
		"one's node away": {change: func(v *Volume) { v.Replicas = v.Replicas[1:2]; monitors("", "a", "b", "c")(v) }, away: "c", exposed: quorum + "c is away"},
		"on no node":      {change: func(v *Volume) { monitors("", "a", "b", "c")(v); v.Voters[2] = Voter{Name: "m2"} }, exposed: quorum + "monitor m2 is not in quorum"},
		"quorum unknown":  {change: func(v *Volume) { monitors("", "a", "b", "c")(v); v.Doubt = "MON_DOWN" }, exposed: "Ceph cluster ns/ceph may lose the quorum of its monitors without it: MON_DOWN"},
		"not here":        {change: func(v *Volume) { monitors("", "b", "c")(v); v.Doubt = "MON_DOWN" }},
		"none here":       {change: func(v *Volume) { degraded(v); v.Replicas = v.Replicas[1:] }, unhealed: "Ceph cluster ns/ceph: PG_DEGRADED"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			systems := pool(tc.change)
			var exposed []string
			for _, e := range Exposed(systems, "a", func(node string) bool { return node == tc.away }) {
				text := e.String()
				if e.Note != "" && !e.Refuses(false) && e.Refuses(true) {
					text += " (noted)"
				}
				exposed = append(exposed, text)
			}
			if got := strings.Join(exposed, "\n"); got != tc.exposed {
				t.Errorf("exposed: %s", got)
			}
			if got := Unhealed(systems, "a", nil); got != tc.unhealed {
				t.Errorf("unhealed: %s", got)
			}
		})
	}
}

// TestThrough: a volume that others use through the node is noted where another node serves it soon, and keeps the node
// where none does.
func TestThrough(t *testing.T) {
	t.Parallel()
	const volume = "Longhorn volume ns/pvc-1 "
	cases := map[string]struct {
		through string
		users   []string
		stuck   string
		alone   bool
		want    string
		refuses bool
	}{
		"through another":         {through: "b", users: []string{"a"}, stuck: "x"},
		"used here":               {through: "a", users: []string{"a"}, stuck: "x"},
		"used elsewhere":          {through: "a", users: []string{"a", "b"}, want: volume + "is used by b through it"},
		"used elsewhere, no HA":   {through: "a", users: []string{"b"}, stuck: "x", want: volume + "is used by b through it, and waits for it while it is away: x", refuses: true},
		"users unknown":           {through: "a", want: volume + "may be used by other nodes through it"},
		"users unknown, no HA":    {through: "a", stuck: "x", want: volume + "may be used by other nodes through it, and waits for it while it is away: x", refuses: true},
		"no other copy, and HA":   {through: "a", users: []string{"b"}, stuck: "x", alone: true, want: volume + "has its only healthy replica on it: it is to have one only"},
		"not used through a node": {users: []string{"b"}, stuck: "x"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system(healthy("a"), healthy("b"))
			if tc.alone {
				s = system(healthy("a"))
				s.Volumes[0].Wanted, s.Volumes[0].Alone = 1, true
			}
			s.Stuck, s.Volumes[0].Through, s.Volumes[0].Users = tc.stuck, tc.through, tc.users
			var got []string
			for _, e := range Exposed([]System{s}, "a", func(string) bool { return false }) {
				if got = append(got, e.String()); e.Refuses(false) != tc.refuses || !tc.refuses && e.Note == "" {
					t.Errorf("refuses %v: %+v", e.Refuses(false), e)
				}
			}
			if text := strings.Join(got, "\n"); text != tc.want {
				t.Errorf("%s", text)
			}
		})
	}
}
