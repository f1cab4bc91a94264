package roll

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

// The IDs of the steps that run hooks.
const (
	hooksBeforeID = "run-hooks"
	hooksAfterID  = "run-hooks-again"
)

// hooksBefore returns the step right before the final gate check; the user's gates have already passed.
// A node that is never taken out runs no hooks.
func (n *node) hooksBefore() []step.Step {
	if n.StaysIn() {
		return nil
	}
	steps := n.hookCall(cluster.BeforeNode, hooksBeforeID).Step(hooksBeforeID, "run the hooks before "+n.Plan.Node+" goes", n.hooks.BeforeNode,
		func(ctx context.Context, err error) error {
			fate := n.Plan.Node + " was not touched"
			if n.Plan.Resume {
				fate = n.Plan.Node + " is as the earlier run had left it"
			}
			return failedBefore(ctx, err, "%s; once the hook ends with 0, run the same command again: the hooks before the node run again", fate)
		})
	for i, s := range steps {
		steps[i].Do = func(ctx context.Context) error {
			if err := n.RequireOurs(ctx); err != nil {
				return err // the final gate check refuses this too, but the hooks would have run for nothing
			}
			return s.Do(ctx)
		}
	}
	return yielding(steps)
}

// hooksAfter returns the step for a node that is back. It comes before the user's gates are asked,
// because a hook may clear what keeps them closed, such as a Ceph flag. It does not yield, because
// the next run would not run it for a node that is done.
func (n *node) hooksAfter() []step.Step {
	if n.StaysIn() {
		return nil
	}
	return n.hookCall(cluster.AfterNode, hooksAfterID).Step(hooksAfterID, "run the hooks with "+n.Plan.Node+" back", n.hooks.AfterNode,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err)
			}
			return n.batchLeftOpen(failedAfter(err, "recast roll continues with the next node, and does not run the hooks after %s again: do by hand what they had to do", n.Plan.Node))
		})
}

// batchLeftOpen adds a hint to the error of a node that is done. The node may have been the last of
// its batch, and then no later run runs the hooks after the batch.
func (n *node) batchLeftOpen(err error) error {
	if err == nil || len(n.hooks.AfterBatch) == 0 {
		return err
	}
	phase, _, _ := planning.NodeOfStep(n.Path)
	return fault.WithHint(err, "the hooks after the batch %s were not run, and the next run runs them only if it still has a node to roll in it: else do by hand what they had to do", phase)
}

func (n *node) hookCall(p cluster.HookPoint, id string) HookCall {
	phase, _, _ := planning.NodeOfStep(n.Path)
	key := n.Key("hooks/" + strings.ToLower(string(p)))
	return n.roller.hookCall(p, phase, n.Plan.Node, n.hookEnv(p), n.Path+"/"+id, key)
}

// hookEnv describes the node to hooks; an unknown value is "".
func (n *node) hookEnv(p cluster.HookPoint) []string {
	build, talos := n.Want.Build.ID, n.Want.Build.TalosVersion
	switch n.Plan.Strategy.System() {
	case cluster.SystemKept, cluster.SystemOld:
		build, talos = "", ""
		if back := n.Plan.Restore; back != nil {
			build, talos = back.Build, back.Talos
		}
	}
	env := []string{
		"RECAST_NODE=" + n.Plan.Node, "RECAST_ROLE=" + n.Plan.Role, "RECAST_STRATEGY=" + string(n.Plan.Strategy),
		"RECAST_VMID=" + strconv.Itoa(int(n.Plan.VMID)), "RECAST_HOST=" + n.Plan.Host,
		"RECAST_TALOS_VERSION=" + talos, "RECAST_BUILD_ID=" + build, "RECAST_RESUMED=" + strconv.FormatBool(n.Plan.Resume),
	}
	if n.Plan.Addr.IsValid() {
		env = append(env, "RECAST_ADDRESS="+n.Plan.Addr.String())
	}
	return env
}

