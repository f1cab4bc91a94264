package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// takeDown ends with the old VM gone and every disk of it under the parking VM's name.
func (n *nodeRoll) takeDown() step.Step {
	return step.Step{
		ID: "take-down", Title: "take " + n.plan.Node + " down", Risk: step.Destructive,
		Skip: n.takenDown,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := []step.Step{
				{ID: "remember", Title: "remember what the node must get back", Skip: n.remembered, Do: n.remember},
				{ID: "drain", Code: fault.DrainBlocked, Title: "drain " + n.plan.Node, Risk: step.Disruptive, Do: n.drain},
			}
			if n.leavesEtcd() {
				steps = append(steps, step.Step{ID: "leave-etcd", Code: fault.EtcdUnhealthy, Title: "leave etcd: its data goes with the system disk", Risk: step.Destructive, Skip: n.leftEtcd, Do: n.leaveEtcd})
			}
			steps = append(steps, step.Step{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.plan.VMID), Risk: step.Disruptive, Skip: n.stoppedFor, Do: n.stop})
			return append(steps, n.replacing().takeDown(n.plan.Strategy)...), nil
		},
	}
}

// takenDown is the goal of take-down. Before the record is open nothing is.
func (n *nodeRoll) takenDown(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case !park.Record.Open || park.Record.Run != n.Run:
		return "", nil
	}
	r, err := n.replaceWith(ctx, park)
	if err != nil {
		return "", err
	}
	return r.takenDown(ctx)
}

func (n *nodeRoll) remembered(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case !park.Record.Open || park.Record.Run != n.Run:
		return "", nil
	}
	if _, err := n.memory(ctx); err != nil {
		return "", err
	}
	if n.plan.Strategy != Rollback {
		if _, err := n.machineConfig(ctx); err != nil {
			return "", nil //nolint:nilerr // read from the node while it still answers
		}
	}
	r, err := n.replace(ctx)
	if err != nil {
		return "", err
	}
	if kept, err := r.firewallKept(ctx); err != nil || !kept {
		return "", err
	}
	return fmt.Sprintf("remembered by %s", park.VM), nil
}

