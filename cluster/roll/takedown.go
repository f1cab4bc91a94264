package roll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

func (n *node) keepFirewall(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	return r.KeepFirewall(ctx)
}

func (n *node) recall(ctx context.Context) (parking.Memory, error) {
	if n.Plan.Rebuild != "" {
		return rememberLost(ctx, n.Node)
	}
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	if m.UUID != vm.UUID() {
		return parking.Memory{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, but %s has %s", n.Plan.Addr, m.UUID, vm, vm.UUID())
	}
	if vm.Host != n.Plan.Host { // the parking VM is on the planned host
		return parking.Memory{}, n.MovedSince(vm)
	}
	if n.Plan.Found.VM != nil {
		vm.Pods = n.Plan.Found.VM.Pods
	}
	if err := vm.KnowPods(ctx, n.Kube.PodVolumes); err != nil {
		return parking.Memory{}, err
	}
	system, err := cluster.ProveSystemDisk(vm, m, n.Want.SystemDisk)
	if err != nil {
		return parking.Memory{}, err
	}
	persistent, err := n.provenDisks(vm, m, system)
	if err != nil {
		return parking.Memory{}, err
	}
	k, err := n.KubeNode(ctx)
	if err != nil {
		return parking.Memory{}, err
	}
	mem, err := exchange.Remember(ctx, n.Proxmox, vm, system, n.record.opening())
	if err != nil {
		return parking.Memory{}, err
	}
	vm = mem.VM
	mem.Persistent, mem.BootID, mem.Metadata, mem.NodeUID = persistent, m.BootID, k.Metadata, k.UID
	mem.ControlPlane, mem.EtcdKept, mem.HostArch = m.ControlPlane, n.Plan.EtcdKept, n.Plan.Found.Ties.HostArch
	mem.Old.Build, mem.Old.Talos, mem.Old.Entry = m.Schematic.LockHash(), m.TalosVersion, k.Corrected(m.RunningSystem, m.BootID).BootEntry
	mem.Old.Kubernetes, mem.Old.EtcdOn = k.KubeletVersion, m.ControlPlane && !n.Plan.EtcdKept
	drives, err := vm.Bootable()
	if err != nil {
		return parking.Memory{}, err
	}
	mem.Pools, mem.Extensions, mem.Stuck = m.Pools(), m.Extensions, notToCome(m)
	if mem.Volumes, err = cluster.PersistentVolumes(vm, drives, m, system); err != nil {
		return parking.Memory{}, err
	}
	if mem.Blank, err = n.reachBlank(vm, m); err != nil {
		return parking.Memory{}, err
	}
	if err := n.etcd.remember(ctx, &mem); err != nil {
		return parking.Memory{}, err
	}
	config, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	if mem.Old.Config, err = planning.ConfigHash(n.Maintenance, config); err != nil {
		return parking.Memory{}, err
	}
	mem.Kubernetes, err = n.config.runsKubernetes(ctx)
	return mem, err
}

// notToCome lists the volumes that are stuck, and those that somebody made on the system disk: Talos makes none of
// them again.
func notToCome(m cluster.Machine) []cluster.VolumeStatus {
	made := cluster.Where(m.VolumeStatuses, func(s cluster.VolumeStatus) bool {
		return strings.HasPrefix(s.ID, cluster.ExistingVolume) && s.Disk == m.SystemDisk
	})
	return append(m.Stuck(), cluster.Each(made, func(s cluster.VolumeStatus) cluster.VolumeStatus {
		return cluster.VolumeStatus{ID: s.ID, Phase: "missing"}
	})...)
}

// provenDisks returns the persistent disks. The plan has refused disks that could not be proven in
// a new VM, but what is on them may have changed since.
func (n *node) provenDisks(vm cluster.VM, m cluster.Machine, system cluster.Disk) ([]parking.PersistentDisk, error) {
	if n.Plan.Strategy.VM() == cluster.VMAgain {
		problems, err := parking.Unprovable(vm, m, system.Key)
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s", strings.Join(cluster.Texts(problems), "; ")), "run recast plan and look again")
		}
	}
	known, _, err := parking.PersistentDisks(vm, m, system.Key)
	return known, err
}

