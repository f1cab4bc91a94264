// Package exchangetest exchanges the system of a VM that has no guest: with the steps of a roll, wired as a roll
// wires them, but without those of a node.
package exchangetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Exchange is one process that exchanges the system of a node's VM.
type Exchange struct {
	Proxmox    cluster.Proxmox
	Record     parking.Record // what is known before it begins: of which cluster, node and run, by which strategy
	VMID       cluster.VMID
	SystemGiB  int            // wanted size of the new system disk; 0 or less than before: as before
	ParkingIDs []cluster.VMID // that a parking VM may take, in order
	ISO, Image func(ctx context.Context) (string, error)
	DiskBytes  int64 // of the disk in the image

	last *exchange.Replace // as the record was read last
	late exchange.Late
}

const systemKey = "scsi0"

// Begin begins the exchange of the VM, which is off, or resumes the one that is open, from Proxmox alone. It returns
// the steps: back, if the exchange is given up or to be. They are none if it has ended, or was never begun.
func (x *Exchange) Begin(ctx context.Context, back bool) (step.Step, error) {
	park, err := x.Parking(ctx)
	ours := park != nil && park.Record.Run == x.Record.Run
	switch {
	case err != nil:
	case ours && park.Record.Open:
		x.Record = park.Record
		err = x.remembered(*park)
	case ours || back:
		return step.Step{ID: "replace", Steps: step.List()}, nil
	default:
		err = x.open(ctx, park)
	}
	switch {
	case err != nil:
		return step.Step{}, err
	case back || x.Record.PutBack:
		return x.putBack(), nil
	}
	return x.steps(), nil
}

// Parking finds the node's parking VM; nil if there is none.
func (x *Exchange) Parking(ctx context.Context) (*parking.Parking, error) {
	vms, err := x.Proxmox.VMs(ctx)
	if err != nil {
		return nil, err
	}
	all, err := parking.Parkings(vms, x.Record.Cluster)
	if i := slices.IndexFunc(all, func(p parking.Parking) bool { return p.Record.Node == x.Record.Node }); err == nil && i >= 0 {
		return &all[i], nil
	}
	return nil, err
}

func (x *Exchange) open(ctx context.Context, earlier *parking.Parking) error {
	vm, err := x.Proxmox.VM(ctx, x.VMID)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return fault.WithHint(fmt.Errorf("VM %d: %w", x.VMID, err), "restore that VM, whose disks the exchange would carry over")
	case err != nil:
		return err
	case vm.Config[systemKey] == "":
		return fault.WithHint(fault.ParkedHalf.Refusedf("%s has no %s, which is to be its system disk", vm, systemKey),
			"it has %s; where the parking VM of an unfinished exchange was deleted, the disk was deleted with it", cluster.DrivesOf(vm))
	}
	if x.Record.Strategy == cluster.Rollback && earlier != nil && len(earlier.Record.Kept) > 0 {
		x.Record.Restore = &earlier.Record.Kept[len(earlier.Record.Kept)-1]
	}
	system, err := cluster.ParseDisk(systemKey, vm.Config[systemKey])
	if err != nil {
		return err
	}
	mem, err := exchange.Remember(ctx, x.Proxmox, vm, system, x.Record)
	if err != nil {
		return err
	}
	rec, err := x.Record.Opened(mem, nil)
	if err != nil {
		return err
	}
	if err := x.of(mem, rec, 0).RequirePossible(ctx); err != nil {
		return err
	}
	id, rec, err := exchange.OpenParking(ctx, x.Proxmox, x.Record, mem, earlier, x.ParkingIDs, new(parking.Numbers), func(cluster.VMID) error { return nil })
	x.last = x.of(mem, rec, id)
	return err
}

func (x *Exchange) steps() step.Step {
	source := x.source()
	remember := step.Step{ID: "remember", Title: "keep its firewall on the parking VM", Do: x.do(func(ctx context.Context, r *exchange.Replace) error { return r.KeepFirewall(ctx) })}
	down := source.TakeDown(remember, step.Step{ID: "stop", Title: "check that nobody starts it", Do: x.do(staysOff)})
	down.Skip = func(ctx context.Context) (string, error) {
		r, err := x.read(ctx)
		if err != nil {
			return "", err
		}
		return r.TakenDown(ctx)
	}
	up := source.BringUp(source.NewSystem(), x.start(), source.Finish(nil))
	return x.whole(step.Step{ID: "replace", Title: "replace " + x.last.VM.String(), Steps: step.List(down, up)})
}

