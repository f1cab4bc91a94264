// Package hook runs the commands that a recast.yaml has for the points of a run: [Call] runs
// those of one point, one after the other, and says how each fared.
package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Call runs the hooks of one point.
type Call struct {
	Commands cluster.CommandRunner
	Point    cluster.HookPoint
	Batch    planning.Phase
	Node     string
	Env      []string
	Say      func(text string)             // receives what they print
	Keep     func(hr HookRun, i int) error // if set, receives the result of the i-th hook when it has ended
}

// Run runs the hooks one after the other, and stops at the first that fails.
func (c Call) Run(ctx context.Context, hooks []cluster.Hook) error {
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

func (c Call) one(ctx context.Context, h cluster.Hook, env []string) (HookRun, error) {
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

// Step returns the step that runs the hooks of one point; nil if there are none.
func (c Call) Step(id, title string, hooks []cluster.Hook, failed func(context.Context, error) error) []step.Step {
	if len(hooks) == 0 {
		return nil
	}
	if len(hooks) == 1 {
		title += ": " + hooks[0].String()
	}
	return []step.Step{{ID: id, Title: title, Alone: true, Do: func(ctx context.Context) error { return failed(ctx, c.Run(ctx, hooks)) }}}
}

// BeforeRunFailed is the error of a hook before the run.
func BeforeRunFailed(ctx context.Context, err error) error {
	return FailedBefore(ctx, err, "no node was touched; once the hook ends with 0, run the same command again: the hooks before the run run again")
}

// Points lists the points in the order in which a run reaches them.
func Points() []cluster.HookPoint {
	return []cluster.HookPoint{cluster.BeforeRun, cluster.BeforeBatch, cluster.BeforeNode, cluster.AfterNode, cluster.AfterBatch, cluster.AfterRun}
}

// HookRun is how one hook fared.
type HookRun struct {
	Point       cluster.HookPoint `json:"point"`
	Batch       planning.Phase    `json:"batch,omitempty"`
	Node        string            `json:"node,omitempty"`
	Description string            `json:"description,omitempty"`
	Command     []string          `json:"command"`
	Started     time.Time         `json:"started"`
	Seconds     float64           `json:"seconds"`
	Exit        *int              `json:"exit,omitempty"`   // nil: it could not be run, or not to its end
	Error       string            `json:"error,omitempty"`  // "": it ended with 0
	Output      string            `json:"output,omitempty"` // the end of what it printed
}

// FailedAfter turns the error of a hook after finished work into a failure, whatever its kind.
func FailedAfter(err error, format string, args ...any) error {
	if err == nil || fault.KindOf(err) == fault.Interrupted {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), format, args...)
}

// FailedBefore turns the error of a hook before anything was touched into a refusal.
func FailedBefore(ctx context.Context, err error, format string, args ...any) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Config {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Refused, err)), format, args...)
}

// IsKey says whether a key of a run's journal is for a HookRun.
func IsKey(key string) bool {
	return strings.HasPrefix(key, "hooks/") || strings.Contains(key, "/hooks/")
}
