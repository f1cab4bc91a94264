// Package prune frees old system disks and parking VMs that nobody needs any more. [JudgeParked]
// says which, and why each of the others stays; [ParkingPruner] removes them.
package prune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// ParkingPruner frees the old system disks that need not stay, and deletes the parking VMs that
// then own nothing.
type ParkingPruner struct {
	Proxmox cluster.Proxmox // checks that the claim is ours before each change: see Held.Guard
	Cluster string
	Kept    []KeptVerdict    // those that were freed are marked
	VMs     []ParkingVerdict // those that were deleted are marked
	// Say reports what the pruner waits for; may be nil.
	Say func(text string)
	// Uses returns the uses by all VMs and snapshots of the Proxmox cluster, and fails if some
	// can't be read.
	Uses func(ctx context.Context) ([]cluster.Use, error)
	// Storages lists the storages for disks that a host sees.
	Storages func(ctx context.Context, host string) ([]string, error)
}

// Steps returns a step for each disk and VM, in the order in which they are removed.
func (p ParkingPruner) Steps() []step.Step {
	var steps []step.Step
	for i := range p.Kept {
		if v := &p.Kept[i]; len(v.Keep) == 0 {
			steps = append(steps, p.freeStep(v))
		}
	}
	for i := range p.VMs {
		if v := &p.VMs[i]; len(v.Keep) == 0 {
			steps = append(steps, p.deleteStep(v))
		}
	}
	return steps
}

func (p ParkingPruner) freeStep(v *KeptVerdict) step.Step {
	ref := exchange.KeptRef{Cluster: p.Cluster, Node: v.Node, Parking: v.Parking, Key: v.Key, Run: v.Run, Volid: v.Volid}
	title := "free " + v.String()
	if v.Volid == "" {
		title = "forget " + v.String()
	}
	return step.Step{
		ID: fmt.Sprintf("free-%d-%s", v.Parking, v.Key), Kind: "free-disk", Title: title, Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			_, _, found, err := ref.Find(ctx, p.Proxmox)
			if err != nil || found {
				return "", err
			}
			v.Removed = true
			return "it is gone", nil
		},
		Do: func(ctx context.Context) error { return ref.Free(ctx, p.Proxmox, p.Uses) },
	}
}

func (p ParkingPruner) deleteStep(v *ParkingVerdict) step.Step {
	return step.Step{
		ID: fmt.Sprintf("delete-%d", v.VMID), Kind: "delete-parking", Title: "delete " + v.String() + ", which owns nothing", Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			_, err := p.Proxmox.VM(ctx, v.VMID)
			if errors.Is(err, cluster.ErrNotFound) {
				v.Removed = true
				return "it is gone", nil
			}
			return "", fault.Prefix(fmt.Sprintf("look up VM %d", v.VMID), err)
		},
		Do: func(ctx context.Context) error { return p.delete(ctx, *v) },
	}
}

// delete deletes a parking VM that provably owns nothing: Proxmox frees a VM's volumes with the VM.
func (p ParkingPruner) delete(ctx context.Context, v ParkingVerdict) error {
	vm, err := p.empty(ctx, v)
	if err == nil {
		vm, err = p.answered(ctx, vm, v)
	}
	if err != nil {
		return err
	}
	if vm.Config["protection"] == "1" {
		if err := exchange.LiftProtection(ctx, p.Proxmox, vm); err != nil {
			return err
		}
		if vm, err = p.empty(ctx, v); err != nil {
			return err
		}
	}
	if err := cluster.RequireQuorum(ctx, p.Proxmox); err != nil {
		return err
	}
	if err := p.Proxmox.DeleteVM(ctx, vm); err != nil {
		return fmt.Errorf("delete %s: %w", vm, err)
	}
	return nil
}

// answered waits until no unanswered request in the record of an empty parking VM can come any
// more: without that record, no run would know of it.
func (p ParkingPruner) answered(ctx context.Context, vm cluster.VM, v ParkingVerdict) (cluster.VM, error) {
	rec, _, err := parking.ReadRecord(vm)
	if err != nil || len(rec.Sent) == 0 {
		return vm, err
	}
	which := slices.Collect(maps.Keys(rec.Sent))
	if err := new(exchange.Late).Await(ctx, []parking.Parking{{VM: vm, Record: rec}}, which, p.Say); err != nil {
		return vm, err
	}
	return p.empty(ctx, v)
}

