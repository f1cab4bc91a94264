package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/step"
)

// finishSteps put back what was taken away for the time of the roll, and close
// the record last: until then the replacement is unfinished.
func (n *nodeRoll) finishSteps(context.Context) ([]step.Step, error) {
	return []step.Step{
		{ID: "eject", Title: "eject the boot ISO", Skip: n.ejected, Do: n.eject},
		{ID: "restore-onboot", Title: "restore onboot", Skip: n.onbootRestored, Do: n.restoreOnboot},
		{ID: "restore-ha", Title: "put the VM back under Proxmox HA", Skip: n.haRestored, Do: n.restoreHA},
		{ID: "restore-node", Title: "restore labels and taints", Do: n.restoreMetadata},
		{ID: "uncordon", Title: "uncordon " + n.plan.Node, Skip: n.uncordoned, Do: n.uncordon},
		{ID: "keep", Title: "keep the old system disk parked", Skip: n.kept, Do: n.keep},
	}, nil
}

func (n *nodeRoll) ejected(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	disks, err := vm.Disks()
	if err != nil {
		return "", err
	}
	for _, d := range disks {
		if _, iso := bootISO(d); iso {
			return "", nil
		}
	}
	return "no boot ISO in any drive", nil
}

func (n *nodeRoll) eject(ctx context.Context) error {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	disks, err := vm.Disks()
	if err != nil {
		return err
	}
	set := map[string]string{}
	for _, d := range disks {
		if _, iso := bootISO(d); iso {
			set[d.Key] = "none,media=cdrom"
		}
	}
	if err := n.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("eject from %s: %w", vm, err)
	}
	return nil
}

func (n *nodeRoll) onbootRestored(ctx context.Context) (string, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return "", err
	}
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	was, is := mem.VM.Config["onboot"] == "1", vm.Config["onboot"] == "1"
	if was != is {
		return "", nil
	}
	return fmt.Sprintf("onboot is as before: %t", was), nil
}

func (n *nodeRoll) restoreOnboot(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	if err := n.Proxmox.SetConfig(ctx, vm, map[string]string{"onboot": mem.VM.Config["onboot"]}, nil); err != nil {
		return fmt.Errorf("restore onboot of %s: %w", vm, err)
	}
	return nil
}

func (n *nodeRoll) restoreMetadata(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	return prefix("restore metadata of node "+n.plan.Node, n.Kube.RestoreMetadata(ctx, n.plan.Node, mem.Metadata))
}

func (n *nodeRoll) haRestored(ctx context.Context) (string, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return "", err
	}
	if mem.HA == nil {
		return "Proxmox HA did not manage it", nil
	}
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	ties, err := n.Proxmox.Ties(ctx, vm)
	if err != nil || ties.HA == nil {
		return "", err
	}
	return "Proxmox HA manages it again", nil
}

// restoreHA waits for the VM to run: HA would start one that it finds stopped,
// wherever it likes.
func (n *nodeRoll) restoreHA(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	return prefix(fmt.Sprintf("put VM %d back under Proxmox HA", n.plan.VMID), n.Proxmox.AddHA(ctx, *mem.HA))
}

// uncordoned is so once the mark is gone: somebody else's cordon stays.
func (n *nodeRoll) uncordoned(ctx context.Context) (string, error) {
	k, err := n.kubeNode(ctx)
	switch {
	case err != nil:
		return "", err
	case k.Mark != nil:
		return "", nil
	case k.Unschedulable:
		return "it was cordoned before recast came", nil
	}
	return "it takes pods", nil
}

func (n *nodeRoll) uncordon(ctx context.Context) error {
	return prefix("uncordon "+n.plan.Node, n.Kube.Uncordon(ctx, n.plan.Node))
}

func (n *nodeRoll) kept(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	if err != nil || park.Record.Open {
		return "", err
	}
	return fmt.Sprintf("the old system disk is on %s", park.VM), nil
}

// keep closes the record: the old system disk stays parked, as the way back.
func (n *nodeRoll) keep(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	return n.updateRecord(ctx, func(rec *Record) {
		if back := rec.Restore; back != nil {
			rec.Kept = slices.DeleteFunc(rec.Kept, func(k KeptDisk) bool { return k.Key == back.Key })
		}
		for _, d := range rec.Disks {
			if d.System {
				kept := mem.Old
				kept.Key, kept.Left = d.ParkKey, rec.Left
				rec.Kept = append(rec.Kept, kept)
			}
		}
		rec.close()
	})
}
