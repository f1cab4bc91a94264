package simtest

import (
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// BenchmarkNodeRoll measures processor time and requests of starting and rolling a whole
// cluster, per rolled node. It reports the lab's share separately.
func BenchmarkNodeRoll(b *testing.B) {
	for _, size := range []sim.Options{{ControlPlanes: 3, Workers: 2, Hosts: 3}, {ControlPlanes: 3, Workers: 20, Hosts: 3}} {
		for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace} {
			name := string(strategy) + "/3+2"
			if size.Workers == 20 {
				name = string(strategy) + "/3+20"
			}
			b.Run(name, func(b *testing.B) { benchmarkNodeRoll(b, size, strategy) })
		}
	}
}

func benchmarkNodeRoll(b *testing.B, o sim.Options, strategy cluster.Strategy) {
	b.ReportAllocs()
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
