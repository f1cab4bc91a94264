package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Source returns the exchange of a node's VM when a step runs: a roll knows it only after the VM is recorded. Read
// checks again that the record is ours; steps that change something use Read. Known may reuse what was last read;
// goals use Known.
type Source struct {
	Node     string
	Strategy cluster.Strategy
	Prepared bool // the new system disk is made from a disk image
	Read     func(ctx context.Context) (*Replace, error)
	Known    func(ctx context.Context) (*Replace, error)
}

// TakeDown takes the node down and moves its disks to safety. remember opens the record; stop are the node's own
// steps, after which its VM is off.
func (get Source) TakeDown(remember step.Step, stop ...step.Step) step.Step {
	prepare := step.Step{ID: "prepare-disk", Code: fault.ParkedHalf, Title: "make its new system disk from the disk image"}
	unprotect := step.Step{ID: "unprotect", Title: "lift its protection", Risk: step.Disruptive}
	remove := step.Step{ID: "delete-vm", Code: fault.ParkedHalf, Title: "delete the VM, which owns no disk any more"}
	remove.Risk = step.Destructive
	steps := append([]step.Step{
		remember, // and while the node serves, its new system disk is made on the parking VM
		step.OnlyIf(get.Prepared, get.step(prepare, (*Replace).isPrepared, (*Replace).prepareDisk)),
	}, stop...)
	return step.Step{
		ID: "take-down", Title: "take " + get.Node + " down", Risk: step.Destructive,
		Steps: step.List(append(
			steps,
			step.OnlyIf(get.Strategy.DeletesVM(), get.step(unprotect, (*Replace).unprotected, (*Replace).unprotect)),
			step.OnlyIf(!get.Strategy.ParksNothing(), get.Park()),
			step.OnlyIf(get.Strategy.DeletesVM(), get.step(remove, (*Replace).replaced, (*Replace).deleteVM)),
		)...),
	}
}

// BringUp brings the node up in its new or kept VM. system gives the VM its system disk; serve are the node's own
// steps, from a VM with all its disks to the end of the exchange. A VM without a system disk gets one after that: a new
// VM gets its prepared disk; after an interrupted installation, the other blank disk may not have come.
func (get Source) BringUp(system step.Step, serve ...step.Step) step.Step {
	renew := step.Step{ID: "renew-disk", Title: "check the system disk", Risk: step.Disruptive}
	attach := step.Step{
		ID: "attach", Code: fault.ParkedHalf, Title: "give the persistent disks back", Risk: step.Disruptive,
		Steps: get.steps((*Replace).attachSteps),
	}
	return step.Step{
		ID: "bring-up", Title: "bring " + get.Node + " up", Risk: step.Disruptive,
		Steps: step.List(append([]step.Step{
			step.OnlyIf(!get.Strategy.Reshapes(), system), // create-vm, blank-disk or restore-disk
			step.OnlyIf(get.Strategy.Installs(), get.step(renew, (*Replace).hasSystem, (*Replace).GiveSystem)),
			step.OnlyIf(!get.Strategy.ParksNothing(), attach),
		}, serve...)...),
	}
}

// Finish gives back what was taken away from the VM, then from the node, and closes the record: until then the
// exchange is unfinished.
func (get Source) Finish(node []step.Step, after ...step.Step) step.Step {
	return step.Step{
		ID: "finish", Title: "restore the settings of VM and node",
		Steps: get.steps(func(r *Replace) []step.Step {
			keep := step.Step{ID: "keep", Title: "keep the old system disk parked", Skip: r.kept, Do: r.keep}
			if get.Strategy.ParksNothing() {
				keep.Title, keep.Do = "close the record", r.CloseRecord
			}
			return slices.Concat([]step.Step{EjectStep(r.Proxmox, r.VM.ID)}, r.RestoreSteps(), node, []step.Step{keep}, after)
		}),
	}
}