// remember writes the journal first, then opens the record. What both contain is enough to finish
// on any machine. The machine configuration is secret, so only the journal has it.
func (n *node) remember(ctx context.Context) error {
	if park, err := n.Parking(ctx); err == nil && park.Record.Open && park.Record.Run == n.Run {
		mem, err := n.Memory(ctx)
		if err != nil {
			return err
		}
		// Only the machine configuration is missing or damaged: the journal was lost.
		sum, err := n.config.remember(ctx, mem.Kubernetes)
		if err == nil && sum != park.Record.Config {
			err = n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Config = sum })
		}
		if err != nil {
			return err
		}
		return n.keepFirewall(ctx)
	}
	mem, err := n.recall(ctx)
	if err != nil {
		return err
	}
	rec, err := n.record.opening().Opened(mem, nil)
	if err != nil {
		return err
	}
	if err := n.record.of(mem, rec, 0).RequirePossible(ctx); err != nil {
		return err
	}
	if n.Plan.Strategy.Installs() {
		if mem.ConfigSum, err = n.config.remember(ctx, mem.Kubernetes); err != nil {
			return err
		}
	}
	if err := n.Journal.Put(n.Key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := n.record.open(ctx, mem); err != nil {
		return err
	}
	return n.keepFirewall(ctx)
}

func (n *node) opened(ctx context.Context) (park parking.Parking, is bool, err error) {
	park, err = n.Parking(ctx)
	if errors.Is(err, cluster.ErrNotFound) {
		return park, false, nil
	}
	return park, err == nil && park.Record.Open && park.Record.Run == n.Run, err
}

func (n *node) remembered(ctx context.Context) (string, error) {
	park, is, err := n.opened(ctx)
	if err != nil || !is {
		return "", err
	}
	if _, err := n.Memory(ctx); err != nil {
		return "", err
	}
	if n.Plan.Strategy.Installs() {
		if _, err := n.config.read(ctx); err != nil {
			return "", nil //nolint:nilerr // read from the node while it still answers
		}
	}
	r, err := n.record.read(ctx)
	if err != nil {
		return "", err
	}
	if kept, err := r.FirewallKept(ctx); err != nil || !kept {
		return "", err
	}
	return fmt.Sprintf("remembered by %s", park.VM), nil
}

func (n *node) takenDown(ctx context.Context) (string, error) {
	park, is, err := n.opened(ctx)
	if err != nil || !is {
		return "", err
	}
	r, err := n.record.with(ctx, park)
	if err != nil {
		return "", err
	}
	return r.TakenDown(ctx)
}

// reachBlank returns the VM setting that gives the blank machine its address, while the present machine still says
// where that address comes from.
func (n *node) reachBlank(vm cluster.VM, m cluster.Machine) (*cluster.BlankSetting, error) {
	if !n.Plan.Strategy.Installs() {
		return nil, nil // the system that comes back has its configuration
	}
	set, against := cluster.BlankAddress(n.Plan.Addr, vm, m, n.Want.Build)
	if against.Text != "" {
		return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s: %s", n.Plan.Node, against.Text), "it was not so when the plan was made: run recast plan and look again")
	}
	return set, nil
}

func (n *node) rememberStep(title string, open func(context.Context) error) step.Step {
	return step.Step{ID: "remember", Title: title, Skip: n.remembered, Do: open}
}

