package roll

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/planning"
)

// TestFallbackISOIsPublished: if a later upgrade in place fails, the node is reimaged to the build
// that this upgrade installs, so the ISO of that build must be published.
func TestFallbackISOIsPublished(t *testing.T) {
	t.Parallel()
	for policy, want := range map[cluster.BootFailure]int{cluster.StopOnBootFailure: 0, cluster.RollbackOnBootFailure: 0, cluster.ReimageOnBootFailure: 1} {
		wanted, o := observetest.World()
		wanted[1].Strategy = cluster.InPlace
		plan, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}, BootFailure: policy})
		if err != nil {
			t.Fatal(err)
		}
		if hosts := plan.ISOHosts(); len(hosts) != want {
			t.Errorf("%s: the ISO goes to %v", policy, hosts)
		}
	}
}
