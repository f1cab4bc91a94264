package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// mover hands one disk of a node's VM over to the parking VM, or back. Both VMs are on one host.
type mover struct {
	px      cluster.Proxmox
	record  openRecord // on the parking VM
	host    string
	isSpare func(parking.Intent) bool    // whether the disk is a new system disk that was given up: nothing waits for it
	say     func(parking.Intent, string) // reports what a hand-over waits for
}

func newMover(rec openRecord, host string, isSpare func(parking.Intent) bool, say func(parking.Intent, string)) mover {
	return mover{px: rec.px, record: rec, host: host, isSpare: isSpare, say: say}
}

const (
	// busyFor bounds how long do retries when a storage can't rename a volume. The node is down meanwhile.
	busyFor = 5 * time.Minute
	// busyPause is the time between two attempts.
	busyPause = 10 * time.Second
)

// do hands a volume of one VM over to the other. While the storage is too busy to rename the volume, do retries for
// up to busyFor. Each attempt first checks the result of the last one, which may have succeeded despite its error.
// seen is as for once.
func (m mover) do(ctx context.Context, in parking.Intent, seen *pair) error {
	err := m.once(ctx, in, seen)
	said := ""
	for begun := time.Now(); errors.Is(err, cluster.ErrStorageBusy) && time.Since(begun) < busyFor; {
		left := (busyFor - time.Since(begun)).Round(time.Minute)
		if text := fmt.Sprintf("its storage is busy: tried again for %s at most: %v", left, err); text != said {
			m.say(in, text)
			said = text
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause):
		}
		err = m.once(ctx, in, nil)
	}
	if errors.Is(err, cluster.ErrStorageBusy) {
		return fault.WithHint(fault.StorageBusy.Of(err),
			"something on %s uses the volume although VM %d is off: with ZFS, lsof /dev/zvol/POOL/VOLUME names it; with Ceph, rbd status POOL/VOLUME lists its watchers. "+
				"End that, then run the same command again", m.host, in.From)
	}
	return err
}

// begun returns the last hand-over that was begun; nil if there was none.
func (m mover) begun(a, b cluster.VM) (*parking.Intent, error) {
	rec, _, err := parking.ReadRecord(m.parkingOf(a, b))
	return rec.Intent, err
}

// vm reads one VM, and whether it runs.
func (m mover) vm(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := m.px.VM(ctx, id)
	return vm, fault.Prefix(fmt.Sprintf("look up VM %d", id), err)
}

// read reads the two VMs of a hand-over.
func (m mover) read(ctx context.Context, in parking.Intent) (p pair, err error) {
	look := func(id cluster.VMID, vm *cluster.VM) func() error {
		return func() (err error) {
			*vm, err = m.vm(ctx, id)
			return err
		}
	}
	err = wait.All(look(in.From, &p.from), look(in.To, &p.to))
	return p, err
}

// both reads the two VMs, unless they were just read, and refuses if one of them is on another host.
func (m mover) both(ctx context.Context, in parking.Intent, seen *pair) (from, to cluster.VM, err error) {
	if seen == nil {
		p, err := m.read(ctx, in)
		if err != nil {
			return from, to, err
		}
		seen = &p
	}
	return seen.from, seen.to, errors.Join(requireHost(seen.from, m.host), requireHost(seen.to, m.host))
}

// pair is the two VMs of a hand-over, as they were read just now.
type pair struct{ from, to cluster.VM }

// dropDangling removes a reference to a volume that no longer exists: first the drive's key, which leaves an unusedN,
// then the unusedN. Proxmox then frees the volume of that name, which is harmless as long as there is none; if a later
// volume has the name, the reference stays. Protection forbids the removal, so dropDangling lifts it first.
func (m mover) dropDangling(ctx context.Context, in parking.Intent) error {
	for range 4 {
		vm, err := m.vm(ctx, in.From)
		if err != nil {
			return err
		}
		users := cluster.UsersOf(in.Volid, vm)
		if len(users) == 0 {
			return nil
		}
		have, err := m.px.HasVolume(ctx, vm.Host, in.Volid)
		switch {
		case err != nil:
			return fmt.Errorf("look for %s: %w", in.Volid, err)
		case have:
			return nil
		case vm.Config["protection"] == "1":
			err = LiftProtection(ctx, m.px, vm)
		default:
			if err = cluster.RequireQuorum(ctx, m.px); err == nil {
				err = m.px.SetConfig(ctx, vm, nil, users)
			}
		}
		if err != nil {
			return fault.WithHint(fmt.Errorf("remove the dangling %s from %s: %w", users[0], vm, err),
				"on some storages (RBD, thick LVM) Proxmox can't let go of a volume that is not there: %s is gone, so remove the line of %s from /etc/pve/qemu-server/%d.conf on %s, then run the same command again",
				in.Volid, users[0], vm.ID, vm.Host)
		}
	}
	return fmt.Errorf("VM %d names %s still, which is there no more, although it was removed", in.From, in.Volid)
}

