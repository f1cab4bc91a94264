package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

var errUndone = errors.New("it was done, but is not so now: somebody else may have changed it at the same time")

// onFailure has every failure in a tree of steps explained. A goal that is unmet
// right after the work was done is one.
func onFailure(s step.Step, explain func(context.Context, error) error) step.Step {
	done := false
	if skip := s.Skip; skip != nil {
		s.Skip = func(ctx context.Context) (string, error) {
			reason, err := skip(ctx)
			if err == nil && reason == "" && done && ctx.Err() == nil {
				err = errUndone
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

// lookAround bounds how long a failure is looked into.
const lookAround = 30 * time.Second

// explained is a step tree of the node whose failures say where its disks are.
func (n *nodeRoll) explained(s step.Step) step.Step {
	return onFailure(s, func(ctx context.Context, err error) error {
		if err == nil || !tellable(ctx, err) {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, lookAround)
		defer cancel()
		mem, errMemory := n.memory(ctx)
		if errMemory != nil {
			return err // nothing was begun
		}
		park, errPark := n.parking(ctx)
		rec := park.Record
		if errPark != nil {
			// Its record is gone; what was remembered tells as much.
			if rec, errMemory = n.opening().open(mem, nil); errMemory != nil {
				return err
			}
			park.VM.ID, _ = n.parkingID(ctx) // 0: not known
		}
		if !rec.Open || rec.Run != n.Run {
			return err
		}
		return n.replaceOf(mem, rec, park.VM.ID).located(ctx, err)
	})
}

// explained is a tree of the exchange whose failures say where the disks are.
func (r *Replace) explained(s step.Step) step.Step {
	return onFailure(s, func(ctx context.Context, err error) error {
		if err == nil || !tellable(ctx, err) {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, lookAround)
		defer cancel()
		return r.located(ctx, err)
	})
}

// tellable says whether there is anything to be told about a failure: not after
// an interruption, nor for a run that may no longer look after the node.
func tellable(ctx context.Context, err error) bool {
	kind := fault.KindOf(err)
	return ctx.Err() == nil && kind != fault.Claimed && kind != fault.Interrupted
}

// located adds to a failure where each disk is, as far as Proxmox tells.
func (r *Replace) located(ctx context.Context, err error) error {
	vm, errVM := r.Proxmox.VM(ctx, r.VM.ID)
	park, errPark := r.Proxmox.VM(ctx, r.Parking)
	if rec, is, _ := ReadRecord(park); is && rec.VMID != r.VM.ID {
		park, errPark = VM{}, fmt.Errorf("%s is another node's: %w", park, ErrNotFound)
	}
	for _, e := range []error{errVM, errPark} {
		if e != nil && !errors.Is(e, ErrNotFound) {
			return err // no more can be told than that
		}
	}
	var gone []string
	if errVM != nil {
		gone = append(gone, fmt.Sprintf("VM %d does not exist", r.VM.ID))
	}
	if errPark != nil {
		gone = append(gone, fmt.Sprintf("parking VM %d does not exist", r.Parking))
	}
	if errVM == nil && errPark == nil {
		if why := apart(&vm, park, r.VM.Host, nil, r.VM.ID); why != "" {
			gone = append(gone, why)
		}
	}
	var others []VM
	where := map[string][]string{}
	var order []string
	for _, d := range r.Disks {
		at, volid := r.whereabouts(d, vm, park)
		if at == "" && others == nil {
			others, _ = r.Proxmox.VMs(ctx) // what can't be read can't help
		}
		if at == "" {
			at, volid = r.elsewhere(d, others)
		}
		if !slices.Contains(order, at) {
			order = append(order, at)
		}
		where[at] = append(where[at], d.Key+" ("+volid+")")
	}
	for _, at := range order {
		gone = append(gone, strings.Join(where[at], ", ")+" "+at)
	}
	return fault.WithHint(err, "where the disks of VM %d are: %s", r.VM.ID, strings.Join(gone, "; "))
}

// whereabouts says which of the two VMs of an exchange has a disk; at is "" if neither.
func (r *Replace) whereabouts(d ParkedDisk, vm, park VM) (at, volid string) {
	for _, place := range []struct {
		vm  VM
		key string
		as  string
	}{{vm, d.Key, "on VM %d"}, {park, d.ParkKey, "parked on VM %d"}} {
		disk, err := ParseDisk(place.key, place.vm.Config[place.key])
		if err != nil || d.System && disk.Option("serial") == r.Serial {
			continue
		}
		return fmt.Sprintf(place.as, place.vm.ID), disk.Volid
	}
	return "", d.Volid
}

// elsewhere finds a disk that neither of the two has: by its volid where it is a
// holder's, by its serial where it has one that nobody else has.
func (r *Replace) elsewhere(d ParkedDisk, vms []VM) (at, volid string) {
	serial := (Disk{Options: splitOptions(d.Options)}).Option("serial")
	var found []string
	for _, vm := range vms {
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			disk, err := ParseDisk(key, vm.Config[key])
			if err != nil || disk.CDROM || disk.Volid != d.Volid && (serial == "" || d.Holder != 0 || disk.Option("serial") != serial) {
				continue
			}
			volid, found = disk.Volid, append(found, place(vm.ID, key))
		}
	}
	switch {
	case len(found) == 0 && d.Holder != 0:
		return fmt.Sprintf("named by no VM: it was of VM %d", d.Holder), d.Volid
	case len(found) == 0:
		return "named by no VM under its old name or serial: see whether the storage still has it", d.Volid
	case len(found) == 1:
		return "now " + found[0], volid
	}
	return "perhaps one of " + strings.Join(found, ", "), d.Volid
}

// lostTrack is what is known of a node that was taken out and whose record is
// nowhere: a hint for whoever deleted the parking VM, or its description.
func (o Observation) lostTrack(f Found) string {
	if f.Node == nil || f.Node.Mark == nil || f.Open() || f.Node.Mark.Strategy == InPlace {
		return ""
	}
	what := fmt.Sprintf("run %s had taken %s out to %s, and no parking VM has the record of that any more", f.Node.Mark.Run, f.Name, f.Node.Mark.Strategy.onIt())
	if f.VM != nil {
		what += fmt.Sprintf("; %s has %s", f.VM, drives(*f.VM))
	}
	for _, vm := range o.VMs {
		if _, isRecord, _ := ReadRecord(vm); isRecord || vm.Name != parkingName(f.Name) {
			continue
		}
		return fmt.Sprintf("%s: the description of %s, which has %s, was changed. Put it back as it was, then run the same command again", what, vm, drives(vm))
	}
	return what + ": somebody deleted it, and with it what was parked there. If the VM has all its disks, start it; else they, and its configuration, have to come from a backup"
}

// drives lists the disks of a VM.
func drives(vm VM) string {
	disks, err := vm.Disks()
	if err != nil {
		return "drives that can't be read"
	}
	var have []string
	for _, d := range disks {
		if !d.CDROM {
			have = append(have, d.Key+" ("+d.Volid+")")
		}
	}
	if len(have) == 0 {
		return "no disk"
	}
	return strings.Join(have, ", ")
}

func parkingName(node string) string { return "recast-parking-" + node }
