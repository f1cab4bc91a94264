package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// ReplaceOptions describes an exchange before it begins.
type ReplaceOptions struct {
	Cluster, Node, Run, Build string
	Strategy                  cluster.Strategy  // Recreate, Reimage or Rollback
	VM                        cluster.VM        // as read just now
	System                    string            // key of its system disk, "scsi0"
	Restore                   *parking.KeptDisk // Rollback: the kept disk that comes back
	SystemGiB                 int               // wanted size of the new system disk; 0 or less than before: as before
	Parking                   *parking.Parking  // the node's parking VM of an earlier exchange; nil: a new one is created
	ParkingIDs                []cluster.VMID    // VMIDs that a new one may take, in order
	ISO                       func(ctx context.Context) (string, error)
	Prepared                  string // the disk image that the new system disk is made from; "": it is a blank one
	Image                     func(ctx context.Context) (string, error)
	DiskBytes                 int64
}

// ResumeReplace returns the exchange that the open record of a parking VM describes. It needs
// nothing but the record.
func ResumeReplace(px cluster.Proxmox, park cluster.VM, iso func(ctx context.Context) (string, error)) (*Replace, error) {
	rec, _, err := parking.ReadRecord(park)
	switch {
	case err != nil:
		return nil, err
	case !rec.Open:
		return nil, fault.ParkedHalf.Refusedf("%s has no open record: there is nothing to resume", park)
	}
	mem, err := rec.ReadMemory(park)
	if err != nil {
		return nil, err
	}
	r := Of(px, mem, rec, park.ID)
	r.ISO = iso
	return r, nil
}

// Of returns the exchange that an open record and its memory describe.
func Of(px cluster.Proxmox, mem parking.Memory, rec parking.Record, parking cluster.VMID) *Replace {
	disks := rec.Disks
	if rec.Strategy == cluster.Create { // its record names no disk: none was there
		disks = newSystem(mem.SystemKey)
	}
	return WiredReplace(&Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: disks, Restore: rec.Restore, Serial: mem.DiskSerial, SystemGiB: mem.SystemGiB, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		Prepared: rec.Prepared, Late: new(Late),
	})
}

// newSystem stands for the system disk of a VM that is to be made.
func newSystem(key string) []parking.ParkedDisk {
	return []parking.ParkedDisk{{Key: key, System: true}}
}

// Steps returns the whole exchange of a VM that is off, as one tree.
func (r *Replace) Steps() step.Step {
	itself := func(context.Context) (*Replace, error) { return r, nil }
	known := Source{Read: itself, Known: itself}
	recreate, prepared := r.Strategy == cluster.Recreate, r.Prepared != ""
	down := branch("take-down", fmt.Sprintf("take VM %d down", r.VM.ID),
		step.Step{ID: "keep-firewall", Title: "keep its firewall on the parking VM", Do: r.KeptFirewall.Keep},
		step.Step{ID: "keep-off", Title: "see that nobody starts it", Risk: step.Disruptive, Do: r.stayOff},
		step.OnlyIf(recreate, known.Unprotect()), known.Park(), step.OnlyIf(recreate, known.DeleteVM()))
	down.Skip = r.Deletion.TakenDown
	return r.whole(branch("replace", fmt.Sprintf("replace VM %d", r.VM.ID),
		step.Step{ID: "gate", Title: "see that the exchange was not given up", Do: r.notGivenUp},
		step.OnlyIf(prepared, known.Prepare()), down, branch("bring-up", fmt.Sprintf("bring VM %d up", r.VM.ID),
			known.NewSystem(r.Strategy, prepared), step.OnlyIf(recreate && prepared, known.NewSystem(cluster.Reimage, prepared)), known.Attach()),
		branch("finish", "put back what was taken away for the exchange", append(r.Settings.FinishSteps(),
			step.Step{ID: "keep", Code: fault.ParkedHalf, Title: "keep the old system disk parked", Do: r.Settings.Keep})...),
	))
}

