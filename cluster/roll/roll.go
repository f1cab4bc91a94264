package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Steps builds the tree of a roll from its plan: a branch per phase, and in it one per node, in the
// plan's order.
func (r *Roller) Steps(p planning.Plan) step.Step {
	work := p.Work()
	return step.Step{
		ID:    "roll",
		Title: fmt.Sprintf("roll %d of %d %s", len(work), len(p.Nodes), words.Plural(len(p.Nodes), "node")),
		Risk:  step.Destructive, LookAhead: 1,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := r.Rehearser.Steps(p)
			if p.Bootstrap == "" && slices.ContainsFunc(work, planning.NodePlan.NeedsSnapshot) {
				steps = append(steps, r.SnapshotStep(p, r.SnapshotDir))
			}
			for _, b := range p.Batches {
				branch, err := r.phase(p, b)
				if err != nil {
					return nil, err
				}
				steps = append(steps, branch)
			}
			return steps, nil
		},
	}
}

func (r *Roller) phase(p planning.Plan, b planning.Batch) (step.Step, error) {
	var steps, first []step.Step
	ahead := min(b.Limit+1, maxAhead)
	for i, n := range p.Of(b) {
		if len(n.Refused) > 0 {
			return step.Step{}, fault.PlanRefused.Refusedf("node %s: %s", n.Node, n.Refused[0])
		}
		branch := r.planned(p, n, b.Phase).branch()
		branch.Alone = n.OwnPod // its drain ends this run
		steps = append(steps, branch)
		if i < ahead && len(branch.Ahead) > 0 {
			early := branch.Ahead
			first = append(first, step.Step{ID: branch.ID, Title: branch.Title, Quiet: true, Steps: func(context.Context) ([]step.Step, error) { return early, nil }})
		}
	}
	steps = r.hooking().AroundBatch(p.Hooks, b, steps)
	return step.Step{
		ID: string(b.Phase), Title: p.Title(b), Risk: step.Destructive, Limit: b.Limit, LookAhead: ahead, Ahead: first, Beside: b.Beside,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}, nil
}

// maxAhead is the maximum number of nodes that fetch their installer ahead of their turn: more
// would only compete for the registry's bandwidth.
const maxAhead = 10

func (n *node) branches() []step.Step {
	return slices.Concat(n.userGates.Before(), n.healing.Before(), n.served.Before(), n.hooksBefore(), n.RepeatingAll("", n.work()), n.hooksAfter(), n.healing.After(), n.served.After(), n.userGates.After())
}

// finished is the goal of the whole branch: the node runs what is wanted, and no run has left
// anything to clean up.
func (n *node) finished(ctx context.Context) (string, error) {
	switch n.Plan.Strategy {
	case cluster.InstallReset:
		return n.serves(ctx)
	case cluster.ApplyConfig:
		return newApplyConfig(n).given(ctx)
	case cluster.Remove:
		return n.removed(ctx)
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	case n.Plan.Strategy == cluster.Reshape:
		return n.reshaped(ctx)
	case n.Plan.Strategy == cluster.PutBack:
		n.Out.Remove(n.Plan.Node)
		return "its old system disk is back", nil
	case n.Plan.Strategy == cluster.Rollback:
		return n.rolledBackTo(park.Record), nil
	}
	ended := n.Out.Has(n.Plan.Node) // false before its steps: it is not out yet
	if n.Plan.Strategy == cluster.Create && !ended {
		return "", nil
	}
	d, known, err := n.drift(ctx, park, ended)
	if err != nil || !known || d.Rollable() {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return fmt.Sprintf("runs %s build %s", n.Want.Build.TalosVersion, words.Short(n.Want.Build.ID)), nil
}

// unfinished names what keeps the node from being finished.
func (n *node) unfinished(ctx context.Context) (string, error) {
	switch n.Plan.Strategy {
	case cluster.Create, cluster.Recreate, cluster.Reimage, cluster.InPlace:
	default:
		return "", nil // their goals are others, which the title says
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return fmt.Sprintf("the record on %s is still open", park.VM), nil
	}
	d, known, err := n.drift(ctx, park, false)
	if err != nil || !known {
		return "its machine does not answer", err
	}
	var reasons []string
	for _, r := range d.Reasons {
		reasons = append(reasons, r.Text)
	}
	return strings.Join(reasons, "; "), nil
}

// drift is what of the node is not as wanted now. known is false if its machine does not answer, which is an
// error once the node has ended.
func (n *node) drift(ctx context.Context, park parking.Parking, ended bool) (d observe.Drift, known bool, err error) {
	vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
	if err != nil {
		return d, false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	m, err := n.Talos.System(ctx, n.Plan.Addr)
	switch {
	case err != nil && ended:
		return d, false, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	case err != nil || m.ConfigHidden:
		return d, false, nil //nolint:nilerr // a machine that does not answer is not finished; bring-up says why
	}
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case err == nil || errors.Is(err, cluster.ErrNotFound):
	case ended:
		return d, false, fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	default:
		return d, false, nil //nolint:nilerr // a single control plane's API is away with it
	}
	inKubernetes := err == nil
	if inKubernetes {
		m.RunningSystem = k.Corrected(m.RunningSystem, "")
	}
	f := observe.Found{Name: n.Want.Name, VM: &vm, Machine: new(m.Machine())}
	if len(n.Plan.VM) > 0 {
		if _, f.Shape, err = n.serving.Running().Now(ctx); err != nil {
			return d, false, err
		}
	}
	if park.VM.ID != 0 {
		f.Parking = &park
	}
	if inKubernetes {
		f.Node = &k
	}
	return observe.Diff(n.Want, f, n.roller.History), true, nil
}

func (n *node) branch() step.Step {
	title := fmt.Sprintf("%s %s (VM %d on %s)", n.Plan.Strategy, n.Plan.Node, n.Plan.VMID, n.Plan.Host)
	if n.Plan.Run != "" {
		title += ", left unfinished by run " + n.Run
	}
	s := step.Step{ID: n.Plan.Node, Title: title, Risk: step.Destructive, Whole: true, Uses: n.Plan.Slots, Ahead: n.RepeatingAll("", n.pullSteps())}
	s.Skip = n.Repeating("", step.Step{Skip: n.finished}).Skip
	s.Lacks = n.unfinished
	s.Steps = func(context.Context) ([]step.Step, error) { return n.branches(), nil }
	if !n.Plan.Strategy.KeepsVM() {
		s = n.explained(s)
	}
	return s
}

// rolledBackTo is the goal of a rollback: the kept disk is no longer parked.
func (n *node) rolledBackTo(rec parking.Record) string {
	parked := slices.ContainsFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.Key == n.Plan.Restore.Key && k.Run == n.Plan.Restore.Run })
	if parked {
		return ""
	}
	n.Out.Remove(n.Plan.Node)
	return "it runs its earlier system again"
}
