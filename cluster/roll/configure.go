package roll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// applyConfig gives a serving node another machine configuration. A configuration that needs no reboot is applied
// on trial: Talos takes it back by itself if the node is not healthy with it. A configuration that needs a reboot
// is staged, behind a drain.
type applyConfig struct {
	*node
	reboots bool // the configuration needs a reboot, and so a drain before
}

func newApplyConfig(n *node) *applyConfig {
	return &applyConfig{node: n, reboots: n.Plan.ConfigFile != nil && len(n.Plan.ConfigFile.Reboot) > 0}
}

// given is the goal of all steps.
func (n *applyConfig) given(ctx context.Context) (string, error) {
	ended := n.Out.Has(n.Plan.Node) // false before its steps
	reason, err := "it serves", error(nil)
	if !n.Plan.Resume {
		reason, err = n.runs(ctx)
	}
	if err == nil && reason != "" {
		var uncordoned string
		if uncordoned, err = n.uncordoned(ctx); uncordoned == "" {
			reason = ""
		}
	}
	switch {
	case err != nil && !ended:
		return "", nil //nolint:nilerr // its steps say what is wrong
	case err != nil || reason == "":
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return reason, nil
}

// compare compares the file with what the node keeps for its next boot, and what it runs.
func (n *applyConfig) compare(ctx context.Context) (keeps, runs cluster.FoundFile, err error) {
	text, _, err := n.config.file(ctx)
	if err != nil {
		return keeps, runs, err
	}
	has, err := n.Talos.MachineConfigs(ctx, n.Plan.Addr)
	if err != nil {
		return keeps, runs, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	keeps, errKeeps := observe.CompareConfigs(n.Maintenance, has, text, n.Plan.Drift.Talos, n.Want.Build.TalosVersion)
	runs, errRuns := observe.CompareConfigs(n.Maintenance, cluster.Configs{Stored: has.Active, Active: has.Active}, text, n.Plan.Drift.Talos, n.Want.Build.TalosVersion)
	return keeps, runs, errors.Join(errKeeps, errRuns)
}

// runs is the goal of apply: the node runs what its file says, and keeps it.
func (n *applyConfig) runs(ctx context.Context) (string, error) {
	keeps, runs, err := n.compare(ctx)
	if err != nil || keeps.Differs() || runs.Differs() {
		return "", err
	}
	return "it runs the configuration of its file", nil
}

// alreadyRuns is runs as the goal of a step that applies the configuration. After an error the node takes pods
// again; see refused.
func (n *applyConfig) alreadyRuns(ctx context.Context) (string, error) {
	reason, err := n.runs(ctx)
	return reason, n.refused(ctx, err)
}

func (n *applyConfig) staged(ctx context.Context) (string, error) {
	keeps, _, err := n.compare(ctx)
	if err != nil || len(keeps.Changes) > 0 {
		return "", n.refused(ctx, err)
	}
	return "it keeps the configuration of its file", nil
}

// wanted returns the node's file with what recast sets itself. The node keeps the versions of Kubernetes that it
// runs and, if its image stays, the installer that its configuration names.
func (n *applyConfig) wanted(ctx context.Context) (cluster.Secret, error) {
	text, _, err := n.config.file(ctx)
	if err != nil {
		return nil, err
	}
	m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return nil, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	kubernetes, err := n.config.runsKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	patch := n.config.patch(m.InstallDisk(), kubernetes)
	if n.Plan.Strategy.KeepsVM() && !n.Plan.NeedsImage() {
		patch.Installer, patch.Talos = m.InstallImage, m.TalosVersion
	}
	patched, err := n.Maintenance.PatchConfig(text, patch)
	if err != nil {
		return nil, fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	return patched, nil
}

// rememberOld saves the configuration that the node runs, to give it back if the node is not healthy after its
// reboot. Before anything is drained, the node checks its file.
func (n *applyConfig) rememberOld(ctx context.Context) error {
	if err := n.awaitNoTrial(ctx, "remember"); err != nil {
		return err
	}
	has, err := n.shown(ctx)
	if err != nil {
		return err
	}
	text, err := n.wanted(ctx)
	if err == nil {
		err = n.check(ctx, text)
	}
	if err != nil {
		return err
	}
	return fault.Prefix("journal", n.Journal.PutSecret(MachineConfigKey(n.Plan.Node), has.Active))
}

// shown reads the node's configurations. It refuses if the node keeps another configuration than the plan compared,
// or is a control plane whose API server already does not answer.
func (n *applyConfig) shown(ctx context.Context) (cluster.Configs, error) {
	if err := n.requireServer(ctx); err != nil {
		return cluster.Configs{}, err
	}
	has, err := n.Talos.MachineConfigs(ctx, n.Plan.Addr)
	if err != nil {
		return has, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	if _, ran := n.Plan.ConfigFile.HashOf(); n.Plan.Strategy.KeepsImage() && cluster.ConfigSum(has.Stored) != ran {
		return has, n.config.fileMoved("the configuration that it keeps was changed")
	}
	return has, nil
}

func (n *applyConfig) drainMarked(ctx context.Context) error {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	why := cluster.Mark{Run: n.Run, Strategy: cluster.ApplyConfig, Build: n.Want.Build.ID, BootID: m.BootID}
	vmStays := func(context.Context, time.Time) error { return nil } // and so do its disks
	return n.evict(ctx, "drain", why, vmStays, func() error { return n.takesPods(ctx) })
}

// check asks the node, by a dry run, whether it accepts the configuration, and whether it would reboot.
func (n *applyConfig) check(ctx context.Context, text cluster.Secret) error {
	reboots, err := n.Talos.CheckConfig(ctx, n.Plan.Addr, n.Plan.UUID, text)
	switch {
	case err != nil:
		return rolling.Repeatable(fmt.Errorf("ask %s about the configuration: %w", n.Plan.Node, err)) // it was a dry run
	case reboots && !n.reboots:
		return fault.WithHint(fault.PlanMoved.Refusedf("%s says that it has to reboot for its configuration, which the plan does not show", n.Plan.Node),
			"nothing was applied; talosctl apply-config --dry-run -n %s shows for which field: please report it", n.Plan.Addr)
	}
	return nil
}

func (n *applyConfig) stage(ctx context.Context) error {
	text, err := n.wanted(ctx)
	if err == nil {
		err = n.check(ctx, text)
	}
	if err != nil {
		return n.refused(ctx, err)
	}
	err = n.Talos.StageConfig(ctx, n.Plan.Addr, n.Plan.UUID, text)
	if errors.Is(err, cluster.ErrLostAnswer) {
		if reason, errNow := n.staged(ctx); errNow != nil || reason == "" {
			return rolling.Repeatable(errors.Join(err, errNow))
		}
		return nil
	}
	return n.refused(ctx, fault.Prefix("stage the configuration on "+n.Plan.Node, err))
}

// refused lets the node take pods again if it does not get its configuration and serves with the old one. Without
// an answer, the step is repeated.
func (n *applyConfig) refused(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || cluster.IsUnanswered(err) || fault.KindOf(err) == fault.Claimed {
		return err
	}
	return errors.Join(err, n.takesPods(ctx))
}

func (n *applyConfig) reboot(ctx context.Context) error {
	before, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	lost := fault.Prefix("reboot "+n.Plan.Node, n.Talos.Reboot(ctx, n.Plan.Addr, n.Plan.UUID, cluster.ByKexec))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return lost
	}
	return cluster.Unanswered(lost, n.awaitBoot(ctx, "reboot", before.BootID))
}

// markAndReboot notes on the Node that the outage of an upgrade in place continues with a configuration: if the run
// ends, the next run must not take this reboot for the upgrade's.
func (n *applyConfig) markAndReboot(ctx context.Context) error {
	mark, err := n.mark(ctx)
	switch {
	case err != nil:
		return err
	case mark == nil:
		return fault.Refusedf("someone removed the mark from node %s", n.Plan.Node)
	}
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	mark.Strategy, mark.BootID, mark.Installed = cluster.ApplyConfig, m.BootID, false
	if err := n.Kube.Cordon(ctx, n.Plan.Node, *mark); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Plan.Node, err)
	}
	return n.reboot(ctx)
}

// awaitBoot waits until the machine answers in another boot than before.
func (n *applyConfig) awaitBoot(ctx context.Context, id, before string) error {
	return n.Watch(ctx, id, n.OfMachine(n.Plan.Node+" to leave its old boot", n.Timing.Stop+n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
		return err == nil && m.UUID == n.Plan.UUID && m.BootID != before, "still the same boot", err
	})
}

// waitServes waits until the node is healthy. A node that answers, but is not healthy with the new configuration,
// gets its old one back.
func (n *applyConfig) waitServes(ctx context.Context) error {
	err := n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, n.lacksPart)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return n.giveBack(ctx, fault.MachineConfig.Errorf("%s is not healthy with its new configuration: %w", n.Plan.Node, err))
}

