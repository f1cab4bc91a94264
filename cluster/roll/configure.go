package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
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

func (n *applyConfig) given(ctx context.Context) (string, error) {
	if n.Plan.Resume {
		return n.backIn(ctx, "it serves", nil)
	}
	reason, err := n.runs(ctx)
	return n.backIn(ctx, reason, err)
}

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
// runs and, if its image stays, the installer that its configuration names. The node has checked the result.
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
	return patched, n.check(ctx, patched)
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
	if _, err := n.wanted(ctx); err != nil {
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
	return n.evict(ctx, "drain", why, nil, func() error { return n.takesPods(ctx) })
}

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
	return cluster.Awaited(lost, func() error { return n.awaitBoot(ctx, "reboot", before.BootID) })
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
		return fault.WithHint(fmt.Errorf("%w, and its old one is not restored: %w", cause, err),
			"the console of VM %d says more; the old configuration is in the journal of this run: .recast/runs/%s", n.Plan.VMID, n.Run)
	}
	n.Tell("wait-healthy", "it is not healthy with its new configuration: giving it the old one back")
	err = n.Repeat(ctx, "wait-healthy", rolling.RepeatBefore, func(ctx context.Context) error {
		return rolling.Repeatable(n.Talos.StageConfig(ctx, n.Plan.Addr, n.Plan.UUID, old))
	})
	if err == nil {
		lost := n.Talos.Reboot(ctx, n.Plan.Addr, n.Plan.UUID, cluster.ByKexec)
		err = cluster.Awaited(lost, func() error { return n.awaitBoot(ctx, "wait-healthy", m.BootID) })
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
		return fault.WithHint(fault.GateClosed.Refusedf("%w", err), "no configuration was applied: recast asks that server whether it survived one; check that it runs, and that it can be reached from here")
	}
	return nil
}

func (n *applyConfig) stageStep() step.Step {
	return step.Step{
		ID: "stage", Code: fault.MachineConfig, Title: "have " + n.Plan.Node + " keep the configuration for its next boot",
		Risk: step.Disruptive, Skip: n.staged, Do: n.stage,
	}
}

func (n *applyConfig) rebootStep(reboot func(context.Context) error) step.Step {
	return step.Step{ID: "reboot", Title: "boot with it", Risk: step.Disruptive, Skip: n.alreadyRuns, Do: reboot}
}

// MachineConfigKey is the journal key of a node's machine configuration.
func MachineConfigKey(node string) string { return node + "/" + machineConfigKey }

const machineConfigKey = "machine-config"

// savedConfig is the machine configuration of a node: in the journal, in the user's file, and in the node.
type savedConfig struct {
	*rolling.Node
	files func(ctx context.Context, node string) (config cluster.Secret, found bool, err error) // Roller.MachineConfig
}

func (n savedConfig) forget() error {
	return fault.Prefix("journal", n.Journal.Delete(MachineConfigKey(n.Plan.Node)))
}

// read returns the configuration to apply: from the journal, else from the user's file. Either must
// match the checksum in the record.
func (n savedConfig) read(ctx context.Context) (cluster.Secret, error) {
	park, err := n.Parking(ctx)
	if err != nil {
		return nil, err
	}
	b, found, err := n.Journal.Secret(MachineConfigKey(n.Plan.Node))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	damaged := park.Record.CheckConfig(b)
	if found && damaged == nil {
		return b, nil
	}
	const again = "it is not applied: the same command again puts the old system disk of %s back, which has the configuration"
	if n.files != nil {
		switch file, there, err := n.files(ctx, n.Plan.Node); {
		case err != nil:
			return nil, err
		case !there:
		case park.Record.CheckConfig(file) == nil:
			return file, nil
		case !found:
			return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: its file in talos.machineConfigs is not the machine configuration that run %s remembered", n.Plan.Node, park.Record.Run), again, n.Plan.Node)
		}
	}
	if !found {
		return nil, fault.MachineConfig.Refusedf("node %s: its machine configuration is neither in the journal nor in talos.machineConfigs", n.Plan.Node)
	}
	return nil, fault.WithHint(fault.MachineConfig.Refusedf("node %s: %w", n.Plan.Node, damaged), again, n.Plan.Node)
}

// remember writes the configuration that the node will get to the journal: the user's file as the plan showed it,
// else what the node runs. It returns the checksum for the record.
func (n savedConfig) remember(ctx context.Context, kubernetes cluster.KubernetesImages) (sum string, err error) {
	var config cluster.Secret
	found := false
	if !n.Plan.Strategy.Upgrades() { // a failed upgrade in place gets the old configuration back
		if config, found, err = n.userConfig(ctx); err != nil {
			return "", err
		}
	}
	if !found {
		if config, err = n.Talos.MachineConfig(ctx, n.Plan.Addr); err != nil {
			return "", fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
		}
	}
	// While the node still runs, prove that the configuration can be applied.
	if _, err := n.Maintenance.PatchConfig(config, n.patch(cluster.MachineDisk{Serial: "recast-proof"}, kubernetes)); err != nil {
		return "", fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	if err := n.Journal.PutSecret(MachineConfigKey(n.Plan.Node), config); err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	return cluster.ConfigSum(config), nil
}

// thenForget returns a function that runs do, which closes the node's record, and then deletes the node's machine
// configuration from the journal: by then the node has its configuration again.
func (n savedConfig) thenForget(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return n.forget()
	}
}

