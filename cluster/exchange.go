package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// ReplaceOptions is what is known of an exchange before anything of it is done.
type ReplaceOptions struct {
	Cluster, Node, Run, Build string
	Strategy                  Strategy  // Recreate, Reimage or Rollback
	VM                        VM        // as read just now
	System                    string    // key of its system disk, "scsi0"
	Restore                   *KeptDisk // Rollback: the kept disk that comes back
	SystemGiB                 int       // wanted size of the new system disk; 0 or less than before: as before
	Parking                   *Parking  // the node's parking VM of an earlier exchange; nil: one is made
	ParkingIDs                []VMID    // VMIDs that a new one may take, in order
	ISO                       func(ctx context.Context) (string, error)
}

// OpenReplace begins an exchange: it makes the parking VM, or takes the one of
// an earlier exchange, and writes the open record into it. Nothing else is
// changed. From there on ResumeReplace finds it, whatever becomes of the caller.
func OpenReplace(ctx context.Context, px Proxmox, o ReplaceOptions) (*Replace, error) {
	o.VM.dropCSI()
	switch {
	case o.Strategy == Rollback && o.Restore == nil:
		return nil, (&Replace{VM: o.VM}).nothingKept()
	case o.VM.Config[o.System] == "":
		return nil, fault.WithHint(fault.ParkedHalf.Refusedf("%s has no %s, which is to be its system disk", o.VM, o.System),
			"it has %s; where the parking VM of an unfinished exchange was deleted, the disk was deleted with it", drives(o.VM))
	}
	if o.Strategy == Recreate {
		if err := requireRemakeable(o.VM, ""); err != nil {
			return nil, err
		}
	}
	system, err := ParseDisk(o.System, o.VM.Config[o.System])
	if err != nil {
		return nil, fmt.Errorf("system disk of %s: %w", o.VM, err)
	}
	ha, err := px.HAResource(ctx, o.VM.ID)
	if err != nil {
		return nil, fmt.Errorf("read what Proxmox HA has of %s: %w", o.VM, err)
	}
	if o.VM.Pool, err = px.Pool(ctx, o.VM.ID); err != nil {
		return nil, err
	}
	fw, err := rememberFirewall(ctx, px, o.VM, o.Strategy)
	if err != nil {
		return nil, err
	}
	mem := memory{
		Firewall: fw, VM: o.VM, SystemKey: o.System, DiskSerial: diskSerial(o.Run, o.Node), SystemGiB: o.SystemGiB, HA: ha,
		Old: KeptDisk{Run: o.Run, Slot: o.System, Options: optionString(system)},
	}
	opening := Record{Cluster: o.Cluster, Node: o.Node, Run: o.Run, Build: o.Build, Strategy: o.Strategy, Restore: o.Restore}
	id, rec, err := openParking(ctx, px, opening, mem, o.Parking, o.ParkingIDs, &freeNumbers{}, func(VMID) error { return nil })
	if err != nil {
		return nil, err
	}
	r := replaceOf(px, mem, rec, id)
	r.ISO = o.ISO
	return r, nil
}

// ResumeReplace gives the exchange that the open record of a parking VM is
// about. The record is all that it needs.
func ResumeReplace(px Proxmox, park VM, iso func(ctx context.Context) (string, error)) (*Replace, error) {
	rec, ok, err := ReadRecord(park)
	switch {
	case err != nil:
		return nil, err
	case !ok || !rec.Open:
		return nil, fault.ParkedHalf.Refusedf("%s has no open record: there is nothing to resume", park)
	}
	mem, err := rec.memory(park)
	if err != nil {
		return nil, err
	}
	r := replaceOf(px, mem, rec, park.ID)
	r.ISO = iso
	return r, nil
}

func replaceOf(px Proxmox, mem memory, rec Record, parking VMID) *Replace {
	return &Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: rec.Disks, Restore: rec.Restore, Serial: mem.DiskSerial, SystemGiB: mem.SystemGiB, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		late: new(lateRequests),
	}
}

