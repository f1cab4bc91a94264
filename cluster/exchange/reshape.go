package exchange

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Reshape gives the VM, which is off, its shape.
func (get Source) Reshape() step.Step {
	return step.Step{
		ID: "reshape", Title: "give the VM its shape", Risk: step.Disruptive,
		Skip: get.skip((*Replace).reshaped),
		Do:   get.do((*Replace).reshape),
	}
}

// reshaped is the goal of reshape. A running VM was started with its shape, or will get a newer one.
func (r *Replace) reshaped(ctx context.Context) (string, error) {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return "", err
	}
	_, ds, err := r.toReshape(vm)
	switch {
	case err != nil:
		return "", err
	case vm.MadeBy() != r.Run:
		return "", nil
	case len(ds) > 0 && !vm.Running:
		return "", nil
	}
	return fmt.Sprintf("%s has its shape", vm), nil
}

// toReshape returns what to set while the VM is off, and why.
func (r *Replace) toReshape(vm cluster.VM) (set map[string]string, ds shape.Differences, err error) {
	ds, err = shape.Compare(vm, nil, r.Shape)
	if err != nil {
		return nil, nil, err
	}
	off := ds.At(shape.Off)
	if r.Strategy.From() == cluster.Nowhere { // a new VM has no other disk yet
		off = append(off, ds.At(shape.Live)...)
	}
	ds = slices.DeleteFunc(off, func(d shape.Difference) bool { return !d.InConfig() })
	set, err = shape.Settings(vm, r.Shape, ds)
	return set, ds, err
}

// reshape sets all that toReshape returns, and the run's mark, with one request. Only growing a disk is a request
// of its own.
func (r *Replace) reshape(ctx context.Context) error {
	vm, err := r.off(ctx)
	if err != nil {
		return err
	}
	set, ds, err := r.toReshape(vm)
	if err != nil {
		return err
	}
	if set["description"], err = r.marked(); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("give %s its shape: %w", vm, err)
	}
	return shape.Grow(ctx, r.Proxmox, r.VM.ID, ds, r.saying("reshape"))
}

// shapedOptions returns the options that the shape gives a drive of the VM as it was.
func (r *Replace) shapedOptions(key string) []string {
	set, _, err := r.toReshape(r.VM)
	if err != nil {
		return nil
	}
	d, err := cluster.ParseDisk(key, set[key])
	if err != nil {
		return nil
	}
	return d.Options
}

// sameOptions says whether a drive has its earlier options, or those of its shape.
func (r *Replace) sameOptions(key string, have, had []string) bool {
	if cluster.SameOptions(have, had) {
		return true
	}
	shaped := r.shapedOptions(key)
	return len(shaped) > 0 && cluster.SameOptions(have, shaped)
}

// shapeAdds says whether a drive that the VM did not have is one of its shape.
func (r *Replace) shapeAdds(key string) bool {
	_, had := r.VM.Config[key]
	return !had && slices.ContainsFunc(r.Shape.Disks, func(d cluster.ShapeDisk) bool { return d.Key == key })
}

// shapeBefore returns the settings to restore, of those that the shape changes on a VM that stays, and the settings
// to delete. A new or larger disk stays.
func (r *Replace) shapeBefore(vm cluster.VM) (want map[string]string, del []string) {
	want = map[string]string{}
	keys := slices.Concat(slices.Collect(maps.Keys(r.Shape.Settings)), slices.Collect(maps.Keys(r.Shape.Devices)))
	for _, key := range keys {
		was, had := r.VM.Config[key]
		now, has := vm.Config[key]
		switch {
		case key == "description", had && strings.TrimSpace(was) == strings.TrimSpace(now):
		case had:
			want[key] = was
		case has:
			del = append(del, key)
		}
	}
	for _, d := range r.Shape.Disks {
		was, errWas := cluster.ParseDisk(d.Key, r.VM.Config[d.Key])
		now, errNow := cluster.ParseDisk(d.Key, vm.Config[d.Key])
		if errWas == nil && errNow == nil && !r.isSystem(d.Key) && !cluster.SameOptions(was.Options, now.Options) {
			want[d.Key] = cluster.Disk{Volid: now.Volid, Options: was.Options}.Value()
		}
	}
	slices.Sort(del)
	return want, del
}

// Migrate moves the VM, which is off, to the host that its shape names, before the VM gets the rest of its shape. A
// migration that the plan does not show is done only where it is possible.
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

// migrate moves the VM unless Proxmox still copies its disks for an earlier migration.
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
	return fault.Prefix(fmt.Sprintf("migrate %s to %s", vm, to), r.Proxmox.Migrate(ctx, vm, to))
}
