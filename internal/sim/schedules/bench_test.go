package schedules

import (
	"flag"
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/heap"
)

var benched = flag.Int("schedules.bench", 24, "cases that the benchmark plays, from seed 1")

// BenchmarkSchedules measures the cost of a node-roll in random schedules: processor time
// of everything, including setup and checks.
func BenchmarkSchedules(b *testing.B) {
	b.Run("direct", func(b *testing.B) { benchmarkSchedules(b, true, 520_000) })
	b.Run("wire", func(b *testing.B) { benchmarkSchedules(b, false, 780_000) })
}

// benchmarkSchedules fails above most allocations for each node-roll.
func benchmarkSchedules(b *testing.B, direct bool, most float64) {
	b.Helper()
	allocated := heap.Count()
	rolls, begin := 0, processorTime(b)
	for b.Loop() {
		for i := range *benched {
			c := Draw(Seed(1, i))
			c.Direct = direct
			inBubble(b, func(t *testing.T) { rolls += Play(t, c).NodeRolls })
		}
	}
	spent := processorTime(b) - begin
	if each := float64(allocated()) / float64(rolls); each > most {
		b.Errorf("%.0f allocations for each node-roll, more than %.0f", each, most)
	}
	b.ReportMetric(float64(allocated())/float64(rolls), "allocs/node-roll")
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(rolls), "cpu-ms/node-roll")
	b.ReportMetric(float64(rolls)/spent.Seconds(), "node-rolls/cpu-s")
}

// inBubble is synctest.Test for a benchmark.
func inBubble(b *testing.B, f func(t *testing.T)) {
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
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
