package web

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
)

const (
	benchNodes = 500
	benchRuns  = 100
	// maxPageMiB is how much a page or the words of a reading may allocate, maxPastMiB the
	// first look at all past runs, with their plans.
	maxPageMiB = 30
	maxPastMiB = 1000
)

// BenchmarkPages draws each page of a large cluster with a long history, while a run of all
// its nodes is active.
func BenchmarkPages(b *testing.B) {
	dir := b.TempDir()
	o := large(b, dir)
	s, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read history first", func(b *testing.B) {
		limited(b, maxPastMiB, func() {
			clear(s.past)
			s.history(b.Context())
		})
	})
	for _, key := range []string{keyDrift, keyPlan, keyStatus, keyHistory, keyNode + "wk1"} {
		b.Run("read "+key, func(b *testing.B) {
			limited(b, maxPageMiB, func() {
				value, err := s.read(b.Context(), key)
				if err != nil {
					b.Fatal(err)
				}
				s.readings.done(key, value, nil)
			})
		})
	}
	v := open(b, o)
	v.site.readings = s.readings
	for _, path := range []string{"", "plan", "run", "history", "nodes/wk1", "runbooks"} {
		b.Run("page "+path, func(b *testing.B) {
			size := 0
			limited(b, maxPageMiB, func() { size = len(v.get(path)) })
			b.ReportMetric(float64(size)/1024, "KiB")
		})
	}
}

// limited measures f, which may allocate no more than that.
func limited(b *testing.B, mostMiB float64, f func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	for b.Loop() {
		f()
		n++
	}
	runtime.ReadMemStats(&after)
	got := float64(after.TotalAlloc-before.TotalAlloc) / float64(n) / (1 << 20)
	b.ReportMetric(got, "MiB")
	if got > mostMiB {
		b.Errorf("it allocates %.1f MiB, more than %.0f", got, mostMiB)
	}
}

// large are the options of a cluster with many nodes, all of them stale, and many runs.
func large(b *testing.B, dir string) Options {
	b.Helper()
	o := options(dir, "extension iscsi-tools v0.2.0: sha256:a92069d1a15d → sha256:71830b79c290")
	drift, err := o.Drift(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	plan, err := o.Plan(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	stale, work := drift.Nodes[1], plan.Nodes[0]
	drift.Nodes, plan.Nodes = []observe.Drift{}, []planning.NodePlan{}
	for i := range benchNodes {
		stale.Node = fmt.Sprintf("wk%d", i)
		work.Node, work.VMID, work.Drift = stale.Node, 9000+cluster.VMID(i), stale
		work.Why = "recreate: possible for " + stale.Node
		drift.Nodes, plan.Nodes = append(drift.Nodes, stale), append(plan.Nodes, work)
	}
	drift.Stale = benchNodes
	o.Drift = func(context.Context) (pipeline.DriftResult, error) { return drift, nil }
	o.Plan = func(context.Context) (planning.Plan, error) { return plan, nil }
	text, err := json.Marshal(plan)
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchRuns {
		at := filepath.Join(dir, ".recast", "runs", fmt.Sprintf("200001%02d-%02d00-feed", i/4+1, i%4))
		if err := os.CopyFS(at, os.DirFS(filepath.Join("../../testdata/runs/roll", fixedRun))); err != nil {
			b.Fatal(err)
		}
		write(b, filepath.Join(at, "plan.json"), string(text))
		if i == benchRuns-1 {
			began, _, _ := strings.Cut(read(b, filepath.Join(at, "RUN")), ",\n")
			began = strings.Replace(began, "2000-01-01", "2000-02-01", 1)
			log := strings.SplitAfter(read(b, filepath.Join(at, story.LogName)), "\n")
			write(b, filepath.Join(at, "RUN"), began+"}")
			write(b, filepath.Join(at, story.LogName), strings.Join(log[:300], ""))
		}
	}
	return o
}