func (n *applyConfig) giveBack(ctx context.Context, cause error) error {
	old, found, err := n.Journal.Secret(MachineConfigKey(n.Plan.Node))
	switch {
	case err != nil:
		return errors.Join(cause, fmt.Errorf("journal: %w", err))
	case !found:
		return fault.WithHint(cause, "its old configuration is not in the journal of this run; the console of VM %d and talosctl -n %s dmesg say more", n.Plan.VMID, n.Plan.Addr)
	}
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err == nil {
		err = n.etcd.requireToReboot(ctx)
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("%w, and it is not given its old one back: %w", cause, err),
			"the console of VM %d says more; the old configuration is in the journal of this run: .recast/runs/%s", n.Plan.VMID, n.Run)
	}
	n.Tell("wait-healthy", "it is not healthy with its new configuration: giving it the old one back")
	err = n.Repeat(ctx, "wait-healthy", rolling.RepeatBefore, func(ctx context.Context) error {
		return rolling.Repeatable(n.Talos.StageConfig(ctx, n.Plan.Addr, n.Plan.UUID, old))
	})
	if err == nil {
		if err = n.Talos.Reboot(ctx, n.Plan.Addr, n.Plan.UUID, cluster.ByKexec); err == nil || errors.Is(err, cluster.ErrLostAnswer) {
			err = cluster.Unanswered(err, n.awaitBoot(ctx, "wait-healthy", m.BootID))
		}
	}
	if err == nil {
		err = n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, n.lacksPart)
	}
	if err != nil {
		return fault.WithHint(errors.Join(cause, fmt.Errorf("and it does not serve with its old one either: %w", err)),
			"the console of VM %d and talosctl -n %s dmesg say more; recast roll waits for it again", n.Plan.VMID, n.Plan.Addr)
	}
	return errors.Join(fault.WithHint(cause, "it was given its old configuration back, and serves again; no other node was touched"), n.config.thenForget(n.uncordon)(ctx))
}

// requireServer refuses to give a control plane another configuration if its API server does not answer now: recast
// could not tell whether that server survives the change.
func (n *node) requireServer(ctx context.Context) error {
	if n.Plan.Role != cluster.ControlPlane {
		return nil
	}
	if err := cluster.RequireAPIServer(ctx, n.Talos, n.Kube, n.Plan.Node, n.Plan.Addr); err != nil {
		return fault.WithHint(fault.GateClosed.Refusedf("%w", err), "no configuration was applied: recast asks that server whether it survived one; see that it runs, and that it can be reached from here")
	}
	return nil
}

func (n *applyConfig) stageStep() step.Step {
	title := "have " + n.Plan.Node + " keep the configuration for its next boot"
	return step.Step{
		ID: "stage", Code: fault.MachineConfig, Title: title, Risk: step.Disruptive, Skip: n.staged, Do: n.stage,
	}
}

func (n *applyConfig) rebootStep(reboot func(context.Context) error) step.Step {
	return step.Step{ID: "reboot", Title: "boot with it", Risk: step.Disruptive, Skip: n.alreadyRuns, Do: reboot}
}
