// Package exchange replaces the system disk of one VM, and if wanted the VM itself, while its persistent disks wait
// on a parking VM. It needs nothing but Proxmox; its most important type is [Replace], and what it must remember is
// in a [parking.Record].
package exchange

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Replace exchanges the system of a stopped VM. Recreate makes a new VM under the same VMID with a blank system
// disk and every other disk carried over; Reimage and Rollback keep the VM and exchange its system disk for a blank
// or a kept one. Meanwhile each disk that left the VM has a name in the parking VM's configuration. Replace needs
// nothing but Proxmox.
type Replace struct {
	Proxmox   cluster.Proxmox
	Strategy  cluster.Strategy // Recreate, Reimage or Rollback
	Run       string
	Build     string       // build ID, for the mark on the new VM
	VM        cluster.VM   // as it was before anything was touched
	Parking   cluster.VMID // the parking VM, with an open record of this run
	Disks     []parking.ParkedDisk
	Restore   *parking.KeptDisk                         // Rollback: the disk that comes back
	ISO       func(ctx context.Context) (string, error) // finds the volid of the boot ISO
	SystemGiB int                                       // wanted size of the new system disk; 0 or less than before: as before
	Serial    string                                    // of the new system disk

	// Prepared is the disk image from which the new system disk is made while the node still serves; "": the new
	// disk is blank. Image finds its volid, and DiskBytes is the size of the disk in it.
	Prepared  string
	Image     func(ctx context.Context) (string, error)
	DiskBytes int64

	// Firewall is the sum of the VM's firewall, which a new VM gets (firewall.FirewallConfig.Sum); "": it had none.
	Firewall string

	// Blank is a setting of the VM that has another value until finish; nil: none.
	Blank *cluster.BlankSetting

	HostArch string // see Ties.HostArch

	Shape cluster.Shape // what the VM gets; the zero value: it stays as it is

	ha   *cluster.HAResource // the VM's HA resource before; nil: not managed
	old  parking.KeptDisk    // entry of the old system disk, without its place
	Made parking.KeptDisk    // what is known of the system on the new disk

	// Asks refuses, right before a system disk leaves the VM, if the disk has data that nobody has
	// agreed to lose; nil: this can't be checked.
	Asks func(ctx context.Context) error

	// Pods lists the handles of pods' volumes; nil: Kubernetes can't be asked.
	Pods func(ctx context.Context) ([]string, error)

	Frees  []parking.FreePlan // kept disks that are superseded once the present one is parked
	Forget func() error       // drops what only an unfinished exchange needs, once the record is closed; nil: nothing

	Late *Late                 // requests that may still come
	Say  func(id, text string) // reports what a step waits for; may be nil
}

// Of returns the exchange that an open record and its memory describe.
func Of(px cluster.Proxmox, mem parking.Memory, rec parking.Record, parking cluster.VMID) *Replace {
	disks := rec.Disks
	if rec.Strategy.From() == cluster.Nowhere { // the record of a new node names no disk: none was there
		disks = newSystem(mem.SystemKey)
	}
	return &Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: disks, Restore: rec.Restore, Serial: mem.DiskSerial, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		Prepared: rec.Prepared, Late: new(Late),
	}
}

// newSystem stands for the system disk of a VM that is to be created.
func newSystem(key string) []parking.ParkedDisk {
	return []parking.ParkedDisk{{Key: key, System: true}}
}

// record is the exchange's record.
func (r *Replace) record() openRecord {
	return newOpenRecord(r.Proxmox, r.Parking, r.Run, r.VM.Name, r.Late)
}

// mover hands the exchange's disks over.
func (r *Replace) mover() mover {
	say := func(in parking.Intent, text string) { r.saying(r.handOverStep(in))(text) }
	return newMover(r.record(), r.VM.Host, r.isSpare, say)
}

// Sending records a request, sends it, and removes it from the record once it is answered. within is how long
// Proxmox may take for the request.
func (r *Replace) Sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	return r.record().sending(ctx, what, within, send)
}

