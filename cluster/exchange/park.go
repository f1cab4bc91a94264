package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// detach removes a disk that another VM owns from the configuration. Proxmox drops the key and
// leaves the volume alone (facts: no unusedN for foreign volumes). A hand-over would rename the
// volume while its owner's configuration still has the old name.
func (r *Replace) detach(ctx context.Context, d parking.ParkedDisk) error {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return err
	}
	disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key])
	switch {
	case err != nil:
		return err
	case disk.Volid != d.Volid || disk.Owner != d.Holder:
		return fault.ParkedHalf.Refusedf("%s of %s is %s now, not %s of VM %d as planned", d.Key, vm, disk.Volid, d.Volid, d.Holder)
	case vm.Running: // Proxmox would hot-unplug it from the guest
		return startedMeanwhile(vm)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("detach %s from %s", d.Key, vm), r.Proxmox.SetConfig(ctx, vm, nil, []string{d.Key}))
}

func (r *Replace) onParking(ctx context.Context, d parking.ParkedDisk) (park cluster.VM, disk cluster.Disk, found bool, err error) {
	park, err = r.record().vm(ctx)
	if err != nil {
		return park, disk, false, err
	}
	disk, found, err = parkedDisk(park, d)
	return park, disk, found, err
}

// onlyOnce refuses if both VMs have a drive under the key of a disk that is handed over. It first
// finishes an interrupted hand-over; after that, one of the two is not that disk.
func (r *Replace) onlyOnce(ctx context.Context, d parking.ParkedDisk) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	park, parked, there, err := r.onParking(ctx, d)
	if err != nil || !there {
		return err
	}
	vm, found, err := r.Current(ctx)
	if err != nil || !found || vm.Config[d.Key] == "" {
		return err
	}
	return fault.WithHint(fault.ParkedHalf.Refusedf("%s has %s (%s), and %s has %s (%s): only one of them is the disk that is to change hands",
		vm, d.Key, vm.Config[d.Key], park, d.ParkKey, parked.Volid), "remove the disk that someone attached there, then run the same command again; neither was touched. qm disk move gives it to another VM; qm set --delete of an unusedN would free it for good")
}

func (r *Replace) park(ctx context.Context, d parking.ParkedDisk) error {
	if d.Holder != 0 {
		return r.detach(ctx, d)
	}
	in := parking.Intent{
		From: r.VM.ID, Key: d.Key, Volid: d.Volid, To: r.Parking, ToKey: d.ParkKey, Options: strings.Join(parking.ParkedOptions(d), ","),
	}
	found, seen, err := r.onParkingBoth(ctx, d, in)
	switch {
	case err != nil:
		return err
	case found:
		err = r.onlyOnce(ctx, d)
	case d.System && r.Asks != nil:
		if err := r.Asks(ctx); err != nil {
			return err
		}
		err = r.mover().do(ctx, in, nil)
	default:
		err = r.mover().do(ctx, in, seen)
	}
	if err != nil {
		return err
	}
	park, disk, found, err := r.onParking(ctx, d)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("%s of VM %d: Proxmox reported it moved, but %s has no %s", d.Key, r.VM.ID, park, d.ParkKey)
	}
	return r.setOptions(ctx, park, disk, parking.ParkedOptions(d))
}

// onParkingBoth reports whether the parking VM has a drive under the disk's parking key. seen is both VMs as just
// read, for the hand-over; nil: the hand-over reads them itself.
func (r *Replace) onParkingBoth(ctx context.Context, d parking.ParkedDisk, in parking.Intent) (found bool, seen *pair, err error) {
	if d.System && r.Asks != nil { // Asks runs in between
		_, _, found, err = r.onParking(ctx, d)
		return found, nil, err
	}
	both, err := r.mover().read(ctx, in)
	if errors.Is(err, cluster.ErrNotFound) { // the VM may be gone while its disk is parked
		_, _, found, err = r.onParking(ctx, d)
		return found, nil, err
	}
	if err != nil {
		return false, nil, err
	}
	_, found, err = parkedDisk(both.to, d)
	return found, &both, err
}

