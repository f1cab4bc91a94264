package observe_test

import (
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
)

// BenchmarkDiff compares 500 nodes with the lock.
func BenchmarkDiff(b *testing.B) {
	wanted, o := observetest.LargeWorld(500)
	b.ReportAllocs()
	for b.Loop() {
		for i, w := range wanted {
			if !observe.Diff(w, o.Found[i], clustertest.Past).Stale {
				b.Fatal("in sync")
			}
		}
	}
}
