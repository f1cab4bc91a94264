package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
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
		file, err := os.Create(filepath.Join(t.TempDir(), "tty"))
		if err != nil {
			t.Fatal(err)
		}
		g := &guard{file: file}
		if n, err := g.Write([]byte(sent)); n != len(sent) || err != nil {
			t.Errorf("%q: %d, %v", sent, n, err)
		}
		if n, err := io.WriteString(g, sent); n != len(sent) || err != nil { // the other way to write
			t.Errorf("%q: %d, %v", sent, n, err)
		}
		got, err := os.ReadFile(file.Name())
		if err != nil || string(got) != want+want {
			t.Errorf("%q became %q, want %q twice (%v)", sent, got, want, err)
		}
		file.Close()
		if n, err := g.Write([]byte("gone")); n != 4 || err != nil || !g.dead.Load() {
			t.Errorf("a terminal that is gone: %d, %v", n, err)
		}
	}
}

// A blocked terminal, for example after Ctrl-S, delays no step, and the end only for
// stallTimeout.
func TestBlockedTerminal(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe() // its buffer is soon full, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	// write stays open: a view that has given up may still use it.
	fill := bytes.Repeat([]byte("."), 4096)
	if err := write.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = write.Write(fill)
	}
	if err := write.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	v := NewView(write, "recast roll", false)
	v.timeout = 50 * time.Millisecond
	for i := range 1000 {
		v.Emit(step.Event{Path: "build", Title: "build images", Status: step.Started})
		v.Print(fmt.Sprintf("line %d", i))
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
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
		if err := os.WriteFile(path, whole[:upTo], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Read(b); err != nil {
			t.Error(err)
		}
	}
	got := strings.Join(b.Final(time.Now(), Look{Width: 100, Height: 10}), "\n")
	want := "2 workers\n  ✗ wk1  recreate  0s      check: no quorum\n0 of 1 node done, 1 failed; "
	if !strings.HasPrefix(got, want) {
		t.Errorf("the board:\n%s", got)
	}

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
	if diff := cmp.Diff([]string{"step started ", "step started ", "step started ", "step started ", "step note 1 of 3", "step failed ", "step failed ", "said  warning: this", "said  and that"}, texts); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// When an overlong log was renamed, neither a new reader nor one that was reading loses
// anything.
func TestFollowRotatedLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, older := filepath.Join(dir, "log.jsonl"), filepath.Join(dir, "log.1.jsonl")
	started := func(step string) string {
		return fmt.Sprintf(`{"time":"2026-11-21T05:00:00Z","msg":"step","step":"roll/workers/%s","status":"started","title":"recreate %[1]s"}`+"\n", step)
	}
	logs := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	f, b := &Follower{Path: path, Older: older}, NewBoard("recast run r1", begun)
	holds := func(f *Follower, b *Board, want ...string) {
		t.Helper()
		if err := f.Read(b); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range b.nodes {
			got = append(got, n.name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("nodes (-want +got):\n%s", diff)
		}
	}
	turn := func() {
		t.Helper()
		if err := os.Rename(path, older); err != nil {
			t.Fatal(err)
		}
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
	if f.Written.IsZero() {
		t.Error("the time of the last write is missing")
	}
}

// Lines above the frame survive a resize of the terminal.
func TestResizedWithLinesAbove(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "tty"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m := &model{view: NewView(file, "recast roll", false), out: &guard{file: file}}
	m.out.drawn.Store(true)
	m.view.print("warning: this")
	if _, cmd := m.Update(tea.WindowSizeMsg{Width: 80, Height: 24}); cmd == nil {
		t.Error("a line was accepted and not printed")
	}
}
