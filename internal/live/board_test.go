package live

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

var update = flag.Bool("update", false, "write the golden files afresh")

// begun is when the tests' roll began.
var begun = time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC)

func at(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }

// testBoard is the board of a roll of some workers and a control plane.
type testBoard struct {
	*Board
	titles map[string]string // of the steps that have begun
}

func rollOf(workers int) testBoard {
	b := NewBoard("recast roll", begun)
	p := planning.Plan{TotalSeconds: 240 * (workers + 1)}
	p.Nodes = append(p.Nodes, planning.NodePlan{Node: "cp1", Phase: planning.ControlPlanes, Strategy: cluster.InPlace, OutageSeconds: 120})
	for i := range workers {
		p.Nodes = append(p.Nodes, planning.NodePlan{Node: fmt.Sprintf("wk%d", i+1), Phase: planning.Workers, Strategy: cluster.Recreate, OutageSeconds: 240, WholeSeconds: 300})
	}
	b.Plan(begun, p)
	return testBoard{b, map[string]string{}}
}

func (b testBoard) starts(second int, path, title string) {
	b.titles[path] = title
	b.See(at(second), step.Event{Path: path, Title: title, Status: step.Started})
}

func (b testBoard) ends(second int, path, text string) {
	b.See(at(second), step.Event{Path: path, Title: b.titleOf(path), Status: step.Done, Text: text})
}

func (b testBoard) fails(second int, path string, err error) {
	b.See(at(second), step.Event{Path: path, Title: b.titleOf(path), Status: step.Failed, Err: fmt.Errorf("%s: %w", path, err)})
}

func (b testBoard) notes(second int, path, text string) {
	b.See(at(second), step.Event{Path: path, Status: step.Note, Text: text})
}

func (b testBoard) titleOf(path string) string {
	return b.titles[path]
}

// control finishes the steps up to and including the control plane.
func (b testBoard) control() {
	b.starts(0, "roll", "roll nodes")
	b.starts(0, "roll/snapshot-etcd", "save a snapshot of etcd to backups")
	b.ends(3, "roll/snapshot-etcd", "saved as backups/etcd-c1-r1.db")
	b.starts(3, "roll/control-planes", "one control plane")
	b.starts(3, "roll/control-planes/cp1", "in-place cp1 (VM 9001 on pve1)")
	b.starts(4, "roll/control-planes/cp1/upgrade", "upgrade cp1")
	b.starts(4, "roll/control-planes/cp1/upgrade/reboot", "reboot it")
	b.ends(90, "roll/control-planes/cp1/upgrade/reboot", "")
	b.ends(90, "roll/control-planes/cp1/upgrade", "")
	b.ends(100, "roll/control-planes/cp1", "runs v1.13.9 build abcdef012345")
	b.ends(100, "roll/control-planes", "")
	b.starts(100, "roll/workers", "workers, at most 2 at a time")
}

// worker takes a worker up to its wait for the new system.
func (b testBoard) worker(second int, name string) {
	path := "roll/workers/" + name
	b.starts(second, path, "recreate "+name+" (VM 9031 on pve1)")
	b.starts(second, path+"/take-down", "take "+name+" down")
	b.starts(second, path+"/take-down/drain", "drain "+name)
	b.ends(second+30, path+"/take-down/drain", "")
	b.starts(second+30, path+"/take-down/stop", "stop VM 9031")
	b.ends(second+40, path+"/take-down/stop", "")
	b.ends(second+40, path+"/take-down", "")
	b.starts(second+40, path+"/bring-up", "bring "+name+" up")
	b.starts(second+50, path+"/bring-up/wait-healthy", "wait until "+name+" is healthy")
	b.notes(second+60, path+"/bring-up/wait-healthy", "the node is Ready; \x1b[31msettling\tfor 30s")
}

func (b testBoard) workerDone(second int, name string) {
	path := "roll/workers/" + name
	b.ends(second, path+"/bring-up/wait-healthy", "")
	b.ends(second, path+"/bring-up", "")
	b.ends(second, path, "runs v1.13.9 build abcdef012345")
}

