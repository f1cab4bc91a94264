// Package hook runs the commands that a recast.yaml has for the points of a run: [Call] runs
// those of one point, one after the other, and says how each fared.
package hook

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// Run is a run that calls hooks.
type Run struct {
	Commands cluster.CommandRunner
	Cluster  string
	ID       string                        // of the run
	Say      func(path, text string)       // receives what a hook prints
	Put      func(key string, v any) error // keeps the result of a hook in the journal
	Hooked   func(HookRun)                 // if set, receives it, too
}

// Call returns the call of the hooks of one point. path is that of its step, and key that of the
// results in the journal.
func (r Run) Call(p cluster.HookPoint, batch planning.Phase, node string, env []string, path, key string) Call {
	env = append([]string{"RECAST_CLUSTER=" + r.Cluster, "RECAST_RUN=" + r.ID, "RECAST_BATCH=" + string(batch)}, env...)
	if p == cluster.AfterNode || p == cluster.AfterBatch { // they run only if it is done
		env = append(env, "RECAST_OUTCOME=done")
	}
	return Call{
		Commands: r.Commands, Point: p, Batch: batch, Node: node, Env: env, Say: func(text string) { r.Say(path, text) },
		Keep: func(run HookRun, i int) error {
			if r.Hooked != nil {
				r.Hooked(run)
			}
			if err := r.Put(key+"/"+strconv.Itoa(i+1), run); err != nil {
				return fmt.Errorf("journal: %w", err)
			}
			return nil
		},
	}
}

// The IDs of the steps that run the hooks of a batch. They are siblings of its nodes, and have an
// underscore, which a node name can't have.
const (
	beforeBatch = "hooks_before"
	afterBatch  = "hooks_after"
)

// AroundBatch puts the hooks of a batch before and after its nodes.
func (r Run) AroundBatch(hooks cluster.Hooks, b planning.Batch, steps []step.Step) []step.Step {
	phase := b.Phase
	call := func(point cluster.HookPoint, id string) Call {
		return r.Call(point, phase, "", []string{"RECAST_NODES=" + strings.Join(b.Nodes, " ")}, "roll/"+string(phase)+"/"+id, "hooks/"+strings.ToLower(string(point))+"/"+string(phase))
	}
	before := call(cluster.BeforeBatch, beforeBatch).Step(beforeBatch, "run the hooks before this batch", hooks.BeforeBatch,
		func(ctx context.Context, err error) error {
			return FailedBefore(ctx, err, "no node of this batch was touched; once the hook ends with 0, run the same command again: the hooks before the batch run again")
		})
	after := call(cluster.AfterBatch, afterBatch).Step(afterBatch, "run the hooks behind this batch", hooks.AfterBatch,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("the nodes of this batch are done, but no other batch is to follow: %w", err)
			}
			return FailedAfter(err, "recast roll continues with the next batch, and does not run the hooks after this one again: do by hand what they had to do")
		})
	for i := range after {
		after[i].Closes = true // nothing else undoes what the hooks before the batch did
	}
	return append(append(Yielding(before), steps...), after...)
}

// Yielding lets other nodes go on while these steps wait.
func Yielding(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].Yields = true
	}
	return steps
}