// PutBack cancels an unfinished exchange: every disk goes back to where it was, also the old system disk. The
// node's own steps stop it, start it, and give it back what was taken away. This needs no secrets, so it works from
// any machine.
func (get Source) PutBack(stop func(*Replace) []step.Step, start, node []step.Step) step.Step {
	return step.Step{
		ID: "put-back", Code: fault.ParkedHalf, Title: "put the old system disk of " + get.Node + " back", Risk: step.Destructive,
		Steps: get.steps(func(r *Replace) []step.Step {
			r.Strategy = cluster.PutBack
			finish := slices.Concat(r.RestoreSteps(), node, []step.Step{{ID: "close", Title: "close the record", Do: r.CloseRecord}})
			return slices.Concat(
				[]step.Step{{ID: "give-up", Title: "record that the replacement is cancelled", Do: r.giveUp}},
				stop(r), r.putBackSteps(), start,
				[]step.Step{{ID: "finish", Title: "restore the settings of VM and node", Risk: step.Destructive, Steps: step.List(finish...)}},
			)
		}),
	}
}

// Park moves every disk that leaves the VM to the parking VM.
func (get Source) Park() step.Step {
	return step.Step{
		ID: "park", Code: fault.ParkedHalf, Title: "park its disks on the parking VM", Risk: step.Disruptive,
		Skip:  get.skip((*Replace).emptied),
		Steps: get.steps((*Replace).parkSteps),
	}
}

// NewSystem gives the VM its new system disk: that of a new VM, the kept disk, a prepared disk, or a blank one.
func (get Source) NewSystem() step.Step {
	s := step.Step{Code: fault.ParkedHalf, Risk: step.Disruptive}
	switch {
	case get.Strategy.MakesVM():
		s.ID, s.Title = "create-vm", newVMTitle(get.Strategy, get.Prepared)
		return get.step(s, (*Replace).created, (*Replace).createVM)
	case get.Strategy.System() == cluster.SystemKept:
		s.ID, s.Title = "restore-disk", "put the kept system disk back"
		return get.step(s, (*Replace).systemRestored, (*Replace).restoreSystem)
	}
	s.ID, s.Title = "blank-disk", "give the VM a blank system disk and the boot ISO"
	if get.Prepared {
		s.Title = "give the VM its new system disk"
	}
	return get.step(s, (*Replace).systemGiven, (*Replace).GiveSystem)
}

func newVMTitle(s cluster.Strategy, prepared bool) string {
	switch {
	case s.From() == cluster.Nowhere:
		return "create the VM"
	case prepared:
		return "create the VM again"
	}
	return "create the VM again with a blank system disk"
}

func (get Source) step(
	s step.Step, goal func(*Replace, context.Context) (string, error), do func(*Replace, context.Context) error,
) step.Step {
	s.Skip, s.Do = get.skip(goal), get.do(do)
	return s
}

func (get Source) do(f func(*Replace, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := get.Read(ctx)
		if err != nil {
			return err
		}
		return f(r, ctx)
	}
}

func (get Source) skip(f func(*Replace, context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		r, err := get.Known(ctx)
		if err != nil {
			return "", err
		}
		return f(r, ctx)
	}
}

func (get Source) steps(f func(*Replace) []step.Step) func(context.Context) ([]step.Step, error) {
	return func(ctx context.Context) ([]step.Step, error) {
		r, err := get.Read(ctx)
		if err != nil {
			return nil, err
		}
		return f(r), nil
	}
}

// ErrUndone is a goal that is unmet right after its work was done.
var ErrUndone = errors.New("it was done, but is not so now: someone else may have changed it at the same time")

// LookAround bounds the look-up after a failure.
const LookAround = 30 * time.Second

