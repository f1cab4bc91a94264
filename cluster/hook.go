package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// Hook is a program of the user's own that runs at a point of a run. It has to
// end with 0 within its timeout.
type Hook struct {
	Description    string      `json:"description,omitempty"`
	TimeoutSeconds int         `json:"timeoutSeconds"`
	Command        CommandGate `json:"command"`
}

// Hooks are those of a run, by point, each list in the order in which it runs.
type Hooks struct {
	BeforeRun   []Hook `json:"beforeRun,omitempty"`
	AfterRun    []Hook `json:"afterRun,omitempty"`
	BeforeBatch []Hook `json:"beforeBatch,omitempty"`
	AfterBatch  []Hook `json:"afterBatch,omitempty"`
	BeforeNode  []Hook `json:"beforeNode,omitempty"`
	AfterNode   []Hook `json:"afterNode,omitempty"`
}

// HookPoint is when hooks run.
type HookPoint string

// The points of a run. A batch is a phase of its plan.
const (
	BeforeRun   HookPoint = "beforeRun"
	AfterRun    HookPoint = "afterRun"
	BeforeBatch HookPoint = "beforeBatch"
	AfterBatch  HookPoint = "afterBatch"
	BeforeNode  HookPoint = "beforeNode"
	AfterNode   HookPoint = "afterNode"
)

// HookRun is how one hook fared.
type HookRun struct {
	Point       HookPoint `json:"point"`
	Batch       Phase     `json:"batch,omitempty"`
	Node        string    `json:"node,omitempty"`
	Description string    `json:"description,omitempty"`
	Command     []string  `json:"command"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
	Exit        *int      `json:"exit,omitempty"`   // nil: it could not be run, or not to its end
	Error       string    `json:"error,omitempty"`  // "": it ended with 0
	Output      string    `json:"output,omitempty"` // the end of what it printed
}

// HookEnd is how the program of a hook ended.
type HookEnd struct {
	Exit   int
	Said   string // what it printed last, on one line
	Output string // the end of what it printed, HookOutput bytes at most
}

// HookOutput is how much of what a hook prints is kept.
const HookOutput = 64 << 10

// String names the hook: by its description, else by what it runs.
func (h Hook) String() string { return cmp.Or(h.Description, h.About()) }

// About is what the hook runs.
func (h Hook) About() string { return h.Command.line() }

// Timeout is how long it may run.
func (h Hook) Timeout() time.Duration { return time.Duration(h.TimeoutSeconds) * time.Second }

// At lists the hooks of one point.
func (h Hooks) At(p HookPoint) []Hook {
	return map[HookPoint][]Hook{
		BeforeRun: h.BeforeRun, AfterRun: h.AfterRun, BeforeBatch: h.BeforeBatch, AfterBatch: h.AfterBatch,
		BeforeNode: h.BeforeNode, AfterNode: h.AfterNode,
	}[p]
}

// HookPoints lists the points in the order in which a run comes to them.
func HookPoints() []HookPoint {
	return []HookPoint{BeforeRun, BeforeBatch, BeforeNode, AfterNode, AfterBatch, AfterRun}
}

// HookCall runs the hooks of one point.
type HookCall struct {
	Commands CommandRunner
	Point    HookPoint
	Batch    Phase
	Node     string
	Env      []string
	Say      func(text string)             // is told what they print
	Keep     func(hr HookRun, i int) error // of the i-th hook, once it has ended; nil: nobody does
}

// Run runs one after the other; the first that fails is the last.
func (c HookCall) Run(ctx context.Context, hooks []Hook) error {
	env := append([]string{"RECAST_HOOK=" + string(c.Point)}, c.Env...)
	for i, h := range hooks {
		run, err := c.one(ctx, h, env)
		if c.Keep != nil {
			err = errors.Join(err, c.Keep(run, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c HookCall) one(ctx context.Context, h Hook, env []string) (HookRun, error) {
	run := HookRun{Point: c.Point, Batch: c.Batch, Node: c.Node, Description: h.Description, Command: h.Command.Args, Started: time.Now()}
	c.Say(fmt.Sprintf("hook %q: running %s", h.String(), h.Command.Args[0]))
	within, cancel := context.WithTimeoutCause(ctx, h.Timeout(), fmt.Errorf("its timeout of %s is over", h.Timeout()))
	defer cancel()
	end, err := c.Commands.RunHook(within, h.Command, env, c.Say)
	run.Seconds, run.Output = time.Since(run.Started).Seconds(), end.Output
	switch {
	case err == nil && end.Exit != 0:
		run.Exit = &end.Exit
		err = fmt.Errorf("%s ended with %d", h.Command.Args[0], end.Exit)
		if end.Said != "" {
			err = fmt.Errorf("%w: %s", err, end.Said)
		}
	case err == nil:
		run.Exit = &end.Exit
		return run, nil
	}
	run.Error = err.Error()
	return run, fmt.Errorf("hook %q: %w", h.String(), err)
}

// beforeHook makes the failure of a hook before anything was touched a refusal.
func beforeHook(ctx context.Context, err error, format string, args ...any) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Config {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Refused, err)), format, args...)
}

// afterHook makes the failure of a hook behind what is done a failure, whatever it was.
func afterHook(err error, format string, args ...any) error {
	if err == nil || fault.KindOf(err) == fault.Interrupted {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), format, args...)
}

// BeforeRunFailed is the error of a hook before the run.
func BeforeRunFailed(ctx context.Context, err error) error {
	return beforeHook(ctx, err, "no node was touched; once the hook ends with 0, run the same command again: the hooks before the run run again")
}
