package roll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// inPlace is the upgrade in place. This file installs and boots the new system; newboot.go has whether it came up,
// and the reimage of a node that did not come back.
type inPlace struct {
	*node
	rebooted  bool      // this process told it to reboot
	accepted  bool      // it confirmed that it reboots
	reached   string    // why the wanted build counts as booted; "": it does not
	reachedAt time.Time // when that was seen
	gaveUp    error     // why the node is to be reimaged
}

func (n *inPlace) awaitDown(ctx context.Context, id string, timeout time.Duration) error {
	n.rebooted = true
	return n.Watch(ctx, id, n.OfMachine(n.Plan.Node+" to leave its old boot", timeout), func(ctx context.Context) (bool, string, error) {
		reason, err := n.runsWanted(ctx)
		return reason != "", "still the same boot", wait.Stop(err)
	})
}

// awaitInstaller waits for an installer that an earlier attempt started and that still runs. Only the boot loader's
// default shows whether it succeeded. If it did not, or there is no default to read, the installer is run again.
func (n *inPlace) awaitInstaller(ctx context.Context, setMark func() error) error {
	reboots := false
	err := n.Wait(ctx, "upgrade/install", "the installer that runs on "+n.Plan.Node+" to end", n.Timing.Boot, func(ctx context.Context) (bool, string, error) {
		reason, err := n.installed(ctx)
		if err != nil || reason != "" {
			return err == nil, "", err // a failed read says nothing about the installer
		}
		reboots, err = n.Talos.Install(ctx, n.Plan.Addr, n.Plan.UUID, n.Want.Build.Installer, n.Plan.Reboot, func(s string) { n.Tell("upgrade/install", s) })
		if errors.Is(err, cluster.ErrBusy) {
			return false, "it still runs", nil
		}
		return err == nil, "", wait.Stop(err)
	})
	switch {
	case err != nil:
		return n.notInstalled(ctx, err)
	case reboots:
		return n.awaitDown(ctx, "upgrade/install", n.Timing.Boot)
	}
	return setMark()
}

func (n *inPlace) drainMarked(ctx context.Context) error {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	why := cluster.Mark{Run: n.Run, Strategy: cluster.InPlace, Build: n.Want.Build.ID, BootID: m.BootID, NextBoot: m.NextBoot}
	if old, err := n.mark(ctx); err != nil {
		return err
	} else if old != nil && old.Begun(why) {
		why = *old // after a crash in between, what was installed stays installed
	}
	vmStays := func(context.Context, time.Time) error { return nil } // and so do its disks
	if !why.Installed {
		return n.evict(ctx, "upgrade/drain", why, vmStays, func() error { return n.takesPods(ctx) })
	}
	// The mark may be the only sign that another system is installed, and boots next.
	stays := func() error { return nil }
	return fault.WithHint(n.evict(ctx, "upgrade/drain", why, vmStays, stays),
		"the new system is installed on %s already, which therefore stays cordoned: the same command again boots it", n.Plan.Node)
}

// install sets the mark to installed after the installation, or, if the machine reboots by itself, right before it.
func (n *inPlace) install(ctx context.Context) error {
	mark, err := n.mark(ctx)
	switch {
	case err != nil:
		return err
	case mark == nil:
		return fault.Refusedf("someone removed the mark from node %s", n.Plan.Node)
	}
	mark.Installed = true
	setMark := func() error { return fault.Prefix("mark node "+n.Plan.Node, n.Kube.Cordon(ctx, n.Plan.Node, *mark)) }
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	if !m.InstallsApart() {
		if err := setMark(); err != nil {
			return err
		}
	}
	reboots := false
	err = n.Repeat(ctx, "upgrade/install", rolling.RepeatBefore, func(ctx context.Context) error {
		began := time.Now()
		reboots, err = n.Talos.Install(ctx, n.Plan.Addr, n.Plan.UUID, n.Want.Build.Installer, n.Plan.Reboot, func(s string) { n.Tell("upgrade/install", s) })
		if time.Since(began) > rolling.RepeatBefore { // it has already waited that long
			return rolling.Final(err)
		}
		return err
	})
	if errors.Is(err, cluster.ErrBusy) {
		return n.awaitInstaller(ctx, setMark)
	}
	if err != nil {
		return rolling.Final(n.notInstalled(ctx, err))
	}
	if !reboots {
		return setMark()
	}
	n.accepted = true
	return n.awaitDown(ctx, "upgrade/install", n.Timing.Boot)
}

// installed says whether the wanted build is installed beside the running system: the boot loader's default has
// changed since the mark was set. The mark itself counts only if the default can't tell (it can't be read, or an
// earlier disk has left it), and not on a machine that reboots by itself: such a machine is marked before it has
// even pulled the installer, and its installer ends with the call. The build must not be installed twice: before
// Talos 1.14 an installer keeps the default entry and removes the others, the running one too.
func (n *inPlace) installed(ctx context.Context) (string, error) {
	if reason, err := n.runsWanted(ctx); err != nil || reason != "" {
		return reason, err
	}
	k, err := n.KubeNode(ctx)
	mark := k.Mark
	if err != nil || mark == nil || mark.Build != n.Want.Build.ID {
		return "", err
	}
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr) // a fresh read, right before an installation
	if err != nil {
		return "", fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	tells := m.NextBoot != "" && m.NextBoot != k.Booted.Gone
	if m.NextBoot == mark.NextBoot && (!mark.Installed || tells || !m.InstallsApart()) {
		return "", nil
	}
	return "installed, to be booted", nil
}