// findUnnamed finishes a hand-over that was interrupted in Proxmox: it gives the one volume that
// lost its name to the VM that was to get it. found is false if Proxmox had done nothing yet.
func (m mover) findUnnamed(ctx context.Context, in parking.Intent, from, to cluster.VM) (found bool, err error) {
	disk, err := cluster.ParseDisk(in.Key, cluster.JoinOptions(in.Volid, in.Options))
	if err != nil {
		return false, err
	}
	now, err := m.unnamed(ctx, disk.Storage(), from, to)
	if err != nil {
		return false, err
	}
	lost := slices.DeleteFunc(now, func(volid string) bool { return volid == in.Volid || slices.Contains(in.Unnamed, volid) })
	value, named := from.Config[in.Key]
	if named {
		there, errParse := cluster.ParseDisk(in.Key, value)
		have, err := m.px.OwnedVolumes(ctx, from.Host, disk.Storage(), from.ID)
		switch {
		case err != nil:
			return false, fmt.Errorf("list the volumes of VM %d on %s: %w", from.ID, disk.Storage(), err)
		case slices.Contains(have, in.Volid) && len(lost) == 0:
			return false, nil
		case errParse == nil && len(lost) == 0 && there.Option("serial") != "" && there.Option("serial") == disk.Option("serial"):
			has, err := m.px.HasVolume(ctx, from.Host, there.Volid)
			if err != nil {
				return false, fmt.Errorf("look for %s: %w", there.Volid, err)
			}
			if has {
				return false, nil // someone moved the volume, maybe to another storage: it has another name
			}
		case slices.Contains(have, in.Volid): // it may be another volume: Proxmox gives a free name to the next one
			lost = append([]string{in.Volid}, lost...)
		}
	}
	if len(lost) == 0 && !named && m.isSpare(in) {
		return true, nil // someone took the disk away, and nothing waits for it
	}
	if len(lost) == 0 {
		return false, fault.WithHint(
			fault.VolumeAmbiguous.Refusedf("%s of VM %d (%s) was on its way to VM %d, and storage %s has no volume that could be it: it was deleted, or belongs to another VM now",
				in.Key, in.From, in.Volid, in.To, disk.Storage()),
			"find it, or restore it from a backup, and attach it as %s of VM %d; then run the same command again", in.ToKey, in.To)
	}
	if len(lost) > 1 {
		return false, fault.WithHint(
			fault.VolumeAmbiguous.Refusedf("%s of VM %d (%s) lost its name on the way to VM %d, and %d volumes could be it: %s",
				in.Key, in.From, in.Volid, in.To, len(lost), words.OrNone(strings.Join(lost, ", "))),
			"find it by its content on storage %s and attach it as %s of VM %d yourself, then run the same command again; nothing was deleted",
			disk.Storage(), in.ToKey, in.To)
	}
	if err := m.requireOff(ctx, to.ID); err != nil {
		return false, err
	}
	if err := m.px.SetConfig(ctx, to, map[string]string{in.ToKey: cluster.JoinOptions(lost[0], in.Options)}, nil); err != nil {
		return false, fmt.Errorf("attach %s, which had lost its name, as %s of %s: %w", lost[0], in.ToKey, to, err)
	}
	if named {
		return true, m.dropDangling(ctx, in)
	}
	return true, nil
}

// finish completes a hand-over between two VMs, in either direction; found is false if Proxmox had not begun it.
func (m mover) finish(ctx context.Context, in parking.Intent, from, to cluster.VM) (found bool, err error) {
	if in.IsOver(from, to) {
		return true, nil
	}
	if from.ID != in.From {
		from, to = to, from
	}
	if _, arrived := to.Config[in.ToKey]; !arrived {
		return m.findUnnamed(ctx, in, from, to)
	}
	return true, m.dropDangling(ctx, in)
}