// PutBackSteps cancels the exchange: the VM, which is off, gets every disk and setting back.
func (r *Replace) PutBackSteps() step.Step {
	r.Strategy = cluster.PutBack
	steps := append([]step.Step{
		{ID: "give-up", Code: fault.ParkedHalf, Title: "note that the exchange is given up", Do: r.GiveUp},
		{ID: "keep-off", Title: "see that nobody starts it", Risk: step.Disruptive, Do: r.stayOff},
	}, r.PutBack.Steps()...)
	return r.whole(branch("put-back", fmt.Sprintf("put the old system disk of VM %d back", r.VM.ID), append(steps,
		branch("finish", "put back what was taken away for the exchange", append(r.Settings.RestoreSteps(),
			step.Step{ID: "close", Code: fault.ParkedHalf, Title: "close the record", Do: r.CloseRecord})...))...))
}

// whole skips an exchange that has ended: its record is closed.
func (r *Replace) whole(s step.Step) step.Step {
	s.Skip = func(ctx context.Context) (string, error) {
		rec, err := r.record(ctx)
		if err != nil || rec.Open {
			return "", err
		}
		return fmt.Sprintf("the record of VM %d is closed", r.VM.ID), nil
	}
	return r.Lost.explained(s)
}

func branch(id, title string, steps ...step.Step) step.Step {
	return step.Step{ID: id, Title: title, Risk: step.Destructive, Steps: step.List(steps...)}
}

// record reads the record again.
func (r *Replace) record(ctx context.Context) (parking.Record, error) {
	_, rec, err := r.Spare.parkingNow(ctx)
	return rec, err
}

func (r *Replace) updateRecord(ctx context.Context, change func(*parking.Record)) error {
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	return r.changeRecord(ctx, park, change)
}

// changeRecord is updateRecord for a parking VM that was just read: its digest proves that nothing was
// changed since.
func (r *Replace) changeRecord(ctx context.Context, park cluster.VM, change func(*parking.Record)) error {
	return ChangeRecord(ctx, r.Proxmox, park, r.Run, r.Late.Forgetting(park.ID, change))
}

func (r *Replace) notGivenUp(ctx context.Context) error {
	rec, err := r.record(ctx)
	if err == nil && rec.PutBack {
		err = fault.ParkedHalf.Refusedf("the exchange of VM %d was given up: its old system disk is to be put back first", r.VM.ID)
	}
	return err
}

// GiveUp notes in the record that the exchange is cancelled. From then on recast only puts the old
// system disk back.
func (r *Replace) GiveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d is not given up: it is finished, and then rolled back", r.VM.ID)
	}
	return r.updateRecord(ctx, func(rec *parking.Record) { rec.PutBack = true })
}

// CloseRecord ends the exchange: its record is no longer open.
func (r *Replace) CloseRecord(ctx context.Context) error {
	return r.updateRecord(ctx, (*parking.Record).Close)
}

// stayOff makes sure that the VM, if it exists, is off and stays off.
func (r *Replace) stayOff(ctx context.Context) error {
	if _, found, err := r.Current(ctx); err != nil || !found {
		return err
	}
	vm, err := r.KeepOff(ctx)
	if err == nil && vm.Running {
		err = fault.WithHint(fault.ParkedHalf.Refusedf("%s is running", vm), "shut it down first")
	}
	return err
}

// KeepOff makes sure that neither Proxmox HA nor onboot starts the VM once it is off.
func (r *Replace) KeepOff(ctx context.Context) (cluster.VM, error) {
	look := func() (cluster.VM, error) {
		vm, err := r.Proxmox.VM(ctx, r.VM.ID)
		switch {
		case err != nil:
			return vm, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
		case vm.UUID() != r.VM.UUID():
			return vm, r.uuidMismatch(vm)
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
	if ha != nil { // even a resource that HA ignores prevents Proxmox from deleting the VM
		if err := r.Sending(ctx, cluster.SentRemoveHA, LateQueue, func(ctx context.Context) error { return r.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
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
