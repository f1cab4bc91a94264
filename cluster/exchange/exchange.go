package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// Of returns the exchange that an open record and its memory describe.
func Of(px cluster.Proxmox, mem parking.Memory, rec parking.Record, parking cluster.VMID) *Replace {
	disks := rec.Disks
	if rec.Strategy.From() == cluster.Nowhere { // its record names no disk: none was there
		disks = newSystem(mem.SystemKey)
	}
	return WiredReplace(&Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: disks, Restore: rec.Restore, Serial: mem.DiskSerial, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		Prepared: rec.Prepared, Late: new(Late),
	})
}

// newSystem stands for the system disk of a VM that is to be made.
func newSystem(key string) []parking.ParkedDisk {
	return []parking.ParkedDisk{{Key: key, System: true}}
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

// giveUp notes in the record that the exchange is cancelled. From then on recast only puts the old
// system disk back.
func (r *Replace) giveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d is not given up: it is finished, and then rolled back", r.VM.ID)
	}
	return r.updateRecord(ctx, func(rec *parking.Record) { rec.PutBack = true })
}

// CloseRecord ends the exchange: its record is no longer open.
func (r *Replace) CloseRecord(ctx context.Context) error {
	return r.closed(r.updateRecord(ctx, (*parking.Record).Close))
}

// closed follows a change that has closed the record, or err.
func (r *Replace) closed(err error) error {
	if err != nil || r.Forget == nil {
		return err
	}
	return r.Forget()
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