// empty reads a parking VM again. It refuses unless the VM is the one that was shown, is at rest,
// and owns no volume, named or unnamed.
func (p ParkingPruner) empty(ctx context.Context, v ParkingVerdict) (cluster.VM, error) {
	vm, err := p.Proxmox.VM(ctx, v.VMID)
	if err != nil {
		return vm, fmt.Errorf("look up VM %d: %w", v.VMID, err)
	}
	rec, is, err := parking.ReadRecord(vm)
	if err != nil {
		return vm, err
	}
	vms, err := p.Proxmox.VMs(ctx)
	if err != nil {
		return vm, fmt.Errorf("list VMs: %w", err)
	}
	all, _ := parking.AllParkings(vms, p.Cluster) // an unreadable record is not one of this node
	park := parking.Parking{VM: vm, Record: rec}
	park.Record.Open = rec.Open && !park.CameLate(all)
	against := park.Untouchable(nil)
	switch {
	case !is || rec.Cluster != p.Cluster || rec.Node != v.Node || vm.Name != v.Name || vm.Host != v.Host:
		return vm, fault.PruneRefused.Refusedf("%s is not the parking VM of node %s that was shown: it is not deleted", vm, v.Node)
	case len(rec.Kept) > 0:
		against = append(against, fmt.Sprintf("its record keeps %s", rec.Kept[0].Key))
	}
	against = append(against, unrecorded(vm, nil)...)
	ties, err := p.Proxmox.Ties(ctx, vm)
	if err != nil {
		return vm, err
	}
	if len(ties.Snapshots) > 0 {
		against = append(against, "it has snapshots: "+strings.Join(ties.Snapshots, ", "))
	}
	unnamed, err := p.Unnamed(ctx, vm)
	if err != nil {
		return vm, err
	}
	if against = append(against, unnamed...); len(against) > 0 {
		return vm, fault.WithHint(fault.PruneRefused.Refusedf("%s is not deleted: %s", vm, strings.Join(against, "; ")), "recast prune shows what is there now")
	}
	return vm, nil
}

// Unnamed lists, in words, the volumes that carry a VM's VMID and that its configuration does not
// name. Proxmox does not delete them with the VM, and the next VM with its VMID would own them.
func (p ParkingPruner) Unnamed(ctx context.Context, vm cluster.VM) ([]string, error) {
	storages, err := p.Storages(ctx, vm.Host)
	if err != nil {
		return nil, fmt.Errorf("list the storages of %s: %w", vm.Host, err)
	}
	var out []string
	for _, storage := range storages {
		volumes, err := p.Proxmox.OwnedVolumes(ctx, vm.Host, storage, vm.ID)
		if err != nil {
			return nil, fmt.Errorf("list the volumes of VM %d on %s: %w", vm.ID, storage, err)
		}
		for _, volid := range volumes {
			if len(cluster.ReferencedBy(volid, []cluster.VM{vm})) == 0 {
				out = append(out, fmt.Sprintf("%s carries its number and no configuration names it: look at it (qm disk rescan --vmid %d)", volid, vm.ID))
			}
		}
	}
	return slices.Compact(out), nil
}

// KeepUnnamed keeps each parking VM that owns unnamed volumes.
func (p ParkingPruner) KeepUnnamed(ctx context.Context, vms []cluster.VM) error {
	for i := range p.VMs {
		v := &p.VMs[i]
		at := slices.IndexFunc(vms, func(vm cluster.VM) bool { return vm.ID == v.VMID })
		if len(v.Keep) > 0 || at < 0 {
			continue
		}
		unnamed, err := p.Unnamed(ctx, vms[at])
		if err != nil {
			return err
		}
		if v.Keep = append(v.Keep, unnamed...); len(v.Keep) > 0 {
			v.Goes = ""
		}
	}
	return nil
}
