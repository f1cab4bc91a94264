package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

func (n *nodeRoll) healthyInPlace(ctx context.Context) (string, error) {
	if n.gaveUp != nil {
		return "it did not come back, and is reimaged instead", nil
	}
	return n.settled(ctx, n.lacksInPlace)
}

// waitHealthyInPlace ends well, or with a node that came back as its old system
// (by itself: that build is never tried in place again), or at our own boot
// deadline: Talos' automatic rollback can't be relied upon.
func (n *nodeRoll) waitHealthyInPlace(ctx context.Context) error {
	err := n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, n.lacksInPlace)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, errRolledBack):
		return n.rolledBack(ctx, err)
	}
	return n.bootFailed(ctx, err)
}

var errRolledBack = errors.New("it came back as its old system")

// lacksInPlace names the first thing that the node still lacks.
func (n *nodeRoll) lacksInPlace(ctx context.Context) (string, error) {
	m, err := n.Talos.Machine(ctx, n.plan.Addr)
	if err != nil {
		return "", err
	}
	reasons := diffImage(n.want.Build, m, n.History)
	mark, err := n.mark(ctx)
	switch {
	case err != nil:
		return "", err
	case m.UUID != n.plan.UUID:
		return fmt.Sprintf("%s answers with UUID %s", n.plan.Addr, m.UUID), nil
	case mark != nil && mark.Strategy == InPlace && mark.BootID == m.BootID && len(reasons) > 0:
		return "still the boot from before the upgrade", nil
	case m.Stage != "running" || !m.Ready:
		return fmt.Sprintf("stage %s, not ready: %s", m.Stage, cmpNone(strings.Join(m.Unmet, ", "))), nil
	case len(reasons) > 0:
		return "", fmt.Errorf("%w: %s", errRolledBack, reasons[0].Text)
	}
	if lacks, err := n.lacksEtcd(ctx, memory{ControlPlane: n.plan.Role == controlPlane, EtcdMembers: len(n.plan.controlPlanes)}); err != nil || lacks != "" {
		return lacks, err
	}
	return n.lacksNode(ctx, m.BootID)
}

// rolledBack leaves a node that serves again with its old system, and remembers
// on its Node that this build is not to be tried in place again.
func (n *nodeRoll) rolledBack(ctx context.Context, cause error) error {
	err := errors.Join(
		n.Kube.SetFailedBuild(ctx, n.plan.Node, n.want.Build.ID),
		n.Kube.Uncordon(ctx, n.plan.Node),
	)
	return errors.Join(fault.WithHint(fmt.Errorf("upgrade of %s to build %s: %w", n.plan.Node, short(n.want.Build.ID), cause),
		"talosctl -n %s dmesg shows why the new system gave up; this build is not tried in place on it again", n.plan.Addr), prefix("clear up after that", err))
}

// bootFailed acts by policy on a node that did not come back in time.
func (n *nodeRoll) bootFailed(ctx context.Context, cause error) error {
	policy := n.BootFailure
	if policy == "" {
		policy = RollbackOnBootFailure
	}
	cause = fmt.Errorf("%s did not come back from its upgrade: %w", n.plan.Node, cause)
	if n.runsOld(ctx) { // asked to roll back it would boot the new one again
		return n.rolledBack(ctx, fmt.Errorf("%w: %w, but that is not healthy", cause, errRolledBack))
	}
	if policy == StopOnBootFailure {
		return fault.WithHint(cause, "look at its console in Proxmox: the boot menu has the previous entry. recast roll waits for it again; roll.bootFailure says what recast does by itself")
	}
	n.say("wait-healthy", "it did not come back in time: asking it to boot its previous system")
	if err := n.Talos.Rollback(ctx, n.plan.Addr, n.plan.UUID); err == nil {
		if err := n.awaitOldSystem(ctx); err != nil {
			return errors.Join(cause, fmt.Errorf("and its previous system did not come back either: %w", err))
		}
		return n.rolledBack(ctx, fmt.Errorf("%w, and was rolled back", cause))
	} else if n.plan.previous == nil {
		return fault.WithHint(errors.Join(cause, fmt.Errorf("and it can't be asked to roll back: %w", err)),
			"look at its console in Proxmox: the boot menu has the previous entry; with roll.bootFailure: reimage recast would have installed its build anew")
	}
	n.gaveUp = cause
	return nil
}

func (n *nodeRoll) awaitOldSystem(ctx context.Context) error {
	return n.wait(ctx, "wait-healthy", n.plan.Node+" back as its previous system", n.Timing.Boot, func(ctx context.Context) (bool, string, error) {
		_, err := n.lacksInPlace(ctx)
		return errors.Is(err, errRolledBack), "not back yet", nil
	})
}
