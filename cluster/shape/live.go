package shape

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// changer is what VMs are changed with.
type changer interface {
	cluster.Editor
	cluster.HA
	cluster.TieReader
	cluster.VMReader
}

// Running is the VM of a node that stays up while it is changed.
type Running struct {
	Proxmox changer
	VMID    cluster.VMID
	Shape   cluster.Shape
	Machine func(ctx context.Context) (cluster.Machine, error) // reads the node's
}

// Now reads the VM, and how it differs from its shape.
func (r Running) Now(ctx context.Context) (vm cluster.VM, ds Differences, err error) {
	if vm, err = r.Proxmox.VM(ctx, r.VMID); err != nil {
		return vm, nil, fmt.Errorf("look up VM %d: %w", r.VMID, err)
	}
	if r.Shape.Pool != "" {
		if vm.Pool, err = r.Proxmox.Pool(ctx, r.VMID); err != nil {
			return vm, nil, err
		}
	}
	var ha *cluster.HAResource
	if r.Shape.HA != nil {
		if ha, err = r.Proxmox.HAResource(ctx, r.VMID); err != nil {
			return vm, nil, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
		}
	}
	ds, err = Compare(vm, ha, r.Shape)
	return vm, ds, err
}

// Lacks names what of the live differences is not put right yet, or that the machine does not see every
// disk of the shape as large as Proxmox has it; "" if nothing. A disk that nothing tells from others of
// the machine is not looked for.
func (r Running) Lacks(ctx context.Context) (string, error) {
	vm, ds, err := r.Now(ctx)
	if live := ds.At(Live); err != nil || len(live) > 0 {
		return "not as wanted: " + live.String(), err
	}
	m, err := r.Machine(ctx)
	if err != nil {
		return "", fmt.Errorf("read the machine of %s: %w", vm, err)
	}
	drives, err := vm.Bootable()
	if err != nil {
		return "", err
	}
	for _, d := range r.Shape.Disks {
		drive, there := cluster.FindDrive(drives, d.Key)
		if !there || d.SizeGiB == 0 {
			continue
		}
		switch on := m.MachineDisks(vm, drives, d.Key); {
		case len(on) == 0 && len(m.Disks) < len(drives):
			return "it does not see " + d.Key, nil
		case len(on) == 1 && on[0].SizeBytes < drive.SizeBytes():
			return fmt.Sprintf("it sees %s with %s", d.Key, cluster.Size(int64(on[0].SizeBytes))), nil
		}
	}
	return "", nil
}

// Apply puts the live differences right. say receives what is done.
func (r Running) Apply(ctx context.Context, say func(string)) error {
	vm, ds, err := r.Now(ctx)
	if err != nil {
		return err
	}
	ds = ds.At(Live)
	set, err := Settings(vm, r.Shape, ds)
	if err != nil {
		return err
	}
	if len(set) > 0 {
		say("setting " + ds.String())
		if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
			return fmt.Errorf("set %v of %s: %w", slices.Sorted(maps.Keys(set)), vm, err)
		}
	}
	if err := Grow(ctx, r.Proxmox, r.VMID, ds, say); err != nil {
		return err
	}
	return applyAround(ctx, r.Proxmox, vm, r.Shape, ds, say)
}
