package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// bringUp ends with the node healthy on the new build and the record closed.
func (n *nodeRoll) bringUp() step.Step {
	return step.Step{
		ID: "bring-up", Title: "bring " + n.plan.Node + " up", Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := append(n.withDisk(n.replacing().bringUp(n.plan.Strategy)),
				step.Step{ID: "start", Code: fault.NoBoot, Title: fmt.Sprintf("start VM %d", n.plan.VMID), Skip: n.started, Do: n.start})
			if n.plan.Strategy == Rollback {
				steps = append(steps, n.bootEntryStep(func(memory) string { return n.plan.restore.Entry }))
			} else {
				steps = append(steps, step.Step{ID: "configure", Code: fault.NoBoot, Title: "check the blank machine and configure it", Risk: step.Destructive, Skip: n.configured, Do: n.configure})
			}
			return append(steps,
				step.Step{ID: "wait-healthy", Code: fault.NoJoin, Title: "wait until " + n.plan.Node + " is healthy", Skip: n.healthy, Do: n.waitHealthy},
				step.Step{ID: "finish", Title: "put back what was taken away for the roll", Steps: n.finishSteps},
			), nil
		},
	}
}

func (n *nodeRoll) started(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VMState(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	// status says "running" for a VM that hangs in its own emulator, too.
	if !vm.Running || vm.QMP != "running" {
		return "", nil
	}
	return vm.String() + " runs", nil
}

func (n *nodeRoll) start(ctx context.Context) error {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	case vm.UUID() != n.plan.UUID || n.plan.Strategy != PutBack && vm.MadeBy() != n.Run:
		return fault.VMChanged.Refusedf("%s is not the one that run %s created", vm, n.Run)
	case vm.Running:
		return fault.VMChanged.Refusedf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	if err := n.requireAlone(ctx, vm); err != nil {
		return err
	}
	if !n.installs() { // what it boots has the name already
		if err := n.requireNameFree(ctx); err != nil {
			return err
		}
	}
	if err := n.sending(ctx, sentStart, LateQueue, func(ctx context.Context) error { return n.Proxmox.Start(ctx, vm) }); err != nil {
		return fmt.Errorf("start %s: %w", vm, err)
	}
	return nil
}

var errNoAnswer = errors.New("no answer with the cluster's certificates yet")

// configured says whether the machine has answered with the cluster's
// credentials: it has taken its configuration. It reboots soon after that,
// once Talos is installed, and then nothing answers for a while.
func (n *nodeRoll) configured(ctx context.Context) (string, error) {
	reason, _, err := n.answers(ctx)
	return reason, err
}

// answers is configured; silent says why the machine does not answer yet.
func (n *nodeRoll) answers(ctx context.Context) (reason string, silent, err error) {
	reason = "it answers with the cluster's certificates"
	if n.answered {
		return reason, nil, nil
	}
	m, err := n.Talos.Standing(ctx, n.plan.Addr)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoAnswer, err), nil
	case m.UUID == "": // it has no more to say yet
		return "", errNoAnswer, nil
	case m.UUID != n.plan.UUID:
		return "", nil, fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.plan.Addr, m.UUID, n.plan.UUID),
			"another machine has the address of %s: see who has that lease, or whether it is a virtual address; nothing was done to it", n.plan.Node)
	}
	n.answered = true
	return reason, nil, nil
}

// BlankAnswers begins what is said once a machine has booted into maintenance mode.
const BlankAnswers = "it is the blank machine that was made"

// configure waits for the blank machine, makes sure that it is the right one
// with the right build and the right disks, and only then applies the
// configuration. If anything differs the VM is stopped and nothing was applied.
func (n *nodeRoll) configure(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	blank, err := n.awaitBlank(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		blank, err = n.awaitRenewed(ctx, mem, err)
	}
	if err != nil || blank == nil {
		return err
	}
	park, err := n.parking(ctx)
	if err != nil {
		return err
	}
	if err := n.checkBlank(*blank, mem, park.Record.Stage == stageConfigured); err != nil {
		return n.stopMismatch(ctx, err)
	}
	n.say("bring-up/configure", BlankAnswers+", its certificate's fingerprint "+blank.Fingerprint)
	if err := n.requireNameFree(ctx); err != nil {
		return err
	}
	if err := n.noteStage(ctx, stageConfigured); err != nil {
		return err
	}
	// A machine that has taken its configuration goes on at once, and may not get to answering.
	lost := n.apply(ctx, mem.blankDisks(*blank)[0], mem.Kubernetes)
	if lost != nil && !errors.Is(lost, ErrLostAnswer) {
		return lost
	}
	return Unanswered(lost, n.inVain(ctx, n.watch(ctx, "bring-up/configure", n.ofMachine(n.plan.Node+" takes its configuration", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		reason, silent, err := n.answers(ctx)
		if silent != nil {
			return false, "", n.stillOn(ctx, silent)
		}
		return reason != "", "", wait.Stop(err)
	})))
}

// Unanswered adds to a wait that was in vain the change that had got no answer:
// it may be that it never happened.
func Unanswered(lost, waited error) error {
	if lost == nil || waited == nil {
		return waited
	}
	return fmt.Errorf("%w; before that: %w", waited, lost)
}

// awaitBlank waits for the machine in maintenance mode; nil if it has taken its
// configuration already.
func (n *nodeRoll) awaitBlank(ctx context.Context) (blank *Machine, err error) {
	err = n.watch(ctx, "bring-up/configure", n.ofMachine(n.plan.Node+" in maintenance mode", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		if reason, err := n.configured(ctx); err != nil || reason != "" {
			return err == nil, "", wait.Stop(err) // an earlier attempt had applied it
		}
		m, err := n.Maintenance.MaintenanceMachine(ctx, n.plan.Addr)
		if err == nil && m.Stage == "maintenance" && m.Ready {
			blank = &m
			return true, "", nil
		}
		return false, "stage " + m.Stage, n.stillOn(ctx, err)
	})
	return blank, err
}

