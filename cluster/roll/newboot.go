package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

func (n *inPlace) bootHealthy(ctx context.Context) (string, error) {
	if n.gaveUp != nil {
		return "it did not come back, and is reimaged instead", nil
	}
	return n.settled(ctx, n.lacksAfterUpgrade)
}

// waitBootHealthy ends when the node is healthy, when it came back as its old system (that build is then never tried in
// place again), or at our own boot deadline, because Talos' automatic rollback is not reliable.
func (n *inPlace) waitBootHealthy(ctx context.Context) error {
	err := n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, n.lacksAfterUpgrade)
	switch {
	case err == nil:
		return n.awaitVolumes(ctx)
	case ctx.Err() != nil || fault.KindOf(err) == fault.Config:
		return err
	case errors.Is(err, errRolledBack):
		return n.rolledBack(ctx, err)
	case errors.Is(err, errOtherSystem):
		err = fault.WithHint(fmt.Errorf("upgrade of %s to build %s: %w", n.Plan.Node, words.Short(n.Want.Build.ID), err),
			"someone else has installed a system on it meanwhile: see who; it takes pods again, and recast roll continues from what it runs now")
		return errors.Join(err, fault.Prefix("clear up after that", n.Kube.Uncordon(ctx, n.Plan.Node)))
	}
	// A VM that is off boots nothing, so the upgrade has not failed yet.
	if vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID); errVM == nil && !vm.Running {
		return fault.WithHint(fmt.Errorf("%w; %s is off", err, vm), "see who stopped it; start %s in Proxmox, then run the same command again", vm)
	}
	return n.bootFailed(ctx, err)
}

// rememberStuck saves which volumes are stuck before the upgrade.
func (n *inPlace) rememberStuck(ctx context.Context) error {
	m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	return fault.Prefix("journal", n.Journal.Put(n.Key("stuck"), m.Stuck()))
}

// awaitVolumes waits for the volumes of a configuration that took effect with this boot, as a staged one does. The
// system is the wanted one, so it stays.
func (n *inPlace) awaitVolumes(ctx context.Context) error {
	var before []cluster.VolumeStatus
	known, err := n.Journal.Get(n.Key("stuck"), &before)
	if err != nil {
		return fault.Prefix("journal", err)
	}
	if !known {
		return nil // unknown which of them were stuck before: drift names them
	}
	err = n.Watch(ctx, "wait-healthy", n.OfMachine("volumes of "+n.Plan.Node, n.Timing.Join), func(ctx context.Context) (bool, string, error) {
		m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		lacks := stuck(m, before)
		return err == nil && lacks == "", lacks, err
	})
	return fault.WithHint(err, "it runs the wanted build; talosctl -n %s get volumestatus shows its volumes: mend its machine configuration, then run the same command again", n.Plan.Addr)
}

var (
	errRolledBack  = errors.New("it came back as its old system")
	errOtherSystem = errors.New("it came back neither as its old system nor as the one that was installed")
)

// lacksAfterUpgrade names the first thing that the node still lacks.
func (n *inPlace) lacksAfterUpgrade(ctx context.Context) (string, error) {
	m, lacks, err := n.Arrived(ctx)
	if err != nil || lacks != "" {
		return lacks, err
	}
	reasons := cluster.DiffImage(n.Want.Build, m.RunningSystem, n.roller.History)
	k, err := n.KubeNode(ctx)
	if err != nil {
		return "", err
	}
	switch mark := k.Mark; {
	case mark != nil && mark.Strategy.Upgrades() && mark.BootID == m.BootID && len(reasons) > 0:
		return "still the boot from before the upgrade", nil
	case len(reasons) > 0 && n.isOther(m.RunningSystem):
		return "", wait.Stop(fmt.Errorf("%w: %s", errOtherSystem, reasons[0].Text))
	case len(reasons) > 0:
		return "", fmt.Errorf("%w: %s", errRolledBack, reasons[0].Text)
	}
	if err := n.crossCheck(ctx, m, k); err != nil {
		return "", err
	}
	if lacks, err := n.etcd.lacks(ctx, etcdMemory(n.Node)); err != nil || lacks != "" {
		return lacks, err
	}
	return cluster.LacksReady(ctx, n.Kube, k, m.UUID, m.BootID)
}

// isOther says whether a machine runs another system than before the upgrade. A resumed run does
// not know the earlier system, so it says no.
func (n *inPlace) isOther(m cluster.RunningSystem) bool {
	was := n.Plan.Found.Machine
	return was != nil && !n.Plan.Resume && (was.Schematic.ID != m.Schematic.ID || was.TalosVersion != m.TalosVersion)
}

// rolledBack uncordons a node that serves again with its old system, and records on its Node that
// this build must not be tried in place again.
func (n *inPlace) rolledBack(ctx context.Context, cause error) error {
	err := errors.Join(
		n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID),
		n.Kube.Uncordon(ctx, n.Plan.Node),
	)
	return errors.Join(fault.WithHint(fault.RolledBackByItself.Errorf("upgrade of %s to build %s: %w", n.Plan.Node, words.Short(n.Want.Build.ID), cause),
		"talosctl -n %s dmesg shows why the new system gave up; this build is not tried in place on it again", n.Plan.Addr), fault.Prefix("clear up after that", err))
}

