package exchange

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Source returns the exchange of a node's VM when a step runs: a roll knows it only after the VM is
// recorded. Read checks again that the record is ours; steps that change something use it. Known may
// reuse what was last read; goals use it.
type Source struct {
	Node     string
	Strategy cluster.Strategy
	Prepared bool // the new system disk is made from a disk image
	Read     func(ctx context.Context) (*Replace, error)
	Known    func(ctx context.Context) (*Replace, error)
}

// unprotect lets Proxmox take drives from the VM, and delete it.
func (get Source) unprotect() step.Step {
	return step.Step{
		ID: "unprotect", Title: "lift its protection", Risk: step.Disruptive,
		Skip: get.skip((*Replace).unprotected),
		Do:   get.do((*Replace).unprotect),
	}
}

// Park moves every disk that leaves the VM to the parking VM.
func (get Source) Park() step.Step {
	return step.Step{
		ID: "park", Code: fault.ParkedHalf, Title: "park its disks on the parking VM", Risk: step.Disruptive,
		Skip:  get.skip((*Replace).emptied),
		Steps: get.steps((*Replace).parkSteps),
	}
}

// deleteVM deletes the VM once it owns no disk.
func (get Source) deleteVM() step.Step {
	return step.Step{
		ID: "delete-vm", Code: fault.ParkedHalf, Title: "delete the VM, which owns no disk any more", Risk: step.Destructive,
		Skip: get.skip((*Replace).replaced),
		Do:   get.do((*Replace).deleteVM),
	}
}

// prepare makes the new system disk from a disk image, on the parking VM, while the node serves.
func (get Source) prepare() step.Step {
	return step.Step{
		ID: "prepare-disk", Code: fault.ParkedHalf, Title: "make its new system disk from the disk image",
		Skip: get.skip((*Replace).isPrepared),
		Do:   get.do((*Replace).prepareDisk),
	}
}

// NewSystem gives the VM its new system disk: that of a new VM, the kept one, a prepared one, or a
// blank one.
func (get Source) NewSystem() step.Step {
	switch s := get.Strategy; {
	case s.MakesVM():
		return step.Step{
			ID: "create-vm", Code: fault.ParkedHalf, Title: newVMTitle(get.Strategy, get.Prepared), Risk: step.Disruptive,
			Skip: get.skip((*Replace).created),
			Do:   get.do((*Replace).createVM),
		}
	case s.System() == cluster.SystemKept:
		return step.Step{
			ID: "restore-disk", Code: fault.ParkedHalf, Title: "put the kept system disk back", Risk: step.Disruptive,
			Skip: get.skip((*Replace).systemRestored),
			Do:   get.do((*Replace).restoreSystem),
		}
	}
	return step.Step{
		ID: "blank-disk", Code: fault.ParkedHalf, Title: map[bool]string{true: "give the VM its new system disk", false: "give the VM a blank system disk and the boot ISO"}[get.Prepared], Risk: step.Disruptive,
		Skip: get.skip((*Replace).systemGiven),
		Do:   get.do((*Replace).GiveSystem),
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

// renew gives the VM a system disk if it has none: a new VM gets its prepared one, and another blank one may not
// have come after an interrupted installation.
func (get Source) renew() step.Step {
	return step.Step{
		ID: "renew-disk", Title: "see that it has a system disk", Risk: step.Disruptive,
		Skip: get.skip((*Replace).hasSystem),
		Do:   get.do((*Replace).GiveSystem),
	}
}

// attach returns the persistent disks to the VM.
func (get Source) attach() step.Step {
	return step.Step{
		ID: "attach", Code: fault.ParkedHalf, Title: "give the persistent disks back", Risk: step.Disruptive,
		Steps: get.steps((*Replace).attachSteps),
	}
}

func (get Source) do(f func(*Replace, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := get.Read(ctx)
		if err != nil {
			return err
		}
		return f(r, ctx)
	}
}

func (get Source) skip(f func(*Replace, context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		r, err := get.Known(ctx)
		if err != nil {
			return "", err
		}
		return f(r, ctx)
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