// awaitRenewed is awaitBlank once more, with another blank disk, for a machine
// that may hang because its installation was cut off.
func (n *nodeRoll) awaitRenewed(ctx context.Context, mem memory, silent error) (*Machine, error) {
	r, err := n.replace(ctx)
	if err != nil {
		return nil, err
	}
	if !n.cutOff(ctx, r, mem) {
		return nil, fault.WithHint(silent, "look at the console of VM %d: if Talos says there that it is installed already, its installation was cut off, or one of the other disks has a META partition; "+
			"if it is in maintenance mode, something is between us and %s, or another machine has that address; recast recover %s gives the replacement up and boots the old system disk", n.plan.VMID, n.plan.Addr, n.plan.Node)
	}
	if err := n.renew(ctx, r, silent); err != nil {
		return nil, err
	}
	return n.awaitBlank(ctx)
}

func (n *nodeRoll) apply(ctx context.Context, disk MachineDisk, kubernetes KubernetesImages) error {
	config, err := n.machineConfig(ctx)
	if err != nil {
		return err
	}
	patched, err := n.Maintenance.PatchConfig(config, n.patch(disk, kubernetes))
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.plan.Node, err)
	}
	err = fault.Prefix("apply the configuration to "+n.plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.plan.Addr, n.plan.UUID, patched))
	if err != nil && !errors.Is(err, ErrLostAnswer) {
		return fault.WithHint(err,
			"%s waits for one in maintenance mode; recast recover %s boots the old system disk, and what it had is changed there", n.plan.Node, n.plan.Node)
	}
	return err
}

func (n *nodeRoll) patch(disk MachineDisk, kubernetes KubernetesImages) ConfigPatch {
	return ConfigPatch{Installer: n.want.Build.Installer, Disk: disk, Hostname: n.plan.Node, Kubernetes: kubernetes, Talos: n.want.Build.TalosVersion}
}

// stopMismatch switches a machine off that is not what it should be. Its disks are untouched.
func (n *nodeRoll) stopMismatch(ctx context.Context, mismatch error) error {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err == nil {
		err = n.sending(ctx, sentStop, LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) })
	}
	if err != nil {
		return errors.Join(mismatch, fmt.Errorf("and VM %d could not be stopped: %w", n.plan.VMID, err))
	}
	return fmt.Errorf("VM %d was stopped before anything was applied to it: %w", n.plan.VMID, mismatch)
}

// checkBlank compares the machine in maintenance mode with what was remembered and is
// wanted; configured says that it may have had its configuration once.
func (n *nodeRoll) checkBlank(m Machine, mem memory, configured bool) error {
	if m.UUID != n.plan.UUID { // then nothing else of it is ours to judge
		return fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.plan.Addr, m.UUID, n.plan.UUID),
			"another machine has the address of %s: see who has that lease, or whether it is a virtual address; nothing was done to it", n.plan.Node)
	}
	return errors.Join(append(n.want.Build.checkBooted(m), checkBlankDisks(m, mem, configured)...)...)
}

// checkBooted compares what a machine has booted from the ISO of a build with that build.
func (b Build) checkBooted(m Machine) (problems []error) {
	if m.Schematic.LockHash() != b.LockHash || m.Schematic.ID != b.SchematicID || m.TalosVersion != b.TalosVersion {
		problems = append(problems, fault.WithHint(
			fault.NoBoot.Refusedf("it booted %s with schematic %s (lock %s), wanted is %s with %s (lock %s)", m.TalosVersion,
				words.OrNone(words.Short(m.Schematic.ID)), words.OrNone(words.Short(m.Schematic.LockHash())), b.TalosVersion, words.Short(b.SchematicID), words.Short(b.LockHash)),
			"the bytes of the boot ISO %s are not what its name says: delete it from the Proxmox storage, then recast publish and recast roll again", b.ISOName))
	}
	for _, r := range diffTarget(b, m) {
		problems = append(problems, fault.NoBoot.Refusedf("what it booted is not what is wanted: %s", r.Text))
	}
	return problems
}

func checkBlankDisks(m Machine, mem memory, configured bool) []error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	switch ours := mem.blankDisks(m); {
	case len(ours) != 1:
		refuse("%d disks of the machine are the blank system disk %s with serial %s, expected one", len(ours), mem.SystemKey, mem.DiskSerial)
	case !ours[0].Blank:
		refuse("the new system disk %s is not blank", ours[0].Device)
	}
	for _, want := range mem.Volumes {
		if _, there := m.find(want); !there && m.shows(want.Format) {
			refuse("the persistent volume %s is missing", want)
		}
	}
	problems = append(problems, mem.displaced(m, configured)...)
	seen := map[string]string{}
	for _, v := range m.Volumes {
		if !slices.Contains(talosLabels, v.Label) {
			continue
		}
		if other, twice := seen[v.Label]; twice {
			refuse("the label %s is on %s and on %s", v.Label, other, v.Device)
		}
		seen[v.Label] = v.Device
	}
	return problems
}

// blankDisks are the machine's disks that are the blank system disk: one.
func (mem memory) blankDisks(m Machine) []MachineDisk {
	vm := mem.blankVM()
	drives, err := vm.Bootable()
	if err != nil {
		return nil
	}
	return m.machineDisks(vm, drives, mem.SystemKey)
}
