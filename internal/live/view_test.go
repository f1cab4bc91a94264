package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/creack/pty"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/live/emulator"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Sequences that change the terminal's key encoding, or that it answers, are removed.
func TestGuard(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"\x1b[>4;2m\x1b[=1;1u\x1b[?u\x1b[31mred\x1b[0m": "\r\x1b[31mred\x1b[0m",
		"\x1b[?2026$p\x1b[?2027$p":                      "",
		"\x1b[>4m\x1b[<1u":                              "",
		"\x1b[6n\x1b[c\x1b[>0q\x1b[?25h":                "\r\x1b[?25h",
		"up\x1b[3A\x1b[K\x1b[2L\x1b[?2026h":             "\rup\x1b[3A\x1b[K\x1b[2L\x1b[?2026h",
	} {
		file := must.Get(os.Create(filepath.Join(t.TempDir(), "tty")))(t)
		g := &guard{file: file}
		if n, err := g.Write([]byte(sent)); n != len(sent) || err != nil {
			t.Errorf("%q: %d, %v", sent, n, err)
		}
		if n, err := io.WriteString(g, sent); n != len(sent) || err != nil { // the other way to write
			t.Errorf("%q: %d, %v", sent, n, err)
		}
		got, err := os.ReadFile(file.Name())
		must.Hold(t, err == nil && string(got) == want+want, "%q became %q, want %q twice (%v)", sent, got, want, err)
		file.Close()
		if n, err := g.Write([]byte("gone")); n != 4 || err != nil || !g.dead.Load() {
			t.Errorf("a terminal that is gone: %d, %v", n, err)
		}
	}
}

// A blocked terminal, for example after Ctrl-S, delays no step, and the end only for stallTimeout.
func TestBlockedTerminal(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe() // its buffer is soon full, and nobody reads
	must.Do(t, err)
	defer read.Close()
	// write stays open: a view that has given up may still use it.
	fill := bytes.Repeat([]byte("."), 4096)
	must.Do(t, write.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	for err == nil {
		_, err = write.Write(fill)
	}
	must.Do(t, write.SetWriteDeadline(time.Time{}))
	v := NewView(write, "recast roll", false)
	v.timeout = 50 * time.Millisecond
	for i := range 1000 {
		v.Emit(step.Event{Path: "build", Title: "build images", Status: step.Started})
		v.Print(fmt.Sprintf("line %d", i))
	}
	must.Do(t, v.Close())
}

// A run's log, as telemetry writes it, and the JSON lines of --progress are read alike.
func TestFollow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	lines := NewLines(&out)
	failed := fault.WithHint(errors.New("no\nquorum"), "wait")
	for _, e := range []step.Event{
		{Path: "roll", Title: "roll 2 of 2 nodes", Status: step.Started, Risk: step.Destructive},
		{Path: "roll/workers", Title: "2 workers", Status: step.Started},
		{Path: "roll/workers/wk1", Title: "recreate wk1", Status: step.Started},
		{Path: "roll/workers/wk1/gate", Title: "check", Status: step.Started},
		{Path: "roll/workers/wk1/gate", Status: step.Note, Text: "1 of 3"},
		{Path: "roll/workers/wk1/gate", Title: "check", Status: step.Failed, Err: failed},
		{Path: "roll/workers/wk1", Title: "recreate wk1", Status: step.Failed, Err: failed},
	} {
		lines.Emit(e)
	}
	fmt.Fprintf(lines, "warning: this\nand that\n\n")
	path := filepath.Join(t.TempDir(), "log.jsonl")
	f := &Follower{Path: path}
	b := NewBoard("recast run r1", begun)
	if err := f.Read(b); err != nil {
		t.Errorf("a log that is not there yet: %v", err)
	}
	whole := out.Bytes()
	for _, upTo := range []int{len(whole) / 2, len(whole)} { // cut within a line
		must.Do(t, os.WriteFile(path, whole[:upTo], 0o600))
		must.Do(t, f.Read(b))
	}
	got := strings.Join(b.Final(time.Now(), Look{Width: 100, Height: 10}), "\n")
	want := "2 workers\n  ✗ wk1  recreate  0s      check: no quorum\n0 of 1 node done, 1 failed; "
	must.Hold(t, strings.HasPrefix(got, want), "the board:\n%s", got)

	// Another command resumes the run.
	for _, l := range []string{`{"time":"2026-11-21T05:00:00Z","msg":"command","status":"started"}`, `{"time":"2026-11-21T05:00:01Z","level":"INFO","msg":"step","step":"roll/workers/wk1","status":"started","title":"recreate wk1"}`, "torn {"} {
		b.logged([]byte(l))
	}
	if n := b.nodes[0]; n.state() != isRunning || n.text() != "" || !b.began.Equal(time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)) {
		t.Errorf("begun again: %+v", n)
	}

	var texts []string
	for text := range bytes.Lines(whole) {
		var l story.Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		texts = append(texts, l.Msg+" "+l.Status+" "+l.Text)
	}
	must.Equal(t, "lines", []string{"step started ", "step started ", "step started ", "step started ", "step note 1 of 3", "step failed ", "step failed ", "said  warning: this", "said  and that"}, texts)
}