func (r *Replace) parkSteps() []step.Step {
	steps := []step.Step{r.settleStep()}
	for _, d := range r.Disks {
		steps = append(steps, step.Step{
			ID: d.Key, Kind: "park-disk", Title: r.parkTitle(d), Risk: step.Disruptive,
			Skip: func(ctx context.Context) (string, error) { return r.parked(ctx, d) },
			Do:   func(ctx context.Context) error { return r.park(ctx, d) },
		})
	}
	return steps
}

func (r *Replace) parkTitle(d parking.ParkedDisk) string {
	switch {
	case d.Holder != 0:
		return fmt.Sprintf("detach %s, which stays with VM %d", d.Key, d.Holder)
	case r.Parking == 0: // the parking VM does not exist yet
		return fmt.Sprintf("park %s as %s of its parking VM", d.Key, d.ParkKey)
	}
	return fmt.Sprintf("park %s as %s of VM %d", d.Key, d.ParkKey, r.Parking)
}

func (r *Replace) parked(ctx context.Context, d parking.ParkedDisk) (string, error) {
	if d.Holder != 0 {
		vm, found, err := r.Current(ctx)
		if err != nil {
			return "", err
		}
		return isDetached(d, vm, found), nil
	}
	park, err := r.record().vm(ctx)
	if err != nil {
		return "", err
	}
	var vm cluster.VM
	if isUnused(d) {
		if vm, _, err = r.Current(ctx); err != nil {
			return "", err
		}
	}
	return isParked(park, vm, d)
}

// isParked is IsParked of a disk that the VM no longer has: an unusedN has no options that distinguish it from a
// drive that someone has detached from the parking VM.
func isParked(park, vm cluster.VM, d parking.ParkedDisk) (string, error) {
	if isUnused(d) && vm.Config[d.Key] == d.Volid {
		return "", nil
	}
	return IsParked(park, d)
}

func isUnused(d parking.ParkedDisk) bool { return strings.HasPrefix(d.Key, "unused") }

func (r *Replace) setOptions(ctx context.Context, vm cluster.VM, d cluster.Disk, options []string) error {
	if cluster.SameOptions(d.Options, options) {
		return nil
	}
	d.Options = options
	err := r.Proxmox.SetConfig(ctx, vm, map[string]string{d.Key: d.Value()}, nil)
	return fault.Prefix(fmt.Sprintf("set options of %s of %s", d.Key, vm), err)
}

func isDetached(d parking.ParkedDisk, vm cluster.VM, found bool) string {
	if _, there := vm.Config[d.Key]; found && there {
		return ""
	}
	return fmt.Sprintf("%s stays with VM %d, which owns it", d.Volid, d.Holder)
}

// IsParked says in words that the parking VM has that disk. It returns "" if not, and an error if another disk is
// under its key.
func IsParked(park cluster.VM, d parking.ParkedDisk) (string, error) {
	disk, found, err := parkedDisk(park, d)
	if err != nil || !found || !cluster.SameOptions(disk.Options, parking.ParkedOptions(d)) {
		return "", err
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, d.ParkKey, park), nil
}

func parkedDisk(park cluster.VM, d parking.ParkedDisk) (disk cluster.Disk, found bool, err error) {
	value, found := park.Config[d.ParkKey]
	if !found {
		return cluster.Disk{}, false, nil
	}
	disk, err = cluster.ParseDisk(d.ParkKey, value)
	if err == nil && disk.Owner != park.ID {
		err = fault.ParkedHalf.Refusedf("%s of %s is %s, which is not its own: someone else changed it", d.ParkKey, park, disk.Volid)
	}
	return disk, true, err
}

func (r *Replace) settle(ctx context.Context) error {
	vm, found, park, err := r.nowBoth(ctx)
	if err != nil || !found { // the VM is deleted only after every disk was handed over
		return err
	}
	return r.mover().settle(ctx, vm, park)
}

func (r *Replace) settleStep() step.Step {
	return step.Step{ID: "settle", Code: fault.ParkedHalf, Title: "check that no hand-over of a disk was cut off", Risk: step.Disruptive, Do: r.settle}
}

