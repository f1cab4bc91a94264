package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
)

var (
	driftNodes = flag.Int("drift.nodes", 500, "how many nodes the lab of BenchmarkDrift and BenchmarkPlan has")
	driftRuns  = flag.Int("drift.runs", 5, "how often each of them types its command, at least")
)

const (
	benchLatency = "20ms"
	maxDriftMiB  = 250
)

// BenchmarkDrift runs recast drift as a process on a large cluster, with each answer of
// every server 20 ms late.
func BenchmarkDrift(b *testing.B) { benchObserving(b, openLargeLab(b), "drift", "-o", "json") }

// BenchmarkDriftOfConfigs is BenchmarkDrift where git has the configuration of every node.
func BenchmarkDriftOfConfigs(b *testing.B) {
	term := openLargeLab(b)
	must.Get(term.recast("config", "render", "--to", "git", "--running", "--secrets").Output())(b)
	b.Run("without", func(b *testing.B) { benchObserving(b, term, "drift", "-o", "json") })
	term.replace("recast.yaml", "talos:\n", "talos:\n  machineConfigs: git\n")
	b.Run("with", func(b *testing.B) { benchObserving(b, term, "drift", "-o", "json") })
}

// BenchmarkPlan runs recast plan on a cluster of the same size, which also reads what
// would be lost with each node.
func BenchmarkPlan(b *testing.B) { benchObserving(b, openLargeLab(b), "plan", "-o", "json") }

func openLargeLab(b *testing.B) *terminal {
	b.Helper()
	return openLab(b, "--control-planes", "3", "--workers", strconv.Itoa(*driftNodes-3), "--proxmox-nodes", "3", "--latency", benchLatency, "--speed", "5")
}

// benchObserving reports what one run of a read-only command costs. Its memory and
// requests don't depend on the machine.
func benchObserving(b *testing.B, term *terminal, args ...string) {
	var took []float64
	var cpu time.Duration
	peakMiB := 0.0
	before := term.requests()
	observe := func() {
		c := term.recast(args...)
		began := time.Now()
		answer, err := c.Output()
		took = append(took, time.Since(began).Seconds())
		if err != nil {
			b.Fatalf("recast %v: %v\n%s", args, err, answer)
		}
		term.requireAll(answer, args[0])
		usage := c.ProcessState.SysUsage().(*syscall.Rusage) // Linux counts in KiB
		peakMiB = max(peakMiB, float64(usage.Maxrss)/1024)
		cpu += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	for b.Loop() {
		observe()
	}
	for len(took) < *driftRuns {
		observe()
	}
	after := term.requests()
	slices.Sort(took)
	b.ReportMetric(took[0], "s-min")
	b.ReportMetric(took[len(took)/2], "s-median")
	b.ReportMetric(took[len(took)-1], "s-max")
	b.ReportMetric(cpu.Seconds()/float64(len(took)), "cpu-s")
	b.ReportMetric(peakMiB, "peak-MiB")
	for _, proto := range []string{"proxmox", "talos", "kubernetes"} {
		b.ReportMetric(float64(after[proto]-before[proto])/float64(len(took)**driftNodes), proto+"-requests/node")
	}
	if peakMiB > maxDriftMiB {
		b.Errorf("%.0f MiB at its peak, more than %d", peakMiB, maxDriftMiB)
	}
}

// requests returns how many requests the lab's servers have received, by protocol.
func (term *terminal) requests() map[string]int {
	term.t.Helper()
	_, now, err := sim.AskState(term.t.Context(), term.dir)
	must.Do(term.t, err)
	return now.Requests
}

// requireAll checks that the command has read every node.
func (term *terminal) requireAll(answer []byte, command string) {
	term.t.Helper()
	var res struct {
		pipeline.DriftResult
		Nodes []json.RawMessage `json:"nodes"`
	}
	must.Do(term.t, json.Unmarshal(answer, &res))
	if len(res.Nodes) != *driftNodes || command == "drift" && !res.InSync {
		term.t.Fatalf("%d nodes, in sync: %t", len(res.Nodes), res.InSync)
	}
}

var (
	startupOf      = flag.String("startup.recast", "", "a stripped recast for BenchmarkStartup (default: it builds one)")
	startupAgainst = flag.String("startup.talosctl", "../../bin/e2e/talosctl", "a stripped talosctl to compare with, if it is there: make e2e-talosctl builds it")
)

// BenchmarkStartup runs the version commands of recast and talosctl in turn: the cost of
// starting a process, and the size of its file.
func BenchmarkStartup(b *testing.B) {
	programs := []program{{name: "recast", file: strippedRecast(b), args: []string{"version"}}}
	if _, err := os.Stat(*startupAgainst); err == nil {
		programs = append(programs, program{name: "talosctl", file: *startupAgainst, args: []string{"version", "--client"}})
	}
	for i := range programs {
		programs[i].run(b) // from now on its file is in memory
		programs[i].wall, programs[i].cpu = nil, nil
	}
	for b.Loop() {
		for i := range programs {
			programs[i].run(b)
		}
	}
	for i := range programs {
		p := &programs[i]
		b.ReportMetric(p.median(p.wall), p.name+"-ms")
		b.ReportMetric(p.median(p.cpu), p.name+"-cpu-ms")
		b.ReportMetric(p.mib(b), p.name+"-MiB")
	}
	if len(programs) == 2 {
		ours, theirs := &programs[0], &programs[1]
		b.ReportMetric(ours.median(ours.wall)/theirs.median(theirs.wall), "ratio")
		b.ReportMetric(ours.median(ours.cpu)/theirs.median(theirs.cpu), "cpu-ratio")
		b.ReportMetric(ours.mib(b)/theirs.mib(b), "size-ratio")
	}
	b.ReportMetric(0, "ns/op") // of both, which says nothing
}

func strippedRecast(b *testing.B) string {
	b.Helper()
	if *startupOf != "" {
		return *startupOf
	}
	file := filepath.Join(b.TempDir(), "recast")
	c := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", file, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

// program is one of the two, with the durations of its runs in milliseconds.
type program struct {
	name, file string
	args       []string
	wall, cpu  []float64
}

func (p *program) run(b *testing.B) {
	b.Helper()
	c := exec.CommandContext(b.Context(), p.file, p.args...)
	began := time.Now()
	if out, err := c.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", p.name, err, out)
	}
	p.wall = append(p.wall, time.Since(began).Seconds()*1e3)
	usage := c.ProcessState.SysUsage().(*syscall.Rusage)
	p.cpu = append(p.cpu, float64(usage.Utime.Nano()+usage.Stime.Nano())/1e6)
}

func (p *program) median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

func (p *program) mib(b *testing.B) float64 {
	b.Helper()
	info := must.Get(os.Stat(p.file))(b)
	return float64(info.Size()) / (1 << 20)
}
