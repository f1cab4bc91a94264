package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

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
	if !why.Installed {
		return n.evict(ctx, "upgrade/drain", why, nil, func() error { return n.takesPods(ctx) })
	}
	// The mark may be the only sign that another system is installed, and boots next.
	stays := func() error { return nil }
	return fault.WithHint(n.evict(ctx, "upgrade/drain", why, nil, stays),
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
		switch {
		case err != nil || mark == nil || !mark.Installed || mark.Build != n.Want.Build.ID:
			return "", nil //nolint:nilerr // the steps below say what is wrong
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
	err = n.Talos.ReplaceConfig(ctx, n.Plan.Addr, n.Plan.UUID, patched)
	return rolling.Repeatable(fault.Prefix("set the installer of "+n.Plan.Node, err))
}

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
		return errors.Join(err, fault.Prefix("clean up after that", n.Kube.Uncordon(ctx, n.Plan.Node)))
	}
	// A VM that is off boots nothing, so the upgrade has not failed yet.
	if vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID); errVM == nil && !vm.Running {
		return fault.WithHint(fmt.Errorf("%w; %s is off", err, vm), "see who stopped it; start %s in Proxmox, then run the same command again", vm)
	}
	return n.bootFailed(ctx, err)
}

// awaitVolumes waits for the volumes of a configuration that took effect with this boot, as a staged one does. The
// system is the wanted one, so it stays.
func (n *inPlace) awaitVolumes(ctx context.Context) error {
	var before []cluster.VolumeStatus
	known, err := n.Journal.Get(n.Key("stuck"), &before)
	if err != nil || !known { // unknown which of them were stuck before: drift names them
		return fault.Prefix("journal", err)
	}
	err = n.Watch(ctx, "wait-healthy", n.OfMachine("volumes of "+n.Plan.Node, n.Timing.Join), func(ctx context.Context) (bool, string, error) {
		m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		lacks := stuck(m, before)
		return err == nil && lacks == "", lacks, err
	})
	return fault.WithHint(err, "it runs the wanted build; talosctl -n %s get volumestatus shows its volumes: correct its machine configuration, then run the same command again", n.Plan.Addr)
}

var (
	errRolledBack  = errors.New("it came back as its old system")
	errOtherSystem = errors.New("it came back neither as its old system nor as the one that was installed")
)

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
	was := n.Plan.Found.Machine // a resumed run does not know the earlier system
	other := was != nil && !n.Plan.Resume && (was.Schematic.ID != m.Schematic.ID || was.TalosVersion != m.TalosVersion)
	switch mark := k.Mark; {
	case mark != nil && mark.Strategy.Upgrades() && mark.BootID == m.BootID && len(reasons) > 0:
		return "still the boot from before the upgrade", nil
	case len(reasons) > 0 && other:
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

// rolledBack uncordons a node that serves again with its old system, and records on its Node that
// this build must not be tried in place again.
func (n *inPlace) rolledBack(ctx context.Context, cause error) error {
	err := errors.Join(
		n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID),
		n.Kube.Uncordon(ctx, n.Plan.Node),
	)
	return errors.Join(fault.WithHint(fault.RolledBackByItself.Errorf("upgrade of %s to build %s: %w", n.Plan.Node, words.Short(n.Want.Build.ID), cause),
		"talosctl -n %s dmesg shows why the new system gave up; this build is not tried in place on it again", n.Plan.Addr), fault.Prefix("clean up after that", err))
}

func (n *inPlace) bootFailed(ctx context.Context, cause error) error {
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
	if n.roller.BootFailure == cluster.StopOnBootFailure {
		return fault.WithHint(cause, "look at its console in Proxmox: the boot menu has the previous entry. recast roll waits for it again; roll.bootFailure says what recast does by itself")
	}
	if err := n.etcd.requireToReboot(ctx); err != nil {
		return fault.WithHint(fault.UpgradeStuck.Errorf("%w, and it is not asked to boot its previous system: %s", cause, err),
			"repair the rest of etcd (talosctl etcd status), then run the same command again: %s runs, and is waited for again", n.Plan.Node)
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

func (n *inPlace) rememberForReimage(ctx context.Context) error {
	kubernetes, err := n.config.runsKubernetes(ctx)
	if err != nil {
		return err
	}
	sum, err := n.config.remember(ctx, kubernetes)
	if err != nil {
		return err
	}
	m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	if err := n.Journal.Put(n.Key("stuck"), m.Stuck()); err != nil || n.Plan.Previous == nil {
		return fault.Prefix("journal", err)
	}
	mem, err := n.roller.node(*n.AsReimage()).recall(ctx)
	if err != nil {
		return err
	}
	mem.ConfigSum = sum
	return fault.Prefix("journal", n.Journal.Put(n.Key("memory"), mem))
}

func (n *inPlace) cameBack(context.Context) (string, error) {
	if n.gaveUp == nil {
		return "it came back", nil
	}
	return "", nil
}

func (n *node) openRemembered(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	return n.record.open(ctx, mem)
}

func (n *inPlace) report(ctx context.Context) error {
	if err := n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Plan.Node, err)
	}
	return fault.WithHint(fault.UpgradeStuck.Errorf("%w; it was reimaged and runs build %s again", n.gaveUp, words.Short(n.Plan.Previous.ID)),
		"the disk with the system that does not boot is parked: recast status shows it")
}