// isSpare says whether a hand-over is of a cancelled replacement's new system disk: its key on the parking VM is that of
// no disk that the node had.
func (r *Replace) isSpare(in parking.Intent) bool {
	at := in.ToKey
	if in.To != r.Parking { // the new disk was prepared there
		at = in.Key
	}
	return (in.To == r.Parking || r.Strategy.From() == cluster.Halfway) && !slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool { return d.ParkKey == at })
}

func (r *Replace) handOverStep(in parking.Intent) string {
	switch {
	case in.To == r.Parking && r.Strategy.From() == cluster.Halfway:
		return "park-new"
	case in.To == r.Parking:
		return parkStep + in.Key
	case !r.isSystem(in.ToKey):
	case r.Strategy.System() == cluster.SystemKept:
		return "restore-disk"
	case r.Strategy.VM() == cluster.VMAgain:
		return "renew-disk"
	case r.Strategy.Replaces():
		return "blank-disk"
	}
	return "attach/" + in.ToKey
}

// emptied is the goal of parking: every disk that must leave the VM has left it. From a VM that is to be deleted,
// every disk but the cloud-init drive must leave.
func (r *Replace) emptied(ctx context.Context) (string, error) {
	vm, found, park, err := r.nowBoth(ctx)
	if err != nil {
		return "", err
	}
	if reason, err := r.isReplaced(vm, found); err != nil || reason != "" {
		return reason, err
	}
	if missing, err := r.notParked(park, vm, found); err != nil || missing != "" {
		return "", err
	}
	if !r.Strategy.DeletesVM() {
		return "its system disk is parked", nil
	}
	owned, err := ownedDisks(vm)
	switch {
	case err != nil:
		return "", err
	case len(owned) > 0:
		return "", stillThere(vm, owned, fault.ParkedHalf.Refusedf("every disk of %s is parked, but it has %s, which was not there when it was remembered", vm, volumesOf(owned)))
	}
	return fmt.Sprintf("%s owns no disk", vm), nil
}

// notParked returns the first disk that is not where the exchange keeps it. That a VM has lost a drive does not
// prove that the parking VM has it.
func (r *Replace) notParked(park, vm cluster.VM, found bool) (key string, err error) {
	for _, d := range r.Disks {
		if d.Holder != 0 {
			if isDetached(d, vm, found) == "" {
				return d.Key, nil
			}
			continue
		}
		if reason, err := isParked(park, vm, d); err != nil || reason == "" {
			return d.Key, err
		}
	}
	return "", nil
}

// mover hands one disk of a node's VM over to the parking VM, or back. Both VMs are on one host.
type mover struct {
	px      cluster.Proxmox
	record  openRecord // on the parking VM
	host    string
	isSpare func(parking.Intent) bool    // whether the disk is a cancelled replacement's new system disk: nothing waits for it
	say     func(parking.Intent, string) // reports what a hand-over waits for
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

func (m mover) begun(a, b cluster.VM) (*parking.Intent, error) {
	rec, _, err := parking.ReadRecord(m.parkingOf(a, b))
	return rec.Intent, err
}

func (m mover) vm(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := m.px.VM(ctx, id)
	return vm, fault.Prefix(fmt.Sprintf("look up VM %d", id), err)
}

func (m mover) read(ctx context.Context, in parking.Intent) (p pair, err error) {
	err = wait.All(
		wait.Into(&p.from, func() (cluster.VM, error) { return m.vm(ctx, in.From) }),
		wait.Into(&p.to, func() (cluster.VM, error) { return m.vm(ctx, in.To) }),
	)
	return p, err
}

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
	return fmt.Errorf("VM %d still names %s, which no longer exists, although its entry was removed", in.From, in.Volid)
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
	switch now, err := m.vm(ctx, to.ID); {
	case err != nil:
		return false, err
	case now.Running: // its guest would get the disk by hot-plug
		return false, startedMeanwhile(now)
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
		wait.Into(&from, func() (cluster.VM, error) { return m.vm(ctx, in.From) }), // the intent may have changed the digest
	)
	if err != nil {
		return err
	}
	if _, err := m.handable(in, from); err != nil {
		return err
	}
	err = m.px.MoveDisk(ctx, from, in.Key, in.To, in.ToKey)
	return fault.Prefix(fmt.Sprintf("hand %s of %s over to VM %d", in.Key, from, in.To), err)
}

