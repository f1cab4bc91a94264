package roll

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// The IDs of the steps that run hooks. The steps of a batch are siblings of its nodes; their IDs
// have an underscore, which a node name can't have.
const (
	hooksBefore      = "run-hooks"
	hooksAfter       = "run-hooks-again"
	hooksBeforeBatch = "hooks_before"
	hooksAfterBatch  = "hooks_after"
)

// before returns the step right before the final gate check; the user's gates have already passed.
// A node that is never taken out runs no hooks.
func (n hookPoints) before() []step.Step {
	if n.staysIn() {
		return nil
	}
	steps := n.call(cluster.BeforeNode, hooksBefore).Step(hooksBefore, "run the hooks before "+n.Plan.Node+" goes", n.hooks.BeforeNode,
		func(ctx context.Context, err error) error {
			fate := n.Plan.Node + " was not touched"
			if n.Plan.Resume {
				fate = n.Plan.Node + " is as the earlier run had left it"
			}
			return hook.FailedBefore(ctx, err, "%s; once the hook ends with 0, run the same command again: the hooks before the node run again", fate)
		})
	for i, s := range steps {
		steps[i].Do = func(ctx context.Context) error {
			if err := n.gate.RequireUnpaused(ctx); err != nil {
				return err // the final gate check refuses this too, but the hooks would have run for nothing
			}
			return s.Do(ctx)
		}
	}
	return yielding(steps)
}

// after returns the step for a node that is back. It comes before the user's gates are asked,
// because a hook may clear what keeps them closed, such as a Ceph flag. It does not yield, because
// the next run would not run it for a node that is done.
func (n hookPoints) after() []step.Step {
	if n.staysIn() {
		return nil
	}
	return n.call(cluster.AfterNode, hooksAfter).Step(hooksAfter, "run the hooks with "+n.Plan.Node+" back", n.hooks.AfterNode,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err)
			}
			return n.batchLeftOpen(hook.FailedAfter(err, "recast roll continues with the next node, and does not run the hooks after %s again: do by hand what they had to do", n.Plan.Node))
		})
}

// batchLeftOpen adds a hint to the error of a node that is done. The node may have been the last of
// its batch, and then no later run runs the hooks after the batch.
func (n hookPoints) batchLeftOpen(err error) error {
	if err == nil || len(n.hooks.AfterBatch) == 0 {
		return err
	}
	phase, _, _ := planning.NodeOfStep(n.Path)
	return fault.WithHint(err, "the hooks after the batch %s were not run, and the next run runs them only if it still has a node to roll in it: else do by hand what they had to do", phase)
}

// staysIn says whether the node is only cleaned up, and was never taken out.
func (n hookPoints) staysIn() bool { return n.userGates.isTidied() && !n.userGates.wasCordoned() }

func yielding(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].Yields = true
	}
	return steps
}

func (n hookPoints) call(p cluster.HookPoint, id string) hook.Call {
	phase, _, _ := planning.NodeOfStep(n.Path)
	return hook.Call{
		Commands: n.roller.Commands, Point: p, Batch: phase, Node: n.Plan.Node, Env: append(n.roller.runEnv(phase), n.env(p)...),
		Say: func(text string) { n.Tell(id, text) }, Keep: n.roller.keepHook(n.Key("hooks/" + strings.ToLower(string(p)))),
	}
}

// env describes the node to hooks; an unknown value is "".
func (n hookPoints) env(p cluster.HookPoint) []string {
	build, talos := n.Want.Build.ID, n.Want.Build.TalosVersion
	switch n.Plan.Strategy {
	case cluster.Rollback, cluster.PutBack:
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
	return append(env, outcomeEnv(p)...)
}

// withBatchHooks puts the hooks of a batch before and after its nodes.
func (r *Roller) withBatchHooks(p planning.Plan, b planning.Batch, steps []step.Step) []step.Step {
	phase := b.Phase
	call := func(point cluster.HookPoint, id string) hook.Call {
		return hook.Call{
			Commands: r.Commands, Point: point, Batch: phase,
			Env:  append(append(r.runEnv(phase), "RECAST_NODES="+strings.Join(b.Nodes, " ")), outcomeEnv(point)...),
			Say:  func(text string) { r.Say("roll/"+string(phase)+"/"+id, text) },
			Keep: r.keepHook("hooks/" + strings.ToLower(string(point)) + "/" + string(phase)),
		}
	}
	before := call(cluster.BeforeBatch, hooksBeforeBatch).Step(hooksBeforeBatch, "run the hooks before this batch", p.Hooks.BeforeBatch,
		func(ctx context.Context, err error) error {
			return hook.FailedBefore(ctx, err, "no node of this batch was touched; once the hook ends with 0, run the same command again: the hooks before the batch run again")
		})
	after := call(cluster.AfterBatch, hooksAfterBatch).Step(hooksAfterBatch, "run the hooks behind this batch", p.Hooks.AfterBatch,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("the nodes of this batch are done, but no other batch is to follow: %w", err)
			}
			return hook.FailedAfter(err, "recast roll continues with the next batch, and does not run the hooks after this one again: do by hand what they had to do")
		})
	for i := range after {
		after[i].Closes = true // nothing else undoes what the hooks before the batch did
	}
	return append(append(yielding(before), steps...), after...)
}

func (r *Roller) runEnv(batch planning.Phase) []string {
	return []string{"RECAST_CLUSTER=" + r.Cluster, "RECAST_RUN=" + r.Run, "RECAST_BATCH=" + string(batch)}
}

// outcomeEnv is for the hooks after a node or a batch: they run only if it is done.
func outcomeEnv(p cluster.HookPoint) []string {
	if p == cluster.AfterNode || p == cluster.AfterBatch {
		return []string{"RECAST_OUTCOME=done"}
	}
	return nil
}

// keepHook writes the result of a hook to the journal, and passes it to the report.
func (r *Roller) keepHook(key string) func(hook.HookRun, int) error {
	return func(run hook.HookRun, i int) error {
		if r.Hooked != nil {
			r.Hooked(run)
		}
		if err := r.Journal.Put(key+"/"+strconv.Itoa(i+1), run); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		return nil
	}
}