// bootFailed acts by policy on a node that did not come back in time.
func (n *inPlace) bootFailed(ctx context.Context, cause error) error {
	policy := n.roller.BootFailure
	if policy == "" {
		policy = cluster.RollbackOnBootFailure
	}
	cause = fmt.Errorf("%s did not come back from its upgrade: %w", n.Plan.Node, cause)
	if n.Plan.Reboot == cluster.ByFirmware {
		cause = fault.WithHint(cause, "it was booted through the firmware (roll.reboot): an image that boots by kexec only hangs there (talos#14146); no other node got it")
	}
	if m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr); err == nil && m.UUID == n.Plan.UUID && len(cluster.DiffImage(n.Want.Build, m.RunningSystem, n.roller.History)) > 0 {
		if mark, err := n.mark(ctx); err == nil && mark != nil && mark.BootID == m.BootID {
			return fault.WithHint(cause, "talosctl -n %s dmesg shows why it does not leave the boot from before the upgrade; run the same command again to continue from there", n.Plan.Addr)
		}
		// a rollback request would make it boot the new system again
		return n.rolledBack(ctx, fmt.Errorf("%w: %w, but that is not healthy", cause, errRolledBack))
	}
	if policy == cluster.StopOnBootFailure {
		return fault.WithHint(cause, "look at its console in Proxmox: the boot menu has the previous entry. recast roll waits for it again; roll.bootFailure says what recast does by itself")
	}
	if err := n.etcd.requireToReboot(ctx); err != nil {
		return fault.WithHint(fault.UpgradeStuck.Errorf("%w, and it is not asked to boot its previous system: %s", cause, err),
			"put the rest of etcd right (talosctl etcd status), then run the same command again: %s runs, and is waited for again", n.Plan.Node)
	}
	n.Tell("wait-healthy", "it did not come back in time: asking it to boot its previous system")
	if err := n.Talos.Rollback(ctx, n.Plan.Addr, n.Plan.UUID); err != nil {
		return n.cannotRollBack(ctx, cause, fmt.Errorf("and it can't be asked to roll back: %w", err))
	}
	if err := n.awaitOldSystem(ctx); err != nil {
		return errors.Join(cause, fmt.Errorf("and its previous system did not come back either: %w", err))
	}
	return n.rolledBack(ctx, fmt.Errorf("%w, and was rolled back", cause))
}

// cannotRollBack leaves the machine to a reimage if one is planned, unless the machine is up and
// only we can't reach it.
func (n *inPlace) cannotRollBack(ctx context.Context, cause, why error) error {
	both := errors.Join(cause, why)
	k, err := n.KubeNode(ctx)
	switch {
	case ctx.Err() != nil || fault.KindOf(why) == fault.Config:
		return both
	case n.Plan.Previous == nil:
		return fault.WithHint(both, "look at its console in Proxmox: the boot menu has the previous entry; with roll.bootFailure: reimage recast would have reinstalled its build")
	case err == nil && k.Ready && k.Mark != nil && k.BootID != k.Mark.BootID:
		return fault.WithHint(both, "Kubernetes has node %s Ready after a reboot, so nothing is done to it: see what is between us and its Talos API at %s; recast roll waits for it again", n.Plan.Node, n.Plan.Addr)
	}
	n.gaveUp = cause
	return nil
}

func (n *inPlace) awaitOldSystem(ctx context.Context) error {
	return n.Watch(ctx, "wait-healthy", n.OfMachine(n.Plan.Node+" back as its previous system", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		lacks, err := n.lacksAfterUpgrade(ctx)
		if errors.Is(err, errRolledBack) {
			return true, "", nil
		}
		return false, cmp.Or(lacks, "it runs the new one"), err
	})
}

// crossCheck handles a machine that runs what this upgrade installed but reports the previous boot entry: it has
// rebooted, and its schematic is the wanted one. Entries of the same version may have the same name, and nothing else
// tells them apart until the next boot, so its Node records the entry.
func (n *inPlace) crossCheck(ctx context.Context, m cluster.Machine, k cluster.KubeNode) error {
	if mark := k.Mark; mark == nil || !mark.Installed || mark.Build != n.Want.Build.ID || mark.BootID == m.BootID {
		return nil
	}
	booted := k.Booted
	booted.Gone = "" // the installer has written another entry
	if m.RunningSystem = k.Corrected(m.RunningSystem, m.BootID); m.PendingReboot() {
		n.Tell("wait-healthy", fmt.Sprintf("it says that it booted %s, but it runs the system of %s: its schematic and extensions are the wanted ones", m.BootEntry, m.NextBoot))
		booted = cluster.Booted{BootID: m.BootID, Entry: m.NextBoot}
	}
	if booted == k.Booted {
		return nil
	}
	return n.Kube.SetBooted(ctx, n.Plan.Node, booted)
}

// rememberForReimage saves what a reimage would need, while the machine can still be asked.
func (n *inPlace) rememberForReimage(ctx context.Context) error {
	kubernetes, err := n.config.runsKubernetes(ctx)
	if err != nil {
		return err
	}
	sum, err := n.config.remember(ctx, kubernetes)
	if err != nil {
		return err
	}
	if err := n.rememberStuck(ctx); err != nil || n.Plan.Previous == nil {
		return err
	}
	mem, err := n.roller.node(*n.AsReimage()).recall(ctx)
	if err != nil {
		return err
	}
	mem.ConfigSum = sum
	return fault.Prefix("journal", n.Journal.Put(n.Key("memory"), mem))
}

// cameBack holds unless the node is to be reimaged.
func (n *inPlace) cameBack(context.Context) (string, error) {
	if n.gaveUp == nil {
		return "it came back", nil
	}
	return "", nil
}

// openRemembered opens the record of a reimage from what was remembered before the upgrade.
func (n *node) openRemembered(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	return n.record.open(ctx, mem)
}

// report fails a node that was reimaged.
func (n *inPlace) report(ctx context.Context) error {
	if err := n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Plan.Node, err)
	}
	return fault.WithHint(fault.UpgradeStuck.Errorf("%w; it was reimaged and runs build %s again", n.gaveUp, words.Short(n.Plan.Previous.ID)),
		"the disk with the system that does not boot is parked: recast status shows it")
}