// installerSet says whether the machine configuration names the running image: the next reset or
// installation uses the image that it names.
func (n *inPlace) installerSet(ctx context.Context) (string, error) {
	image, err := n.Talos.InstallImage(ctx, n.Plan.Addr)
	if err != nil {
		return "", fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	if len(cluster.DiffInstalled(n.Want.Build, cluster.RunningSystem{}, image)) > 0 {
		return "", nil
	}
	return "the configuration names " + words.OrNone(image), nil
}

// notInstalled uncordons a node whose installer failed, if it still runs its old system and nothing
// says that another one is installed.
func (n *inPlace) notInstalled(ctx context.Context, cause error) error {
	err := fmt.Errorf("install %s on %s: %w", n.Want.Build.Installer, n.Plan.Node, cause)
	unknown := errors.Is(cause, cluster.ErrLostAnswer) || errors.Is(cause, context.DeadlineExceeded) || ctx.Err() != nil || fault.KindOf(cause) == fault.Claimed
	if !unknown {
		reason, errNow := n.installed(ctx)
		unknown = errNow != nil || reason != ""
	}
	if unknown {
		return fault.WithHint(err, "whether it is installed on %s is not known: run the same command again: it finds out, and continues", n.Plan.Node)
	}
	err = fault.WithHint(err, "%s still runs its old system and takes pods again", n.Plan.Node)
	return errors.Join(err, fault.Prefix("uncordon "+n.Plan.Node, n.Kube.Uncordon(ctx, n.Plan.Node)))
}

// keepWayBack saves what a way back needs. What the plan showed of the node's file must still hold before anything
// is touched.
func (n *inPlace) keepWayBack(ctx context.Context) error {
	if n.Plan.WithConfig {
		if _, _, err := n.config.userConfig(ctx); err != nil {
			return err
		}
		if err := n.requireServer(ctx); err != nil {
			return err
		}
	}
	return n.rememberForReimage(ctx)
}

func (n *inPlace) reboot(ctx context.Context) error {
	lost := fault.Prefix("reboot "+n.Plan.Node, n.Talos.Reboot(ctx, n.Plan.Addr, n.Plan.UUID, n.Plan.Reboot))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return lost
	}
	n.accepted = lost == nil
	return cluster.Unanswered(lost, n.awaitDown(ctx, "upgrade/reboot", n.Timing.Stop))
}

func (n *inPlace) runsNow(ctx context.Context) (string, error) {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		if ctx.Err() != nil {
			return "", err // we were cancelled; this says nothing about the machine
		}
		k, errNode := n.KubeNode(ctx)
		switch installed := k.Mark != nil && k.Mark.Installed; {
		case errNode != nil && n.rebooted, errNode == nil && installed && (n.accepted || !k.Ready || k.BootID != k.Mark.BootID):
			return "it is unavailable: " + err.Error(), nil // if it is the only control plane, the mark can't be read while it reboots
		case errNode == nil && installed: // its Node is Ready in the old boot: only its Talos API does not answer
			return "", fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
		}
		return "", nil //nolint:nilerr // the steps below say what is wrong
	}
	if m.UUID != n.Plan.UUID {
		return "", fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, m.UUID, n.Plan.UUID)
	}
	if len(cluster.DiffImage(n.Want.Build, m.RunningSystem, n.roller.History)) > 0 || m.PendingReboot() {
		mark, err := n.mark(ctx)
		if err != nil || mark == nil || !mark.Installed || mark.Build != n.Want.Build.ID {
			return "", nil //nolint:nilerr // the steps below say what is wrong
		}
		switch {
		case mark.BootID != m.BootID:
			return "it has rebooted", nil // the next step sees into which system
		case m.Stage == "rebooting":
			return "it is rebooting", nil
		}
		return "", nil
	}
	return fmt.Sprintf("runs %s build %s", m.TalosVersion, words.Short(n.Want.Build.ID)), nil
}

// runsWanted is the goal of the upgrade: the machine has booted the wanted build. A machine that
// does not answer after it was told to reboot counts as done here: the next step waits for it.
func (n *inPlace) runsWanted(ctx context.Context) (string, error) {
	if n.reached != "" && wait.Elapsed(n.reachedAt) < rolling.JustNow {
		return n.reached, nil
	}
	reason, err := n.runsNow(ctx)
	n.reached, n.reachedAt = reason, time.Now()
	return reason, err
}

func (n *inPlace) setInstaller(ctx context.Context) error {
	patched, err := n.configForNew(ctx)
	if err != nil {
		return err
	}
	if err := n.Talos.ReplaceConfig(ctx, n.Plan.Addr, n.Plan.UUID, patched); err != nil {
		return rolling.Repeatable(fmt.Errorf("set the installer of %s: %w", n.Plan.Node, err))
	}
	return nil
}
