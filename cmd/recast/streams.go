package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/pump"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// streams are where a command reads and writes: out is the answer, err the progress.
type streams struct {
	in  io.Reader
	out io.Writer
	err *console

	interrupts *interrupts
	command    string               // the running command: "recast roll"
	progress   string               // value of --progress
	lines      *live.Lines          // nil: not --progress json
	telemetry  *telemetry.Telemetry // nil: not started yet
}

// interrupts sends the first Ctrl-C to the running roll, and the second to the context.
type interrupts struct {
	mu   sync.Mutex
	stop func() // stops the running roll; nil: the first Ctrl-C cancels
	what string // what is done before it stops
}

// onFirst makes the first Ctrl-C call stop instead of cancelling; what tells the user what recast still finishes. The
// returned func undoes onFirst.
func (i *interrupts) onFirst(stop func(), what string) (undo func() error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stop, i.what = stop, what
	return func() error {
		i.forget()
		return nil
	}
}

// forget makes the first Ctrl-C cancel again. It says whether Ctrl-C was pressed before.
func (i *interrupts) forget() (pressed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pressed = i.pressed()
	i.stop, i.what = nil, ""
	return pressed
}

// pressed says whether Ctrl-C was pressed once. The caller holds the lock.
func (i *interrupts) pressed() bool { return i.stop == nil && i.what != "" }

func (i *interrupts) first() (what string, stopped bool) {
	i.mu.Lock()
	stop, what := i.stop, i.what
	i.stop = nil
	i.mu.Unlock()
	if stop == nil {
		return "", false
	}
	stop()
	return what, true
}

// hangUp treats the loss of the terminal as the first Ctrl-C, never as the second: the
// user did not ask to stop at once. It returns false if there is no roll to stop.
func (i *interrupts) hangUp() bool {
	i.mu.Lock()
	stop, stopped := i.stop, i.pressed()
	i.stop = nil
	i.mu.Unlock()
	if stop != nil {
		stop()
	}
	return stop != nil || stopped
}

// interruptible turns SIGINT and SIGTERM into a stop, then a cancel, and SIGHUP into
// a stop, or a cancel if there is nothing to finish.
func interruptible(parent context.Context, s *streams) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case got := <-signals:
				if got == syscall.SIGHUP && s.interrupts.hangUp() {
					continue
				}
			}
			if what, stopped := s.interrupts.first(); stopped {
				fmt.Fprintf(s.err, "stopping: %s; press Ctrl-C again to stop at once (run the same command again to continue)\n", what)
				continue
			}
			cancel()
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
		cancel()
	}
}

// Values of --progress: how the steps of a command are shown.
const (
	progressAuto  = "auto" // live on a terminal, else plain
	progressLive  = "live"
	progressPlain = "plain"
	progressJSON  = "json"
)

