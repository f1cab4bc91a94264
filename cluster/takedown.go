package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// takeDown ends with the old VM gone and every disk of it under the parking VM's name.
func (n *nodeRoll) takeDown() step.Step {
	return step.Step{
		ID: "take-down", Title: "take " + n.plan.Node + " down", Risk: step.Destructive,
		Skip: n.goneOrOurs,
		Steps: func(context.Context) ([]step.Step, error) {
			return append([]step.Step{
				{ID: "remember", Title: "remember what the new VM must get back", Skip: n.remembered, Do: n.remember},
				{ID: "drain", Title: "drain " + n.plan.Node, Risk: step.Disruptive, Do: n.drain},
				{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.plan.VMID), Risk: step.Disruptive, Skip: n.stopped, Do: n.stop},
			}, replacing(n.replace).takeDown()...), nil
		},
	}
}

// goneOrOurs is the goal of take-down: the old VM is deleted. Once bring-up has
// begun, a VM with its number is there again, with our mark.
func (n *nodeRoll) goneOrOurs(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	switch {
	case errors.Is(err, ErrNotFound):
		return fmt.Sprintf("VM %d is deleted", n.plan.VMID), nil
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	case vm.MadeBy() == n.Run:
		return fmt.Sprintf("VM %d was made by this run", n.plan.VMID), nil
	}
	return "", nil
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
	if _, err := n.memory(); err != nil {
		return "", err
	}
	return fmt.Sprintf("remembered by the journal and by %s", park.VM), nil
}

// remember writes the journal first and opens the record after it: an open
// record without a journal can only mean that the journal is elsewhere.
func (n *nodeRoll) remember(ctx context.Context) error {
	mem, err := n.observeMemory(ctx)
	if err != nil {
		return err
	}
	rec, err := n.newRecord(mem, nil)
	if err != nil {
		return err
	}
	iso, err := n.isoVolume(ctx)
	if err != nil {
		return err
	}
	if _, err := n.replaceOf(mem, rec, 0, iso).newConfig(); err != nil {
		return err // better now than when the old VM is gone
	}
	if err := n.rememberMachineConfig(ctx); err != nil {
		return err
	}
	if err := n.Journal.Put(n.key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return n.openRecord(ctx, mem)
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
		return memory{}, fault.Refusedf("%s answers with UUID %s, but %s has %s", n.plan.Addr, m.UUID, vm, vm.UUID())
	}
	system, err := ProveSystemDisk(vm, m, n.want.SystemDisk)
	if err != nil {
		return memory{}, err
	}
	nodes, err := n.Kube.Nodes(ctx)
	if err != nil {
		return memory{}, fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	i := slices.IndexFunc(nodes, func(k KubeNode) bool { return k.Name == n.plan.Node })
	if i < 0 {
		return memory{}, fault.Refusedf("Kubernetes no longer knows node %s", n.plan.Node)
	}
	mem := memory{VM: vm, SystemKey: system.Key, BootID: m.BootID, Metadata: nodes[i].Metadata, DiskSerial: diskSerial(n.Run, n.plan.Node)}
	mem.WasCordoned = nodes[i].Unschedulable
	mem.Volumes, err = persistentVolumes(vm, m, system)
	return mem, err
}

// persistentVolumes are the volumes on the VM's own persistent disks. Disks
// that a storage system has attached over the network are none of them: they
// come and go with their pods.
func persistentVolumes(vm VM, m Machine, system Disk) ([]Volume, error) {
	disks, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, d := range disks {
		if d.Bootable() && d.Key != system.Key {
			own[d.Option("serial")] = true
		}
	}
	var out []Volume
	for _, v := range m.Volumes {
		if d, ok := m.disk(v.Disk); ok && d.Serial != "" && own[d.Serial] {
			out = append(out, v)
		}
	}
	return out, nil
}

// diskSerial names the blank system disk of one node in one run, within the 20
// characters that every disk bus of QEMU passes on.
func diskSerial(run, node string) string {
	sum := sha256.Sum256([]byte(run + "/" + node))
	return "recast-" + hex.EncodeToString(sum[:])[:12]
}

func (n *nodeRoll) rememberMachineConfig(ctx context.Context) error {
	if n.MachineConfig != nil {
		if _, found, err := n.MachineConfig(n.plan.Node); err != nil || found {
			return err
		}
	}
	config, err := n.Talos.MachineConfig(ctx, n.plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine configuration of %s: %w", n.plan.Addr, err)
	}
	// Prove that it can be applied while the node still runs.
	if _, err := n.Maintenance.PatchConfig(config, n.patch("recast-proof")); err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.plan.Node, err)
	}
	if err := n.Journal.PutSecret(n.key(machineConfigKey), config); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func (n *nodeRoll) drain(ctx context.Context) error {
	if reason, err := n.stopped(ctx); err != nil || reason != "" {
		return err // nothing runs there any more
	}
	mem, err := n.memory()
	if err != nil {
		return err
	}
	if err := n.Kube.Cordon(ctx, n.plan.Node); err != nil {
		return fmt.Errorf("cordon %s: %w", n.plan.Node, err)
	}
	err = n.Kube.Drain(ctx, n.plan.Node, DrainOptions{Timeout: n.Timing.Drain, Force: n.DrainForce},
		func(line string) { n.say("take-down/drain", line) })
	if err == nil {
		err = n.wait(ctx, "take-down/drain", "volumes of "+n.plan.Node+" detached", n.Timing.Drain, n.volumesDetached)
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, n.backOut(ctx, mem))
	}
	return prefix("drain "+n.plan.Node, err)
}

