package roll

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

func (r *Rehearser) pruner() ScratchPruner {
	return ScratchPruner{Proxmox: r.Proxmox, Cluster: r.Cluster, Timing: r.Timing}
}

// ScratchPruner deletes scratch VMs. Its caller holds the claim, so no run needs them.
type ScratchPruner struct {
	Proxmox cluster.Proxmox // checks that the claim is ours before each change: see Held.Guard
	Cluster string
	Timing  cluster.Timing
	VMs     []ScratchVerdict // a deleted one gets Removed
}

// Judge decides for each scratch VM of the cluster whether it can be deleted. A VM that was changed
// since it was created stays, with the reason.
func (p *ScratchPruner) Judge(ctx context.Context, vms []cluster.VM) error {
	for _, s := range planning.ScratchVMs(vms, p.Cluster) {
		against, err := p.against(ctx, s)
		if err != nil {
			return err
		}
		p.VMs = append(p.VMs, ScratchVerdict{LeftScratch: s.Left(), Keep: against})
	}
	return nil
}

// Steps returns a step for each VM that can be deleted.
func (p ScratchPruner) Steps() []step.Step {
	var steps []step.Step
	for i := range p.VMs {
		if v := &p.VMs[i]; len(v.Keep) == 0 {
			steps = append(steps, p.deleteStep(v))
		}
	}
	return steps
}

// against says why a scratch VM is not deleted; empty if the VM is as it was created.
func (p ScratchPruner) against(ctx context.Context, s planning.Scratch) ([]string, error) {
	against := s.Strange()
	ties, err := p.Proxmox.Ties(ctx, s.VM)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.VM, err)
	}
	if len(ties.Snapshots) > 0 {
		against = append(against, "it has snapshots: "+strings.Join(ties.Snapshots, ", "))
	}
	return against, nil
}

func (p ScratchPruner) awaitOff(ctx context.Context, id cluster.VMID) error {
	return wait.Until(ctx, wait.For{Name: fmt.Sprintf("VM %d stopped", id), Every: p.Timing.Poll, Timeout: p.Timing.Stop}, func(ctx context.Context) (bool, string, error) {
		vm, err := p.Proxmox.VM(ctx, id)
		return errors.Is(err, cluster.ErrNotFound) || err == nil && !vm.Running, "still running", err
	})
}

// delete deletes a scratch VM and what was created with it: its EFI variables and its cloud-init
// drive. If another VM has that VMID, it does nothing.
func (p ScratchPruner) delete(ctx context.Context, id cluster.VMID, uuid string) error {
	s, err := p.read(ctx, id, uuid)
	if err == nil && s.VM.ID != 0 && s.VM.Running {
		if err = p.Proxmox.Stop(ctx, s.VM); err == nil {
			err = p.awaitOff(ctx, id)
		}
	}
	if err == nil && s.VM.ID != 0 {
		err = p.deleteStopped(ctx, id, uuid)
	}
	host := ""
	if s.VM.Host != "" {
		host = " on " + s.VM.Host
	}
	return fault.WithHint(fault.Prefix(fmt.Sprintf("the scratch VM %d%s could not be deleted", id, host), err),
		"recast prune deletes it, once it is as recast made it; qm config %d shows what it is now", id)
}

func (p ScratchPruner) deleteStep(v *ScratchVerdict) step.Step {
	return step.Step{
		ID: "delete-" + strconv.Itoa(int(v.VMID)), Kind: "delete-scratch", Title: "delete " + v.String(), Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			now, found, err := p.find(ctx, v.VMID, v.UUID)
			if err != nil || found {
				return "", err
			}
			v.Removed = now.ID == 0
			return "no VM is that scratch VM any more", nil
		},
		Do: func(ctx context.Context) error { return p.delete(ctx, v.VMID, v.UUID) },
	}
}

func (p ScratchPruner) deleteStopped(ctx context.Context, id cluster.VMID, uuid string) error {
	if err := cluster.RequireQuorum(ctx, p.Proxmox); err != nil {
		return err
	}
	s, err := p.read(ctx, id, uuid) // read again: it may have changed
	switch {
	case err != nil || s.VM.ID == 0:
		return err
	case s.VM.Running:
		return fault.PruneRefused.Refusedf("%s runs again: someone has started it", s.VM)
	case s.VM.Config["protection"] == "1":
		if err := exchange.LiftProtection(ctx, p.Proxmox, s.VM); err != nil {
			return err
		}
		return p.deleteStopped(ctx, id, uuid)
	}
	if err := p.storagesAnswer(ctx, s.VM); err != nil {
		return err
	}
	err = p.Proxmox.DeleteVM(ctx, s.VM)
	if left, look := p.read(ctx, id, uuid); err == nil || errors.Is(err, cluster.ErrLostAnswer) && look == nil && left.VM.ID == 0 {
		return nil
	}
	return err
}

// storagesAnswer asks the storages that the VM has volumes on. Where one does not answer, Proxmox deletes the VM all the
// same, and the volume stays there without a name: it only warns (PVE/QemuServer.pm, destroy_vm).
func (p ScratchPruner) storagesAnswer(ctx context.Context, vm cluster.VM) error {
	disks, err := vm.Disks()
	for _, d := range disks {
		if d.Owner != vm.ID {
			continue
		}
		if _, err := p.Proxmox.HasVolume(ctx, vm.Host, d.Volid); err != nil {
			return fmt.Errorf("see whether storage %s answers, on which %s has %s: %w", d.Storage(), vm, d.Key, err)
		}
	}
	return err
}

// read reads a scratch VM again, and refuses one that was changed since it was created. It returns
// the zero Scratch if the VM no longer exists.
func (p ScratchPruner) read(ctx context.Context, id cluster.VMID, uuid string) (planning.Scratch, error) {
	vm, found, err := p.find(ctx, id, uuid)
	if err != nil || !found {
		return planning.Scratch{}, err
	}
	s := planning.ScratchVMs([]cluster.VM{vm}, p.Cluster)[0]
	against, err := p.against(ctx, s)
	if err != nil {
		return s, err
	}
	if len(against) > 0 {
		return s, fault.PruneRefused.Refusedf("%s is not as recast made it: %s", vm, strings.Join(against, "; "))
	}
	return s, nil
}

// find returns the VM that has the number now, which is the zero VM if none has it, and whether it is the
// scratch VM with that UUID.
func (p ScratchPruner) find(ctx context.Context, id cluster.VMID, uuid string) (vm cluster.VM, found bool, err error) {
	vm, err = p.Proxmox.VM(ctx, id)
	if errors.Is(err, cluster.ErrNotFound) {
		return cluster.VM{}, false, nil
	}
	is := planning.ScratchVMs([]cluster.VM{vm}, p.Cluster)
	return vm, len(is) > 0 && is[0].UUID == uuid, fault.Prefix(fmt.Sprintf("look up VM %d", id), err)
}

// ScratchVerdict is what is to become of one.
type ScratchVerdict struct {
	planning.LeftScratch
	Keep    []string `json:"keep,omitempty"` // why it stays; none: it can go
	Removed bool     `json:"removed"`
}
