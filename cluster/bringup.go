package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// bringUp ends with the node healthy on the new build and the record closed.
func (n *nodeRoll) bringUp() step.Step {
	return step.Step{
		ID: "bring-up", Title: "bring " + n.plan.Node + " up", Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := append(n.withDisk(replacing(n.replace).bringUp(n.plan.Strategy)),
				step.Step{ID: "start", Title: fmt.Sprintf("start VM %d", n.plan.VMID), Skip: n.started, Do: n.start})
			if n.plan.Strategy == Rollback {
				steps = append(steps, n.bootEntryStep(func(memory) string { return n.plan.restore.Entry }))
			} else {
				steps = append(steps, step.Step{ID: "configure", Title: "check the blank machine and configure it", Risk: step.Destructive, Skip: n.configured, Do: n.configure})
			}
			return append(steps,
				step.Step{ID: "wait-healthy", Title: "wait until " + n.plan.Node + " is healthy", Skip: n.healthy, Do: n.waitHealthy},
				step.Step{ID: "finish", Title: "put back what was taken away for the roll", Steps: n.finishSteps},
			), nil
		},
	}
}

func (n *nodeRoll) started(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
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
		return fault.Refusedf("%s is not the one that run %s created", vm, n.Run)
	case vm.Running:
		return fault.Refusedf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	if err := n.requireAlone(ctx, vm); err != nil {
		return err
	}
	if err := n.Proxmox.Start(ctx, vm); err != nil {
		return fmt.Errorf("start %s: %w", vm, err)
	}
	return nil
}

var errNoAnswer = errors.New("no answer with the cluster's certificates yet")

// configured says whether the machine has answered with the cluster's
// credentials: it has taken its configuration. It reboots soon after that,
// once Talos is installed, and then nothing answers for a while.
func (n *nodeRoll) configured(ctx context.Context) (string, error) {
	const reason = "it answers with the cluster's certificates"
	if n.answered {
		return reason, nil
	}
	m, err := n.Talos.Machine(ctx, n.plan.Addr)
	if err != nil || m.Stage == "maintenance" && m.UUID == "" {
		return "", nil //nolint:nilerr // not yet: configure waits and says why
	}
	if m.UUID != n.plan.UUID {
		return "", fault.Refusedf("%s answers with UUID %s, not %s", n.plan.Addr, m.UUID, n.plan.UUID)
	}
	n.answered = true
	return reason, nil
}

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
	if err := n.checkBlank(*blank, mem); err != nil {
		return n.stopMismatch(ctx, err)
	}
	// A machine that has taken its configuration goes on at once, and may not get to answering.
	if err := n.apply(ctx, mem); err != nil && !errors.Is(err, ErrLostAnswer) {
		return err
	}
	return n.wait(ctx, "bring-up/configure", n.plan.Node+" takes its configuration", n.Timing.Boot, func(ctx context.Context) (bool, string, error) {
		reason, err := n.configured(ctx)
		if err == nil && reason == "" {
			return false, "", n.stillOn(ctx, errNoAnswer)
		}
		return reason != "", "", wait.Stop(err)
	})
}

// awaitBlank waits for the machine in maintenance mode; nil if it has taken its
// configuration already.
func (n *nodeRoll) awaitBlank(ctx context.Context) (blank *Machine, err error) {
	err = n.wait(ctx, "bring-up/configure", n.plan.Node+" in maintenance mode", n.Timing.Boot, func(ctx context.Context) (bool, string, error) {
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
		return nil, fault.WithHint(silent, "look at the console of VM %d; recast recover %s gives the replacement up and boots the old system disk", n.plan.VMID, n.plan.Node)
	}
	if err := n.renew(ctx, r, silent); err != nil {
		return nil, err
	}
	return n.awaitBlank(ctx)
}

func (n *nodeRoll) apply(ctx context.Context, mem memory) error {
	config, err := n.machineConfig()
	if err != nil {
		return err
	}
	patched, err := n.Maintenance.PatchConfig(config, n.patch(mem.DiskSerial))
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.plan.Node, err)
	}
	if err := n.Maintenance.ApplyConfig(ctx, n.plan.Addr, n.plan.UUID, patched); err != nil {
		return fmt.Errorf("apply the configuration to %s: %w", n.plan.Addr, err)
	}
	return nil
}

func (n *nodeRoll) patch(serial string) ConfigPatch {
	return ConfigPatch{Installer: n.want.Build.Installer, DiskSerial: serial, Hostname: n.plan.Node}
}

// stopMismatch switches a machine off that is not what it should be. Its disks are untouched.
func (n *nodeRoll) stopMismatch(ctx context.Context, mismatch error) error {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err == nil {
		err = n.Proxmox.Stop(ctx, vm)
	}
	if err != nil {
		return errors.Join(mismatch, fmt.Errorf("and VM %d could not be stopped: %w", n.plan.VMID, err))
	}
	return fmt.Errorf("VM %d was stopped before anything was applied to it: %w", n.plan.VMID, mismatch)
}

// checkBlank compares the machine in maintenance mode with what was remembered and is wanted.
func (n *nodeRoll) checkBlank(m Machine, mem memory) error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	if m.UUID != n.plan.UUID {
		refuse("%s answers with UUID %s, not %s", n.plan.Addr, m.UUID, n.plan.UUID)
	}
	b := n.want.Build
	if m.Schematic.LockHash() != b.LockHash || m.Schematic.ID != b.SchematicID || m.TalosVersion != b.TalosVersion {
		problems = append(problems, fault.WithHint(
			fault.Refusedf("it booted %s with schematic %s (lock %s), wanted is %s with %s (lock %s)", m.TalosVersion,
				cmpNone(short(m.Schematic.ID)), cmpNone(short(m.Schematic.LockHash())), b.TalosVersion, short(b.SchematicID), short(b.LockHash)),
			"the bytes of the boot ISO %s are not what its name says: delete it from the Proxmox storage, then recast publish and recast roll again", b.ISOName))
	}
	for _, r := range diffTarget(b, m) {
		refuse("what it booted is not what is wanted: %s", r.Text)
	}
	problems = append(problems, checkBlankDisks(m, mem)...)
	return errors.Join(problems...)
}

func cmpNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func checkBlankDisks(m Machine, mem memory) []error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	var ours []MachineDisk
	for _, d := range m.Disks {
		if d.Serial == mem.DiskSerial {
			ours = append(ours, d)
		}
	}
	switch {
	case len(ours) != 1:
		refuse("%d disks have the serial %s of the blank system disk, expected one", len(ours), mem.DiskSerial)
	case !ours[0].Blank:
		refuse("the new system disk %s is not blank", ours[0].Device)
	}
	for _, want := range mem.Volumes {
		if !slices.ContainsFunc(m.Volumes, want.sameContent) {
			refuse("the persistent volume %s with partition UUID %s, filesystem UUID %s is missing",
				cmpNone(want.Label), cmpNone(want.PartitionUUID), cmpNone(want.FilesystemUUID))
		}
	}
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

// sameContent compares two volumes by what is written on them, not by where they are plugged in.
func (v Volume) sameContent(o Volume) bool {
	return v.Label == o.Label && strings.EqualFold(v.PartitionUUID, o.PartitionUUID) && strings.EqualFold(v.FilesystemUUID, o.FilesystemUUID)
}
