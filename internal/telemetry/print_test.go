package telemetry

import (
	"bytes"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/pipeline"
)

// The printed metrics equal those of the file, whether there is one or not.
func TestMetricsArePrinted(t *testing.T) {
	t.Parallel()
	res := pipeline.DriftResult{Nodes: []observe.Drift{{Node: "wk1", Stale: true, Reasons: []cluster.Reason{{Code: "talos-version"}}}, {Node: "wk2"}}}
	path := filepath.Join(t.TempDir(), "drift.prom")
	tele, ctx := start(t, Options{MetricsFile: path})
	tele.Drifted(res)
	tele.End(ctx, 2, nil)
	plain, _ := start(t, Options{})
	plain.Drifted(res)
	var out bytes.Buffer
	if err := plain.WriteMetrics(&out, 2); err != nil {
		t.Fatal(err)
	}
	times := regexp.MustCompile(`(?m)^(recast_command_[a-z]+_timestamp_seconds.*) .*$`)
	still := func(text string) string { return times.ReplaceAllString(text, "$1 now") }
	if diff := cmp.Diff(still(read(t, path)), still(out.String())); diff != "" {
		t.Errorf("printed (-file +printed):\n%s", diff)
	}
	var none *Telemetry
	if err := none.WriteMetrics(&out, 0); err != nil {
		t.Error(err)
	}
}
