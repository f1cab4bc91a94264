package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

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
		s.lines = live.NewLines(beneath{s.err})
		s.err.to(func(p []byte) bool {
			_, _ = s.lines.Write(p) // it never fails
			return true
		})
	}
	return nil
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
	// Whoever reads may go away, and that must not end what is half way: a write fails
	// then. Programs of the user's would inherit it if the signal were ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if s.lines != nil {
		s.err.flows()
		return &telling{Progress: ui.NewProgress(io.Discard), lines: s.lines.Emit, over: s.err.rests}
	}
	file, ok := s.err.Writer.(*os.File)
	if !ok || !s.draws(file) {
		s.err.flows()
		return &telling{Progress: ui.NewProgress(s.err), over: s.err.rests}
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

// answered is what writing the answer of steps came to. That nobody reads it any
// more does not undo them.
func answered(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