// nowBoth is Current that also reads the parking VM, at the same time. While the VM exists, the parking VM must
// exist, too.
func (r *Replace) nowBoth(ctx context.Context) (vm cluster.VM, found bool, park cluster.VM, err error) {
	var errPark error
	err = wait.All(
		func() (err error) {
			vm, found, err = r.Current(ctx)
			return err
		},
		func() error {
			park, errPark = r.record().vm(ctx)
			return nil
		},
	)
	if err == nil && found {
		err = errPark
	}
	return vm, found, park, err
}

// configOf is the key of a VM's configuration for step.Once.
type configOf cluster.VMID

// ConfigOf reads a VM's configuration. Goals that follow each other directly read it once.
func ConfigOf(ctx context.Context, px cluster.VMReader, id cluster.VMID) (cluster.VM, error) {
	return step.Once(ctx, configOf(id), func() (cluster.VM, error) { return px.VMConfig(ctx, id) })
}

// Current reads the VM's configuration again; found is false once the VM is deleted.
func (r *Replace) Current(ctx context.Context) (vm cluster.VM, found bool, err error) {
	return r.found(ConfigOf(ctx, r.Proxmox, r.VM.ID))
}

// Powered is Current that also tells whether the VM is on.
func (r *Replace) Powered(ctx context.Context) (vm cluster.VM, found bool, err error) {
	return r.found(r.Proxmox.VM(ctx, r.VM.ID))
}

func (r *Replace) found(vm cluster.VM, err error) (cluster.VM, bool, error) {
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return cluster.VM{}, false, nil
	case err != nil:
		return cluster.VM{}, false, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
	}
	return vm, true, nil
}

func (r *Replace) isReplaced(vm cluster.VM, found bool) (string, error) {
	switch {
	case !found && !r.Strategy.DeletesVM():
		return "", fault.VMChanged.Refusedf("VM %d was deleted by someone else; its system disk is on parking VM %d or still in its storage", r.VM.ID, r.Parking)
	case !found:
		return fmt.Sprintf("VM %d is deleted", r.VM.ID), nil
	case vm.UUID() != r.VM.UUID():
		return "", r.uuidMismatch(vm)
	case vm.MadeBy() == r.Run && r.Strategy.VM() != cluster.VMGone:
		return fmt.Sprintf("VM %d was renewed by this run", r.VM.ID), nil
	}
	return "", nil
}

// uuidMismatch is the error of a VM that has our VMID but another UUID.
func (r *Replace) uuidMismatch(vm cluster.VM) error {
	if cluster.Forming(vm) {
		return cluster.HalfMade(vm)
	}
	return fault.UUIDMismatch.Refusedf("%s has UUID %s: it is not the VM that was planned (UUID %s)", vm, vm.UUID(), r.VM.UUID())
}

// off returns the VM, which must be off.
func (r *Replace) off(ctx context.Context) (cluster.VM, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return vm, err
	case !found:
		return vm, fault.ParkedHalf.Refusedf("VM %d is gone", r.VM.ID)
	case vm.UUID() != r.VM.UUID():
		return vm, r.uuidMismatch(vm)
	case vm.Running:
		return vm, startedMeanwhile(vm)
	}
	return vm, nil
}

func startedMeanwhile(vm cluster.VM) error {
	return fault.WithHint(fault.VMChanged.Refusedf("%s was started by someone else", vm), "switch VM %d off, then run the same command again", vm.ID)
}

// requireHost refuses a VM that has left the host of the exchange. Proxmox HA may migrate a VM until it is removed
// from HA.
func requireHost(vm cluster.VM, host string) error {
	if vm.Host == host {
		return nil
	}
	return fault.WithHint(fault.HostAway.Refusedf("%s was on %s when its replacement was begun: disks can be handed over on one host only", vm, host),
		"run the same command again; if that finds the replacement unfinished, bring the VM back first, on %s: %s. Nothing was destroyed", vm.Host, cluster.MigrateCommand(vm, host))
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

// saying returns the function that reports what a step of the exchange waits for.
func (r *Replace) saying(id string) func(string) {
	branch := "bring-up/"
	switch {
	case r.Strategy.From() == cluster.Halfway:
		branch = "put-back/"
	case id == "delete-vm" || id == rememberStep || strings.HasPrefix(id, parkStep):
		branch = "take-down/"
	}
	return func(text string) {
		if r.Say != nil {
			r.Say(branch+id, text)
		}
	}
}

// parkStep is the prefix of the ID of a step that parks a disk.
const parkStep = "park/"
