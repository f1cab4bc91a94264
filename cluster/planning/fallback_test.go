package planning

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
)

// Two schematics with the same extensions have the same lock hash: the fallback is the image
// that runs, not the other one.
func TestFallbackIsToTheImageThatRuns(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	wanted[1].Strategy = cluster.InPlace
	runs := o.Found[1].Machine
	o.PastBuilds = map[string]cluster.Build{}
	for id, schematic := range map[string]string{"b-sister1": "id-other", "b-runs": runs.Schematic.ID, "b-sister2": "id-another"} {
		o.PastBuilds[id] = cluster.Build{ID: id, SchematicID: schematic, LockHash: runs.Schematic.LockHash(), TalosVersion: runs.TalosVersion, Arch: runs.Arch, Platform: runs.Platform, Installer: "x@sha256:1"}
	}
	elsewhere := o.PastBuilds["b-runs"]
	elsewhere.ID, elsewhere.Platform = "b-metal", "metal"
	o.PastBuilds["b-metal"] = elsewhere
	plan, err := New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk1"}, BootFailure: cluster.ReimageOnBootFailure})
	if err != nil {
		t.Fatal(err)
	}
	if back := plan.Nodes[0].Previous; back == nil || back.ID != "b-runs" {
		t.Errorf("way back to %+v: %q", back, plan.Nodes[0].Notes)
	}
	delete(o.PastBuilds, "b-runs")
	if plan, err = New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk1"}, BootFailure: cluster.ReimageOnBootFailure}); err != nil {
		t.Fatal(err)
	}
	if back := plan.Nodes[0].Previous; back != nil {
		t.Errorf("way back to %+v, though nobody has what runs", back)
	}
}
