package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// finishSteps put back what was taken away for the time of the roll, and close
// the record last: until then the replacement is unfinished.
func (n *nodeRoll) finishSteps(ctx context.Context) ([]step.Step, error) {
	r, err := n.replace(ctx)
	if err != nil {
		return nil, err
	}
	r.frees = n.plan.Frees
	return append(append(r.finishSteps(),
		step.Step{ID: "restore-node", Title: "restore labels and taints", Do: n.restoreMetadata},
		step.Step{ID: "uncordon", Title: "uncordon " + n.plan.Node, Skip: n.uncordoned, Do: n.uncordon},
		step.Step{ID: "keep", Title: "keep the old system disk parked", Skip: n.kept, Do: n.thenForget(r.keep)},
	), n.freeSteps("bring-up/finish")...), nil
}

func (r *Replace) finishSteps() []step.Step {
	return append([]step.Step{ejectStep(r.Proxmox, r.VM.ID)}, r.restoreSteps()...)
}

// restoreSteps are for whatever system disk the VM has now.
func (r *Replace) restoreSteps() []step.Step {
	return []step.Step{
		{ID: "restore-settings", Title: "restore onboot and protection", Skip: r.settingsRestored, Do: r.restoreSettings},
		{ID: "restore-ha", Title: "put the VM back under Proxmox HA", Skip: r.haRestored, Do: r.restoreHA},
	}
}

func ejectStep(px Proxmox, id VMID) step.Step {
	return step.Step{
		ID: "eject", Title: "eject the boot ISO",
		Skip: func(ctx context.Context) (string, error) { return ejected(ctx, px, id) },
		Do:   func(ctx context.Context) error { return eject(ctx, px, id) },
	}
}

func ejected(ctx context.Context, px Proxmox, id VMID) (string, error) {
	vm, err := px.VMConfig(ctx, id)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", id, err)
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

func eject(ctx context.Context, px Proxmox, id VMID) error {
	vm, err := px.VMConfig(ctx, id)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", id, err)
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
	if err := px.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("eject from %s: %w", vm, err)
	}
	return nil
}

// changesSettings are the settings that are others for the time of the exchange.
func (r *Replace) changesSettings() []string {
	keys := []string{"onboot", "protection"}
	if r.Blank != nil {
		keys = append(keys, r.Blank.Key)
	}
	return keys
}

// settingsToRestore are those,
// as far as they are not as before; those that the VM had not are to go again.
func (r *Replace) settingsToRestore(ctx context.Context) (vm VM, set map[string]string, del []string, err error) {
	vm, err = r.Proxmox.VMConfig(ctx, r.VM.ID)
	if err != nil {
		return vm, nil, nil, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
	}
	set = map[string]string{}
	for _, key := range r.changesSettings() {
		was, had := r.VM.Config[key]
		is, has := vm.Config[key]
		switch {
		case had && was != is:
			set[key] = was
		case !had && has:
			del = append(del, key)
		}
	}
	media, err := r.mediaToPutBack(ctx, vm)
	maps.Copy(set, media)
	return vm, set, del, err
}

func (r *Replace) settingsRestored(ctx context.Context) (string, error) {
	_, set, del, err := r.settingsToRestore(ctx)
	if err != nil || len(set)+len(del) > 0 {
		return "", err
	}
	return strings.Join(r.changesSettings(), " and ") + " are as before", nil
}

func (r *Replace) restoreSettings(ctx context.Context) error {
	vm, set, del, err := r.settingsToRestore(ctx)
	if err != nil {
		return err
	}
	if _, other := set["protection"]; other || slices.Contains(del, "protection") {
		if err := r.awaitLate(ctx, "finish/restore-settings", sentDelete); err != nil { // it would take a VM that is off by then
			return err
		}
	}
	return fault.Prefix("restore "+strings.Join(r.changesSettings(), " and ")+" of "+vm.String(), r.Proxmox.SetConfig(ctx, vm, set, del))
}

func (r *Replace) haRestored(ctx context.Context) (string, error) {
	if r.ha == nil {
		return "Proxmox HA did not manage it", nil
	}
	ha, err := r.Proxmox.HAResource(ctx, r.VM.ID)
	if err != nil || ha == nil {
		return "", fault.Prefix(fmt.Sprintf("read what Proxmox HA has of VM %d", r.VM.ID), err)
	}
	rec, err := r.record(ctx)
	if err != nil || r.late.left(r.Parking, rec.Sent, []string{sentRemoveHA}) > 0 {
		return "", err
	}
	return "Proxmox HA manages it again", nil
}

// restoreHA waits for the VM to run: HA would start one that it finds stopped,
// wherever it likes.
func (r *Replace) restoreHA(ctx context.Context) error {
	err := r.awaitLate(ctx, "finish/restore-ha", sentRemoveHA) // it would take that back
	if err == nil {
		err = r.sending(ctx, sentAddHA, LateQueue, func(ctx context.Context) error { return r.Proxmox.AddHA(ctx, *r.ha) })
	}
	return fault.Prefix(fmt.Sprintf("put VM %d back under Proxmox HA", r.VM.ID), err)
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
	if err := errors.Join(n.requireOwnName(ctx), n.noteStage(ctx, stageServes)); err != nil {
		return err
	}
	return fault.Prefix("uncordon "+n.plan.Node, n.Kube.Uncordon(ctx, n.plan.Node))
}

func (n *nodeRoll) kept(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	if err != nil || park.Record.Open {
		return "", err
	}
	return fmt.Sprintf("the old system disk is on %s", park.VM), nil
}

// keep closes the record: the old system disk stays parked, as the way back.
func (r *Replace) keep(ctx context.Context) error {
	return r.updateRecord(ctx, func(rec *Record) {
		if back := rec.Restore; back != nil {
			rec.Kept = slices.DeleteFunc(rec.Kept, func(k KeptDisk) bool { return k.Key == back.Key })
		}
		for _, d := range rec.Disks {
			if d.System {
				kept := r.old
				kept.Key, kept.Left, kept.Nth = d.ParkKey, rec.Left, rec.Nth
				rec.Kept = append(rec.Kept, kept)
			}
		}
		for i, k := range rec.Kept {
			rec.Kept[i].Going = k.Going || slices.ContainsFunc(r.frees, func(f FreePlan) bool { return f.Key == k.Key && f.Run == k.Run })
		}
		rec.close()
	})
}
