package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// handOver gives a volume of one VM to the other, and is safe to run again
// after it was cut off anywhere. Proxmox renames the volume, then writes the
// source's configuration, then the target's (qemu-server, API2/Qemu.pm): a crash
// of the host, or a loss of quorum, in between leaves a volume that nobody names.
// So the intent is durable before, with every volume that had no name then: at
// most one can be new afterwards, and that is the one.
func (r *Replace) handOver(ctx context.Context, in Intent) error {
	from, to, err := r.both(ctx, in)
	if err != nil {
		return err
	}
	park := from
	if in.To == r.Parking {
		park = to
	}
	rec, _, err := ReadRecord(park)
	if err != nil {
		return err
	}
	if begun := rec.Intent; begun != nil && begun.From == in.From && begun.Key == in.Key && begun.To == in.To {
		found, err := r.findUnnamed(ctx, *begun, from, to)
		if err != nil || found {
			return err
		}
	}
	if err := r.handable(in, from); err != nil {
		return err
	}
	disk, err := ParseDisk(in.Key, from.Config[in.Key])
	if err != nil {
		return err
	}
	in.Volid = disk.Volid
	if in.Unnamed, err = r.unnamed(ctx, disk.Storage(), from, to); err != nil {
		return err
	}
	if err := changeRecord(ctx, r.Proxmox, park, r.Run, func(rec *Record) { rec.Intent = &in }); err != nil {
		return err
	}
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	// Writing the intent may have changed the digest.
	if from, err = r.Proxmox.VM(ctx, in.From); err != nil {
		return fmt.Errorf("look up VM %d: %w", in.From, err)
	}
	if err := r.handable(in, from); err != nil {
		return err
	}
	if err := r.Proxmox.MoveDisk(ctx, from, in.Key, in.To, in.ToKey); err != nil {
		return fmt.Errorf("hand %s of %s over to VM %d: %w", in.Key, from, in.To, err)
	}
	return nil
}

func (r *Replace) both(ctx context.Context, in Intent) (from, to VM, err error) {
	var errFrom, errTo error
	from, errFrom = r.Proxmox.VM(ctx, in.From)
	to, errTo = r.Proxmox.VM(ctx, in.To)
	return from, to, errors.Join(prefix(fmt.Sprintf("look up VM %d", in.From), errFrom), prefix(fmt.Sprintf("look up VM %d", in.To), errTo))
}

// handable refuses to hand over what is not as it was planned, or is another
// VM's: Proxmox would rename that under its real owner's configuration.
func (r *Replace) handable(in Intent, from VM) error {
	value, attached := from.Config[in.Key]
	if !attached {
		return fault.WithHint(fault.Refusedf("%s has no %s to hand over to VM %d, which has not got it either", from, in.Key, in.To),
			"recast status shows where every disk is; nothing was deleted")
	}
	disk, err := ParseDisk(in.Key, value)
	switch {
	case err != nil:
		return err
	case in.Volid != "" && disk.Volid != in.Volid:
		return fault.Refusedf("%s of %s is %s now, not %s as planned", in.Key, from, disk.Volid, in.Volid)
	case disk.Owner != from.ID:
		return fault.Refusedf("%s of %s belongs to VM %d", in.Key, from, disk.Owner)
	case from.Running:
		return fault.Refusedf("%s was started by somebody else", from)
	}
	return nil
}

// unnamed lists the volumes on a storage that carry either VM's number and that neither refers to.
func (r *Replace) unnamed(ctx context.Context, storage string, from, to VM) ([]string, error) {
	var out []string
	for _, vm := range []VM{from, to} {
		volumes, err := r.Proxmox.OwnedVolumes(ctx, vm.Host, storage, vm.ID)
		if err != nil {
			return nil, fmt.Errorf("list the volumes of VM %d on %s: %w", vm.ID, storage, err)
		}
		for _, volid := range volumes {
			if len(referencedBy(volid, []VM{from, to})) == 0 {
				out = append(out, volid)
			}
		}
	}
	return out, nil
}