// awaitDetached waits until Kubernetes counts no volume as attached to the node, except those of
// pods that a drain leaves in place: these are never detached.
func (n *node) awaitDetached(ctx context.Context, id string, within time.Duration) error {
	goes := func(ctx context.Context, tell func(bool)) error { return n.Kube.WatchDetached(ctx, n.Plan.Node, tell) }
	err := n.Watch(ctx, id, wait.For{Name: "volumes of " + n.Plan.Node + " detached", Timeout: within, Watches: []wait.Watch{goes}}, func(ctx context.Context) (bool, string, error) {
		volumes, err := n.Kube.AttachedVolumes(ctx, n.Plan.Node)
		left := cluster.Where(volumes, func(v cluster.AttachedVolume) bool { return v.User == "" })
		names := cluster.Each(left, cluster.AttachedVolume.String)
		return err == nil && len(left) == 0, "still attached: " + strings.Join(names, "; "), err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.DrainBlocked.Of(err), "a volume's driver detaches it once no pod of the node uses it: see its controller's logs and kubectl describe volumeattachments; "+
			"nothing of VM %d was touched; run the same command again to continue", n.Plan.VMID)
	}
	return err
}

// awaitDisksGone waits until the VM has only the disks that were remembered. If the VM were stopped now, it would
// be recreated without the others, or it would keep a disk that a pod already writes to on another node.
func (n *node) awaitDisksGone(ctx context.Context, id string, mem parking.Memory, within time.Duration) error {
	var foreign []cluster.Disk
	err := n.Wait(ctx, id, fmt.Sprintf("disks of pods to leave VM %d", n.Plan.VMID), within, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
		if err != nil {
			return false, "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
		}
		foreign, err = exchange.ForeignDisks(vm, mem)
		return err == nil && len(foreign) == 0, "still there: " + exchange.DiskNames(foreign), err
	})
	if len(foreign) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return n.disksStay(ctx, foreign, fault.As(fault.Refused, err))
	}
	return err
}

// disksStay adds hints about pods' disks that the VM still has. Either a pod that a drain leaves in
// place uses such a disk, or no pod does.
func (n *node) disksStay(ctx context.Context, foreign []cluster.Disk, err error) error {
	volumes, lost := n.Kube.AttachedVolumes(ctx, n.Plan.Node)
	if lost != nil {
		return errors.Join(err, lost)
	}
	for _, v := range volumes {
		i := slices.IndexFunc(foreign, v.IsOf)
		if v.User == "" || i < 0 {
			continue
		}
		err = fault.WithHint(fault.DrainBlocked.Of(err), "%s is %s, which %s uses: a drain leaves such pods where they are. Keep that one off %s (a DaemonSet's by its nodeSelector or affinity), then run the same command again; nothing of VM %d was touched",
			foreign[i].Key, v, v.User, n.Plan.Node, n.Plan.VMID)
		foreign = slices.Delete(foreign, i, i+1)
	}
	if len(foreign) == 0 {
		return err
	}
	return fault.WithHint(fault.DrainBlocked.Of(err),
		"Kubernetes counts no volume of %s as attached to %s any more, so its driver lost track: kubectl get pv,volumeattachments shows which VM has each by right, and talosctl -n %s mounts whether %s still uses it. "+
			"What it does not use, qm set %d --delete KEY takes out, which keeps the volume of another owner; then run the same command again; "+
			"nothing of the VM was touched", exchange.DiskNames(foreign), n.Plan.Node, n.Plan.Addr, n.Plan.Node, n.Plan.VMID)
}

func (n *node) drain(ctx context.Context) error {
	if off, err := isOff(ctx, n.Node); err != nil || off {
		return err // nothing runs there, and no kubelet would report that a pod ended
	}
	if parked, err := n.systemParked(ctx); err != nil || parked {
		return err // the VM was started without that disk; without it a single control plane has no API
	}
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	why := cluster.Mark{Run: n.Run, Strategy: n.Plan.Strategy, Build: n.Plan.Build(), BootID: mem.BootID}
	const id = "take-down/drain"
	empty := func(ctx context.Context, by time.Time) error {
		if err := n.awaitDisksGone(ctx, id, mem, max(n.Timing.Poll, time.Until(by))); err != nil {
			return err
		}
		return n.RequireNoLoss(ctx) // no pod or volume can be bound to the node any more
	}
	return n.evict(ctx, id, why, empty, func() error { return n.backOut(ctx) })
}

