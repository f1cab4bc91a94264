package exchange

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Source returns the exchange when a step runs: a roll knows it only after the VM is recorded. Read
// checks again that the record is ours; steps that change something use it. Known may reuse what
// was last read; goals use it.
type Source struct {
	Read  func(ctx context.Context) (*Replace, error)
	Known func(ctx context.Context) (*Replace, error)
}

// Unprotect lets Proxmox take drives from the VM, and delete it.
func (get Source) Unprotect() step.Step {
	return step.Step{
		ID: "unprotect", Title: "lift its protection", Risk: step.Disruptive,
		Skip: get.skip(func(r *Replace) goal { return r.Deletion.unprotected }),
		Do:   get.do(func(r *Replace) func(context.Context) error { return r.Deletion.unprotect }),
	}
}

// Park moves every disk that leaves the VM to the parking VM.
func (get Source) Park() step.Step {
	return step.Step{
		ID: "park", Code: fault.ParkedHalf, Title: "park its disks on the parking VM", Risk: step.Disruptive,
		Skip:  get.skip(func(r *Replace) goal { return r.moves.emptied }),
		Steps: get.steps(func(r *Replace) []step.Step { return r.moves.parkSteps() }),
	}
}

// DeleteVM deletes the VM once it owns no disk.
func (get Source) DeleteVM() step.Step {
	return step.Step{
		ID: "delete-vm", Code: fault.ParkedHalf, Title: "delete the VM, which owns no disk any more", Risk: step.Destructive,
		Skip: get.skip(func(r *Replace) goal { return r.Deletion.replaced }),
		Do:   get.do(func(r *Replace) func(context.Context) error { return r.Deletion.deleteVM }),
	}
}

// Prepare makes the new system disk from a disk image, on the parking VM, while the node serves.
func (get Source) Prepare() step.Step {
	return step.Step{
		ID: "prepare-disk", Code: fault.ParkedHalf, Title: "make its new system disk from the disk image",
		Skip: get.skip(func(r *Replace) goal { return r.Preparation.done }),
		Do:   get.do(func(r *Replace) func(context.Context) error { return r.Preparation.do }),
	}
}

// NewSystem gives the VM its new system disk: that of a new VM, the kept one, a prepared one, or a
// blank one.
func (get Source) NewSystem(s cluster.Strategy, prepared bool) step.Step {
	switch {
	case s.MakesVM():
		return step.Step{
			ID: "create-vm", Code: fault.ParkedHalf, Title: newVMTitle(s, prepared), Risk: step.Disruptive,
			Skip: get.skip(func(r *Replace) goal { return r.System.created }),
			Do:   get.do(func(r *Replace) func(context.Context) error { return r.System.createVM }),
		}
	case s.System() == cluster.SystemKept:
		return step.Step{
			ID: "restore-disk", Code: fault.ParkedHalf, Title: "put the kept system disk back", Risk: step.Disruptive,
			Skip: get.skip(func(r *Replace) goal { return r.System.restored }),
			Do:   get.do(func(r *Replace) func(context.Context) error { return r.System.restore }),
		}
	}
	return step.Step{
		ID: "blank-disk", Code: fault.ParkedHalf, Title: map[bool]string{true: "give the VM its new system disk", false: "give the VM a blank system disk and the boot ISO"}[prepared], Risk: step.Disruptive,
		Skip: get.skip(func(r *Replace) goal { return r.System.Given }),
		Do:   get.do(func(r *Replace) func(context.Context) error { return r.System.Give }),
	}
}

func newVMTitle(s cluster.Strategy, prepared bool) string {
	switch {
	case s.From() == cluster.Nowhere:
		return "create the VM"
	case prepared:
		return "create the VM again"
	}
	return "create the VM again with a blank system disk"
}

// Attach returns the persistent disks to the VM.
func (get Source) Attach() step.Step {
	return step.Step{
		ID: "attach", Code: fault.ParkedHalf, Title: "give the persistent disks back", Risk: step.Disruptive,
		Steps: get.steps(func(r *Replace) []step.Step { return r.moves.attachSteps() }),
	}
}

func (get Source) do(f func(*Replace) func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := get.Read(ctx)
		if err != nil {
			return err
		}
		return f(r)(ctx)
	}
}

func (get Source) skip(f func(*Replace) goal) goal {
	return func(ctx context.Context) (string, error) {
		r, err := get.Known(ctx)
		if err != nil {
			return "", err
		}
		return f(r)(ctx)
	}
}

func (get Source) steps(f func(*Replace) []step.Step) func(context.Context) ([]step.Step, error) {
	return func(ctx context.Context) ([]step.Step, error) {
		r, err := get.Read(ctx)
		if err != nil {
			return nil, err
		}
		return f(r), nil
	}
}

// goal returns why there is nothing to do, or "".
type goal = func(context.Context) (string, error)
