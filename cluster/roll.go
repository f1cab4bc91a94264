package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Journal keeps what the world can no longer tell once a VM is gone. Every
// write is durable when it returns.
type Journal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
	PutSecret(key string, b []byte) error
	Secret(key string) (b []byte, found bool, err error)
}

// Timing bounds the waits of a roll.
type Timing struct {
	Poll   time.Duration // pause between two looks at the world
	Settle time.Duration // how long a node must stay healthy
	Stop   time.Duration // guest shutdown, then the plug is pulled
	Boot   time.Duration // power on to maintenance mode
	Join   time.Duration // configuration applied to healthy
	Drain  time.Duration
}

// Roller carries a plan out.
type Roller struct {
	Proxmox     Proxmox
	Talos       Talos
	Maintenance Maintenance
	Kube        Kube
	Journal     Journal

	Cluster    string
	Run        string // ID of the run
	ParkingIDs []VMID // VMIDs that a parking VM may take, in order
	Timing     Timing
	DrainForce bool
	History    History

	// MachineConfig returns a node's configuration where the user keeps it in
	// files; found is false where it has to be read from the node before it goes.
	MachineConfig func(node string) (config Secret, found bool, err error)
	// Say is told what a running step is waiting for; never nil.
	Say func(path, text string)
}

// Steps derives the tree of a roll from its plan: one branch per node, in the plan's order.
func (r *Roller) Steps(p Plan) step.Step {
	work := p.Work()
	return step.Step{
		ID:    "roll",
		Title: fmt.Sprintf("roll %d of %d nodes", len(work), len(p.Nodes)),
		Risk:  step.Destructive,
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, n := range work {
				if len(n.Refused) > 0 {
					return nil, fault.Refusedf("node %s: %s", n.Node, n.Refused[0])
				}
				steps = append(steps, (&nodeRoll{Roller: r, plan: n, want: n.wanted}).step())
			}
			return steps, nil
		},
	}
}

// nodeRoll is one node's way through a roll: DESIGN §9.
type nodeRoll struct {
	*Roller
	plan NodePlan
	want Wanted
}

func (n *nodeRoll) step() step.Step {
	title := fmt.Sprintf("recreate %s (VM %d on %s)", n.plan.Node, n.plan.VMID, n.plan.Host)
	if n.plan.Resume {
		title += ", finishing run " + n.Run
	}
	return step.Step{
		ID: n.plan.Node, Title: title, Risk: step.Destructive, Whole: true,
		Uses: []string{"host/" + n.plan.Host},
		Skip: n.finished,
		Steps: func(context.Context) ([]step.Step, error) {
			return []step.Step{
				{ID: "gate", Title: "check that it is safe to take " + n.plan.Node + " out", Do: n.gate},
				n.takeDown(),
				n.bringUp(),
			}, nil
		},
	}
}

// finished is the goal of the whole branch: the node runs what is wanted and
// nothing of any run is left.
func (n *nodeRoll) finished(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	}
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	m, err := n.Talos.Machine(ctx, n.plan.Addr)
	if err != nil {
		return "", nil //nolint:nilerr // a machine that does not answer is not finished; bring-up says why
	}
	d := Diff(n.want, Found{Name: n.want.Name, VM: &vm, Machine: &m}, n.History)
	if d.Stale {
		return "", nil
	}
	return fmt.Sprintf("runs %s build %s", n.want.Build.TalosVersion, short(n.want.Build.ID)), nil
}

// wait looks until it is so, telling the display what it sees under the step's ID.
func (n *nodeRoll) wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return wait.Until(ctx, wait.For{
		Name: name, Every: n.Timing.Poll, Timeout: timeout,
		Seen: func(seen string) { n.say(id, name+": "+seen) },
	}, look)
}

func (n *nodeRoll) say(id, text string) { n.Say("roll/"+n.plan.Node+"/"+id, text) }

// parking reads the node's parking VM afresh; ErrNotFound while there is none.
func (n *nodeRoll) parking(ctx context.Context) (Parking, error) {
	id, err := n.parkingID(ctx)
	if err != nil {
		return Parking{}, err
	}
	vm, err := n.Proxmox.VM(ctx, id)
	if err != nil {
		return Parking{}, fmt.Errorf("look up parking VM %d: %w", id, err)
	}
	rec, ok, err := ReadRecord(vm)
	if err != nil {
		return Parking{}, err
	}
	switch {
	case ok && rec.Node == n.plan.Node && rec.Cluster == n.Cluster:
		return Parking{VM: vm, Record: rec}, nil
	case n.plan.found.Parking == nil && !ok:
		// The number was only meant for it; somebody else took it first.
		return Parking{}, fmt.Errorf("parking VM of %s: %w", n.plan.Node, ErrNotFound)
	}
	return Parking{}, fault.Refusedf("%s was the parking VM of %s, but its description no longer says so", vm, n.plan.Node)
}

// parkingID finds the parking VM by its record once, and remembers its number.
func (n *nodeRoll) parkingID(ctx context.Context) (VMID, error) {
	if p := n.plan.found.Parking; p != nil {
		return p.VM.ID, nil
	}
	var id VMID
	found, err := n.Journal.Get(n.key("parking"), &id)
	if err != nil {
		return 0, fmt.Errorf("journal: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("parking VM of %s: %w", n.plan.Node, ErrNotFound)
	}
	return id, nil
}

func (n *nodeRoll) key(what string) string { return n.plan.Node + "/" + what }