// Explained lets explain add to every failure of the exchange itself in a tree of steps, but not to an interruption
// or to the loss of the run's claim on the node.
func Explained(s step.Step, explain func(context.Context, error) error) step.Step {
	return onFailure(s, func(ctx context.Context, err error) error {
		kind := fault.KindOf(err)
		if err == nil || ctx.Err() != nil || kind == fault.Claimed || kind == fault.Interrupted {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, LookAround)
		defer cancel()
		return explain(ctx, err)
	})
}

// onFailure lets explain add to every failure in a tree of steps. A goal that is unmet right after its work was
// done is a failure, too.
func onFailure(s step.Step, explain func(context.Context, error) error) step.Step {
	done := false
	if skip := s.Skip; skip != nil {
		s.Skip = func(ctx context.Context) (string, error) {
			reason, err := skip(ctx)
			if err == nil && reason == "" && done && ctx.Err() == nil {
				err = ErrUndone
			}
			done = false
			return reason, explain(ctx, err)
		}
	}
	if do := s.Do; do != nil {
		s.Do = func(ctx context.Context) error {
			err := do(ctx)
			done = err == nil
			return explain(ctx, err)
		}
	}
	if list := s.Steps; list != nil {
		s.Steps = func(ctx context.Context) ([]step.Step, error) {
			steps, err := list(ctx)
			steps, done = slices.Clone(steps), err == nil
			for i := range steps {
				steps[i] = onFailure(steps[i], explain)
			}
			return steps, explain(ctx, err)
		}
	}
	return s
}

// IsBlank reports whether the VM's system disk is the one that this replacement made.
func (r *Replace) IsBlank(vm cluster.VM) bool {
	return slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool {
		disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key])
		return d.System && err == nil && disk.Option("serial") == r.Serial && disk.Owner == vm.ID
	})
}

// newParked is the goal of ParkNew: the new system disk has left the VM, and if the parking VM has it, the disk is
// there as the record says.
func (r *Replace) newParked(ctx context.Context) (string, error) {
	vm, _, err := r.Current(ctx)
	if err != nil || r.IsBlank(vm) {
		return "", err
	}
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return "", err
	}
	disk, there, err := r.spareOn(park, rec)
	switch {
	case err != nil:
		return "", err
	case !there:
		return "no disk of this replacement is left on the VM", nil
	}
	entry, known := rec.SpareEntry(r.Run, disk.Key)
	if !known || !cluster.SameOptions(disk.Options, entry.ParkedOptions()) {
		return "", nil
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, disk.Key, park), nil
}

// newToPark reads the VM again. It refuses unless this replacement made the VM's system disk and
// the old one, which a new VM never had, is on the parking VM.
func (r *Replace) newToPark(ctx context.Context) (vm cluster.VM, disk cluster.Disk, err error) {
	for _, d := range r.Disks {
		if !d.System {
			continue
		}
		_, _, found, err := r.onParking(ctx, d)
		switch {
		case err != nil:
			return vm, disk, err
		case !found && r.Strategy.From() != cluster.Nowhere:
			return vm, disk, fault.Refusedf("the old system disk is not on parking VM %d: the new one stays on VM %d", r.Parking, r.VM.ID)
		}
		vm, _, err = r.Powered(ctx)
		switch {
		case err != nil:
			return vm, disk, err
		case vm.Running || vm.MadeBy() != r.Run:
			return vm, disk, fault.Refusedf("VM %d is gone, runs, or is not of run %s", r.VM.ID, r.Run)
		case !r.IsBlank(vm):
			return vm, disk, fault.Refusedf("%s of %s is %s, not the disk %s that run %s made: it stays there", d.Key, vm, words.OrNone(vm.Config[d.Key]), r.Serial, r.Run)
		}
		disk, err = cluster.ParseDisk(d.Key, vm.Config[d.Key])
		return vm, disk, err
	}
	return vm, disk, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
}

