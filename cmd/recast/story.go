package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
)

// Values of --progress: how the steps of a command are shown.
const (
	progressAuto  = "auto" // live on a terminal, else plain
	progressLive  = "live"
	progressPlain = "plain"
	progressJSON  = "json"
)

// setProgress stores the command that runs, and how its steps are shown.
func (s *streams) setProgress(command, progress string) error {
	switch progress {
	case progressAuto, progressLive, progressPlain, progressJSON:
	default:
		return errUsage{fmt.Errorf("--progress %q: use auto, live, plain or json", progress)}
	}
	s.command, s.progress = command, progress
	if progress == progressJSON {
		s.lines = live.NewLines(s.err.beneath())
		s.err.to(func(p []byte) bool {
			_, _ = s.lines.Write(p) // never fails
			return true
		})
	}
	return nil
}

// stepDisplay shows the steps of a command, and records how long each node took.
type stepDisplay struct {
	*ui.Progress
	view  *live.View       // nil: no live view
	lines func(step.Event) // nil: no JSON lines
	over  func()
}

// displaySteps starts to show a command's steps. The caller calls end.
func (s *streams) displaySteps(ctx context.Context) *stepDisplay {
	// A reader that goes away must not kill recast half way: with a handler, the write
	// fails instead. Ignoring the signal would pass that on to the user's programs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if s.lines != nil {
		s.err.buffer()
		return &stepDisplay{Progress: ui.NewProgress(io.Discard), lines: s.lines.Emit, over: s.err.unbuffer}
	}
	file, ok := s.err.Writer.(*os.File)
	if !ok || !s.draws(file) {
		s.err.buffer()
		return &stepDisplay{Progress: ui.NewProgress(s.err), over: s.err.unbuffer}
	}
	view := live.NewView(file, s.command, os.Getenv("NO_COLOR") == "")
	s.err.to(func(p []byte) bool { return view.Print(string(p)) })
	cancelled := context.AfterFunc(ctx, view.Broken)
	return &stepDisplay{Progress: ui.NewProgress(io.Discard), view: view, over: func() {
		cancelled()
		view.Close()
		s.err.to(nil)
	}}
}

// draws says whether a live view is wanted and possible. In CI the output is read
// later, even if it is a terminal.
func (s *streams) draws(file *os.File) bool {
	switch s.progress {
	case progressLive:
		return ui.IsTerminal(file)
	case progressAuto:
		return ui.IsTerminal(file) && os.Getenv("CI") == "" && live.Able(file, os.Getenv("TERM"))
	}
	return false
}

// Emit shows one event.
func (t *stepDisplay) Emit(e step.Event) {
	t.Progress.Emit(e)
	if t.lines != nil {
		t.lines(e)
	}
	if t.view != nil {
		t.view.Emit(e)
	}
}

// hold pauses the display while a question is asked; the returned func resumes it.
func (t *stepDisplay) hold() (goOn func()) {
	if t.view == nil {
		return func() {}
	}
	t.view.Pause()
	return t.view.Resume
}

// plan sets the plan that the display shows.
func (t *stepDisplay) plan(p planning.Plan) {
	if t.view != nil {
		t.view.Plan(p)
	}
}

// stops returns what the first Ctrl-C does to a run.
func (t *stepDisplay) stops(run *step.Runner) func() {
	if t.view == nil {
		return run.Stop
	}
	t.view.CanStop()
	return func() {
		run.Stop()
		t.view.Stopping()
	}
}

// end draws the final state and releases the terminal.
func (t *stepDisplay) end() { t.over() }

// answered filters the error of writing a result: a reader that went away does not make
// a finished command fail.
func answered(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
