package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// Explain is recast plan --explain.
func (c *Client) Explain(t *testing.T, node string) survey.Explanation {
	t.Helper()
	e, err := connected(t.Context(), c, func(s *session) (survey.Explanation, error) {
		_, e, err := pipeline.Explain(t.Context(), s.project, s.machines, planning.Policy{}, nil, node)
		return e, err
	})
	must(t, err)
	return e
}

// TestWhatIsExplainedIsWhatRuns: recast plan --explain lists the steps of the roll in
// their order, for workers and control planes and every strategy.
func TestWhatIsExplainedIsWhatRuns(t *testing.T) {
	long(t)
	for _, strategy := range []string{"auto", "reimage", "in-place"} {
		t.Run(strategy, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1, Holder: strategy == "auto"}, func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+strategy+"\n")
				lab.Patch(everywhere)
				nodes := []string{"cp1", "wk1"}
				want, got := map[string][]string{}, map[string][]string{}
				for _, name := range nodes {
					for _, s := range lab.Client().Explain(t, name).Steps {
						want[name] = append(want[name], s.Path)
					}
					if len(want[name]) < 8 {
						t.Fatalf("%s: only %q are explained", name, want[name])
					}
				}
				c := lab.Client()
				c.Emit = func(e step.Event) {
					_, node, below := planning.NodeOfStep(e.Path)
					if e.Status != step.Started && e.Status != step.Skipped || e.Kind == "" || want[node] == nil {
						return
					}
					if at := strings.Join(below, "/"); !slices.Contains(got[node], at) { // preparations run twice
						got[node] = append(got[node], at)
					}
				}
				must(t, c.roll(planning.Policy{})(t.Context()))
				for _, name := range nodes {
					if diff := cmp.Diff(want[name], got[name]); diff != "" {
						t.Errorf("%s (-explained +run):\n%s", name, diff)
					}
				}
			})
		})
	}
}