// noteSpare records the new system disk before it is moved, so that it is never on the parking VM without an entry.
func (r *Replace) noteSpare(ctx context.Context, disk cluster.Disk) (entry parking.KeptDisk, err error) {
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return entry, err
	}
	key, err := rec.SpareDrive(park, disk.Key, r.Run)
	if err != nil {
		return entry, fmt.Errorf("parking VM of %s: %w", rec.Node, err)
	}
	entry = r.Made
	entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = key, r.Run, disk.Key, cluster.OptionString(disk), true
	return entry, r.record().update(ctx, func(rec *parking.Record) { rec.AddSpare(entry) })
}

// ParkNew parks the system disk that this replacement made. A rollback never uses it; only recast
// prune, or the end of a later roll of the node, frees it.
func (r *Replace) ParkNew(ctx context.Context) error {
	vm, _, err := r.Current(ctx)
	if err != nil {
		return err
	}
	if !r.IsBlank(vm) {
		return r.setSpare(ctx)
	}
	if r.Asks != nil {
		if err := r.Asks(ctx); err != nil {
			return err
		}
	}
	vm, disk, err := r.newToPark(ctx)
	if err != nil {
		return err
	}
	entry, err := r.noteSpare(ctx, disk)
	if err != nil {
		return err
	}
	err = r.mover().do(ctx, parking.Intent{
		From: vm.ID, Key: disk.Key, Volid: disk.Volid, To: r.Parking, ToKey: entry.Key, Options: strings.Join(entry.ParkedOptions(), ","),
	}, nil)
	if err != nil {
		return err
	}
	return r.setSpare(ctx)
}

func (r *Replace) setSpare(ctx context.Context) error {
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return err
	}
	disk, there, err := r.spareOn(park, rec)
	if err != nil || !there {
		return err
	}
	entry, known := rec.SpareEntry(r.Run, disk.Key)
	if !known { // the disk was moved by hand to the key in the record
		entry = r.Made
		entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = disk.Key, r.Run, r.old.Slot, cluster.OptionString(disk), true
		if err := r.record().update(ctx, func(rec *parking.Record) { rec.AddSpare(entry) }); err != nil {
			return err
		}
		if park, _, err = r.record().read(ctx); err != nil {
			return err
		}
	}
	return r.setOptions(ctx, park, disk, entry.ParkedOptions())
}

// spareOn returns the new system disk on the parking VM, identified by the key that was reserved
// for it and the serial that recast generated.
func (r *Replace) spareOn(park cluster.VM, rec parking.Record) (disk cluster.Disk, there bool, err error) {
	value, there := park.Config[rec.SpareKey]
	if !there {
		return disk, false, nil
	}
	disk, err = cluster.ParseDisk(rec.SpareKey, value)
	return disk, err == nil && disk.Option("serial") == r.Serial, err
}

// A prepared disk has the place, the serial and the entry that a new system disk has once an exchange is cancelled
// ([Replace.ParkNew]), only earlier. So a cancellation finds the disk there, and recast prune frees a disk that was
// never used.

// isPrepared is the goal of prepareDisk: the disk is on the parking VM, whole, or has left it already.
func (r *Replace) isPrepared(ctx context.Context) (string, error) {
	vm, _, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	switch _, rec, err := r.record().read(ctx); {
	case err != nil:
		return "", err
	case r.Prepared == "":
		return "its new system disk is to be blank", nil
	case r.IsBlank(vm):
		return vm.String() + " has it", nil
	case rec.Intent != nil && rec.Intent.From == r.Parking && rec.Intent.Key == rec.SpareKey: // a cut hand-over goes on
		return "it is on its way to " + vm.String(), nil
	}
	park, disk, there, err := r.preparedDisk(ctx)
	if err != nil || !there {
		return "", err
	}
	want, err := r.oldSystem()
	if err != nil || disk.SizeBytes() < r.wantedBytes(want) {
		return "", err
	}
	return fmt.Sprintf("%s of %s is made of %s", disk.Key, park, r.Prepared), nil
}