func (x *Exchange) putBack() step.Step {
	stop := func(r *exchange.Replace) []step.Step {
		return []step.Step{{ID: "stop", Title: "check that it is off", Skip: r.StandsStill, Do: func(ctx context.Context) error { return staysOff(ctx, r) }}}
	}
	return x.whole(x.source().PutBack(stop, []step.Step{x.start()}, nil))
}

func (x *Exchange) whole(s step.Step) step.Step {
	s.Skip = func(ctx context.Context) (string, error) {
		park, err := x.parking(ctx)
		if err != nil || park.Record.Open {
			return "", err
		}
		return fmt.Sprintf("the record of %s is closed", x.last.VM), nil
	}
	return exchange.Explained(s, func(ctx context.Context, err error) error { return x.last.Located(ctx, err) })
}

func (x *Exchange) start() step.Step {
	return step.Step{ID: "start", Title: "check that no other VM has its disks", Do: func(ctx context.Context) error {
		vm, err := x.Proxmox.VM(ctx, x.VMID)
		if err != nil || vm.Running {
			return fault.Prefix(fmt.Sprintf("look up VM %d", x.VMID), err)
		}
		others, err := exchange.ReadOthers(ctx, x.Proxmox, vm.ID)
		if err != nil {
			return err
		}
		return others.RequireAlone(ctx, x.Proxmox, vm)
	}}
}

func staysOff(ctx context.Context, r *exchange.Replace) error {
	if _, found, err := r.Current(ctx); err != nil || !found {
		return err
	}
	vm, err := r.KeepOff(ctx)
	if err == nil && vm.Running {
		err = fault.WithHint(fault.ParkedHalf.Refusedf("%s is running", vm), "shut it down first")
	}
	return err
}

func (x *Exchange) source() exchange.Source {
	known := func(context.Context) (*exchange.Replace, error) { return new(*x.last), nil }
	return exchange.Source{Node: x.Record.Node, Strategy: x.Record.Strategy, Prepared: x.Record.Prepared != "", Read: x.read, Known: known}
}

func (x *Exchange) do(f func(context.Context, *exchange.Replace) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := x.read(ctx)
		if err != nil {
			return err
		}
		return f(ctx, r)
	}
}

func (x *Exchange) read(ctx context.Context) (*exchange.Replace, error) {
	park, err := x.parking(ctx)
	if err == nil && (!park.Record.Open || park.Record.Run != x.Record.Run) {
		err = fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, x.Record.Run)
	}
	if err == nil {
		err = x.remembered(park)
	}
	return new(*x.last), err
}

func (x *Exchange) parking(ctx context.Context) (parking.Parking, error) {
	vm, err := exchange.ConfigOf(ctx, x.Proxmox, x.last.Parking)
	if err != nil {
		return parking.Parking{}, fmt.Errorf("look up parking VM %d: %w", x.last.Parking, err)
	}
	rec, found, err := parking.ReadRecord(vm)
	if err == nil && !found {
		err = parking.DescriptionChanged(vm, x.Record.Node)
	}
	return parking.Parking{VM: vm, Record: rec}, err
}

func (x *Exchange) remembered(park parking.Parking) error {
	mem, err := park.Record.ReadMemory(park.VM)
	if err == nil {
		x.last = x.of(mem, park.Record, park.VM.ID)
	}
	return err
}

func (x *Exchange) of(mem parking.Memory, rec parking.Record, park cluster.VMID) *exchange.Replace {
	r := exchange.Of(x.Proxmox, mem, rec, park)
	r.ISO, r.Image, r.DiskBytes, r.SystemGiB, r.Late = x.ISO, x.Image, x.DiskBytes, x.SystemGiB, &x.late
	r.Asks = func(ctx context.Context) error { return ctx.Err() } // nobody has data on it
	return r
}