// pullSteps make the node fetch the installer while it still serves: a failure shows before
// anything is taken down, and the fetch needs no turn of its own. None if no installer is needed.
func (n *node) pullSteps() []step.Step {
	if s := n.Plan.Strategy; n.Plan.Resume || n.Plan.OnlyTidies() || !s.Replaces() && !s.Upgrades() {
		return nil
	}
	return []step.Step{{ID: "pull", Code: fault.NotPullable, Title: "have " + n.Plan.Node + " fetch the installer", Skip: n.hasPulled, Do: n.pull, Yields: true}}
}

// hasPulled holds once this process has made the node fetch the installer, or found that it can't be asked to.
func (n *node) hasPulled(context.Context) (string, error) {
	if !n.pulled {
		return "", nil
	}
	return n.Plan.Node + " was asked for it", nil
}

// pull retries: the registry may depend on a pod that another node's drain has just evicted.
func (n *node) pull(ctx context.Context) error {
	if _, err := n.configForNew(ctx); err != nil { // an older Talos would not boot with settings newer than itself
		return err
	}
	var failed error
	tries := 0
	err := wait.Until(ctx, wait.For{Name: n.Plan.Node + " fetches the installer", Every: pullPause}, func(ctx context.Context) (bool, string, error) {
		began := time.Now()
		failed = n.pullOnce(ctx)
		tries++
		if failed == nil {
			return true, "", nil
		}
		if _, unproven := errors.AsType[*cluster.UnprovenError](failed); unproven || tries == pullTries || time.Since(began) > pullQuick {
			return false, "", wait.Stop(failed)
		}
		n.Tell("pull", fmt.Sprintf("tried again in %s: %v", pullPause, failed))
		return false, "", nil
	})
	if failed != nil && ctx.Err() == nil {
		return rolling.Final(failed) // it was already retried here
	}
	return err
}

func (n *node) pullOnce(ctx context.Context) error {
	supported, err := n.Talos.PullInstaller(ctx, n.Plan.Addr, n.Plan.UUID, n.Want.Build.Installer, func(s string) { n.Tell("pull", s) })
	_, unproven := errors.AsType[*cluster.UnprovenError](err)
	switch {
	case unproven:
		return err
	case err != nil:
		return n.sayIfOff(ctx, fault.WithHint(fault.NotPullable.Refusedf("%s can't fetch the installer %s: %w", n.Plan.Node, n.Want.Build.Installer, err),
			"nothing was taken down; the node itself must reach that registry, be let in there, and have room for the image"))
	case !supported:
		n.Tell("pull", "this Talos has no API to fetch an image beforehand")
	}
	n.pulled = true
	return nil
}

func (n *node) configForNew(ctx context.Context) (cluster.Secret, error) {
	config, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return nil, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	patched, err := n.Maintenance.PatchConfig(config, cluster.ConfigPatch{Installer: n.Want.Build.Installer, Talos: n.Want.Build.TalosVersion})
	return patched, fault.Prefix("machine configuration of "+n.Plan.Node, err)
}

// How often a node is asked to fetch the installer, and the pause in between. An attempt that took
// longer than pullQuick to fail is not retried: a registry moves faster than that.
const (
	pullTries = 3
	pullPause = 20 * time.Second
	pullQuick = time.Minute
)

// bootEntryStep makes sure that a restored system disk boots the same entry as before. A disk that was upgraded in
// place has two entries. The EFI variable LoaderEntryDefault, not the disk, says which one the boot loader takes: the
// replacement's install has set it to its own entry, and the older entry on this disk may have the same name.
func (n *node) bootEntryStep(entry func(parking.Memory) string) step.Step {
	look := func(ctx context.Context) (m cluster.Machine, want string, err error) {
		mem, err := n.Memory(ctx)
		if err != nil {
			return m, "", err
		}
		m, err = cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		return m, entry(mem), err
	}
	waited := false
	return step.Step{
		ID: "boot-entry", Code: fault.NoBoot, Title: "check that it boots the same entry as before", Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			m, want, err := look(ctx)
			switch {
			case waited && err != nil:
				return "", err
			case want == "":
				return "it is not known to have more than one", nil
			case err == nil && m.FromISO: // the ISO's entry may have the same name
				return "", nil
			case err == nil && m.UUID == n.Plan.UUID && m.BootEntry == want:
				return "it booted " + want, nil
			case err == nil && m.UUID == n.Plan.UUID && m.Stage == "running" && m.BootEntry == "":
				return "it does not say which entry it booted; whether that is healthy is looked at next", nil
			}
			return "", nil //nolint:nilerr // not yet: Do waits and says why
		},
		Do: func(ctx context.Context) error {
			waited = true
			var m cluster.Machine
			var want string
			await := func(what string, is func() bool) error {
				return n.Wait(ctx, "boot-entry", n.Plan.Node+" "+what, n.Timing.Join, func(ctx context.Context) (bool, string, error) {
					var err error
					m, want, err = look(ctx)
					if err == nil && m.FromISO {
						return false, "it runs from its boot ISO, not from its system disk", nil
					}
					return err == nil && m.UUID == n.Plan.UUID && is(), "stage " + words.OrNone(m.Stage), n.stillOn(ctx, err)
				})
			}
			err := await("up", func() bool { return m.Stage == "running" || m.BootEntry == want })
			if err != nil || m.BootEntry == want || m.BootEntry == "" {
				return err
			}
			n.Tell("boot-entry", fmt.Sprintf("it booted %s, not %s: asking it to boot its other entry", m.BootEntry, want))
			lost := n.Talos.Rollback(ctx, n.Plan.Addr, n.Plan.UUID)
			if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
				return fmt.Errorf("have %s boot %s, not %s: %w", n.Plan.Node, want, m.BootEntry, lost)
			}
			return cluster.Unanswered(lost, await("up with "+want, func() bool { return m.BootEntry == want }))
		},
	}
}
