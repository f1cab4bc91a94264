package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// try has the node run its configuration for a limited time, after which Talos takes it back by itself. Once the
// node has been healthy with it for the settling time, try has the node keep it.
func (n *applyConfig) try(ctx context.Context) error {
	if err := n.awaitNoTrial(ctx, "try"); err != nil {
		return err
	}
	has, err := n.shown(ctx)
	if err != nil {
		return n.refused(ctx, err)
	}
	text, err := n.wanted(ctx)
	if err == nil {
		err = n.check(ctx, text)
	}
	if err != nil {
		return n.refused(ctx, err)
	}
	if has.Booted { // otherwise nothing would show, not even to the next run, that a configuration is on trial
		if err := n.Talos.ReplaceConfig(ctx, n.Plan.Addr, n.Plan.UUID, has.Active); err != nil {
			return n.refused(ctx, rolling.Repeatable(fmt.Errorf("have %s keep its old configuration: %w", n.Plan.Node, err)))
		}
	}
	unresolved, err := n.Talos.SilentResolvers(ctx, n.Plan.Addr)
	if err != nil {
		return n.refused(ctx, fmt.Errorf("read the DNS servers of %s: %w", n.Plan.Addr, err))
	}
	lost := fault.Prefix("try the configuration on "+n.Plan.Node, n.Talos.TryConfig(ctx, n.Plan.Addr, n.Plan.UUID, text, n.lasts()))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) { // else the wait finds out whether the node runs it
		return n.refused(ctx, lost)
	}
	err = cluster.Unanswered(lost, n.settle(ctx, "try", n.Timing.Try, func(ctx context.Context) (string, error) {
		if lacks, err := n.lacksPart(ctx); err != nil || lacks != "" {
			return lacks, err
		}
		if _, runs, err := n.compare(ctx); err != nil || runs.Differs() {
			return "it does not run the new configuration", err
		}
		silent, err := n.Talos.SilentResolvers(ctx, n.Plan.Addr)
		if err != nil || len(silent) == 0 || len(unresolved) > 0 {
			return "", err
		}
		return "none of its DNS servers answers: " + strings.Join(silent, ", "), nil
	}))
	if err == nil {
		err = n.keep(ctx, text)
	}
	if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Claimed {
		return n.takenBack(ctx, has, err)
	}
	return err
}

// lacksPart names the first thing that the node and its part of Kubernetes lack. While a kubelet fetches its image,
// Talos counts it as healthy, and so does Kubernetes for a while; a static pod counts as ready until it is replaced.
func (n *applyConfig) lacksPart(ctx context.Context) (string, error) {
	var before []cluster.VolumeStatus
	if was := n.Plan.Found.Machine; was != nil {
		before = was.VolumeStatuses
	}
	if lacks, err := n.lacksToServe(ctx, before); err != nil || lacks != "" {
		return lacks, err
	}
	k, err := n.Talos.Kubernetes(ctx, n.Plan.Addr)
	if err != nil {
		return "", err
	}
	if !k.KubeletHealthy {
		return "its kubelet is not healthy", nil
	}
	return cluster.LacksStaticPods(ctx, n.Kube, n.Plan.Node, n.Plan.Addr, k)
}

// lasts returns how long Talos waits before it takes a configuration back: time for the node to be healthy with it,
// to stay healthy, and to be told to keep it.
func (n *applyConfig) lasts() time.Duration { return 2*n.Timing.Try + n.Timing.Settle }

// awaitNoTrial waits until no configuration is on trial: Talos would take a new configuration back to the one on
// trial, not to the one from before. If the two still differ then, the kept one was staged, and the node is healthy
// with the one that it runs.
func (n *applyConfig) awaitNoTrial(ctx context.Context, id string) error {
	err := n.Watch(ctx, id, wait.For{Name: "an earlier trial of a configuration on " + n.Plan.Node + " to end", Timeout: n.lasts()}, func(ctx context.Context) (bool, string, error) {
		has, err := n.Talos.MachineConfigs(ctx, n.Plan.Addr)
		return err == nil && has.Same(), "it runs another configuration than it keeps", err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// keep has the node keep what it runs, which ends the trial. It never keeps a configuration that Talos has taken
// back meanwhile.
func (n *applyConfig) keep(ctx context.Context, text cluster.Secret) error {
	err := n.Repeat(ctx, "try", n.Timing.Try, func(ctx context.Context) error {
		_, runs, err := n.compare(ctx)
		switch {
		case err != nil:
			return err
		case runs.Differs():
			return errors.New("it does not run it any more")
		}
		return n.Talos.ReplaceConfig(ctx, n.Plan.Addr, n.Plan.UUID, text)
	})
	if err == nil || errors.Is(err, cluster.ErrLostAnswer) {
		reason, errNow := n.runs(ctx)
		switch {
		case errNow != nil:
			err = errors.Join(err, errNow)
		case reason == "":
			err = errors.Join(err, errors.New("it does not keep it"))
		default:
			err = nil
		}
	}
	return fault.Prefix("have "+n.Plan.Node+" keep the configuration", err)
}

// takenBack waits until Talos has taken back a configuration with which the node is not healthy: until the node
// runs its earlier one again.
func (n *applyConfig) takenBack(ctx context.Context, before cluster.Configs, cause error) error {
	n.Tell("try", "it is not healthy with its new configuration: Talos takes that back")
	err := n.Watch(ctx, "try", n.OfMachine(n.Plan.Node+" to run its old configuration again", n.lasts()+n.Timing.Try), func(ctx context.Context) (bool, string, error) {
		has, err := n.Talos.MachineConfigs(ctx, n.Plan.Addr)
		if err != nil {
			return false, "", err
		}
		kept := before.Same() && has.Same() // kept by an apply whose answer was lost
		return kept || cluster.Configs{Stored: before.Active, Active: has.Active}.Same(), "it runs another configuration than before", nil
	})
	if err == nil {
		err = n.settle(ctx, "try", n.Timing.Join, n.lacksPart)
	}
	cause = fault.MachineConfig.Errorf("%s is not healthy with its new configuration: %w", n.Plan.Node, cause)
	if reason, errNow := n.runs(ctx); err == nil && errNow == nil && reason != "" {
		return nil // the configuration was kept after all, without an answer to us, and the node is healthy
	}
	if err != nil {
		return fault.WithHint(errors.Join(cause, fmt.Errorf("and it does not serve with its old one either: %w", err)),
			"the console of VM %d says more; a reboot of it (qm reset %d) boots with the configuration that it keeps: %s", n.Plan.VMID, n.Plan.VMID,
			map[bool]string{true: "the old one", false: "not the old one, but one that someone has staged"}[before.Booted || before.Same()])
	}
	cause = fault.WithHint(cause, "Talos has taken it back: %s serves with its old configuration, and no other node was touched; recast config diff %s shows what was new", n.Plan.Node, n.Plan.Node)
	return errors.Join(cause, n.uncordon(ctx)) // a node that was upgraded in place before is cordoned
}

func (n *applyConfig) tryStep() step.Step {
	title := "try the configuration, and keep it if " + n.Plan.Node + " is healthy with it"
	return step.Step{
		ID: "try", Code: fault.MachineConfig, Title: title, Risk: step.Disruptive, Skip: n.alreadyRuns, Do: n.try,
	}
}