// handable refuses a disk that is not as planned, or that another VM owns: Proxmox would rename the volume while
// its owner's configuration still has the old name.
func (m mover) handable(in parking.Intent, from cluster.VM) (disk cluster.Disk, err error) {
	value, attached := from.Config[in.Key]
	if !attached {
		return disk, fault.WithHint(fault.ParkedHalf.Refusedf("%s has no %s to hand over to VM %d, which does not have it either", from, in.Key, in.To),
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

// compareDisks checks that the VM has exactly the drives that it had before. RequireAlone checks, right before the
// VM is started, that no other VM uses one of them.
func (r *Replace) compareDisks(ctx context.Context) error {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return err
	case !found:
		return fault.DiskMismatch.Refusedf("VM %d is gone", r.VM.ID)
	}
	vm.Pods = r.VM.Pods
	before, err := r.VM.Disks()
	if err != nil {
		return err
	}
	if err := r.knowPods(ctx, &vm, before); err != nil {
		return err
	}
	have, err := vm.Disks()
	if err != nil {
		return err
	}
	return errors.Join(append(r.missingDrives(vm, before, have), r.addedDrives(vm, before, have)...)...)
}

// knowPods asks which added drives of a running VM are pods' volumes, which come and go. If Pods is nil, it uses
// what was remembered.
func (r *Replace) knowPods(ctx context.Context, vm *cluster.VM, before []cluster.Disk) error {
	have, _ := vm.Disks() // an unreadable drive is refused next
	if !vm.Running || r.Pods == nil || !slices.ContainsFunc(have, func(d cluster.Disk) bool { _, had := cluster.FindDrive(before, d.Key); return !had && vm.Doubtful(d) }) {
		return nil
	}
	return vm.KnowPods(ctx, r.Pods)
}

func (r *Replace) missingDrives(vm cluster.VM, before, have []cluster.Disk) (problems []error) {
	const again = "correct that, then run the same command again"
	for _, d := range before {
		h, there := cluster.FindDrive(have, d.Key)
		switch {
		case d.CDROM:
		case !there:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has no %s, which was %s", vm, d.Key, d.Value()), "attach it again, as it was, then run the same command again"))
		case !r.isSystem(d.Key) && !r.sameOptions(d.Key, h.Options, d.Options):
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s has options %v, before: %v", d.Key, vm, h.Options, d.Options), again))
		case !r.movesDisk(d.Key) && h.Volid != d.Volid && (d.Owner != vm.ID || h.Owner != vm.ID): // the VM's own disk may have been moved to another storage
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s is %s, before: %s", d.Key, vm, h.Volid, d.Volid), again))
		}
	}
	return problems
}

func (r *Replace) movesDisk(key string) bool {
	return slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool { return d.Key == key && d.Holder == 0 })
}

// addedDrives lists the drives that the VM did not have before. It ignores pods' volumes on a running VM,
// which come and go, and any unusedN, which no guest sees.
func (r *Replace) addedDrives(vm cluster.VM, before, have []cluster.Disk) (problems []error) {
	for _, h := range have {
		_, had := cluster.FindDrive(before, h.Key)
		switch {
		case h.CDROM || had || r.shapeAdds(h.Key) || h.Detached() || h.CSI() && vm.Running:
		case h.CSI():
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has %s (%s), a pod's volume, although it was drained", vm, h.Key, h.Volid),
				"wait until its driver has taken it away: kubectl get volumeattachments says whose it is. Then run the same command again"))
		default:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has %s (%s), which the old VM did not have", vm, h.Key, h.Volid),
				"take it out of VM %d: %s; then run the same command again; it was not touched", vm.ID, takeOut(vm, h)))
		}
	}
	return problems
}

// Others is the state of Proxmox that shows who else uses a VM's disks.
type Others struct {
	vms      []cluster.VM
	storages []cluster.Storage
}