// evict cordons and drains the node, then waits until its volumes are detached; empty may wait for more (nil: the VM
// stays, and so do its disks). If that fails, backOut puts the node back into service, unless the run was cancelled,
// has lost its claim, or ends because its own pod was evicted.
func (n *node) evict(ctx context.Context, id string, why cluster.Mark, empty func(ctx context.Context, by time.Time) error, backOut func() error) error {
	err := n.Repeat(ctx, id, rolling.RepeatBefore, n.RequireOneMachine)
	if err == nil { // a failed cordon may still have taken effect
		err = fault.Prefix("cordon "+n.Plan.Node, n.Repeat(ctx, id, rolling.RepeatBefore, func(ctx context.Context) error { return n.Kube.Cordon(ctx, n.Plan.Node, why) }))
	}
	if err == nil {
		err = n.Repeat(ctx, id, rolling.RepeatBefore, func(ctx context.Context) error {
			err := n.Kube.Drain(ctx, n.Plan.Node, cluster.DrainOptions{Timeout: n.Timing.Drain, Force: n.roller.DrainForce, Delete: n.roller.DrainDeletes}, func(line string) { n.Tell(id, line) })
			if _, notBegun := errors.AsType[*cluster.UnprovenError](err); notBegun {
				return err
			}
			return rolling.Final(err) // it has waited as long as a drain may take
		})
	}
	by := time.Now().Add(n.Timing.Drain)
	if err == nil {
		err = n.awaitDetached(ctx, id, n.Timing.Drain)
	}
	if err == nil && empty != nil {
		err = empty(ctx, by)
	}
	if kind := fault.KindOf(err); err != nil && ctx.Err() == nil && kind != fault.Claimed && kind != fault.Interrupted {
		err = rolling.Final(errors.Join(n.sayIfOff(ctx, err), n.Repeat(ctx, id, rolling.RepeatBefore, func(context.Context) error { return backOut() })))
	}
	return fault.Prefix("drain "+n.Plan.Node, err)
}

// backOut undoes the preparations on a node that could not be drained. The node still runs with all its disks, so
// neither our cordon nor an open record may remain. A record that is needed to return a parked disk stays open.
func (n *node) backOut(ctx context.Context) error {
	park, err := n.Parking(ctx)
	if err != nil {
		return err
	}
	if keys := park.Parked(); len(keys) > 0 {
		return fault.WithHint(fault.Refusedf("%s has disks of %s already (%s)", park.VM, n.Plan.Node, strings.Join(keys, ", ")),
			"they are safe there, and the record that tells whose they are stays open: run the same command again to continue; recast undo %s cancels the replacement", n.Plan.Node)
	}
	if err := n.takesPods(ctx); err != nil {
		return err
	}
	if err := n.UpdateRecord(ctx, (*parking.Record).Close); err != nil {
		return err
	}
	return n.config.forget()
}

func (n *node) takesPods(ctx context.Context) error {
	err := n.Kube.Uncordon(ctx, n.Plan.Node)
	if err == nil || errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("uncordon %s: %w", n.Plan.Node, err), "%s still runs and is left cordoned: run the same command again to continue from there", n.Plan.Node)
}

// systemParked says whether the node's system disk is parked. A disk is never taken from a running VM, so whatever
// runs in that VM is not the node.
func (n *node) systemParked(ctx context.Context) (bool, error) {
	park, err := n.Parking(ctx)
	d, known := cluster.Find(park.Record.Disks, func(d parking.ParkedDisk) bool { return d.System })
	if err != nil || !known {
		return false, err
	}
	reason, err := exchange.IsParked(park.VM, d)
	return reason != "", err
}

func (n *node) mark(ctx context.Context) (*cluster.Mark, error) {
	k, err := n.KubeNode(ctx)
	return k.Mark, err
}

func (n *node) drainStep(drain func(context.Context) error) step.Step {
	title := "drain " + n.Plan.Node
	return step.Step{ID: "drain", Code: fault.DrainBlocked, Title: title, Risk: step.Disruptive, Do: drain}
}

