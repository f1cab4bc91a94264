package replica

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
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
	type row struct {
		systems []System
		away    []string
		want    string // "": it may go
	}
	cases := map[string]row{
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
	must.Each(t, cases, func(t *testing.T, tc row) {
		var got []string
		for _, e := range Exposed(tc.systems, "a", func(node string) bool { return slices.Contains(tc.away, node) }) {
			must.Hold(t, e.Remedy != "", "no remedy for %s", e)
			got = append(got, e.String())
		}
		must.Equal(t, "-want +got", tc.want, strings.Join(got, "\n"))
	})
}

func TestUnhealed(t *testing.T) {
	t.Parallel()
	type row struct {
		systems []System
		ailing  []string
		want    string
	}
	cases := map[string]row{
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
	must.Each(t, cases, func(t *testing.T, tc row) {
		must.Equal(t, "-want +got", tc.want, Unhealed(tc.systems, "a", tc.ailing))
	})
	ailing := Ailing([]System{system(healthy("a")), system(healthy("a"), healthy("b"))})
	must.Equal(t, "ailing", []string{"ns/pvc-1"}, ailing)
}

// TestUnchecked: a health counts only once it was checked after the first look.
func TestUnchecked(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for i, checked := range []string{"1", "1", "2", "3"} {
		got := Unchecked(pool(func(v *Volume) { v.Checked = checked }), "a", seen)
		must.Equal(t, fmt.Sprintf("look %d: unchecked", i), i < 2, got != "")
	}
	must.Equal(t, "of a node without OSDs", "", Unchecked(pool(func(*Volume) {}), "d", map[string]string{}))
	must.Equal(t, "one that always knows", "", Unchecked([]System{system(healthy("a"))}, "a", seen))
}

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
	type row struct {
		change            func(v *Volume)
		away              string
		exposed, unhealed string
	}
	cases := map[string]row{
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
	must.Each(t, cases, func(t *testing.T, tc row) {
		systems := pool(tc.change)
		var exposed []string
		for _, e := range Exposed(systems, "a", func(node string) bool { return node == tc.away }) {
			text := e.String()
			if e.Note != "" && !e.Refuses(false) && e.Refuses(true) {
				text += " (noted)"
			}
			exposed = append(exposed, text)
		}
		must.Equal(t, "exposed", tc.exposed, strings.Join(exposed, "\n"))
		must.Equal(t, "unhealed", tc.unhealed, Unhealed(systems, "a", nil))
	})
}

// TestThrough: a volume that others use through the node is noted where another node serves it soon, and keeps the node
// where none does.
func TestThrough(t *testing.T) {
	t.Parallel()
	const volume = "Longhorn volume ns/pvc-1 "
	type row struct {
		through string
		users   []string
		stuck   string
		alone   bool
		want    string
		refuses bool
	}
	cases := map[string]row{
		"through another":         {through: "b", users: []string{"a"}, stuck: "x"},
		"used here":               {through: "a", users: []string{"a"}, stuck: "x"},
		"used elsewhere":          {through: "a", users: []string{"a", "b"}, want: volume + "is used by b through it"},
		"used elsewhere, no HA":   {through: "a", users: []string{"b"}, stuck: "x", want: volume + "is used by b through it, and waits for it while it is away: x", refuses: true},
		"users unknown":           {through: "a", want: volume + "may be used by other nodes through it"},
		"users unknown, no HA":    {through: "a", stuck: "x", want: volume + "may be used by other nodes through it, and waits for it while it is away: x", refuses: true},
		"no other copy, and HA":   {through: "a", users: []string{"b"}, stuck: "x", alone: true, want: volume + "has its only healthy replica on it: it is to have one only"},
		"not used through a node": {users: []string{"b"}, stuck: "x"},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
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
		must.Equal(t, "got", tc.want, strings.Join(got, "\n"))
	})
}