func (n savedConfig) fileMoved(how string) error {
	return fault.WithHint(fault.PlanMoved.Refusedf("node %s: %s since the plan was made: what the plan showed is no longer what would be applied", n.Plan.Node, how),
		"recast plan --explain %s shows what the file would change now; then roll that", n.Plan.Node)
}

// userConfig reads the node's file. It refuses if the file, or the configuration that the node
// runs, has changed since the plan compared them.
func (n savedConfig) userConfig(ctx context.Context) (text cluster.Secret, found bool, err error) {
	text, found, err = n.file(ctx)
	_, ran := n.Plan.ConfigFile.HashOf()
	if err != nil || !found || ran == "" {
		return text, found, err
	}
	runs, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return nil, false, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	if cluster.ConfigSum(runs) != ran {
		return nil, false, n.fileMoved("the configuration that it runs was changed")
	}
	return text, true, nil
}

func (n savedConfig) file(ctx context.Context) (text cluster.Secret, found bool, err error) {
	if n.files != nil {
		if text, found, err = n.files(ctx, n.Plan.Node); err != nil {
			return nil, false, err
		}
	}
	planned, _ := n.Plan.ConfigFile.HashOf()
	switch {
	case !found && planned == "":
		return nil, false, nil
	case !found:
		return nil, false, n.fileMoved("its file in talos.machineConfigs is gone")
	case planned == "":
		return nil, false, n.fileMoved("it has a file in talos.machineConfigs now")
	}
	if is, err := cluster.Text(text); err != nil || is != planned {
		return nil, false, errors.Join(n.fileMoved("its file in talos.machineConfigs was changed"), err)
	}
	return text, true, nil
}

// runsKubernetes returns the images that the node runs, and will run again when it is back. An
// image that is pinned by digest alone is assumed to stay the same.
func (n savedConfig) runsKubernetes(ctx context.Context) (cluster.KubernetesImages, error) {
	m, err := n.Talos.KubernetesImages(ctx, n.Plan.Addr)
	if err != nil {
		return cluster.KubernetesImages{}, fmt.Errorf("read which Kubernetes %s runs: %w", n.Plan.Node, err)
	}
	if m.UUID != n.Plan.UUID {
		return cluster.KubernetesImages{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, m.UUID, n.Plan.UUID)
	}
	return m.Images, nil
}

// kubernetesOfOthers returns the images for a machine that was reset and can't be asked: the
// kubelet version that its Node last reported and, on a control plane, the images of another
// control plane. An image is "" if nothing reports it.
func (n savedConfig) kubernetesOfOthers(ctx context.Context) (images cluster.KubernetesImages) {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	for _, e := range n.Plan.ControlPlanes {
		if n.Plan.Role != cluster.ControlPlane || e.Node == n.Plan.Node {
			continue
		}
		if m, err := n.Talos.KubernetesImages(asking, e.Addr); err == nil {
			images = m.Images
			break
		}
	}
	images.Kubelet = ""
	if k := n.Plan.Found.Node; k != nil && k.KubeletVersion != "" {
		images.Kubelet = "ghcr.io/siderolabs/kubelet:" + k.KubeletVersion
	}
	return images
}

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
	back := func(within time.Duration) error {
		return n.Watch(ctx, "try", n.OfMachine(n.Plan.Node+" to run its old configuration again", within), func(ctx context.Context) (bool, string, error) {
			has, err := n.Talos.MachineConfigs(ctx, n.Plan.Addr)
			if err != nil {
				return false, "", err
			}
			kept := before.Same() && has.Same() // kept by an apply whose answer was lost
			return kept || cluster.Configs{Stored: before.Active, Active: has.Active}.Same(), "it runs another configuration than before", nil
		})
	}
	err := back(n.lasts() + n.Timing.Try)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // until Talos 1.14 any other request ends the timer of a trial
		n.Tell("try", "Talos has not taken it back: recast gives "+n.Plan.Node+" its old configuration")
		err = n.Talos.ReplaceConfig(ctx, n.Plan.Addr, n.Plan.UUID, before.Active)
		if err == nil || errors.Is(err, cluster.ErrLostAnswer) {
			err = back(n.Timing.Try)
		}
	}
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
	return step.Step{
		ID: "try", Title: "try the configuration, and keep it if " + n.Plan.Node + " is healthy with it",
		Code: fault.MachineConfig, Risk: step.Disruptive, Skip: n.alreadyRuns, Do: n.try,
	}
}
