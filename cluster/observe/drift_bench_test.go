package observe_test

import (
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
)

// maxDiffAllocations limits the comparison of 500 nodes.
const maxDiffAllocations = 21_500

// BenchmarkDiff compares 500 nodes with the lock.
func BenchmarkDiff(b *testing.B) {
	wanted, o := observetest.LargeWorld(500)
	b.ReportAllocs()
	allocated := heap.Count()
	for b.Loop() {
		for i, w := range wanted {
			must.Be(b, observe.Diff(w, o.Found[i], clustertest.Past).Stale, "in sync")
		}
	}
	each := allocated() / uint64(b.N)
	must.Hold(b, each <= maxDiffAllocations, "%d allocations for 500 nodes, more than %d", each, maxDiffAllocations)
}