func isOff(ctx context.Context, n *rolling.Node) (bool, error) {
	vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
	if errors.Is(err, cluster.ErrNotFound) {
		return true, nil
	}
	return err == nil && !vm.Running && !vm.HA, fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
}

// sayIfOff adds to an error of the node's machine that its VM is off, which only somebody else can have done.
func (n *node) sayIfOff(ctx context.Context, err error) error {
	if vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID); errVM == nil && !vm.Running {
		return cluster.SwitchedOff(vm, err)
	}
	return err
}

// keepServing puts a drained node that could not be stopped back into service, unless its machine
// has changed: it has left etcd for good, has rebooted, or does not answer.
func (n *node) keepServing(ctx context.Context, r *exchange.Replace, cause error) error {
	park, err := n.Parking(ctx)
	if err != nil || park.Record.Left || n.etcd.outOfIt || ctx.Err() != nil || fault.KindOf(cause) == fault.Claimed {
		return cause
	}
	if m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr); err != nil || !n.IsOldBoot(ctx, m) {
		return cause
	}
	for _, s := range r.RestoreSteps() {
		reason, err := s.Skip(ctx)
		if err == nil && reason == "" {
			err = s.Do(ctx)
		}
		if err != nil {
			return errors.Join(cause, err)
		}
	}
	return errors.Join(cause, n.backOut(ctx))
}

func (n *node) switchOff(ctx context.Context, r *exchange.Replace, id string, vm cluster.VM, beforePull func(context.Context) error) error {
	var refused error // by the guest; an error about the record is no reason to pull the plug
	err := r.Sending(ctx, cluster.SentShutdown, n.Timing.Stop+exchange.LateQueue, func(ctx context.Context) error {
		refused = n.Proxmox.Shutdown(ctx, vm, n.Timing.Stop)
		return refused
	})
	if err != nil {
		if ctx.Err() != nil || refused == nil {
			return fmt.Errorf("shut down %s: %w", vm, err)
		}
		if err := beforePull(ctx); err != nil {
			return err
		}
		n.Tell(id, fmt.Sprintf("the guest did not shut down (%v); pulling the plug", err))
		if err := r.Sending(ctx, cluster.SentStop, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
			return fmt.Errorf("stop %s: %w", vm, err)
		}
	}
	return fault.WithHint(n.Wait(ctx, id, fmt.Sprintf("VM %d stopped", vm.ID), n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMState(ctx, vm.ID)
		return err == nil && !vm.Running, "still running", err
	}), "see what VM %d is doing in Proxmox, switch it off, then run the same command again", vm.ID)
}

// stop keeps a rebooting host and Proxmox HA from starting the VM again, asks the guest to shut
// down, then pulls the plug. It waits for the VM, not for the task.
func (n *node) stop(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	var vm cluster.VM
	err = n.Repeat(ctx, "take-down/stop", n.RepeatFor("take-down/stop"), func(ctx context.Context) error {
		vm, err = r.KeepOff(ctx)
		return err
	})
	if err != nil {
		return rolling.Final(n.keepServing(ctx, r, err))
	}
	if vm.Running {
		if err := n.switchOff(ctx, r, "take-down/stop", vm, n.etcd.leaveAgain); err != nil {
			return err
		}
	}
	if !n.etcd.leaves() {
		return nil
	}
	return n.etcd.staysOut(ctx, vm, "take-down/stop", n.etcd.left)
}

func (n *node) stopped(ctx context.Context) (string, error) {
	var vm cluster.VM
	var ha *cluster.HAResource
	var errHA error
	err := wait.All(
		wait.Into(&vm, func() (cluster.VM, error) { return n.Proxmox.VM(ctx, n.Plan.VMID) }),
		wait.Aside(&errHA, wait.Into(&ha, func() (*cluster.HAResource, error) {
			return n.Proxmox.HAResource(ctx, n.Plan.VMID)
		})),
	)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return fmt.Sprintf("VM %d is deleted", n.Plan.VMID), nil
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	case vm.Running || vm.HA || vm.Config["onboot"] == "1":
		return "", nil
	}
	if errHA != nil || ha != nil {
		return "", fault.Prefix("read what Proxmox HA has of "+vm.String(), errHA)
	}
	return fmt.Sprintf("VM %d is stopped", vm.ID), nil
}