// When an overlong log was renamed, neither a new reader nor one that was reading loses anything.
func TestFollowRotatedLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, older := filepath.Join(dir, "log.jsonl"), filepath.Join(dir, "log.1.jsonl")
	started := func(step string) string {
		return fmt.Sprintf(`{"time":"2026-11-21T05:00:00Z","msg":"step","step":"roll/workers/%s","status":"started","title":"recreate %[1]s"}`+"\n", step)
	}
	logs := func(text string) {
		t.Helper()
		file := must.Get(os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
		defer file.Close()
		must.Get(file.WriteString(text))(t)
	}
	f, b := &Follower{Path: path, Older: older}, NewBoard("recast run r1", begun)
	holds := func(f *Follower, b *Board, want ...string) {
		t.Helper()
		must.Do(t, f.Read(b))
		got := cluster.Each(b.nodes, func(n *node) string { return n.name })
		must.Equal(t, "nodes", want, got)
	}
	turn := func() {
		t.Helper()
		must.Do(t, os.Rename(path, older))
	}
	logs(started("wk1") + started("wk2")[:30])
	holds(f, b, "wk1")
	logs(started("wk2")[30:])
	turn()
	holds(f, b, "wk1") // the new one does not exist yet
	logs(started("wk3"))
	holds(f, b, "wk1", "wk2", "wk3")
	logs(started("wk4"))
	holds(f, b, "wk1", "wk2", "wk3", "wk4")
	holds(&Follower{Path: path, Older: older}, NewBoard("recast run r1", begun), "wk1", "wk2", "wk3", "wk4")
	turn()
	logs(started("wk5"))
	holds(f, b, "wk1", "wk2", "wk3", "wk4", "wk5")
	must.Hold(t, !f.Written.IsZero(), "the time of the last write is missing")
}

// Lines above the frame survive a resize of the terminal.
func TestResizedWithLinesAbove(t *testing.T) {
	t.Parallel()
	file := must.Get(os.Create(filepath.Join(t.TempDir(), "tty")))(t)
	defer file.Close()
	m := &model{view: NewView(file, "recast roll", false), out: &guard{file: file}}
	m.out.drawn.Store(true)
	m.view.print("warning: this")
	if _, cmd := m.Update(tea.WindowSizeMsg{Width: 80, Height: 24}); cmd == nil {
		t.Error("a line was accepted and not printed")
	}
}

// A real terminal shows one frame, whatever its height was before, the lines above it, and
// finally the lines of the scrollback.
func TestViewOnTerminal(t *testing.T) {
	t.Parallel()
	s := openScreen(t, 60, 14)
	v := NewView(s.tty, "recast roll", true)
	emit := func(path, title string, status step.Status, text string) {
		v.Emit(step.Event{Path: path, Title: title, Status: status, Text: text})
	}
	must.Equal(t, "taken before the first event", false, v.Print("before the first event"))
	emit("roll", "roll 2 of 2 nodes", step.Started, "")
	s.await("recast roll")
	for i := 1; i <= 3; i++ { // the frame grows
		emit("roll/workers", "3 workers", step.Started, "")
		emit(fmt.Sprintf("roll/workers/wk%d", i), fmt.Sprintf("recreate wk%d", i), step.Started, "")
		s.await(fmt.Sprintf("%d in progress", i))
		s.holdsOnce("recast roll")
	}
	v.Print("warning: one\nwarning: two\x1b[2J\u009b2J, which is longer than any screen like this one is wide\n")
	s.await("is wide")
	emit("roll/workers/wk1/run-hooks", "run the hooks", step.Started, "")
	emit("roll/workers/wk1/run-hooks", "", step.Note, "hello \x1b[31mfrom a hook")
	s.await("wk1: hello from a hook")
	s.holdsOnce("recast roll", "warning: one", "warning: two", "3 in progress")
	for i := 1; i <= 3; i++ { // and shrinks, on a smaller screen
		emit(fmt.Sprintf("roll/workers/wk%d", i), fmt.Sprintf("recreate wk%d", i), step.Done, "runs it")
		s.await(fmt.Sprintf("%d of 3", i))
	}
	v.Stopping()
	s.await("Ctrl-C again")
	s.holdsOnce("recast roll", "Ctrl-C again")
	must.Do(t, v.Close())
	s.awaitWithout("recast roll", "Ctrl-C")
	s.await("so far")
	s.holdsOnce("✓ wk1", "✓ wk2", "✓ wk3", "so far")
	must.Equal(t, "taken afterwards", false, v.Print("afterwards"))
}

// emulated is a terminal and its content, as far as a view needs it.
type emulated struct {
	t   *testing.T
	tty *os.File

	mu     sync.Mutex
	screen *emulator.Screen
	raw    bytes.Buffer
}