// boards are rolls in various states, with the second at which they are drawn.
var boards = map[string]struct {
	seconds int
	tell    func() testBoard
}{
	"build": {14, func() testBoard {
		b := testBoard{NewBoard("recast publish", begun), map[string]string{}}
		b.starts(0, "build", "build images")
		b.starts(0, "build/default", "build schematic default")
		b.starts(0, "build/default/check-factory", "compare the factory's extensions with the lock")
		b.ends(2, "build/default/check-factory", "")
		b.starts(2, "build/default/fetch-iso", "fetch the boot ISO and compare what it holds with the lock")
		b.notes(12, "build/default/fetch-iso", "300 MiB of 1200 MiB, 30 MiB/s")
		return b
	}},
	"early": {31, func() testBoard {
		b := rollOf(2)
		b.starts(0, "roll", "roll nodes")
		b.starts(0, "roll/snapshot-etcd", "save a snapshot of etcd to backups")
		b.notes(20, "roll/snapshot-etcd", "40 MiB")
		b.starts(1, "roll/workers/wk1/pull", "have wk1 fetch its installer")
		b.CanStop()
		return b
	}},
	"middle": {205, func() testBoard {
		b := rollOf(4)
		b.control()
		b.worker(100, "wk1")
		b.worker(130, "wk2")
		b.CanStop()
		return b
	}},
	"failed": {250, func() testBoard {
		b := rollOf(3)
		b.control()
		b.worker(100, "wk1")
		b.starts(130, "roll/workers/wk2", "recreate wk2 (VM 9032 on pve2)")
		b.starts(130, "roll/workers/wk2/gate", "check that it is safe to take wk2 out")
		b.fails(140, "roll/workers/wk2/gate", errors.New("no quorum"))
		b.fails(140, "roll/workers/wk2", errors.New("gate: no quorum"))
		b.workerDone(200, "wk1")
		b.See(at(200), step.Event{Path: "roll/workers/wk3", Title: "recreate wk3", Status: step.NotStarted})
		b.fails(200, "roll/workers", errors.New("no quorum"))
		b.fails(200, "roll", errors.New("no quorum"))
		b.End(at(201))
		return b
	}},
	"stopping": {210, func() testBoard {
		b := rollOf(5)
		b.control()
		b.worker(100, "wk1")
		b.worker(130, "wk2")
		b.Stopping()
		return b
	}},
	"broken": {211, func() testBoard {
		b := rollOf(2)
		b.control()
		b.worker(100, "wk1")
		b.Broken()
		b.fails(211, "roll/workers/wk1", fault.As(fault.Interrupted, errors.New("interrupted")))
		return b
	}},
	"many": {20000, func() testBoard {
		b := rollOf(60)
		b.control()
		for i := range 40 {
			b.worker(100+i*200, fmt.Sprintf("wk%d", i+1))
			b.workerDone(290+i*200, fmt.Sprintf("wk%d", i+1))
		}
		for i := range 3 {
			b.worker(19800+i*20, fmt.Sprintf("wk%d", i+41))
		}
		b.CanStop()
		return b
	}},
}

var sizes = map[string]Look{
	"120x40": {Width: 119, Height: 38, Colour: true},
	"80x24":  {Width: 79, Height: 22},
	"40x10":  {Width: 39, Height: 8},
	"20x5":   {Width: 19, Height: 3},
}

func TestFrame(t *testing.T) {
	t.Parallel()
	for name, tc := range boards {
		for size, look := range sizes {
			t.Run(name+"-"+size, func(t *testing.T) {
				t.Parallel()
				lines := tc.tell().Frame(at(tc.seconds), look)
				if len(lines) > look.Height {
					t.Errorf("%d lines on a screen of %d", len(lines), look.Height)
				}
				golden(t, name+"-"+size, lines)
			})
		}
		t.Run(name+"-final", func(t *testing.T) {
			t.Parallel()
			golden(t, name+"-final", tc.tell().Final(at(tc.seconds), sizes["80x24"]))
		})
	}
}

