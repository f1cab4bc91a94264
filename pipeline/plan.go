package pipeline

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Plan returns what a roll would do now; rehearse is RollOptions.Rehearse. It changes nothing.
func Plan(ctx context.Context, p Project, m Machines, policy planning.Policy, rehearse *bool) (planning.Plan, error) {
	lock, err := p.Lock()
	if err != nil {
		return planning.Plan{}, err
	}
	policy.Rehearse = rehearsal(p, rehearse)
	return makePlan(ctx, p, m, lock, policy)
}

func makePlan(ctx context.Context, p Project, m Machines, lock schematics.Lock, policy planning.Policy) (planning.Plan, error) {
	past, err := p.History(lock)
	if err != nil {
		return planning.Plan{}, err
	}
	src := Sources(p, m)
	src.Past = past
	plan, _, err := planSeen(ctx, p, m, src, lock, past, policy)
	return plan, err
}

// planSeen also returns the observation that the plan is based on.
func planSeen(ctx context.Context, p Project, m Machines, src observe.Sources, lock schematics.Lock, past cluster.History, policy planning.Policy) (planning.Plan, observe.Observation, error) {
	wanted := p.Wanted(lock)
	first, err := toBegin(ctx, m, policy)
	if err != nil {
		return planning.Plan{}, observe.Observation{}, err
	}
	o, err := observation(ctx, p, src, wanted, first, policy.Rebuild)
	if err != nil {
		return planning.Plan{}, o, err
	}
	if slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Surge }) && policy.Bootstrap == "" {
		if policy.Reach, err = m.Talos.Endpoints(ctx); err != nil {
			return planning.Plan{}, o, err
		}
	}
	if err := p.dropUnusable(ctx, m.Store, wanted, o); err != nil {
		return planning.Plan{}, o, err
	}
	var errTook error
	o.Took, errTook = story.Durations(p.Runs().Dir)
	plan, err := planning.New(p.Config.Cluster, wanted, o, past, p.Policy(policy))
	if errTook != nil {
		plan.Warn = append(plan.Warn, "durations of earlier rolls can't be read, so defaults are used: "+errTook.Error())
	}
	plan.Warn = append(plan.Warn, o.UnknownStorages("images.iso.storage", p.Config.Images.ISO.Storage)...)
	plan.Warn = append(plan.Warn, o.UnknownStorages("images.disk.storage", p.Config.Images.Disk.Storage)...)
	plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
	if policy.Bootstrap != "" && len(plan.Gates) > 0 {
		plan.Gates = nil
		plan.Warn = append(plan.Warn, "roll.gates are not asked: there is nothing yet that they could protect")
	}
	plan.Seal(lock.Pinned(), p.Config.Hash())
	return plan, o, err
}

// toBegin is the control plane with which a bootstrap begins the cluster; "" if there is a cluster.
func toBegin(ctx context.Context, m Machines, policy planning.Policy) (string, error) {
	if policy.Bootstrap == "" {
		return "", nil
	}
	_, err := m.Kube.Nodes(ctx)
	switch {
	case err == nil:
		return "", nil
	case cluster.IsUnanswered(err):
		return policy.Bootstrap, ctx.Err()
	}
	return "", fmt.Errorf("see whether there is a cluster already: %w", err)
}

// DriftResult is the drift of every node.
type DriftResult struct {
	Cluster string          `json:"cluster"`
	InSync  bool            `json:"inSync"` // every node was read and matches the lock, and nothing is held that no run gives back
	Unread  int             `json:"unread"` // nodes that could not be read
	Stale   int             `json:"stale"`
	Nodes   []observe.Drift `json:"nodes"`
	// Unlisted are nodes that the cluster has and neither recast.yaml nor roll.ignoreNodes names, sorted. They are not counted.
	Unlisted []string `json:"unlisted,omitempty"`
	// Held is what recast has set of storage systems while nodes are away.
	Held       []HeldBack `json:"held,omitempty"`
	HeldLeft   bool       `json:"heldLeft,omitempty"`   // and no run is active
	HeldUnread string     `json:"heldUnread,omitempty"` // why that could not be read; "": it was
}

