package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// KeptRef identifies an old system disk as it was shown before it is freed.
type KeptRef struct {
	Cluster, Node string
	Parking       cluster.VMID
	Key, Run      string
	Volid         string // "": the drive no longer exists; only its entry is removed from the record
}

// Find reads the parking VM again, and the disk's entry in its record; found is false if the entry no longer exists.
func (k KeptRef) Find(ctx context.Context, px cluster.VMReader) (p parking.Parking, entry parking.KeptDisk, found bool, err error) {
	p.VM, err = px.VM(ctx, k.Parking)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return p, entry, false, nil
	case err != nil:
		return p, entry, false, fmt.Errorf("look up parking VM %d: %w", k.Parking, err)
	}
	rec, _, err := parking.ReadRecord(p.VM)
	switch {
	case err != nil:
		return p, entry, false, err
	case rec.Cluster != k.Cluster || rec.Node != k.Node:
		return p, entry, false, fault.PruneRefused.Refusedf("%s is not the parking VM of node %s any more", p.VM, k.Node)
	}
	p.Record = rec
	i := slices.IndexFunc(rec.Kept, k.is)
	if i < 0 {
		return p, entry, false, nil
	}
	return p, rec.Kept[i], true, nil
}

func (k KeptRef) is(entry parking.KeptDisk) bool { return entry.Key == k.Key && entry.Run == k.Run }

// Free frees the disk and removes its entry from the record. Right before, it checks again that the volume is the
// one that was shown, belongs to the parking VM, has the options that recast gave it, is in no snapshot, and is
// named by nothing else. After an interruption anywhere, a second run gives the same result.
func (k KeptRef) Free(ctx context.Context, px cluster.Proxmox, uses func(context.Context) ([]cluster.Use, error)) error {
	p, disk, found, err := k.look(ctx, px)
	if err != nil || !found {
		return err
	}
	if disk.Volid == "" {
		return k.forget(ctx, px)
	}
	now, err := uses(ctx)
	if err != nil {
		return err
	}
	if by := parking.NamedBeside(p.VM, disk, now); len(by) > 0 {
		return fault.WithHint(fault.PruneRefused.Refusedf("%s is %s of %s, but %s refers to it as well: it stays", disk.Volid, k.Key, p.VM, strings.Join(by, ", ")),
			"it is a disk that recast keeps: qm config shows what has it there, and qm status whether that runs; recast frees it once nothing else names it")
	}
	if p.VM.Config["protection"] == "1" {
		// Protection forbids removing a drive (qemu-server, QemuConfig.pm,
		// check_protection); writing the record sets it again.
		if err := LiftProtection(ctx, px, p.VM); err != nil {
			return err
		}
		if p, disk, found, err = k.look(ctx, px); err != nil || !found {
			return errors.Join(err, k.protect(ctx, px))
		}
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil {
		return err
	}
	if err := px.FreeDisk(ctx, p.VM, k.Key); err != nil {
		return errors.Join(fmt.Errorf("free %s, %s of %s: %w", disk.Volid, k.Key, p.VM, err), k.protect(ctx, px))
	}
	return k.forget(ctx, px)
}

// look finds the disk and refuses if anything differs from what was shown. Its Volid is "" if the
// drive no longer exists.
func (k KeptRef) look(ctx context.Context, px cluster.Proxmox) (p parking.Parking, disk cluster.Disk, found bool, err error) {
	p, entry, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return p, disk, false, err
	}
	if against := p.Untouchable(nil); len(against) > 0 {
		return p, disk, true, fault.PruneRefused.Refusedf("nothing of it is freed: %s", strings.Join(against, "; "))
	}
	if _, there := p.VM.Config[k.Key]; !there {
		return p, disk, true, nil
	}
	if disk, err = p.KeptDisk(entry); err != nil {
		return p, disk, true, fault.PruneRefused.Refusedf("%s of %s is not freed: %w", k.Key, p.VM, err)
	}
	if disk.Volid != k.Volid {
		return p, disk, true, fault.PruneRefused.Refusedf("%s of %s is %s now, not %s as shown: it is not freed", k.Key, p.VM, disk.Volid, words.OrNone(k.Volid))
	}
	ties, err := px.Ties(ctx, p.VM)
	if err == nil && len(ties.Snapshots) > 0 {
		err = fault.PruneRefused.Refusedf("%s has snapshots (%s): nothing of it is freed", p.VM, strings.Join(ties.Snapshots, ", "))
	}
	return p, disk, true, err
}

// forget removes the entry from the record and protects the parking VM again.
func (k KeptRef) forget(ctx context.Context, px cluster.Proxmox) error {
	p, _, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return err
	}
	if _, there := p.VM.Config[k.Key]; there || p.Record.Open {
		return fault.PruneRefused.Refusedf("%s of %s is there again, or its record is open: it stays in the record", k.Key, p.VM)
	}
	p.Record.Kept = slices.DeleteFunc(p.Record.Kept, k.is)
	return WriteRecord(ctx, px, p.VM, p.Record)
}

// protect restores the protection that was lifted, if the disk is not freed.
func (k KeptRef) protect(ctx context.Context, px cluster.Proxmox) error {
	vm, err := px.VM(ctx, k.Parking)
	if err != nil || vm.Config["protection"] == "1" {
		return err
	}
	return fault.Prefix(fmt.Sprintf("protect %s again", vm), px.SetConfig(ctx, vm, map[string]string{"protection": "1"}, nil))
}

// Stay records that the disk is not to be freed, and protects the parking VM again.
func (k KeptRef) Stay(ctx context.Context, px cluster.Proxmox) error {
	p, _, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return err
	}
	for i := range p.Record.Kept {
		if k.is(p.Record.Kept[i]) {
			p.Record.Kept[i].Going = false
		}
	}
	return WriteRecord(ctx, px, p.VM, p.Record)
}
