package simtest

import (
	"fmt"
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim"
)

// BenchmarkNodeRoll measures processor time and requests of starting and rolling a whole
// cluster, per rolled node. It reports the lab's share separately.
func BenchmarkNodeRoll(b *testing.B) {
	for _, c := range []struct {
		strategy cluster.Strategy
		workers  int
		most     nodeRoll
	}{
		{cluster.Recreate, 2, nodeRoll{850, 720_000}},
		{cluster.Reimage, 2, nodeRoll{750, 650_000}},
		{cluster.InPlace, 2, nodeRoll{455, 430_000}},
		{cluster.Recreate, 20, nodeRoll{780, 690_000}},
		{cluster.Reimage, 20, nodeRoll{660, 620_000}},
		{cluster.InPlace, 20, nodeRoll{395, 370_000}},
	} {
		b.Run(fmt.Sprintf("%s/3+%d", c.strategy, c.workers), func(b *testing.B) {
			benchmarkNodeRoll(b, sim.Options{ControlPlanes: 3, Workers: c.workers, Hosts: 3}, c.strategy, c.most)
		})
	}
}

// nodeRoll is what one node's roll may take, with its part of the cluster's start and of the plan.
type nodeRoll struct {
	requests    float64
	allocations float64 // of recast and the lab
}

func benchmarkNodeRoll(b *testing.B, o sim.Options, strategy cluster.Strategy, most nodeRoll) {
	b.ReportAllocs()
	allocated := heap.Count()
	var lab, all time.Duration
	requests := 0
	for b.Loop() {
		begin := processorTime(b)
		benchmarkInBubble(b, func(t *testing.T) {
			l := New(t, o)
			l.setRoll("strategy: " + string(strategy))
			l.Patch(sim.CommonExtension)
			lab += processorTime(t) - begin
			before := len(l.Recorder.Calls())
			rep, err := l.Client().Roll(t.Context(), planning.Policy{})
			if err != nil || len(rep.Plan.Work()) != len(l.Nodes) {
				t.Fatalf("rolled %d nodes: %v", len(rep.Plan.Work()), err)
			}
			requests += len(l.Recorder.Calls()) - before
		})
		all += processorTime(b) - begin
	}
	rolls := float64(b.N * (o.ControlPlanes + o.Workers))
	b.ReportMetric(float64(all.Microseconds())/1000/rolls, "cpu-ms/node-roll")
	b.ReportMetric(float64(lab.Microseconds())/1000/rolls, "lab-cpu-ms/node-roll")
	b.ReportMetric(float64(requests)/rolls, "requests/node-roll")
	if each := float64(requests) / rolls; each > most.requests {
		b.Errorf("%.0f requests for each node, more than %.0f", each, most.requests)
	}
	if each := float64(allocated()) / rolls; each > most.allocations {
		b.Errorf("%.0f allocations for each node, more than %.0f", each, most.allocations)
	}
}

// benchmarkInBubble is synctest.Test for a benchmark.
func benchmarkInBubble(b *testing.B, f func(t *testing.T)) {
	b.Helper()
	all := func(pattern, name string) (bool, error) {
		_, err := regexp.Compile(pattern)
		return true, err
	}
	if !testing.RunTests(all, []testing.InternalTest{{Name: b.Name(), F: func(t *testing.T) { synctest.Test(t, f) }}}) {
		b.FailNow()
	}
}

// processorTime is the process's user and system time.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