// remember writes the journal first and opens the record after it. What is in
// both is enough to finish anywhere; the machine configuration, which is
// secret, is in the journal only.
func (n *nodeRoll) remember(ctx context.Context) error {
	if park, err := n.parking(ctx); err == nil && park.Record.Open && park.Record.Run == n.Run {
		mem, err := n.memory(ctx)
		if err != nil {
			return err
		}
		// Only that is missing or damaged: the journal was lost.
		sum, err := n.rememberMachineConfig(ctx, mem.Kubernetes)
		if err == nil && sum != park.Record.Config {
			err = n.updateRecord(ctx, func(rec *Record) { rec.Config = sum })
		}
		if err != nil {
			return err
		}
		return n.keepFirewall(ctx)
	}
	mem, err := n.observeMemory(ctx)
	if err != nil {
		return err
	}
	rec, err := n.opening().open(mem, nil)
	if err != nil {
		return err
	}
	if err := n.proveReplace(ctx, mem, rec); err != nil {
		return err
	}
	if n.plan.Strategy != Rollback {
		if mem.ConfigSum, err = n.rememberMachineConfig(ctx, mem.Kubernetes); err != nil {
			return err
		}
	}
	if err := n.Journal.Put(n.key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := n.openRecord(ctx, mem); err != nil {
		return err
	}
	return n.keepFirewall(ctx)
}

func (n *nodeRoll) keepFirewall(ctx context.Context) error {
	r, err := n.replace(ctx)
	if err != nil {
		return err
	}
	return r.keepFirewall(ctx)
}

// proveReplace finds out what would stop the exchange later, while the node still runs.
func (n *nodeRoll) proveReplace(ctx context.Context, mem memory, rec Record) error {
	r := n.replaceOf(mem, rec, 0)
	if n.plan.Strategy == Rollback {
		_, err := r.marked()
		return err
	}
	if n.plan.Strategy == Recreate {
		if err := requireRemakeable(mem.VM, mem.HostArch); err != nil {
			return err
		}
	}
	iso, err := n.isoVolume(ctx)
	if err != nil {
		return err
	}
	_, err = r.newConfig(iso)
	return err
}

func (n *nodeRoll) observeMemory(ctx context.Context) (memory, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return memory{}, fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	m, err := n.Talos.Machine(ctx, n.plan.Addr)
	if err != nil {
		return memory{}, fmt.Errorf("read machine %s: %w", n.plan.Addr, err)
	}
	if m.UUID != vm.UUID() {
		return memory{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, but %s has %s", n.plan.Addr, m.UUID, vm, vm.UUID())
	}
	if vm.Host != n.plan.Host { // where the plan's parking VM is
		return memory{}, n.movedSince(vm)
	}
	if n.plan.found.VM != nil {
		vm.Pods = n.plan.found.VM.Pods
	}
	if err := vm.KnowPods(ctx, n.Kube.PodVolumes); err != nil {
		return memory{}, err
	}
	system, err := ProveSystemDisk(vm, m, n.want.SystemDisk)
	if err != nil {
		return memory{}, err
	}
	persistent, err := n.provenDisks(vm, m, system)
	if err != nil {
		return memory{}, err
	}
	vm.dropCSI()
	k, err := n.kubeNode(ctx)
	if err != nil {
		return memory{}, err
	}
	ha, err := n.Proxmox.HAResource(ctx, vm.ID)
	if err != nil {
		return memory{}, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if vm.Pool, err = n.Proxmox.Pool(ctx, vm.ID); err != nil {
		return memory{}, err
	}
	fw, err := rememberFirewall(ctx, n.Proxmox, vm, n.plan.Strategy)
	if err != nil {
		return memory{}, err
	}
	mem := memory{
		Firewall: fw, VM: vm, SystemKey: system.Key, Persistent: persistent, BootID: m.BootID, Metadata: k.Metadata, NodeUID: k.UID, DiskSerial: diskSerial(n.Run, n.plan.Node), HA: ha,
		ControlPlane: m.ControlPlane, EtcdKept: n.plan.etcdKept, HostArch: n.plan.found.Ties.HostArch,
		Old: KeptDisk{
			Run: n.Run, Slot: system.Key, Options: optionString(system), Build: m.Schematic.LockHash(), Talos: m.TalosVersion, Entry: m.BootEntry,
			Kubernetes: k.KubeletVersion, EtcdOn: m.ControlPlane && !n.plan.etcdKept,
		},
	}
	drives, err := vm.Bootable()
	if err != nil {
		return memory{}, err
	}
	mem.Pools = m.pools()
	if mem.Volumes, err = persistentVolumes(vm, drives, m, system); err != nil {
		return memory{}, err
	}
	if mem.Blank, err = n.reachBlank(vm, m); err != nil {
		return memory{}, err
	}
	if err := n.rememberEtcd(ctx, &mem); err != nil {
		return memory{}, err
	}
	config, err := n.Talos.MachineConfig(ctx, n.plan.Addr)
	if err != nil {
		return memory{}, fmt.Errorf("read machine configuration of %s: %w", n.plan.Addr, err)
	}
	if mem.Old.Config, err = configHash(n.Maintenance, config); err != nil {
		return memory{}, err
	}
	mem.Kubernetes, err = n.runsKubernetes(ctx)
	return mem, err
}

// provenDisks are the persistent disks. The plan has refused those that could not be
// proven in a new VM; what is on them may have changed since.
func (n *nodeRoll) provenDisks(vm VM, m Machine, system Disk) ([]persistentDisk, error) {
	if n.plan.Strategy == Recreate {
		problems, err := unprovable(vm, m, system.Key)
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s", strings.Join(texts(problems), "; ")), "run recast plan and look again")
		}
	}
	known, _, err := persistentDisks(vm, m, system.Key)
	return known, err
}

// diskSerial names the blank system disk of one node in one run, within the 20
// characters that every disk bus of QEMU passes on.
func diskSerial(run, node string) string {
	sum := sha256.Sum256([]byte(run + "/" + node))
	return "recast-" + hex.EncodeToString(sum[:])[:12]
}

func (n *nodeRoll) drain(ctx context.Context) error {
	if off, err := n.isOff(ctx); err != nil || off {
		return err // nothing runs there any more, and no kubelet would tell of an end
	}
	if parked, err := n.systemParked(ctx); err != nil || parked {
		return err // somebody has started what is left of it; the only control plane's API went with that disk
	}
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	why := Mark{Run: n.Run, Strategy: n.plan.Strategy, Build: n.plan.build(), BootID: mem.BootID}
	const id = "take-down/drain"
	empty := func(ctx context.Context, by time.Time) error {
		if err := n.awaitDisksGone(ctx, id, mem, max(n.Timing.Poll, time.Until(by))); err != nil {
			return err
		}
		return n.requireNoLoss(ctx) // nothing can be bound to it any more
	}
	return n.evict(ctx, id, why, empty, func() error { return n.backOut(ctx) })
}

// systemParked says whether the node's system disk is parked, so that whatever runs
// in its VM is not the node. No disk is taken from a VM that runs.
func (n *nodeRoll) systemParked(ctx context.Context) (bool, error) {
	park, err := n.parking(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range park.Record.Disks {
		if d.System {
			reason, err := isParked(park.VM, d)
			return reason != "", err
		}
	}
	return false, nil
}

// evict cordons the node and empties it of pods and of their volumes, for which
// empty may wait longer. If that fails and the roll goes on living, backOut leaves
// the node as it was.
func (n *nodeRoll) evict(ctx context.Context, id string, why Mark, empty func(ctx context.Context, by time.Time) error, backOut func() error) error {
	err := n.repeat(ctx, id, repeatBefore, n.requireOneMachine)
	if err == nil { // a cordon that fails may have been made all the same
		err = fault.Prefix("cordon "+n.plan.Node, n.repeat(ctx, id, repeatBefore, func(ctx context.Context) error { return n.Kube.Cordon(ctx, n.plan.Node, why) }))
	}
	if err == nil {
		err = n.repeat(ctx, id, repeatBefore, func(ctx context.Context) error {
			err := n.Kube.Drain(ctx, n.plan.Node, DrainOptions{Timeout: n.Timing.Drain, Force: n.DrainForce, Delete: n.DrainDeletes}, func(line string) { n.say(id, line) })
			if _, notBegun := errors.AsType[*UnprovenError](err); notBegun {
				return err
			}
			return final(err) // it has been patient for as long as a drain may take
		})
	}
	by := time.Now().Add(n.Timing.Drain)
	if err == nil {
		err = n.awaitDetached(ctx, id, n.Timing.Drain)
	}
	if err == nil {
		err = empty(ctx, by)
	}
	if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Claimed {
		if vm, errVM := n.Proxmox.VMState(ctx, n.plan.VMID); errVM == nil && !vm.Running {
			err = switchedOff(vm, err)
		}
		err = final(errors.Join(err, n.repeat(ctx, id, repeatBefore, func(context.Context) error { return backOut() })))
	}
	return fault.Prefix("drain "+n.plan.Node, err)
}

// backOut leaves a node that could not be drained as it was: it still runs, with
// all its disks, so a cordon of ours must not outlive the failure, nor a record
// that says it is out. A record that a disk needs to get back stays open.
func (n *nodeRoll) backOut(ctx context.Context) error {
	park, err := n.parking(ctx)
	if err != nil {
		return err
	}
	if keys := park.parked(); len(keys) > 0 {
		return fault.WithHint(fault.Refusedf("%s has disks of %s already (%s)", park.VM, n.plan.Node, strings.Join(keys, ", ")),
			"they are safe there, and the record that tells whose they are stays open: the same command again goes on, recast recover %s gives it up", n.plan.Node)
	}
	if err := n.takesPods(ctx); err != nil {
		return err
	}
	if err := n.updateRecord(ctx, (*Record).close); err != nil {
		return err
	}
	return n.forgetConfig()
}

// takesPods takes our cordon back. A Node that somebody deleted has none.
func (n *nodeRoll) takesPods(ctx context.Context) error {
	err := n.Kube.Uncordon(ctx, n.plan.Node)
	if err == nil || errors.Is(err, ErrNotFound) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("uncordon %s: %w", n.plan.Node, err), "%s still runs and is left cordoned: the same command again goes on from there", n.plan.Node)
}

// close ends a replacement. What is kept stays, and so does what was sent and has
// no answer yet.
func (r *Record) close() {
	r.Open, r.PutBack, r.Left, r.Intent, r.Disks, r.Restore, r.Memory, r.Config = false, false, false, nil, nil, nil, "", ""
	r.Stage, r.SpareKey = "", ""
}