// TestMemo: what was set before comes back exactly, once no node needs the other value; what someone else
// sets meanwhile stays.
func TestMemo(t *testing.T) {
	t.Parallel()
	type setting struct {
		Value string
		Memo  Memo
	}
	with := func(node string, need int) func(s setting) (setting, error) {
		return func(s setting) (setting, error) {
			v, m, err := s.Memo.With(s.Value, node, need, strconv.Atoi)
			return setting{v, m}, err
		}
	}
	without := func(nodes ...string) func(s setting) (setting, error) {
		return func(s setting) (setting, error) {
			v, m := s.Memo.Without(s.Value, nodes...)
			return setting{v, m}, nil
		}
	}
	by := func(value string) func(s setting) (setting, error) {
		return func(s setting) (setting, error) { s.Value = value; return s, nil }
	}
	type acts []func(setting) (setting, error)
	memo := func(was, set string, nodes map[string]int) Memo { return Memo{Was: was, Set: set, Nodes: nodes} }
	type row struct {
		acts acts
		want setting
	}
	cases := map[string]row{
		"held":                         {acts{with("a", 900)}, setting{"900", memo("600", "900", map[string]int{"a": 900})}},
		"held again":                   {acts{with("a", 900), with("a", 800)}, setting{"900", memo("600", "900", map[string]int{"a": 900})}},
		"needs no more":                {acts{with("a", 600)}, setting{Value: "600"}},
		"given back":                   {acts{with("a", 900), without("a")}, setting{Value: "600"}},
		"given back twice":             {acts{with("a", 900), without("a"), without("a")}, setting{Value: "600"}},
		"another node's":               {acts{with("a", 900), without("b")}, setting{"900", memo("600", "900", map[string]int{"a": 900})}},
		"two":                          {acts{with("a", 900), with("b", 700)}, setting{"900", memo("600", "900", map[string]int{"a": 900, "b": 700})}},
		"two, the longer is back":      {acts{with("a", 900), with("b", 700), without("a")}, setting{"700", memo("600", "700", map[string]int{"b": 700})}},
		"two, the shorter is back":     {acts{with("a", 900), with("b", 700), without("b")}, setting{"900", memo("600", "900", map[string]int{"a": 900})}},
		"two, both back":               {acts{with("a", 900), with("b", 700), without("b"), without("a")}, setting{Value: "600"}},
		"all at once":                  {acts{with("a", 900), with("b", 700), without("b", "a")}, setting{Value: "600"}},
		"changed meanwhile":            {acts{with("a", 900), by("300"), without("a")}, setting{Value: "300"}},
		"changed, another node's back": {acts{with("a", 900), with("b", 800), by("300"), without("b")}, setting{Value: "300"}},
		"changed, then another node":   {acts{with("a", 900), by("300"), with("b", 800)}, setting{"800", memo("300", "800", map[string]int{"b": 800})}},
		"changed, both back":           {acts{with("a", 900), by("300"), with("b", 800), without("a"), without("b")}, setting{Value: "300"}},
		"changed to enough":            {acts{with("a", 900), by("1000"), with("b", 800)}, setting{Value: "1000"}},
		"none at all":                  {acts{by("0"), with("a", 900), without("a")}, setting{Value: "0"}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		s := setting{Value: "600"}
		for i, act := range tc.acts {
			var err error
			if s, err = act(s); err != nil {
				t.Fatal(i, err)
			}
		}
		must.Equal(t, "-want +got", tc.want, s)
	})
	_, _, err := (Memo{}).With("{}", "a", 900, strconv.Atoi)
	must.Equal(t, "a value that is no number is changed", false, err == nil)
}

// TestOwnValue: a value that recast has set is not the setting's own; a memo that can't be read is refused.
func TestOwnValue(t *testing.T) {
	t.Parallel()
	text := must.Get(Memo{Was: "600", Set: "900", Nodes: map[string]int{"a": 900}}.Text())(t)
	with := func(value, memo string) Setting {
		return Setting{
			Value: value, Number: strconv.Atoi, Beside: map[string]string{"memo": memo}, Key: "memo",
			At: "annotation memo", Forget: "remove it",
		}
	}
	alone := Setting{Value: "900"}
	own := []string{must.Get(with("900", text).Own())(t), must.Get(with("300", text).Own())(t), must.Get(alone.Own())(t)}
	must.Equal(t, "set by recast, by someone else since, by someone else", []string{"600", "300", "900"}, own)
	err := must.Err(with("900", "{}").Own())
	must.FailAs(t, err, fault.Refused, "annotation memo is not as recast writes it")
	must.Equal(t, "hints", []string{"remove it"}, fault.Hints(err))
}

// evicting makes it a system that evicts node a after so long.
func evicting(after time.Duration) func(*System) {
	return func(s *System) { s.Evicts, s.Nodes = true, []Node{{Name: "a", Patience: after}} }
}

// TestHolding: a system waits longer only where that saves its copies, and never without end.
func TestHolding(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(s *System)
		outage time.Duration
		want   time.Duration
	}
	cases := map[string]row{
		"waits long enough":    {func(*System) {}, 10 * time.Minute, 0},
		"does not":             {func(*System) {}, 11 * time.Minute, 22 * time.Minute},
		"at most":              {func(*System) {}, 29 * time.Minute, Longest},
		"would not suffice":    {func(*System) {}, Longest, 0},
		"waits not at all":     {func(s *System) { s.Patience = 0 }, 2 * time.Minute, 4 * time.Minute},
		"can't be held":        {func(s *System) { s.Holds = false }, 11 * time.Minute, 0},
		"has no copies on it":  {func(s *System) { s.Volumes = nil }, 11 * time.Minute, 0},
		"evicts, and waits":    {evicting(time.Hour), 2 * time.Minute, 0},
		"evicts too soon":      {evicting(59 * time.Minute), 2 * time.Minute, spared},
		"evicts, long away":    {evicting(time.Hour), 40 * time.Minute, 80 * time.Minute},
		"somebody else's":      {func(s *System) { evicting(time.Minute)(s); s.Nodes[0].Fixed = true }, 2 * time.Minute, 0},
		"nothing written here": {func(s *System) { s.Volumes[0].Replicas[0].Unused = true }, 11 * time.Minute, 0},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		s := system(healthy("a"), healthy("b"))
		s.Holds, s.Patience = true, 10*time.Minute
		tc.change(&s)
		must.Equal(t, "instead of", tc.want, s.Holding("a", tc.outage))
	})
}
