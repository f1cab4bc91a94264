package exchange

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// nowBoth is Current that also reads the parking VM, at the same time. While the VM is there, the
// parking VM has to be, too.
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

// ConfigOf reads a VM's configuration: goals that follow each other directly read it once.
func ConfigOf(ctx context.Context, px cluster.VMReader, id cluster.VMID) (cluster.VM, error) {
	return step.Once(ctx, configOf(id), func() (cluster.VM, error) { return px.VMConfig(ctx, id) })
}

// Current reads the VM's configuration again; found is false once the VM is deleted.
func (r *Replace) Current(ctx context.Context) (vm cluster.VM, found bool, err error) {
	return r.found(ConfigOf(ctx, r.Proxmox, r.VM.ID))
}

// Powered is Current, and also tells whether the VM is on.
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