// HookCall runs the hooks of one point.
type HookCall struct {
	Commands cluster.CommandRunner
	Point    cluster.HookPoint
	Batch    planning.Phase
	Node     string
	Env      []string
	Say      func(text string)                      // receives what they print
	Keep     func(hr planning.HookRun, i int) error // if set, receives the result of the i-th hook when it has ended
}

// Run runs the hooks one after the other, and stops at the first that fails.
func (c HookCall) Run(ctx context.Context, hooks []cluster.Hook) error {
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

func (c HookCall) one(ctx context.Context, h cluster.Hook, env []string) (planning.HookRun, error) {
	run := planning.HookRun{Point: c.Point, Batch: c.Batch, Node: c.Node, Description: h.Description, Command: h.Command.Args, Started: time.Now()}
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
func (c HookCall) Step(id, title string, hooks []cluster.Hook, failed func(context.Context, error) error) []step.Step {
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
	return failedBefore(ctx, err, "no node was touched; once the hook ends with 0, run the same command again: the hooks before the run run again")
}

// failedAfter turns the error of a hook after finished work into a failure, whatever its kind.
func failedAfter(err error, format string, args ...any) error {
	if err == nil || fault.KindOf(err) == fault.Interrupted {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), format, args...)
}

// failedBefore turns the error of a hook before anything was touched into a refusal.
func failedBefore(ctx context.Context, err error, format string, args ...any) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Config {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Refused, err)), format, args...)
}

// hookCall returns the call of the hooks of one point. path is that of its step, and key that of the
// results in the journal.
func (r *Roller) hookCall(p cluster.HookPoint, batch planning.Phase, node string, env []string, path, key string) HookCall {
	env = append([]string{"RECAST_CLUSTER=" + r.Cluster, "RECAST_RUN=" + r.Run, "RECAST_BATCH=" + string(batch)}, env...)
	if p == cluster.AfterNode || p == cluster.AfterBatch { // they run only if it is done
		env = append(env, "RECAST_OUTCOME=done")
	}
	return HookCall{
		Commands: r.Commands, Point: p, Batch: batch, Node: node, Env: env, Say: func(text string) { r.Say(path, text) },
		Keep: func(run planning.HookRun, i int) error {
			if r.Hooked != nil {
				r.Hooked(run)
			}
			return fault.Prefix("journal", r.Journal.Put(key+"/"+strconv.Itoa(i+1), run))
		},
	}
}

// The IDs of the steps that run the hooks of a batch. They are siblings of its nodes, and have an
// underscore, which a node name can't have.
const (
	beforeBatch = "hooks_before"
	afterBatch  = "hooks_after"
)

func (r *Roller) aroundBatch(hooks cluster.Hooks, b planning.Batch, steps []step.Step) []step.Step {
	phase := b.Phase
	call := func(point cluster.HookPoint, id string) HookCall {
		return r.hookCall(point, phase, "", []string{"RECAST_NODES=" + strings.Join(b.Nodes, " ")}, "roll/"+string(phase)+"/"+id, "hooks/"+strings.ToLower(string(point))+"/"+string(phase))
	}
	before := call(cluster.BeforeBatch, beforeBatch).Step(beforeBatch, "run the hooks before this batch", hooks.BeforeBatch,
		func(ctx context.Context, err error) error {
			return failedBefore(ctx, err, "no node of this batch was touched; once the hook ends with 0, run the same command again: the hooks before the batch run again")
		})
	after := call(cluster.AfterBatch, afterBatch).Step(afterBatch, "run the hooks behind this batch", hooks.AfterBatch,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("the nodes of this batch are done, but no other batch is to follow: %w", err)
			}
			return failedAfter(err, "recast roll continues with the next batch, and does not run the hooks after this one again: do by hand what they had to do")
		})
	for i := range after {
		after[i].Closes = true // nothing else undoes what the hooks before the batch did
	}
	return append(append(yielding(before), steps...), after...)
}

// yielding lets other nodes go on while these steps wait.
func yielding(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].Yields = true
	}
	return steps
}
