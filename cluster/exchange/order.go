package exchange

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Source returns the exchange of a node's VM when a step runs: a roll knows it only after the VM is recorded. Read
// checks again that the record is ours; steps that change something use Read. Known may reuse what was last read;
// goals use Known.
type Source struct {
	Node     string
	Strategy cluster.Strategy
	Prepared bool // the new system disk is made from a disk image
	Read     func(ctx context.Context) (*Replace, error)
	Known    func(ctx context.Context) (*Replace, error)
}

// TakeDown takes the node down and moves its disks to safety. remember opens the record; stop are the node's own
// steps, after which its VM is off.
func (get Source) TakeDown(remember step.Step, stop ...step.Step) step.Step {
	steps := append([]step.Step{remember, step.OnlyIf(get.Prepared, get.prepare())}, stop...)
	return step.Step{
		ID: "take-down", Title: "take " + get.Node + " down", Risk: step.Destructive,
		Steps: step.List(append(
			steps,
			step.OnlyIf(get.Strategy.DeletesVM(), get.unprotect()),
			step.OnlyIf(!get.Strategy.ParksNothing(), get.Park()),
			step.OnlyIf(get.Strategy.DeletesVM(), get.deleteVM()),
		)...),
	}
}

// BringUp brings the node up in its new or kept VM. system gives the VM its system disk; serve are the node's own
// steps, from a VM with all its disks to the end of the exchange.
func (get Source) BringUp(system step.Step, serve ...step.Step) step.Step {
	return step.Step{
		ID: "bring-up", Title: "bring " + get.Node + " up", Risk: step.Disruptive,
		Steps: step.List(append([]step.Step{
			step.OnlyIf(!get.Strategy.Reshapes(), system), // create-vm, blank-disk or restore-disk
			step.OnlyIf(get.Strategy.Installs(), get.renew()),
			step.OnlyIf(!get.Strategy.ParksNothing(), get.attach()),
		}, serve...)...),
	}
}

// Finish gives back what was taken away from the VM, then from the node, and closes the record: until then the
// exchange is unfinished.
func (get Source) Finish(node []step.Step, after ...step.Step) step.Step {
	return step.Step{
		ID: "finish", Title: "put back what was taken away for the roll",
		Steps: get.steps(func(r *Replace) []step.Step {
			keep := step.Step{ID: "keep", Title: "keep the old system disk parked", Skip: r.kept, Do: r.keep}
			if get.Strategy.ParksNothing() {
				keep.Title, keep.Do = "close the record", r.CloseRecord
			}
			return slices.Concat([]step.Step{EjectStep(r.Proxmox, r.VM.ID)}, r.RestoreSteps(), node, []step.Step{keep}, after)
		}),
	}
}

// PutBack cancels an unfinished exchange: every disk goes back to where it was, also the old system disk. The
// node's own steps stop it, start it, and give it back what was taken away. This needs no secrets, so it works from
// any machine.
func (get Source) PutBack(stop func(*Replace) []step.Step, start, node []step.Step) step.Step {
	return step.Step{
		ID: "put-back", Code: fault.ParkedHalf, Title: "put the old system disk of " + get.Node + " back", Risk: step.Destructive,
		Steps: get.steps(func(r *Replace) []step.Step {
			r.Strategy = cluster.PutBack
			finish := slices.Concat(r.RestoreSteps(), node, []step.Step{{ID: "close", Title: "close the record", Do: r.CloseRecord}})
			return slices.Concat(
				[]step.Step{{ID: "give-up", Title: "note that the replacement is given up", Do: r.giveUp}},
				stop(r), r.putBackSteps(), start,
				[]step.Step{{ID: "finish", Title: "put back what was taken away for the roll", Risk: step.Destructive, Steps: step.List(finish...)}},
			)
		}),
	}
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

// NewSystem gives the VM its new system disk: that of a new VM, the kept disk, a prepared disk, or a blank one.
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

// renew gives the VM a system disk if it has none: a new VM gets its prepared disk; after an interrupted
// installation, the other blank disk may not have come.
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

var errUndone = errors.New("it was done, but is not so now: someone else may have changed it at the same time")

// LookAround bounds the look-up after a failure.
const LookAround = 30 * time.Second

// Explained lets explain add to every failure of the exchange itself in a tree of steps, but not to an interruption
// or to the loss of the run's claim on the node.
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

// onFailure lets explain add to every failure in a tree of steps. A goal that is unmet right after its work was
// done is a failure, too.
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