// Steps is the whole exchange of a VM that is off, as a tree of its own.
func (r *Replace) Steps() step.Step {
	itself := func(context.Context) (*Replace, error) { return r, nil }
	known := replacing{read: itself, known: itself}
	down := branch("take-down", fmt.Sprintf("take VM %d down", r.VM.ID), append([]step.Step{
		{ID: "keep-firewall", Title: "keep its firewall on the parking VM", Do: r.keepFirewall},
		{ID: "keep-off", Title: "see that nobody starts it", Risk: step.Disruptive, Do: r.stayOff},
	}, known.takeDown(r.Strategy)...))
	down.Skip = r.takenDown
	return r.whole(branch("replace", fmt.Sprintf("replace VM %d", r.VM.ID), []step.Step{
		{ID: "gate", Title: "see that the exchange was not given up", Do: r.notGivenUp},
		down, branch("bring-up", fmt.Sprintf("bring VM %d up", r.VM.ID), known.bringUp(r.Strategy)),
		branch("finish", "put back what was taken away for the exchange", append(r.finishSteps(),
			step.Step{ID: "keep", Code: fault.ParkedHalf, Title: "keep the old system disk parked", Do: r.keep})),
	}))
}

// PutBackSteps gives the exchange up: the VM, which is off, gets every disk back
// and is as before.
func (r *Replace) PutBackSteps() step.Step {
	r.Strategy = PutBack
	steps := append([]step.Step{
		{ID: "give-up", Code: fault.ParkedHalf, Title: "note that the exchange is given up", Do: r.giveUp},
		{ID: "keep-off", Title: "see that nobody starts it", Risk: step.Disruptive, Do: r.stayOff},
	}, r.putBack()...)
	return r.whole(branch("put-back", fmt.Sprintf("put the old system disk of VM %d back", r.VM.ID), append(steps,
		branch("finish", "put back what was taken away for the exchange", append(r.restoreSteps(),
			step.Step{ID: "close", Code: fault.ParkedHalf, Title: "close the record", Do: r.closeRecord})))))
}

// whole skips an exchange whose record is closed: it is ended.
func (r *Replace) whole(s step.Step) step.Step {
	s.Skip = func(ctx context.Context) (string, error) {
		rec, err := r.record(ctx)
		if err != nil || rec.Open {
			return "", err
		}
		return fmt.Sprintf("the record of VM %d is closed", r.VM.ID), nil
	}
	return r.explained(s)
}

func branch(id, title string, steps []step.Step) step.Step {
	return step.Step{ID: id, Title: title, Risk: step.Destructive, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// record reads the record afresh.
func (r *Replace) record(ctx context.Context) (Record, error) {
	_, rec, err := r.parkingNow(ctx)
	return rec, err
}

func (r *Replace) updateRecord(ctx context.Context, change func(*Record)) error {
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	return changeRecord(ctx, r.Proxmox, park, r.Run, r.late.forgetting(park.ID, change))
}

func (r *Replace) notGivenUp(ctx context.Context) error {
	rec, err := r.record(ctx)
	if err == nil && rec.PutBack {
		err = fault.ParkedHalf.Refusedf("the exchange of VM %d was given up: its old system disk is to be put back first", r.VM.ID)
	}
	return err
}

func (r *Replace) giveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d is not given up: it is finished, and then rolled back", r.VM.ID)
	}
	return r.updateRecord(ctx, func(rec *Record) { rec.PutBack = true })
}

func (r *Replace) closeRecord(ctx context.Context) error {
	return r.updateRecord(ctx, (*Record).close)
}

// stayOff sees to it that the VM, if there is one, is off and stays so.
func (r *Replace) stayOff(ctx context.Context) error {
	if _, found, err := r.current(ctx); err != nil || !found {
		return err
	}
	vm, err := r.keepOff(ctx)
	if err == nil && vm.Running {
		err = fault.WithHint(fault.ParkedHalf.Refusedf("%s is running", vm), "shut it down first")
	}
	return err
}

// keepOff sees to it that nobody starts the VM once it is off.
func (r *Replace) keepOff(ctx context.Context) (VM, error) {
	look := func() (VM, error) {
		vm, err := r.Proxmox.VM(ctx, r.VM.ID)
		switch {
		case err != nil:
			return vm, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
		case vm.UUID() != r.VM.UUID():
			return vm, r.stranger(vm)
		}
		return vm, r.requireHost(vm)
	}
	vm, err := look()
	if err != nil {
		return vm, err
	}
	ha, err := r.Proxmox.HAResource(ctx, vm.ID)
	if err != nil {
		return vm, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if ha != nil { // one that HA ignores keeps Proxmox from deleting the VM, too
		if err := r.sending(ctx, sentRemoveHA, LateQueue, func(ctx context.Context) error { return r.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
			return vm, fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, err = look(); err != nil {
			return vm, err
		}
	}
	if vm.Config["onboot"] == "1" {
		if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{"onboot": "0"}, nil); err != nil {
			return vm, fmt.Errorf("unset onboot of %s: %w", vm, err)
		}
	}
	return vm, nil
}