// ReadOthers reads Others now.
func ReadOthers(ctx context.Context, px cluster.Inventory, id cluster.VMID) (o Others, err error) {
	err = wait.All(
		func() (err error) {
			o.vms, err = px.VMs(ctx)
			if _, away := errors.AsType[*cluster.HostsAway](err); err != nil && !away { // the plan has already reported hosts that can't be read
				return err
			}
			return nil
		},
		wait.Into(&o.storages, func() ([]cluster.Storage, error) { return px.Storages(ctx) }),
	)
	return o, fault.Prefix(fmt.Sprintf("check who else uses the disks of VM %d", id), err)
}

// RequireAlone refuses to start a VM with a disk that another VM could write to at the same time: Proxmox lets
// two VMs run with one volume (pve-qemu disables QEMU's image locking).
func (o Others) RequireAlone(ctx context.Context, px cluster.VMReader, vm cluster.VM) error {
	have, err := vm.Disks()
	if err != nil {
		return err
	}
	var problems []error
	c := strategy.Candidate{VM: vm, Observation: observe.Observation{VMs: slices.Clone(o.vms), Storages: o.storages}}
	asked := map[cluster.VMID]bool{}
	for _, d := range have {
		if d.CDROM || d.Owner == vm.ID || d.Owner == 0 || asked[d.Owner] {
			continue
		}
		asked[d.Owner] = true
		c.Holder = cmp.Or(c.Holder, d.Owner)
		holder, err := px.VM(ctx, d.Owner)
		if i := slices.IndexFunc(c.Observation.VMs, func(vm cluster.VM) bool { return vm.ID == d.Owner }); i >= 0 && err == nil {
			c.Observation.VMs[i].Running = holder.Running // the list shows a VM that has just stopped as running
		}
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s is %s, but VM %d, whose that is, does not exist", d.Key, vm, d.Volid, d.Owner),
				"see whether storage %s still has it: a VM's volumes are deleted with it", d.Storage()))
		case err != nil:
			return errors.Join(append(problems, fmt.Errorf("look up VM %d: %w", d.Owner, err))...)
		case holder.Running:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s, whose %s is %s of %s, is running", holder, d.Volid, d.Key, vm), "switch VM %d off, then run the same command again", d.Owner))
		}
	}
	if doubled := c.Doubled(); len(doubled) > 0 {
		problems = nil
		for _, twice := range doubled {
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s: %s", vm, twice.Text), "then run the same command again"))
		}
	}
	return errors.Join(problems...)
}

// takeOut says how to remove a drive from a VM without losing its volume. Proxmox frees a volume of the VM when the
// VM, or the unusedN that the drive became, is deleted.
func takeOut(vm cluster.VM, d cluster.Disk) string {
	if d.Owner == vm.ID {
		return fmt.Sprintf("qm disk move %d %s --target-vmid OTHER --target-disk KEY gives it to a VM that stays, on %s (qm set --delete of an unusedN would free it for good)", vm.ID, d.Key, vm.Host)
	}
	if vm.Running {
		return fmt.Sprintf("qm config %d shows it; it may be in use while the VM runs: shut that down, and run the same command again", vm.ID)
	}
	if vm.Config["protection"] == "1" {
		return fmt.Sprintf("qm set %d --protection 0 && qm set %[1]d --delete %s leaves %s with its owner", vm.ID, d.Key, d.Volid)
	}
	return fmt.Sprintf("qm set %d --delete %s leaves %s with its owner", vm.ID, d.Key, d.Volid)
}

