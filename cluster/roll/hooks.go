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

// BeforeRunFailed is the error of a hook before the run.
func BeforeRunFailed(ctx context.Context, err error) error {
	return beforeHook(ctx, err, "no node was touched; once the hook ends with 0, run the same command again: the hooks before the run run again")
}

// HookCall runs the hooks of one point.
type HookCall struct {
	Commands cluster.CommandRunner
	Point    cluster.HookPoint
	Batch    planning.Phase
	Node     string
	Env      []string
	Say      func(text string)             // is told what they print
	Keep     func(hr HookRun, i int) error // of the i-th hook, once it has ended; nil: nobody does
}

// Run runs one after the other; the first that fails is the last.
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

func (c HookCall) one(ctx context.Context, h cluster.Hook, env []string) (HookRun, error) {
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

// HookPoints lists the points in the order in which a run comes to them.
func HookPoints() []cluster.HookPoint {
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

// afterHook makes the failure of a hook behind what is done a failure, whatever it was.
func afterHook(err error, format string, args ...any) error {
	if err == nil || fault.KindOf(err) == fault.Interrupted {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), format, args...)
}

// beforeHook makes the failure of a hook before anything was touched a refusal.
func beforeHook(ctx context.Context, err error, format string, args ...any) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Config {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Refused, err)), format, args...)
}

// The IDs of the steps that run hooks. Those of a batch stand beside its nodes,
// and have an underscore, which no name of a node has.
const (
	hooksBefore      = "run-hooks"
	hooksAfter       = "run-hooks-again"
	hooksBeforeBatch = "hooks_before"
	hooksAfterBatch  = "hooks_after"
)

// HooksStep is the step that runs the hooks of one point of a run; none if there are none.
func (c HookCall) HooksStep(id, title string, hooks []cluster.Hook, failed func(context.Context, error) error) []step.Step {
	if len(hooks) == 0 {
		return nil
	}
	if len(hooks) == 1 {
		title += ": " + hooks[0].String()
	}
	return []step.Step{{ID: id, Title: title, Alone: true, Do: func(ctx context.Context) error { return failed(ctx, c.Run(ctx, hooks)) }}}
}

// before is the step right before the last look: the node has the gates'
// leave by then. A hook of a node that stays where it is would have no counterpart.
func (n hookPoints) before() []step.Step {
	if n.staysIn() {
		return nil
	}
	steps := n.call(cluster.BeforeNode, hooksBefore).HooksStep(hooksBefore, "run the hooks before "+n.plan.Node+" goes", n.hooks.BeforeNode,
		func(ctx context.Context, err error) error {
			fate := n.plan.Node + " was not touched"
			if n.plan.Resume {
				fate = n.plan.Node + " is as the earlier run had left it"
			}
			return beforeHook(ctx, err, "%s; once the hook ends with 0, run the same command again: the hooks before the node run again", fate)
		})
	for i, s := range steps {
		steps[i].Do = func(ctx context.Context) error {
			if err := n.gate.requireUnpaused(ctx); err != nil {
				return err // the last look would say so as well, with the hooks run for nothing
			}
			return s.Do(ctx)
		}
	}
	return yielding(steps)
}

// after is the step behind a node that is back: the gates are asked after it,
// because a hook may undo what keeps them from holding, such as a flag of Ceph.
// It does not yield, as the next run would not run it for a node that is done.
func (n hookPoints) after() []step.Step {
	if n.staysIn() {
		return nil
	}
	return n.call(cluster.AfterNode, hooksAfter).HooksStep(hooksAfter, "run the hooks with "+n.plan.Node+" back", n.hooks.AfterNode,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.plan.Node, err)
			}
			return n.batchLeftOpen(afterHook(err, "recast roll goes on with the next node, and does not run the hooks after %s again: do by hand what they had to do", n.plan.Node))
		})
}

// batchLeftOpen is the error of a node that is done, with a hint where that may
// have been the last of its batch: then no run comes to the hooks after that.
func (n hookPoints) batchLeftOpen(err error) error {
	if err == nil || len(n.hooks.AfterBatch) == 0 {
		return err
	}
	phase, _, _ := planning.NodeOfStep(n.path)
	return fault.WithHint(err, "the hooks after the batch %s were not run, and the next run runs them only if it still has a node to roll in it: else do by hand what they had to do", phase)
}

