package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestOldPeers: whoever gets another system disk becomes another peer, also where only a fallback, or a rebuild, gives it
// one; where Kubernetes is the only registry, no old peer stays.
func TestOldPeers(t *testing.T) {
	t.Parallel()
	const on = "version: v1alpha1\nmachine: {network: {kubespan: {enabled: true}}}\ncluster: {discovery: {enabled: true, registries: {service: {disabled: false}}}}\n"
	for name, tc := range map[string]struct {
		n                NodePlan
		config           string
		waits, fallsBack bool
	}{
		"recreate":                    {NodePlan{Strategy: cluster.Recreate}, on, true, false},
		"in place":                    {NodePlan{Strategy: cluster.InPlace}, on, false, false},
		"in place, with a fallback":   {NodePlan{Strategy: cluster.InPlace, Previous: &cluster.Build{}}, on, false, true},
		"new":                         {NodePlan{Strategy: cluster.Create}, on, false, false},
		"made again in a rebuild":     {NodePlan{Strategy: cluster.Create, Rebuild: "sum"}, on, true, false},
		"removed in a rebuild":        {NodePlan{Strategy: cluster.Remove, Rebuild: "sum"}, on, false, false},
		"without a discovery service": {NodePlan{Strategy: cluster.Recreate}, strings.Replace(on, "disabled: false", "disabled: true", 1), false, false},
		"without KubeSpan":            {NodePlan{Strategy: cluster.Recreate}, strings.Replace(on, "kubespan: {enabled: true}", "", 1), false, false},
	} {
		tc.n.Found = observe.Found{Machine: &cluster.Machine{Configs: cluster.Configs{Active: cluster.Secret(tc.config)}}}
		p := Plan{Nodes: []NodePlan{tc.n}}
		heedKubeSpan(&p, observe.Observation{})
		if n := p.Nodes[0]; n.KubeSpan != tc.waits || n.FallbackKubeSpan != tc.fallsBack || len(n.Notes) > 0 != tc.waits {
			t.Errorf("%s: waits %t, falls back %t, notes %q", name, n.KubeSpan, n.FallbackKubeSpan, n.Notes)
		}
	}
}