func (r *Replace) preparedDisk(ctx context.Context) (park cluster.VM, disk cluster.Disk, there bool, err error) {
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return park, disk, false, err
	}
	disk, there, err = r.spareOn(park, rec)
	return park, disk, there, err
}

func (r *Replace) oldSystem() (cluster.Disk, error) {
	disks, err := r.VM.Disks()
	if err != nil {
		return cluster.Disk{}, err
	}
	return r.systemDisk(disks)
}

func (r *Replace) preparedOptions(old cluster.Disk) []string {
	return cluster.WithoutOption(cluster.Disk{Options: r.optionsOf(old)}, "format").Options
}

// prepareDisk makes the disk: it notes the entry, imports the image, compares the size of the result, and grows it.
// After an interruption anywhere, prepareDisk starts again from there; what Proxmox had begun to import is no disk
// of any VM.
func (r *Replace) prepareDisk(ctx context.Context) error {
	old, err := r.oldSystem()
	if err != nil {
		return err
	}
	if bytes := r.wantedBytes(old); uint64(max(r.DiskBytes, 0)) > bytes {
		return fault.WithHint(fault.DiskMismatch.Refusedf("the disk in %s has %s, and %s of %s is to have %s", r.Prepared, cluster.Size(r.DiskBytes), old.Key, r.VM, cluster.Size(int64(bytes))),
			"give the node a larger one with systemDisk.sizeGiB, or set images.boot: iso; nothing was done to the node")
	}
	_, disk, there, err := r.preparedDisk(ctx)
	if err != nil {
		return err
	}
	if !there {
		if disk, err = r.importImage(ctx, old); err != nil {
			return err
		}
	}
	return r.growPrepared(ctx, disk, r.wantedBytes(old))
}

func (r *Replace) importImage(ctx context.Context, old cluster.Disk) (disk cluster.Disk, err error) {
	var image string
	err = wait.All(
		wait.Into(&image, func() (string, error) { return r.Image(ctx) }),
		func() error { return cluster.RequireQuorum(ctx, r.Proxmox) },
	)
	if err != nil {
		return disk, err
	}
	entry, err := r.noteSpare(ctx, cluster.Disk{Key: old.Key, Options: r.preparedOptions(old)})
	if err != nil {
		return disk, err
	}
	park, err := r.record().vm(ctx)
	if err != nil {
		return disk, err
	}
	if value, taken := park.Config[entry.Key]; taken {
		return disk, fault.ParkedHalf.Refusedf("%s of %s is %s: someone else put it there", entry.Key, park, value)
	}
	if err := r.Proxmox.SetConfig(ctx, park, map[string]string{entry.Key: Imported(image, old, entry.ParkedOptions())}, nil); err != nil {
		return disk, fmt.Errorf("make %s of %s from %s: %w", entry.Key, park, image, err)
	}
	park, disk, there, err := r.preparedDisk(ctx)
	if err == nil && (!there || disk.Owner != park.ID) {
		err = fault.ParkedHalf.Refusedf("Proxmox reported that it has made %s of %s from %s, but that is %s", entry.Key, park, image, park.Config[entry.Key])
	}
	return disk, err
}

// Imported returns the value of a drive whose disk Proxmox makes from a disk image, with these options: on the
// storage of like, and in its format.
func Imported(image string, like cluster.Disk, options []string) string {
	options = append([]string{"import-from=" + image}, cluster.WithFormat(cluster.Disk{Volid: like.Volid, Options: options})...)
	return cluster.Disk{Volid: like.Storage() + ":0", Options: options}.Value()
}

