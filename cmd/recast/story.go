package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
)

// How the steps of a command are told.
const (
	progressAuto  = "auto" // live on a terminal, else plain
	progressLive  = "live"
	progressPlain = "plain"
	progressJSON  = "json"
)

// tells notes which command is carried out, and how its steps are to be told.
func (s *streams) tells(command, progress string) error {
	switch progress {
	case progressAuto, progressLive, progressPlain, progressJSON:
	default:
		return errUsage{fmt.Errorf("--progress %q: it is auto, live, plain or json", progress)}
	}
	s.command, s.progress = command, progress
	if progress == progressJSON {
		s.lines = live.NewLines(s.err.Writer)
		s.err.to(func(p []byte) bool {
			_, _ = s.lines.Write(p) // it never fails
			return true
		})
	}
	return nil
}

// console is stderr. While something is drawn on it, or it is JSON, text that is
// written to it goes through there.
type console struct {
	io.Writer

	mu   sync.Mutex
	take func([]byte) bool // false: it is written as it is; nil: all is
}

func (c *console) to(take func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take = take
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	take := c.take
	c.mu.Unlock()
	if take != nil && take(p) {
		return len(p), nil
	}
	return c.Writer.Write(p)
}

// Fd is that of the file that stderr is; no file's if it is none.
func (c *console) Fd() uintptr {
	if f, ok := c.Writer.(*os.File); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// telling tells what the steps of a command do, and remembers how each node fared.
type telling struct {
	*ui.Progress
	view  *live.View       // nil: nothing is drawn
	lines func(step.Event) // nil: none are written
	over  func()
}

// story begins to tell of a command's steps. The caller ends it.
func (s *streams) story(ctx context.Context) *telling {
	if s.lines != nil {
		return &telling{Progress: ui.NewProgress(io.Discard), lines: s.lines.Emit, over: func() {}}
	}
	file, ok := s.err.Writer.(*os.File)
	if !ok || !s.draws(file) {
		return &telling{Progress: ui.NewProgress(s.err), over: func() {}}
	}
	view := live.NewView(file, s.command, os.Getenv("NO_COLOR") == "")
	s.err.to(func(p []byte) bool { return view.Print(string(p)) })
	cancelled := context.AfterFunc(ctx, view.Broken)
	return &telling{Progress: ui.NewProgress(io.Discard), view: view, over: func() {
		cancelled()
		view.Close()
		s.err.to(nil)
	}}
}

// draws says whether a live view is wanted and possible. A log of CI is read later,
// even where it is a terminal.
func (s *streams) draws(file *os.File) bool {
	switch s.progress {
	case progressLive:
		return ui.IsTerminal(file)
	case progressAuto:
		return ui.IsTerminal(file) && os.Getenv("CI") == "" && live.Able(file, os.Getenv("TERM"))
	}
	return false
}

// Emit takes one event in.
func (t *telling) Emit(e step.Event) {
	t.Progress.Emit(e)
	if t.lines != nil {
		t.lines(e)
	}
	if t.view != nil {
		t.view.Emit(e)
	}
}

// hold gives the terminal back while something is asked; the returned func goes on.
func (t *telling) hold() (goOn func()) {
	if t.view == nil {
		return func() {}
	}
	t.view.Pause()
	return t.view.Resume
}

// plan says what is about to be done.
func (t *telling) plan(p cluster.Plan) {
	if t.view != nil {
		t.view.Plan(p)
	}
}

// stops is what the first Ctrl-C does to a run.
func (t *telling) stops(run *step.Runner) func() {
	if t.view == nil {
		return run.Stop
	}
	t.view.CanStop()
	return func() {
		run.Stop()
		t.view.Stopping()
	}
}

// end leaves the final state, and gives the terminal back.
func (t *telling) end() { t.over() }