// staysIn says whether the node is only cleared up behind, and never was out.
func (n hookPoints) staysIn() bool { return n.userGates.isTidied() && !n.userGates.wasCordoned() }

func yielding(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].Yields = true
	}
	return steps
}

func (n hookPoints) call(p cluster.HookPoint, id string) HookCall {
	phase, _, _ := planning.NodeOfStep(n.path)
	return HookCall{
		Commands: n.Commands, Point: p, Batch: phase, Node: n.plan.Node, Env: append(n.runEnv(phase), n.env(p)...),
		Say: func(text string) { n.say(id, text) }, Keep: n.keepHook(n.key("hooks/" + strings.ToLower(string(p)))),
	}
}

// env is what hooks are told of the node; "" of what is not known.
func (n hookPoints) env(p cluster.HookPoint) []string {
	build, talos := n.want.Build.ID, n.want.Build.TalosVersion
	switch n.plan.Strategy {
	case cluster.Rollback, cluster.PutBack:
		build, talos = "", ""
		if back := n.plan.Restore; back != nil {
			build, talos = back.Build, back.Talos
		}
	}
	env := []string{
		"RECAST_NODE=" + n.plan.Node, "RECAST_ROLE=" + n.plan.Role, "RECAST_STRATEGY=" + string(n.plan.Strategy),
		"RECAST_VMID=" + strconv.Itoa(int(n.plan.VMID)), "RECAST_HOST=" + n.plan.Host,
		"RECAST_TALOS_VERSION=" + talos, "RECAST_BUILD_ID=" + build, "RECAST_RESUMED=" + strconv.FormatBool(n.plan.Resume),
	}
	if n.plan.Addr.IsValid() {
		env = append(env, "RECAST_ADDRESS="+n.plan.Addr.String())
	}
	return append(env, outcomeEnv(p)...)
}

// withBatchHooks puts the hooks of a batch before and behind its nodes.
func (r *Roller) withBatchHooks(p planning.Plan, b planning.Batch, steps []step.Step) []step.Step {
	phase := b.Phase
	call := func(point cluster.HookPoint, id string) HookCall {
		return HookCall{
			Commands: r.Commands, Point: point, Batch: phase,
			Env:  append(append(r.runEnv(phase), "RECAST_NODES="+strings.Join(b.Nodes, " ")), outcomeEnv(point)...),
			Say:  func(text string) { r.Say("roll/"+string(phase)+"/"+id, text) },
			Keep: r.keepHook("hooks/" + strings.ToLower(string(point)) + "/" + string(phase)),
		}
	}
	before := call(cluster.BeforeBatch, hooksBeforeBatch).HooksStep(hooksBeforeBatch, "run the hooks before this batch", p.Hooks.BeforeBatch,
		func(ctx context.Context, err error) error {
			return beforeHook(ctx, err, "no node of this batch was touched; once the hook ends with 0, run the same command again: the hooks before the batch run again")
		})
	after := call(cluster.AfterBatch, hooksAfterBatch).HooksStep(hooksAfterBatch, "run the hooks behind this batch", p.Hooks.AfterBatch,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("the nodes of this batch are done, but no other batch is to follow: %w", err)
			}
			return afterHook(err, "recast roll goes on with the next batch, and does not run the hooks after this one again: do by hand what they had to do")
		})
	for i := range after {
		after[i].Closes = true // nobody else would undo what the hooks before the batch have done
	}
	return append(append(yielding(before), steps...), after...)
}

func (r *Roller) runEnv(batch planning.Phase) []string {
	return []string{"RECAST_CLUSTER=" + r.Cluster, "RECAST_RUN=" + r.Run, "RECAST_BATCH=" + string(batch)}
}

// outcomeEnv is for hooks behind a node or a batch: they run where that is done, and nowhere else.
func outcomeEnv(p cluster.HookPoint) []string {
	if p == cluster.AfterNode || p == cluster.AfterBatch {
		return []string{"RECAST_OUTCOME=done"}
	}
	return nil
}

// keepHook writes how a hook fared to the journal, and tells the report.
func (r *Roller) keepHook(key string) func(HookRun, int) error {
	return func(run HookRun, i int) error {
		if r.Hooked != nil {
			r.Hooked(run)
		}
		if err := r.Journal.Put(key+"/"+strconv.Itoa(i+1), run); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		return nil
	}
}