// Drift compares every node with the lock. It changes nothing.
func Drift(ctx context.Context, p Project, m Machines) (DriftResult, error) {
	lock, err := p.Lock()
	if err != nil {
		return DriftResult{}, err
	}
	res, _, err := drift(ctx, p, m, lock)
	return res, err
}

// drift also returns the nodes that were found, in the order of the result.
func drift(ctx context.Context, p Project, m Machines, lock schematics.Lock) (DriftResult, []observe.Found, error) {
	past, err := p.History(lock)
	if err != nil {
		return DriftResult{}, nil, err
	}
	wanted := p.Wanted(lock)
	o, err := observe.ObserveDrift(ctx, Sources(p, m), wanted)
	if err != nil {
		return DriftResult{}, nil, err
	}
	res := DriftResult{Cluster: p.Config.Cluster}
	for i, w := range wanted {
		res.Nodes = append(res.Nodes, observe.Diff(w, o.Found[i], past))
	}
	for _, k := range o.Nodes {
		if slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Name == k.Name }) || slices.Contains(p.Config.Roll.IgnoreNodes, k.Name) {
			continue
		}
		res.Unlisted = append(res.Unlisted, k.Name)
	}
	slices.Sort(res.Unlisted)
	err = res.held(ctx, p, m, o.VMs)
	res.count()
	return res, o.Found, err
}

// count sums up the results of the nodes.
func (r *DriftResult) count() {
	r.Unread, r.Stale = 0, 0
	for _, d := range r.Nodes {
		if len(d.Unread) > 0 {
			r.Unread++
		}
		if d.Stale {
			r.Stale++
		}
	}
	r.InSync = r.Unread == 0 && r.Stale == 0 && !r.HeldLeft
}

// ReadPlan reads a plan file that recast plan -o json has written.
func ReadPlan(file string) (*planning.Plan, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.WithHint(fault.Configf("read the plan: %w", err), "recast plan -o json > %s writes one", file)
	}
	plan, err := planning.Read(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &plan, nil
}

// follow makes the plan again, and checks that it is still the saved one.
func (w *work) follow(ctx context.Context, lock schematics.Lock, saved planning.Plan) (planning.Plan, error) {
	if plan, differs, err := w.ofOtherFiles(lock, saved); differs {
		return plan, err
	}
	begun, err := begun(w.Runs(), saved)
	if err != nil {
		return planning.Plan{}, err
	}
	policy := saved.Policy()
	policy.Rehearse = w.rehearsal()
	now, err := makePlan(ctx, w.Project, w.machines, lock, policy)
	if err != nil {
		return planning.Plan{}, err
	}
	return now.Follow(saved, begun || w.o.Begun)
}

// begun says whether a run of a saved plan was started on this machine, by the journal.
func begun(r past.Runs, saved planning.Plan) (bool, error) {
	runs, err := journal.Runs(r.Dir)
	return slices.ContainsFunc(runs, func(r journal.RunInfo) bool { return strings.HasSuffix(r.ID, saved.RunSuffix()) }), err
}

// HeldBack is a setting of a storage system that recast has changed while nodes are away.
type HeldBack struct {
	What  string    `json:"what"`
	Run   string    `json:"run,omitempty"` // that changed it first; "": unknown
	Since time.Time `json:"since,omitzero"`
	Next  []Advice  `json:"next"`
}

func heldBack(holds []replica.Hold) (out []HeldBack) {
	for _, h := range holds {
		next := []Advice{{"recast roll", "gives it back once they are no longer out; so does recast undo"}, {h.Undo, "does so by hand"}}
		out = append(out, HeldBack{h.String(), h.Run, h.Since, next})
	}
	return out
}

// held adds what storage systems are told to the result. It is left over unless a run has the claim: only that could
// still give it back.
func (r *DriftResult) held(ctx context.Context, p Project, m Machines, vms []cluster.VM) error {
	holds, err := m.Kube.Holds(ctx)
	if err != nil {
		r.HeldUnread = err.Error()
	}
	if r.Held = heldBack(holds); len(holds) == 0 {
		return nil
	}
	claimed, err := claim.Exists(ctx, vms, m.Leases.Lease, p.Config.Cluster, p.ClaimID())
	r.HeldLeft = !claimed
	return err
}
