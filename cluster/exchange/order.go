package exchange

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// TakeDown takes the node down, and its disks to where they are safe. remember opens the record; after stop,
// which are the steps of the node, its VM is off.
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

// BringUp brings the node up in the VM that it gets, or that it has. system gives that its system disk; serve
// are the steps of the node, from a VM with all its disks to the end of the exchange.
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

// Finish puts back what was taken away from the VM, then from the node, and closes the record: until then the
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

// PutBack cancels an unfinished exchange: every disk goes back to where it was, the old system disk too. The
// steps of the node stop it, start it, and give it back what was taken away. This needs no secrets, so it works
// from any machine.
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