// growPrepared refuses a disk that is smaller than the one in the image, and grows it to its wanted size. Proxmox
// has no checksum of a disk: whether the rest is there shows when the machine has booted the disk, before the
// machine gets its configuration.
func (r *Replace) growPrepared(ctx context.Context, disk cluster.Disk, bytes uint64) error {
	switch size := disk.SizeBytes(); {
	case size < uint64(max(r.DiskBytes, 0)):
		return fault.WithHint(fault.DiskMismatch.Refusedf("%s of parking VM %d has %d bytes, and the disk in %s has %d: it was not imported whole", disk.Volid, r.Parking, size, r.Prepared, r.DiskBytes),
			"recast undo %s cancels the exchange, and recast prune frees that disk; nothing was done to the node", r.VM.Name)
	case size >= bytes:
		return nil
	}
	park, err := r.record().vm(ctx)
	if err != nil {
		return err
	}
	if err := r.Proxmox.GrowDisk(ctx, park, disk.Key, strconv.FormatUint(bytes, 10)); err != nil {
		return fmt.Errorf("grow %s of %s: %w", disk.Key, park, err)
	}
	// If an earlier attempt has grown the volume but could not write the configuration, Proxmox did nothing
	// (API2/Qemu.pm). Setting the drive measures it again.
	park, disk, there, err := r.preparedDisk(ctx)
	if err != nil || !there || disk.SizeBytes() >= bytes {
		return err
	}
	return r.Proxmox.SetConfig(ctx, park, map[string]string{disk.Key: cluster.WithoutOption(disk, "size").Value()}, nil)
}

// isComplete says whether the prepared disk has its own options again, and boots first.
func (r *Replace) isComplete(vm cluster.VM, disk cluster.Disk) bool {
	old, err := r.oldSystem()
	return err == nil && vm.BootsFirst(disk.Key) && cluster.SameOptions(disk.Options, r.preparedOptions(old))
}

func (r *Replace) givePrepared(ctx context.Context) error {
	_, rec, err := r.record().read(ctx)
	if err != nil {
		return err
	}
	entry, known := rec.SpareEntry(r.Run, rec.SpareKey)
	if !known {
		return fault.ParkedHalf.Refusedf("the record of VM %d names no prepared system disk", r.VM.ID)
	}
	last := map[string]string{"boot": bootOrder(r.VM.Config["boot"], entry.Slot, "")}
	if r.Strategy.VM() == cluster.VMAgain {
		last["protection"] = "1"
	} else if err := r.markVM(ctx); err != nil { // a new VM already has all that
		return err
	}
	_, disk, err := r.handBack(ctx, parking.ParkedDisk{Key: entry.Slot, ParkKey: entry.Key, Options: entry.Options, System: true})
	if fault.KindOf(err) == fault.Refused {
		err = fault.WithHint(err, "if the prepared disk is gone: recast undo %s gives the VM its old system disk back", rec.Node)
	}
	if err != nil {
		return err
	}
	last[entry.Slot] = cluster.Disk{Volid: disk.Volid, Options: cluster.SplitOptions(entry.Options)}.Value()
	return r.setUp(ctx, last)
}

// markVM gives a VM that stays the run's mark, and what a blank machine needs.
func (r *Replace) markVM(ctx context.Context) error {
	description, err := r.marked()
	if err != nil {
		return err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return err
	}
	set := map[string]string{"description": description, "onboot": "0"}
	if r.Blank != nil {
		set[r.Blank.Key] = r.Blank.Value
	}
	if cd := cluster.CDKey(r.VM.Config, disks); r.VM.Config[cd] != "" { // no other medium may configure the machine
		set[cd] = "none,media=cdrom"
	}
	r.ejectMedia(set)
	return r.setUp(ctx, set)
}

// forgetPrepared drops the entry of a prepared disk that has left the parking VM: the node runs from that disk.
func (r *Replace) forgetPrepared(park cluster.VM, rec *parking.Record) {
	kept := rec.Kept[:0:0]
	for _, k := range rec.Kept {
		if _, there := park.Config[k.Key]; rec.Prepared != "" && k.GivenUp && k.Run == rec.Run && !there {
			continue
		}
		kept = append(kept, k)
	}
	rec.Kept = kept
}