func openScreen(t *testing.T, columns, rows int) *emulated {
	t.Helper()
	master, tty, err := pty.Open()
	must.Do(t, err)
	s := &emulated{t: t, tty: tty, screen: emulator.New(columns, rows)}
	must.Do(t, pty.Setsize(tty, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}))
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.raw.Write(b[:n])
			_, _ = s.screen.Write(b[:n]) // it never fails
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		reading.Wait()
		must.Hold(t, len(s.screen.Problems) == 0 && s.screen.Widest < columns,
			"a line of %d characters on a screen of %d; %q", s.screen.Widest, columns, s.screen.Problems)
	})
	return s
}

// text is the content of the terminal and its scrollback.
func (s *emulated) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Text()
}

func (s *emulated) await(text string) {
	s.t.Helper()
	for range 600 {
		if strings.Contains(s.text(), text) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	s.t.Fatalf("never showed %q:\n%s\n%q", text, s.text(), s.raw.String())
}

func (s *emulated) awaitWithout(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		for round := 0; strings.Contains(s.text(), text); round++ {
			if round == 600 {
				s.t.Fatalf("%q has stayed:\n%s", text, s.text())
			}
			<-time.After(10 * time.Millisecond)
		}
	}
}

func (s *emulated) holdsOnce(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if n := strings.Count(s.text(), text); n != 1 {
			s.t.Fatalf("holds %q %d times:\n%s\n%q", text, n, s.text(), s.raw.String())
		}
	}
}

const (
	screenshot = "../../docs/images/live.svg"
	recorded   = "testdata/lab-roll.jsonl" // log of a roll in recast lab up
	recordedBy = "testdata/lab-plan.json"  // its plan
)

// TestScreenshot compares the picture in docs with what the live view draws of a recorded
// roll; to update it: go test ./internal/live -run Screenshot -update.
func TestScreenshot(t *testing.T) {
	t.Parallel()
	b, now := replay(t, "cp2", "stage rebooting")
	look := Look{Width: 96, Height: 24, Colour: true}
	got := svg(b.Frame(now, look), look.Width)
	if *update {
		must.Do(t, os.WriteFile(screenshot, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(screenshot))(t)
	must.Equal(t, screenshot+" is not current", string(want), got)
}

// replay is the board of the recorded roll, just after a given note of a node.
func replay(t *testing.T, node, seen string) (*Board, time.Time) {
	t.Helper()
	log := must.Get(os.ReadFile(recorded))(t)
	text := must.Get(os.ReadFile(recordedBy))(t)
	var plan planning.Plan
	must.Do(t, json.Unmarshal(text, &plan))
	b := NewBoard("recast roll", time.Time{})
	for text := range bytes.Lines(log) {
		var l story.Line
		must.Do(t, json.Unmarshal(text, &l))
		if b.began.IsZero() && l.Step == "roll" {
			b.Plan(l.Time, plan)
			b.CanStop()
		}
		b.logged(text)
		if l.Node == node && strings.Contains(l.Text, seen) {
			return b, l.Time.Add(2 * time.Second)
		}
	}
	t.Fatalf("%s: %s is never seen at %q", recorded, node, seen)
	return nil, time.Time{}
}

// The picture's terminal.
const (
	cellWidth, lineHeight, margin = 8.4, 19, 16
)

var (
	inks  = map[string]string{red: "#ff6b6b", green: "#69db7c", yellow: "#ffd43b", dim: "#868e96"}
	spans = regexp.MustCompile("\x1b\\[([0-9]*)m")
)

// svg is a frame as a picture, with its colours.
func svg(lines []string, columns int) string {
	var out strings.Builder
	width, height := float64(columns)*cellWidth+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" rx="8" fill="#1c1e22"/>`+"\n")
	for i, text := range lines {
		column := 0
		ink, weight := "#dee2e6", "normal"
		for text != "" {
			at := spans.FindStringSubmatchIndex(text)
			part := text
			if at != nil {
				part = text[:at[0]]
			}
			if n := len([]rune(part)); strings.TrimSpace(part) != "" {
				fmt.Fprintf(&out, `<text x="%.1f" y="%d" fill="%s" font-weight="%s" textLength="%.1f" xml:space="preserve">%s</text>`+"\n",
					margin+float64(column)*cellWidth, margin+(i+1)*lineHeight-5, ink, weight, float64(n)*cellWidth, html.EscapeString(part))
			}
			column += len([]rune(part))
			if at == nil {
				break
			}
			switch code := text[at[2]:at[3]]; code {
			case bold:
				weight = "bold"
			case "0":
				ink, weight = "#dee2e6", "normal"
			default:
				ink = inks[code]
			}
			text = text[at[1]:]
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}

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

func (b testBoard) titleOf(path string) string { return b.titles[path] }

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
				must.Hold(t, len(lines) <= look.Height, "%d lines on a screen of %d", len(lines), look.Height)
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
				must.Be(t, len(lines) <= max(0, height), "%s: %d lines on a screen of %d x %d", name, len(lines), width, height)
				for _, l := range lines {
					n := len([]rune(l))
					must.Be(t, n <= width, "%s: a line of %d on a screen of %d x %d: %q", name, n, width, height, l)
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
	each := allocated() / uint64(b.N)
	must.Hold(b, each <= maxFrameAllocations, "%d allocations for a drawing, more than %d", each, maxFrameAllocations)
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
			got := cluster.Each(now.Nodes, said)
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
