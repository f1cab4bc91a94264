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
			return hook.FailedBefore(ctx, err, "%s; once the hook ends with 0, run the same command again: the hooks before the node run again", fate)
		})
	for i, s := range steps {
		steps[i].Do = func(ctx context.Context) error {
			if err := n.gate.RequireOurs(ctx); err != nil {
				return err // the final gate check refuses this too, but the hooks would have run for nothing
			}
			return s.Do(ctx)
		}
	}
	return hook.Yielding(steps)
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
			return n.batchLeftOpen(hook.FailedAfter(err, "recast roll continues with the next node, and does not run the hooks after %s again: do by hand what they had to do", n.Plan.Node))
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

func (n *node) hookCall(p cluster.HookPoint, id string) hook.Call {
	phase, _, _ := planning.NodeOfStep(n.Path)
	return n.roller.hooking().Call(p, phase, n.Plan.Node, n.hookEnv(p), n.Path+"/"+id, n.Key("hooks/"+strings.ToLower(string(p))))
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

func (r *Roller) hooking() hook.Run {
	return hook.Run{Commands: r.Commands, Cluster: r.Cluster, ID: r.Run, Say: r.Say, Put: func(key string, v any) error { return r.Journal.Put(key, v) }, Hooked: r.Hooked}
}
