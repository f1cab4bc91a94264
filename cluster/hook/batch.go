package hook

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
)

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