func (s *streams) setProgress(command, progress string) error {
	switch progress {
	case progressAuto, progressLive, progressPlain, progressJSON:
	default:
		return errUsage{fmt.Errorf("--progress %q: use auto, live, plain or json", progress)}
	}
	s.command, s.progress = command, progress
	if progress == progressJSON {
		s.lines = live.NewLines(unchanged{s.err, s.err.put})
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

// runner runs a command's steps and shows them. The caller ends the display.
func (s *streams) runner(ctx context.Context) (*stepDisplay, *step.Runner) {
	display := s.displaySteps(ctx)
	run := &step.Runner{Emit: display.Emit}
	s.telemetry.Watch(run)
	return display, run
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

// draws says whether a live view is wanted and possible. In CI the output is read later, even if it is a terminal.
func (s *streams) draws(file *os.File) bool {
	switch s.progress {
	case progressLive:
		return ui.IsTerminal(file)
	case progressAuto:
		return ui.IsTerminal(file) && os.Getenv("CI") == "" && live.Able(file, os.Getenv("TERM"))
	}
	return false
}

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

// answered filters the error of writing a result: a reader that went away does not make a finished command fail.
func answered(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// console is stderr. While a live view or JSON output is active, text written to the console is passed to the view or
// the output; while steps are reported, a slow reader does not block writers.
type console struct {
	io.Writer

	mu   sync.Mutex
	take func([]byte) bool // false: write the text unchanged; nil: write everything unchanged
	pump *pump.Pump        // nil: writers wait for the reader
}

func (c *console) to(take func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take = take
}

// Write implements io.Writer. It removes escape sequences.
func (c *console) Write(p []byte) (int, error) {
	if _, err := c.write([]byte(foreign.Lines(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Clean is the console for text that is safe already; it may have colours.
func (c *console) Clean() io.Writer { return unchanged{c, c.write} }

// unchanged is the console, with its Fd, for text to be written unchanged.
type unchanged struct {
	*console
	to func([]byte) (int, error)
}

func (u unchanged) Write(p []byte) (int, error) { return u.to(p) }

func (c *console) write(text []byte) (int, error) {
	c.mu.Lock()
	take := c.take
	c.mu.Unlock()
	if take != nil && take(text) {
		return len(text), nil
	}
	return c.put(text)
}

func (c *console) put(p []byte) (int, error) {
	c.mu.Lock()
	if c.pump != nil {
		defer c.mu.Unlock()
		return c.pump.Write(p)
	}
	c.mu.Unlock()
	return c.Writer.Write(p)
}

// buffer makes writes return at once, from now on.
func (c *console) buffer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump == nil {
		c.pump = pump.New(c.Writer, func(writes int64) {
			fmt.Fprintf(c, "warning: %d lines are missing here: nobody read them in time\n", writes)
		})
	}
}

// flush waits until everything is written, as long as someone reads.
func (c *console) flush() {
	if p := c.pumped(); p != nil {
		p.Flush()
	}
}

func (c *console) pumped() *pump.Pump {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pump
}

// unbuffer makes writes wait for the reader again, unless nobody reads.
func (c *console) unbuffer() {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump != nil && c.pump.Empty() {
		c.pump.Stop()
		c.pump = nil
	}
}

// Fd is the file descriptor of stderr; an invalid one if stderr is not a file.
func (c *console) Fd() uintptr {
	if f, ok := c.Writer.(*os.File); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

type question struct {
	command   string // "recast roll"
	text      string // "Change these nodes?"
	untouched string // printed if there is no terminal: "nothing was changed on the nodes"
}

// unasked says why nobody can be asked; "": somebody can be asked. A pipe counts as readable: its reader may show the
// question to a person.
func (s *streams) unasked() string {
	if !ui.IsTerminal(s.in) {
		return "needs to be confirmed, and there is no terminal to ask on"
	}
	file, ok := s.err.Writer.(*os.File)
	if !ok || ui.IsTerminal(file) {
		return ""
	}
	if info, err := file.Stat(); err == nil && (info.Mode().IsRegular() || info.Mode()&os.ModeCharDevice != 0) {
		return "needs to be confirmed, and standard error is a file, where nobody would see the question"
	}
	return ""
}

// mayAsk refuses a question that nobody would see.
func (s *streams) mayAsk(q question) error {
	why := s.unasked()
	if why == "" {
		return nil
	}
	return fault.WithHint(fault.NotConfirmed.Configf("%s %s; %s", q.command, why, q.untouched), "%s --yes", q.command)
}

// mayAskUnless returns a function that fails if somebody has to be asked and nobody can be. more is as in typed.
func (s *streams) mayAskUnless(yes bool, c *cobra.Command, more ...string) func() error {
	return func() error {
		if yes {
			return nil
		}
		return s.mayAsk(question{command: typed(c, more...), untouched: "nothing was changed"})
	}
}

// typed returns the command as it was typed, so that typing it again does no more than was asked. more are arguments
// or flags that the command has set by itself.
func typed(c *cobra.Command, more ...string) string {
	out := []string{c.CommandPath()}
	for _, arg := range append(c.Flags().Args(), more...) {
		out = append(out, words.Quote(arg))
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, is := f.Value.(pflag.SliceValue); is {
			value = strings.Join(list.GetSlice(), ",")
		}
		switch {
		case f.Name == "yes" || slices.Contains(more, "--"+f.Name):
		case f.Value.Type() == "bool" && value == "true":
			out = append(out, "--"+f.Name)
		case f.Value.Type() == "bool", value == "", strings.HasPrefix(value, "-"):
			out = append(out, "--"+f.Name+"="+words.Quote(value))
		default:
			out = append(out, "--"+f.Name, words.Quote(value))
		}
	})
	return strings.Join(out, " ")
}

// confirm asks on a terminal, and refuses to guess without one.
func confirm(ctx context.Context, s *streams, q question, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	if err := s.mayAsk(q); err != nil {
		return false, err
	}
	if file, ok := s.in.(*os.File); ok { // drop what was typed before the question
		_ = dropInput(int(file.Fd())) // fails if it is not a terminal
	}
	fmt.Fprintf(s.err, "%s Only \"yes\" continues: ", q.text)
	s.err.flush()
	answer, err := readLine(ctx, bufio.NewReader(s.in))
	if errors.Is(err, errNoAnswer) {
		fmt.Fprintln(s.err) // the question has no end of line yet
	}
	return err == nil && answer == "yes", nil // end of input is a no
}

// readLine reads a line, which may lack its end. It returns errNoAnswer when ctx ends.
func readLine(ctx context.Context, from *bufio.Reader) (string, error) {
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // ends with the line, or with the process
		text, err := from.ReadString('\n')
		answers <- answer{text, err}
	}()
	select {
	case got := <-answers:
		if errors.Is(got.err, io.EOF) && got.text != "" {
			got.err = nil
		}
		return strings.TrimSpace(got.text), got.err
	case <-ctx.Done():
		return "", errNoAnswer
	}
}

type asker struct {
	s        *streams
	yes      bool // take safe defaults and do not ask
	terminal bool // a person can be asked
	lines    *bufio.Reader
}

// errNoAnswer: the input ended, or Ctrl-C was pressed.
var errNoAnswer = fault.As(fault.Interrupted, errors.New("no answer; nothing was written"))

func newAsker(s *streams, yes bool) *asker {
	return &asker{s: s, yes: yes, terminal: s.unasked() == "", lines: bufio.NewReader(s.in)}
}

func (a *asker) ask(ctx context.Context, q setup.Question) (string, error) {
	switch {
	case a.yes && q.Default != "":
		a.s.say(q.Text + " " + q.Default + " (" + q.Flag + ")")
		return q.Default, nil
	case a.yes:
		return "", fault.WithHint(fault.Configf("%s There is no safe default", q.Text), "%s gives it", q.Flag)
	case !a.terminal:
		hint := q.Flag + " gives it"
		if q.Default != "" {
			hint += "; --yes takes " + q.Default
		}
		return "", fault.WithHint(fault.Configf("%s There is no terminal to ask on", q.Text), "%s", hint)
	}
	for {
		fmt.Fprintf(a.s.err, "%s ", q.Text)
		if q.Default != "" {
			fmt.Fprintf(a.s.err, "[%s] ", q.Default)
		}
		answer, err := readLine(ctx, a.lines)
		if err != nil { // also at the end of input
			fmt.Fprintln(a.s.err) // the question has no end of line yet
			return "", errNoAnswer
		}
		answer = cmp.Or(answer, q.Default)
		if wrong := invalid(q, answer); wrong != "" {
			fmt.Fprintln(a.s.err, wrong)
			continue
		}
		return answer, nil
	}
}

// invalid says what is wrong with an answer; "" if nothing is.
func invalid(q setup.Question, answer string) string {
	switch {
	case answer == "":
		return "an answer is needed; Ctrl-C quits and changes nothing"
	case q.Choices != nil && !slices.Contains(q.Choices, answer):
		return fmt.Sprintf("%q is not one of %s", answer, strings.Join(q.Choices, ", "))
	case q.Check != nil:
		if err := q.Check(answer); err != nil {
			return err.Error()
		}
	}
	return ""
}
