package roll

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/step"
)

// leaves returns the IDs of the steps without substeps, in order.
func leaves(t *testing.T, list []step.Step) (ids []string) {
	t.Helper()
	for _, s := range list {
		if s.Steps == nil {
			ids = append(ids, s.ID)
			continue
		}
		below, err := s.Steps(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", s.ID, err)
		}
		ids = append(ids, leaves(t, below)...)
	}
	return ids
}

// TestExchangeAloneIsThatOfARoll: the contract suite and the matrix run an exchange without a node
// around it. A roll runs the same steps in the same order.
func TestExchangeAloneIsThatOfARoll(t *testing.T) {
	t.Parallel()
	alone := []string{"gate", "keep-firewall", "keep-off"} // a roll does these when it remembers and stops the node
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.PutBack} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			s := rollingtest.NewScene()
			s.Plan.Strategy = strategy
			begun(s)
			s.Ready()
			n := nodeOf(s)
			drawn := func() *exchange.Replace { return exchange.Of(nil, s.Mem, *s.Rec, 9900) }
			n.record.drawn = drawn()
			ofRoll, ofExchange := n.order.work(), drawn().Steps()
			if strategy == cluster.PutBack {
				ofExchange = drawn().PutBackSteps()
			}
			ofExchange.Skip = nil
			want := slices.DeleteFunc(leaves(t, []step.Step{ofExchange}), func(id string) bool { return slices.Contains(alone, id) })
			got := slices.DeleteFunc(leaves(t, ofRoll), func(id string) bool { return !slices.Contains(want, id) })
			if diff := cmp.Diff(want, got); diff != "" || len(want) < 6 {
				t.Errorf("the exchange alone, and that of a roll:\n%s", diff)
			}
		})
	}
}
