package exchange

import (
	"context"
	"fmt"
	"time"

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
	return &Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: disks, Restore: rec.Restore, Serial: mem.DiskSerial, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		Prepared: rec.Prepared, Late: new(Late),
	}
}

// newSystem stands for the system disk of a VM that is to be made.
func newSystem(key string) []parking.ParkedDisk {
	return []parking.ParkedDisk{{Key: key, System: true}}
}

// record is the exchange's record.
func (r *Replace) record() openRecord {
	return newOpenRecord(r.Proxmox, r.Parking, r.Run, r.VM.Name, r.Late)
}

// mover hands the exchange's disks over.
func (r *Replace) mover() mover {
	return newMover(r.record(), r.VM.Host, r.isSpare, func(in parking.Intent, text string) { r.saying(r.handOverStep(in))(text) })
}

// Sending records a request, sends it, and removes it from the record once it is answered. within
// is how long Proxmox may take for it.
func (r *Replace) Sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	return r.record().sending(ctx, what, within, send)
}

// giveUp notes in the record that the exchange is cancelled. From then on recast only puts the old
// system disk back.
func (r *Replace) giveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d is not given up: it is finished, and then rolled back", r.VM.ID)
	}
	return r.record().update(ctx, func(rec *parking.Record) { rec.PutBack = true })
}

// CloseRecord ends the exchange: its record is no longer open.
func (r *Replace) CloseRecord(ctx context.Context) error {
	return r.closed(r.record().update(ctx, (*parking.Record).Close))
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
		case len(r.Disks) == 0: // an exchange that hands over no disk may go on anywhere
			return vm, nil
		}
		return vm, requireHost(vm, r.VM.Host)
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
