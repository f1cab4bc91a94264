package planning

import (
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/heap"
)

// BenchmarkNewPlan plans rolls of 100 and of 500 stale nodes: the cost of one node must not
// grow with their number.
func BenchmarkNewPlan(b *testing.B) {
	for nodes, most := range map[int]uint64{100: 33_000, 500: 165_000} { // allocations of a plan
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			wanted, o := observetest.LargeWorld(nodes)
			b.ReportAllocs()
			allocated := heap.Count()
			for b.Loop() {
				plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
				if err != nil || len(plan.Work()) != nodes || len(plan.Work()[0].Refused) > 0 {
					b.Fatalf("%v: %d of %d nodes, the first refused because of %q", err, len(plan.Work()), nodes, plan.Work()[0].Refused)
				}
			}
			if each := allocated() / uint64(b.N); each > most {
				b.Errorf("%d allocations for each plan, more than %d", each, most)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
		})
	}
}