// backOut leaves a node that could not be drained as it was: it still runs, with
// all its disks, so a cordon of ours must not outlive the failure, nor a record
// that says it is out.
func (n *nodeRoll) backOut(ctx context.Context, mem memory) error {
	park, err := n.parking(ctx)
	if err != nil {
		return err
	}
	if !mem.WasCordoned {
		if err := n.Kube.Uncordon(ctx, n.plan.Node); err != nil {
			return fmt.Errorf("uncordon %s: %w", n.plan.Node, err)
		}
	}
	rec := park.Record
	rec.Open, rec.Disks, rec.WasCordoned = false, nil, false
	return n.writeRecord(ctx, park.VM, rec)
}

func (n *nodeRoll) volumesDetached(ctx context.Context) (bool, string, error) {
	names, err := n.Kube.AttachedVolumes(ctx, n.plan.Node)
	return len(names) == 0, "still attached: " + strings.Join(names, ", "), err
}

func (n *nodeRoll) stopped(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	switch {
	case errors.Is(err, ErrNotFound):
		return fmt.Sprintf("VM %d is deleted", n.plan.VMID), nil
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	case vm.Running || vm.Config["onboot"] == "1":
		return "", nil
	}
	return fmt.Sprintf("VM %d is stopped", vm.ID), nil
}

// stop keeps a rebooting host from starting the VM again, then asks the guest, then pulls the plug.
func (n *nodeRoll) stop(ctx context.Context) error {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	if vm.Config["onboot"] == "1" {
		if err := n.Proxmox.SetConfig(ctx, vm, map[string]string{"onboot": "0"}, nil); err != nil {
			return fmt.Errorf("unset onboot of %s: %w", vm, err)
		}
	}
	if !vm.Running {
		return nil
	}
	if err := n.Proxmox.Shutdown(ctx, vm, n.Timing.Stop); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("shut down %s: %w", vm, err)
		}
		n.say("take-down/stop", fmt.Sprintf("the guest did not shut down (%v); pulling the plug", err))
		if err := n.Proxmox.Stop(ctx, vm); err != nil {
			return fmt.Errorf("stop %s: %w", vm, err)
		}
	}
	return n.wait(ctx, "take-down/stop", fmt.Sprintf("VM %d stopped", vm.ID), n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
		return err == nil && !vm.Running, "still running", err
	})
}
