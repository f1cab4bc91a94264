package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// foundElsewhere finds a disk that neither VM has: by its volid, or by its serial unless another VM owns
// it. More than one match makes the answer uncertain.
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
		return fmt.Sprintf("named by no VM: it was of VM %d", d.Holder), d.Volid
	case len(found) == 0:
		return "named by no VM under its old name or serial: see whether the storage still has it", d.Volid
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
	for _, at := range order {
		gone = append(gone, strings.Join(where[at], ", ")+" "+at)
	}
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

var errUndone = errors.New("it was done, but is not so now: someone else may have changed it at the same time")

// LookAround bounds the look-up after a failure.
const LookAround = 30 * time.Second

// Explained lets explain add to every failure in a tree of steps that is the exchange's own: not an interruption,
// nor the loss of the run's claim on the node.
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

// onFailure lets explain add to every failure in a tree of steps. A goal that is unmet right after
// its work was done is a failure, too.
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
