package replica

import (
	"strconv"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