// once hands a volume of one VM over to the other. It is safe to run again after an interruption anywhere, or after
// a failure. Proxmox renames the volume, then writes the source's configuration, then the target's (qemu-server,
// API2/Qemu.pm). A crash of the host or a loss of quorum in between leaves a volume that no configuration names. So
// once first records the intent, with every volume that has no name at that time: afterwards at most one more has
// none, which is the volume of the hand-over. seen is the two VMs if the caller has just read them, else nil.
func (m mover) once(ctx context.Context, in parking.Intent, seen *pair) error {
	from, to, err := m.both(ctx, in, seen)
	if err != nil {
		return err
	}
	begun, err := m.begun(from, to)
	if err != nil {
		return err
	}
	if begun != nil {
		over := begun.IsOver(from, to)
		found, err := m.finish(ctx, *begun, from, to)
		if err != nil || found && begun.Same(in) {
			return err
		}
		if !over { // finish may have changed the VMs
			if from, to, err = m.both(ctx, in, nil); err != nil {
				return err
			}
		}
	}
	disk, err := m.handable(in, from)
	if err != nil {
		return err
	}
	if to.Running {
		return startedMeanwhile(to)
	}
	in.Volid = disk.Volid
	if in.Unnamed, err = m.unnamed(ctx, disk.Storage(), from, to); err != nil {
		return err
	}
	if err := ChangeRecord(ctx, m.px, m.parkingOf(from, to), m.record.run, func(rec *parking.Record) { rec.Intent = &in }); err != nil {
		return err
	}
	err = wait.All(
		func() error { return cluster.RequireQuorum(ctx, m.px) },
		func() (err error) { // writing the intent may have changed the digest
			from, err = m.vm(ctx, in.From)
			return err
		},
	)
	if err != nil {
		return err
	}
	if _, err := m.handable(in, from); err != nil {
		return err
	}
	if err := m.px.MoveDisk(ctx, from, in.Key, in.To, in.ToKey); err != nil {
		return fmt.Errorf("hand %s of %s over to VM %d: %w", in.Key, from, in.To, err)
	}
	return nil
}

// handable refuses a disk that is not as planned, or that another VM owns: Proxmox would rename the volume while
// its owner's configuration still has the old name.
func (m mover) handable(in parking.Intent, from cluster.VM) (disk cluster.Disk, err error) {
	value, attached := from.Config[in.Key]
	if !attached {
		return disk, fault.WithHint(fault.ParkedHalf.Refusedf("%s has no %s to hand over to VM %d, which has not got it either", from, in.Key, in.To),
			"recast status shows where every disk is; nothing was deleted")
	}
	disk, err = cluster.ParseDisk(in.Key, value)
	switch {
	case err != nil:
		return disk, err
	case in.Volid != "" && disk.Volid != in.Volid:
		return disk, fault.WithHint(fault.ParkedHalf.Refusedf("%s of %s is %s now, not %s as planned", in.Key, from, disk.Volid, in.Volid),
			"someone has changed it meanwhile: recast undo NODE cancels the replacement, with the disk as it is now; then roll again")
	case disk.Owner != from.ID:
		return disk, fault.ParkedHalf.Refusedf("%s of %s belongs to VM %d", in.Key, from, disk.Owner)
	case from.Running:
		return disk, startedMeanwhile(from)
	}
	return disk, nil
}

func (m mover) parkingOf(a, b cluster.VM) cluster.VM {
	if a.ID == m.record.id {
		return a
	}
	return b
}

// requireOff refuses to give a disk to a running VM: its guest would get the disk by hot-plug.
func (m mover) requireOff(ctx context.Context, id cluster.VMID) error {
	vm, err := m.vm(ctx, id)
	switch {
	case err != nil:
		return err
	case vm.Running:
		return startedMeanwhile(vm)
	}
	return nil
}

// unnamed lists the volumes on a storage that carry either VM's VMID and that neither VM refers to.
func (m mover) unnamed(ctx context.Context, storage string, from, to cluster.VM) ([]string, error) {
	var volumes [2][]string
	list := func(vm cluster.VM, volumes *[]string) func() error {
		return func() (err error) {
			*volumes, err = m.px.OwnedVolumes(ctx, vm.Host, storage, vm.ID)
			return fault.Prefix(fmt.Sprintf("list the volumes of VM %d on %s", vm.ID, storage), err)
		}
	}
	if err := wait.All(list(from, &volumes[0]), list(to, &volumes[1])); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Concat(volumes[0], volumes[1]), func(volid string) bool {
		return len(cluster.ReferencedBy(volid, []cluster.VM{from, to})) > 0
	}), nil
}

// settle finishes the last hand-over between the two VMs if it was interrupted. The next hand-over may go the other
// way, and takes a drive in a configuration for the disk itself.
func (m mover) settle(ctx context.Context, vm, park cluster.VM) error {
	begun, err := m.begun(vm, park)
	if err != nil || begun == nil {
		return err
	}
	_, err = m.finish(ctx, *begun, vm, park)
	return err
}