// stoppedFor is the goal of stop: the VM is off, and etcd does not need a node that leaves it.
func (n *node) stoppedFor(ctx context.Context) (string, error) {
	reason, err := n.stopped(ctx)
	if err != nil || reason == "" || !n.etcd.leaves() {
		return reason, err
	}
	if left, err := n.etcd.left(ctx); err != nil || left == "" {
		return "", err
	}
	return reason, nil
}

func (n *node) start(ctx context.Context) error {
	var vm cluster.VM
	var others exchange.Others
	var r *exchange.Replace
	var errOthers, errRecord error
	err := wait.All(
		wait.Into(&vm, func() (cluster.VM, error) { return n.Proxmox.VM(ctx, n.Plan.VMID) }),
		wait.Aside(&errOthers, wait.Into(&others, func() (exchange.Others, error) {
			return exchange.ReadOthers(ctx, n.Proxmox, n.Plan.VMID)
		})),
		wait.Aside(&errRecord, wait.Into(&r, func() (*exchange.Replace, error) { return n.record.read(ctx) })),
	)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	case vm.UUID() != n.Plan.UUID || n.Plan.Strategy.From() != cluster.Halfway && vm.MadeBy() != n.Run:
		return fault.VMChanged.Refusedf("%s is not the one that run %s created", vm, n.Run)
	case vm.Running:
		return fault.VMChanged.Refusedf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	if err := errors.Join(errOthers, errRecord); err != nil {
		return err
	}
	if err := others.RequireAlone(ctx, n.Proxmox, vm); err != nil {
		return err
	}
	if !n.Plan.Strategy.Installs() { // the system that it boots already has the name
		if err := n.RequireNameFree(ctx); err != nil {
			return err
		}
	}
	err = r.Sending(ctx, exchange.SentStart, exchange.LateQueue, func(ctx context.Context) error {
		if n.Plan.Strategy.Installs() {
			if err := n.proving(ctx, &vm); err != nil {
				return err
			}
		}
		return n.Proxmox.Start(ctx, vm)
	})
	return n.withUndoHint(fault.Prefix("start "+vm.String(), err))
}

// proving has the machine that the VM will boot prove that it is this VM: see cluster.Proof.
func (n *node) proving(ctx context.Context, vm *cluster.VM) error {
	if vm.OwnSKU() {
		return nil
	}
	smbios := vm.WithProof()
	if err := n.Proxmox.SetConfig(ctx, *vm, map[string]string{"smbios1": smbios}, nil); err != nil {
		return fmt.Errorf("write the proof of who it is into its SMBIOS: %w", err)
	}
	vm.Config = maps.Clone(vm.Config)
	vm.Config["smbios1"] = smbios
	return nil
}

// proof returns what the machine in maintenance mode has to show before it gets its configuration.
func (n *node) proof(ctx context.Context) (cluster.Proof, error) {
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil {
		return cluster.Proof{}, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	return cluster.Proof{UUID: n.Plan.UUID, SKU: vm.Proof(), Confirmed: n.roller.Fingerprints}, nil
}

func (n *node) started(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	// Proxmox reports "running" also for a VM whose emulator hangs.
	if !vm.Running || vm.QMP != "running" {
		return "", nil
	}
	return vm.String() + " runs", nil
}

func (n *node) stopStep(stopped goal) step.Step {
	title := fmt.Sprintf("stop VM %d", n.Plan.VMID)
	return step.Step{ID: "stop", Title: title, Risk: step.Disruptive, Skip: stopped, Do: n.stop}
}

func (n *node) startStep() step.Step {
	title := fmt.Sprintf("start VM %d", n.Plan.VMID)
	return step.Step{ID: "start", Code: fault.NoBoot, Title: title, Skip: n.started, Do: n.start}
}
