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
	"github.com/recast-sh/recast/internal/words"
)

// finished is the goal of the whole branch: the node runs what is wanted, and no run has left
// anything to clean up.
func (n *node) finished(ctx context.Context) (string, error) {
	s := n.Plan.Strategy
	switch {
	case s.From() == cluster.Blank:
		return n.serves(ctx)
	case s.KeepsVM() && !s.Upgrades():
		return newApplyConfig(n).given(ctx)
	case s.VM() == cluster.VMGone:
		return n.removed(ctx)
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	case s.Reshapes():
		return n.reshaped(ctx)
	case s.System() == cluster.SystemOld:
		n.Out.Remove(n.Plan.Node)
		return "its old system disk is back", nil
	case s.System() == cluster.SystemKept:
		return n.rolledBackTo(park.Record), nil
	}
	ended := n.Out.Has(n.Plan.Node) // false before its steps: it is not out yet
	if s.From() == cluster.Nowhere && !ended {
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
	if !n.Plan.Strategy.BringsImage() {
		return "", nil // its goal is another, which the title says
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

// rolledBackTo is the goal of a rollback: the kept disk is no longer parked.
func (n *node) rolledBackTo(rec parking.Record) string {
	parked := slices.ContainsFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.Key == n.Plan.Restore.Key && k.Run == n.Plan.Restore.Run })
	if parked {
		return ""
	}
	n.Out.Remove(n.Plan.Node)
	return "it runs its earlier system again"
}