// findUnnamed finishes a hand-over that was cut off in Proxmox: it gives the one
// volume that has lost its name to the VM that was to get it. found is false
// where nothing had happened yet.
func (r *Replace) findUnnamed(ctx context.Context, in Intent, from, to VM) (found bool, err error) {
	disk, err := ParseDisk(in.Key, joinOptions(in.Volid, in.Options))
	if err != nil {
		return false, err
	}
	_, named := from.Config[in.Key]
	if named {
		have, err := r.Proxmox.OwnedVolumes(ctx, from.Host, disk.Storage(), from.ID)
		if err != nil {
			return false, fmt.Errorf("list the volumes of VM %d on %s: %w", from.ID, disk.Storage(), err)
		}
		if slices.Contains(have, in.Volid) {
			return false, nil
		}
	}
	now, err := r.unnamed(ctx, disk.Storage(), from, to)
	if err != nil {
		return false, err
	}
	lost := slices.DeleteFunc(now, func(volid string) bool { return volid == in.Volid || slices.Contains(in.Unnamed, volid) })
	if len(lost) != 1 {
		return false, fault.WithHint(
			fault.Refusedf("%s of VM %d (%s) lost its name on the way to VM %d, and %d volumes could be it: %s",
				in.Key, in.From, in.Volid, in.To, len(lost), cmpNone(strings.Join(lost, ", "))),
			"find it by its content on storage %s and attach it as %s of VM %d yourself, then run the same command again; nothing was deleted",
			disk.Storage(), in.ToKey, in.To)
	}
	if err := r.Proxmox.SetConfig(ctx, to, map[string]string{in.ToKey: joinOptions(lost[0], in.Options)}, nil); err != nil {
		return false, fmt.Errorf("attach %s, which had lost its name, as %s of %s: %w", lost[0], in.ToKey, to, err)
	}
	if named {
		return true, r.dropDangling(ctx, in)
	}
	return true, nil
}

// dropDangling removes a reference to a volume that is there no more: first the
// drive's key, which leaves an unusedN, then that. Freeing is harmless as long
// as nothing has that name, which was just made sure of.
func (r *Replace) dropDangling(ctx context.Context, in Intent) error {
	for range 2 {
		vm, err := r.Proxmox.VM(ctx, in.From)
		if err != nil {
			return fmt.Errorf("look up VM %d: %w", in.From, err)
		}
		users := slices.DeleteFunc(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
			d, err := ParseDisk(key, vm.Config[key])
			return err != nil || d.Volid != in.Volid
		})
		if len(users) == 0 {
			return nil
		}
		have, err := r.Proxmox.HasVolume(ctx, vm.Host, in.Volid)
		switch {
		case err != nil:
			return fmt.Errorf("look for %s: %w", in.Volid, err)
		case have:
			return fault.Refusedf("%s exists again as %s of %s: somebody else made it", in.Volid, users[0], vm)
		}
		if err := r.Proxmox.SetConfig(ctx, vm, nil, users); err != nil {
			return fmt.Errorf("remove the dangling %s from %s: %w", users[0], vm, err)
		}
	}
	return nil
}

// changeRecord changes the open record of a run on its parking VM.
func changeRecord(ctx context.Context, px Editor, park VM, run string, change func(*Record)) error {
	rec, ok, err := ReadRecord(park)
	switch {
	case err != nil:
		return err
	case !ok || !rec.Open || rec.Run != run:
		return fault.Refusedf("%s no longer has an open record of run %s: another run was here", park, run)
	}
	change(&rec)
	return writeRecord(ctx, px, park, rec)
}

func writeRecord(ctx context.Context, px Editor, park VM, rec Record) error {
	description, err := rec.Description()
	if err != nil {
		return err
	}
	if err := px.SetConfig(ctx, park, map[string]string{"description": description}, nil); err != nil {
		return fmt.Errorf("write the record into %s: %w", park, err)
	}
	return nil
}
