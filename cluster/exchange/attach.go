package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

func (r *Replace) attach(ctx context.Context, d parking.ParkedDisk) error {
	vm, disk, err := r.handBack(ctx, d)
	if err != nil {
		return err
	}
	return r.setOptions(ctx, vm, disk, cluster.SplitOptions(d.Options))
}

// handBack is attach without the disk's options. It returns the VM, which has the disk.
func (r *Replace) handBack(ctx context.Context, d parking.ParkedDisk) (vm cluster.VM, disk cluster.Disk, err error) {
	vm, found, seen, err := r.poweredBoth(ctx, d)
	switch {
	case err != nil:
		return vm, disk, err
	case !found || vm.UUID() != r.VM.UUID() || r.Strategy.From() != cluster.Halfway && vm.MadeBy() != r.Run:
		return vm, disk, fault.ParkedHalf.Refusedf("VM %d is not the one that run %s made or renewed", r.VM.ID, r.Run)
	case vm.Running:
		return vm, disk, startedMeanwhile(vm)
	}
	if _, there := vm.Config[d.Key]; there {
		if err := r.onlyOnce(ctx, d); err != nil {
			return vm, disk, err
		}
		if vm, found, err = r.Current(ctx); err != nil {
			return vm, disk, err
		}
		seen = nil
	}
	// A drive whose volume no longer existed has been removed by now.
	if _, there := vm.Config[d.Key]; found && !there {
		if d.Holder != 0 {
			if err := r.attachHeld(ctx, vm, d); err != nil {
				return vm, disk, err
			}
			disk, err := cluster.ParseDisk(d.Key, cluster.JoinOptions(d.Volid, d.Options))
			return vm, disk, err
		}
		if err := r.mover().do(ctx, parking.Intent{From: r.Parking, Key: d.ParkKey, To: r.VM.ID, ToKey: d.Key, Options: d.Options}, seen); err != nil {
			return vm, disk, err
		}
		if vm, found, err = r.Current(ctx); err != nil {
			return vm, disk, err
		}
	}
	disk, err = cluster.ParseDisk(d.Key, vm.Config[d.Key])
	switch {
	case !found:
		return vm, disk, fault.ParkedHalf.Refusedf("VM %d was deleted by someone else when it had just got its %s back", r.VM.ID, d.Key)
	case err != nil:
		return vm, disk, fmt.Errorf("%s after its disk was moved back: %w", vm, err)
	}
	return vm, disk, nil
}

// poweredBoth is Powered that also reads the parking VM, at the same time, for the hand-over of a disk to the VM.
// seen is nil if the disk belongs to another VM.
func (r *Replace) poweredBoth(ctx context.Context, d parking.ParkedDisk) (vm cluster.VM, found bool, seen *pair, err error) {
	if d.Holder != 0 {
		vm, found, err = r.Powered(ctx)
		return vm, found, nil, err
	}
	var park cluster.VM
	err = wait.All(
		func() (err error) {
			vm, found, err = r.Powered(ctx)
			return err
		},
		func() (err error) {
			park, err = r.Proxmox.VM(ctx, r.Parking)
			return fault.Prefix(fmt.Sprintf("look up VM %d", r.Parking), err)
		},
	)
	return vm, found, &pair{park, vm}, err
}

func (r *Replace) attachHeld(ctx context.Context, vm cluster.VM, d parking.ParkedDisk) error {
	if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{d.Key: cluster.JoinOptions(d.Volid, d.Options)}, nil); err != nil {
		return fmt.Errorf("attach %s of VM %d to %s: %w", d.Volid, d.Holder, vm, err)
	}
	return nil
}

func (r *Replace) attachStep(d parking.ParkedDisk) step.Step {
	return step.Step{
		ID: d.Key, Kind: "attach-disk", Title: fmt.Sprintf("give %s back", d.Key), Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) { return r.attached(ctx, d) },
		Do:   func(ctx context.Context) error { return r.attach(ctx, d) },
	}
}

func (r *Replace) attachSteps() []step.Step {
	steps := append(r.firewallSteps(), r.settleStep())
	for _, d := range r.Disks {
		if d.System {
			continue // it stays parked, for a rollback
		}
		steps = append(steps, r.attachStep(d))
	}
	return append(steps, step.Step{ID: "compare-disks", Title: "compare the drives with the remembered ones", Do: r.compareDisks})
}

func (r *Replace) attached(ctx context.Context, d parking.ParkedDisk) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return "", err
	}
	value, ok := vm.Config[d.Key]
	if !ok {
		return "", nil
	}
	disk, err := cluster.ParseDisk(d.Key, value)
	switch {
	case err != nil:
		return "", err
	case disk.Owner != r.ownerOf(d) || d.Holder != 0 && disk.Volid != d.Volid:
		return "", fault.ParkedHalf.Refusedf("%s of %s is %s, which is not the disk that it had there", d.Key, vm, disk.Volid)
	case !r.sameOptions(d.Key, disk.Options, cluster.SplitOptions(d.Options)):
		return "", nil
	}
	return fmt.Sprintf("%s is %s again", d.Key, disk.Volid), nil
}
