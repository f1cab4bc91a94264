package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Migrate moves the VM, which is off, to the host that its shape names, before it gets the rest of that.
// If the plan does not show it, it is done only where it is possible.
func (get Source) Migrate(planned bool) step.Step {
	return step.Step{
		ID: "migrate", Title: "migrate the VM while it is off", Risk: step.Disruptive,
		Skip: get.skip(func(r *Replace, ctx context.Context) (string, error) { return r.migrated(ctx, r.Shape.Host, planned) }),
		Do:   get.do(func(r *Replace, ctx context.Context) error { return r.migrate(ctx, r.Shape.Host) }),
	}
}

// migrateBack returns a VM that was migrated for its shape.
func (r *Replace) migrateBack() step.Step {
	return step.Step{
		ID: "migrate", Title: "migrate the VM back to " + r.VM.Host, Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) { return r.migrated(ctx, r.VM.Host, false) },
		Do:   func(ctx context.Context) error { return r.migrate(ctx, r.VM.Host) },
	}
}

// migrated says why the VM is not migrated, or need not be.
func (r *Replace) migrated(ctx context.Context, to string, planned bool) (string, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil || !found:
		return "", err
	case to == "" || vm.Host == to && vm.Lock != "migrate":
		return fmt.Sprintf("%s is where it is to be", vm), nil
	case vm.Running:
		return vm.String() + " runs", nil
	case planned:
		return "", nil
	}
	err = shape.RequireMigratable(ctx, r.Proxmox, vm, to, shape.Off)
	if fault.KindOf(err) == fault.Refused {
		return "it stays there: " + err.Error(), nil
	}
	return "", err
}

// migrate moves the VM if Proxmox still copies none of its disks for that.
func (r *Replace) migrate(ctx context.Context, to string) error {
	vm, err := r.off(ctx)
	switch {
	case err != nil:
		return err
	case vm.Lock != "":
		return fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := shape.RequireMigratable(ctx, r.Proxmox, vm, to, shape.Off); err != nil {
		return err
	}
	if err := r.Proxmox.Migrate(ctx, vm, to); err != nil {
		return fmt.Errorf("migrate %s to %s: %w", vm, to, err)
	}
	return nil
}
