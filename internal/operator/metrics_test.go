package operator

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/recast-sh/recast/deploy"
)

// TestMetrics: what is scraped is what deploy's alerts and dashboard are made of.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(Metrics{Objects: s.api(), Context: t.Context()}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for _, m := range deploy.Metrics {
		if m.Help != "" { // others are not ours
			known[m.Name] = slices.Sorted(slices.Values(m.Labels))
		}
	}
	delete(known, "recast_fleetroll_members") // there is no fleet
	got := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = labels
	}
	if diff := cmp.Diff(known, got); diff != "" {
		t.Errorf("metrics (-deploy +scraped):\n%s", diff)
	}
}