// A frame fits any screen.
func TestFrameFits(t *testing.T) {
	t.Parallel()
	for name, tc := range boards {
		board := tc.tell()
		for width := 1; width < 100; width += 7 {
			for height := -1; height < 40; height++ {
				lines := board.Frame(at(tc.seconds), Look{Width: width, Height: height})
				if len(lines) > max(0, height) {
					t.Fatalf("%s: %d lines on a screen of %d x %d", name, len(lines), width, height)
				}
				for _, l := range lines {
					if n := len([]rune(l)); n > width {
						t.Fatalf("%s: a line of %d on a screen of %d x %d: %q", name, n, width, height, l)
					}
				}
			}
		}
	}
}

// A roll of two plans builds twice: each step has one line, as it is now.
func TestBuiltAgain(t *testing.T) {
	t.Parallel()
	b := testBoard{NewBoard("recast roll", begun), map[string]string{}}
	b.starts(0, "build", "build images")
	b.starts(0, "build/default", "build schematic default")
	b.starts(0, "build/default/fetch-iso", "fetch the boot ISO")
	b.ends(9, "build/default/fetch-iso", "")
	b.ends(9, "build/default", "the ISO is there")
	b.ends(9, "build", "")
	b.starts(100, "build", "build images")
	b.See(at(101), step.Event{Path: "build/default", Title: "build schematic default", Status: step.Skipped, Text: "the ISO is there"})
	want := []string{"  ▸ build images  3s", "    ✓ build schematic default: the ISO is there"}
	must.Equal(t, "", want, b.Final(at(103), sizes["80x24"]))
}

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	got := strings.ReplaceAll(strings.Join(lines, "\n"), "\x1b", "␛") + "\n"
	if *update {
		must.Do(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(path))(t)
	must.Equal(t, path, string(want), got)
}

// maxFrameAllocations limits one drawing.
const maxFrameAllocations = 1_300

// BenchmarkFrame draws a roll of 60 nodes as often as ten minutes of a roll do.
func BenchmarkFrame(b *testing.B) {
	board := boards["many"].tell()
	b.ReportAllocs()
	allocated := heap.Count()
	for b.Loop() {
		board.Frame(at(20000), sizes["120x40"])
	}
	if each := allocated() / uint64(b.N); each > maxFrameAllocations {
		b.Errorf("%d allocations for a drawing, more than %d", each, maxFrameAllocations)
	}
}

// A board at a moment says what its frames say.
func TestNow(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"build":    {"fetch the boot ISO and compare what it holds with the lock open 12s 25%"},
		"early":    {"wk1 to go: have wk1 fetch its installer", "save a snapshot of etcd to backups open 31s 0% 40 MiB (11s ago)"},
		"middle":   {"cp1 done good took 1m37s away 1m36s: runs v1.13.9 build abcdef012345", "wk1 in progress open took 1m45s away 1m15s of ~4m 35%: wait until wk1 is healthy", "wk3 to go: about 5m"},
		"failed":   {"wk2 failed bad took 10s: check that it is safe to take wk2 out: no quorum", "wk3 not started"},
		"broken":   {"wk1 stopped before it was done"},
		"stopping": {"wk2 in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := boards[name]
			board := tc.tell()
			now := board.Now(at(tc.seconds))
			var got []string
			for _, n := range now.Nodes {
				got = append(got, said(n))
			}
			for _, s := range now.Steps {
				got = append(got, fmt.Sprintf("%s %s %s %d%% %s", s.Title, s.Mood, s.Took, s.Percent, s.Note))
			}
			must.Contain(t, "the page", strings.Join(got, "\n"), want...)
			var totals string
			for _, line := range board.totals(at(tc.seconds), Look{}) {
				totals = line
			}
			must.Equal(t, "value", totals, now.Totals)
		})
	}
}

// said is a node in a line.
func said(n NodeNow) string {
	var text strings.Builder
	text.WriteString(n.Node + " " + n.State)
	for _, part := range []struct{ lead, text string }{{"", n.Mood}, {"took ", n.Took}, {"away ", n.Away}} {
		if part.text != "" {
			text.WriteString(" " + part.lead + part.text)
		}
	}
	if n.Percent > 0 {
		text.WriteString(fmt.Sprintf(" %d%%", n.Percent))
	}
	switch {
	case n.Step != nil:
		return text.String() + ": " + n.Step.Title
	case n.Text != "":
		return text.String() + ": " + n.Text
	}
	return text.String()
}