// foundElsewhere finds a disk that neither VM has, by its volid, or by its serial unless another VM owns that disk.
// More than one match makes the answer uncertain.
func foundElsewhere(d parking.ParkedDisk, vms []cluster.VM) (at, volid string) {
	serial := (cluster.Disk{Options: cluster.SplitOptions(d.Options)}).Option("serial")
	var found []string
	for _, vm := range vms {
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			disk, err := cluster.ParseDisk(key, vm.Config[key])
			if err != nil || disk.CDROM || disk.Volid != d.Volid && (serial == "" || d.Holder != 0 || disk.Option("serial") != serial) {
				continue
			}
			volid, found = disk.Volid, append(found, cluster.PlaceOf(vm.ID, key))
		}
	}
	switch {
	case len(found) == 0 && d.Holder != 0:
		return fmt.Sprintf("no VM names it; it belonged to VM %d", d.Holder), d.Volid
	case len(found) == 0:
		return "no VM names it under its old name or serial: see whether the storage still has it", d.Volid
	case len(found) == 1:
		return "now " + found[0], volid
	}
	return "perhaps one of " + strings.Join(found, ", "), d.Volid
}

// Located adds to a failure where each disk is, as far as Proxmox shows.
func (r *Replace) Located(ctx context.Context, err error) error {
	vm, errVM := r.Proxmox.VM(ctx, r.VM.ID)
	park, errPark := r.Proxmox.VM(ctx, r.Parking)
	if rec, is, _ := parking.ReadRecord(park); is && rec.VMID != r.VM.ID {
		park, errPark = cluster.VM{}, fmt.Errorf("%s is another node's: %w", park, cluster.ErrNotFound)
	}
	for _, e := range []error{errVM, errPark} {
		if e != nil && !errors.Is(e, cluster.ErrNotFound) {
			return err // Proxmox can't be read: there is nothing to add
		}
	}
	var gone []string
	if errVM != nil {
		gone = append(gone, fmt.Sprintf("VM %d does not exist", r.VM.ID))
	}
	if errPark != nil {
		gone = append(gone, fmt.Sprintf("parking VM %d does not exist", r.Parking))
	}
	if errVM == nil && errPark == nil && len(r.Disks) > 0 {
		if why := cluster.OnOtherHosts(&vm, park, r.VM.Host, nil, r.VM.ID); why != "" {
			gone = append(gone, why)
		}
	}
	var others []cluster.VM
	where := map[string][]string{}
	var order []string
	for _, d := range r.Disks {
		at, volid := whereabouts(d, r.Serial, vm, park)
		if at == "" && others == nil {
			others, _ = r.Proxmox.VMs(ctx) // best effort: a VM that can't be read is not searched
		}
		if at == "" {
			at, volid = foundElsewhere(d, others)
		}
		if !slices.Contains(order, at) {
			order = append(order, at)
		}
		where[at] = append(where[at], d.Key+" ("+volid+")")
	}
	gone = append(gone, cluster.Each(order, func(at string) string { return strings.Join(where[at], ", ") + " " + at })...)
	return fault.WithHint(err, "where the disks of VM %d are: %s", r.VM.ID, strings.Join(gone, "; "))
}

// whereabouts returns which of the two VMs of an exchange has a disk; at is "" if neither has it.
func whereabouts(d parking.ParkedDisk, serial string, vm, park cluster.VM) (at, volid string) {
	for _, place := range []struct {
		vm  cluster.VM
		key string
		as  string
	}{{vm, d.Key, "on VM %d"}, {park, d.ParkKey, "parked on VM %d"}} {
		disk, err := cluster.ParseDisk(place.key, place.vm.Config[place.key])
		if err != nil || d.System && disk.Option("serial") == serial {
			continue
		}
		return fmt.Sprintf(place.as, place.vm.ID), disk.Volid
	}
	return "", d.Volid
}

// DiskNames lists disks by key and volume, for a message.
func DiskNames(disks []cluster.Disk) string {
	names := cluster.Each(disks, func(d cluster.Disk) string { return fmt.Sprintf("%s (%s)", d.Key, d.Volid) })
	return strings.Join(names, ", ")
}

// ForeignDisks lists the drives of vm that mem does not record: pods' volumes, which it never
// records, and drives that were added later.
func ForeignDisks(vm cluster.VM, mem parking.Memory) ([]cluster.Disk, error) {
	have, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	before, err := mem.Disks()
	if err != nil {
		return nil, err
	}
	return cluster.Where(have, func(d cluster.Disk) bool {
		_, had := cluster.FindDrive(before, d.Key)
		return !d.CDROM && (!had || d.CSI())
	}), nil
}
