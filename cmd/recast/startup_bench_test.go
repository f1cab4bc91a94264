package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

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
	info, err := os.Stat(p.file)
	if err != nil {
		b.Fatal(err)
	}
	return float64(info.Size()) / (1 << 20)
}
