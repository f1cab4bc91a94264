package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Journal keeps what the world can no longer tell once a VM is gone. Every
// write is durable when it returns.
type Journal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
	PutSecret(key string, b []byte) error
	Secret(key string) (b []byte, found bool, err error)
	// Delete removes the fact and the secret of a key; there need be neither.
	Delete(key string) error
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
	// Each of these four checks that the claim is still ours before it changes
	// anything: see Held.Guard.
	Proxmox     Proxmox
	Talos       Talos
	Maintenance Maintenance
	Kube        Kube
	Journal     Journal
	Files       FileReader // of the machines
	Objects     ObjectJudge
	Commands    CommandRunner

	Cluster      string
	Run          string    // ID of the run
	ParkingIDs   []VMID    // VMIDs that a parking VM may take, in order
	VMIDs        VMIDRange // of the recast.yaml, which the records name
	Timing       Timing
	DrainForce   bool
	DrainDeletes bool        // pods that are refused until the end of a drain
	AcceptOutage bool        // of etcd and the Kubernetes API, where two control planes are all there are
	BootFailure  BootFailure // what to do with a node that does not come back from an in-place upgrade
	SnapshotDir  string      // where snapshots of etcd are saved
	History      History

	// MachineConfig returns a node's configuration where the user keeps it in
	// files; found is false where it has to be read from the node before it goes.
	MachineConfig func(node string) (config Secret, found bool, err error)
	// Say is told what a running step is waiting for; never nil.
	Say func(path, text string)
	// Hooked is told how each hook fared; nil: nobody is.
	Hooked func(HookRun)

	out       outNodes // what this roll has out at the moment
	rehearsed rehearsedISOs

	parkingNumbers freeNumbers
	late           lateRequests
}

// BootFailure is the policy for a node that does not come back from an in-place upgrade.
type BootFailure string

// The policies. The node's own rollback takes an API that answers; a reimage does not.
const (
	StopOnBootFailure     BootFailure = "stop"
	RollbackOnBootFailure BootFailure = "rollback"
	ReimageOnBootFailure  BootFailure = "reimage"
)

// Steps derives the tree of a roll from its plan: a branch per phase, in it one
// per node, in the plan's order.
func (r *Roller) Steps(p Plan) step.Step {
	work := p.Work()
	return step.Step{
		ID:    "roll",
		Title: fmt.Sprintf("roll %d of %d nodes", len(work), len(p.Nodes)),
		Risk:  step.Destructive, LookAhead: 1,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := r.rehearseSteps(p)
			if slices.ContainsFunc(work, NodePlan.needsSnapshot) {
				steps = append(steps, r.snapshotStep(p))
			}
			for _, b := range p.Batches {
				branch, err := r.phase(p, b)
				if err != nil {
					return nil, err
				}
				steps = append(steps, branch)
			}
			return steps, nil
		},
	}
}

// maxAhead is how many nodes, beside those that are rolled, fetch their installer at a
// time: more would only share the registry's line.
const maxAhead = 10

func (r *Roller) phase(p Plan, b Batch) (step.Step, error) {
	var steps, first []step.Step
	ahead := min(b.Limit+1, maxAhead)
	for i, n := range p.of(b) {
		if len(n.Refused) > 0 {
			return step.Step{}, fault.PlanRefused.Refusedf("node %s: %s", n.Node, n.Refused[0])
		}
		roll := &nodeRoll{Roller: r, plan: n, want: n.wanted, gates: p.Gates, hooks: p.Hooks, path: StepPath(b.Phase, n.Node)}
		roll.plan.controlPlanes, roll.plan.heed = p.controlPlanes, p.heed
		branch := roll.step()
		steps = append(steps, branch)
		if i < ahead && len(branch.Ahead) > 0 {
			early := branch.Ahead
			first = append(first, step.Step{ID: branch.ID, Title: branch.Title, Quiet: true, Steps: func(context.Context) ([]step.Step, error) { return early, nil }})
		}
	}
	steps = r.withBatchHooks(p, b, steps)
	return step.Step{
		ID: string(b.Phase), Title: b.Phase.title(len(b.Nodes), b.Limit), Risk: step.Destructive, Limit: b.Limit, LookAhead: ahead, Ahead: first, Beside: b.Beside,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}, nil
}

// nodeRoll is one node's way through a roll: DESIGN §9.
type nodeRoll struct {
	*Roller
	plan  NodePlan
	want  Wanted
	gates []UserGate
	hooks Hooks
	path  string // of its branch in the tree

	drawn     *Replace  // as it would be, where nothing is done and its steps are only listed; nil: it is read
	opened    *Replace  // as its record was read last; nil: not yet
	pulled    bool      // it was made to fetch the installer
	rebooted  bool      // it was told to, by this very process
	accepted  bool      // and has answered that it does
	answered  bool      // with the cluster's certificates, since it was made anew
	renewed   bool      // it got another blank system disk, after its installation was cut off
	settledAt time.Time // when it had been healthy for the settling time; zero: not yet
	reached   string    // why what the machine runs is what is wanted; "": it is not
	reachedAt time.Time // when that was seen
	outOfEtcd bool      // etcd has been seen without it, in a take-down
	gaveUp    error     // why a node that was upgraded in place is to be reimaged
}

func (n *nodeRoll) step() step.Step {
	title := fmt.Sprintf("%s %s (VM %d on %s)", n.plan.Strategy, n.plan.Node, n.plan.VMID, n.plan.Host)
	if n.plan.run != "" {
		title += ", left unfinished by run " + n.Run
	}
	s := step.Step{ID: n.plan.Node, Title: title, Risk: step.Destructive, Whole: true, Uses: n.plan.Slots, Ahead: n.repeatingAll("", n.pullSteps())}
	s.Skip = n.repeating("", step.Step{Skip: n.finished}).Skip
	s.Steps = func(context.Context) ([]step.Step, error) { return n.branches(), nil }
	if n.plan.Strategy != InPlace {
		s = n.explained(s)
	}
	return s
}

func (n *nodeRoll) branches() []step.Step {
	return slices.Concat(n.askBefore(), n.hookBefore(), n.repeatingAll("", n.work()), n.hookAfter(), n.askAfter())
}

func (n *nodeRoll) work() []step.Step {
	gate := step.Step{ID: "gate", Code: fault.GateClosed, Title: "check that it is safe to take " + n.plan.Node + " out", Do: n.gate}
	switch n.plan.Strategy {
	case InPlace:
		return append([]step.Step{gate}, n.inPlace()...)
	case PutBack:
		return []step.Step{gate, n.putBackStep()}
	case Configure:
		return append([]step.Step{gate}, n.configureSteps()...)
	}
	return []step.Step{gate, n.takeDown(), n.bringUp()}
}

// finished is the goal of the whole branch: the node runs what is wanted and
// nothing of any run is left.
func (n *nodeRoll) finished(ctx context.Context) (string, error) {
	if n.plan.Strategy == Configure {
		return n.serves(ctx)
	}
	park, err := n.parking(ctx)
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	case n.plan.Strategy == PutBack:
		n.out.remove(n.plan.Node)
		return "its old system disk is back", nil
	case n.plan.Strategy == Rollback:
		return n.rolledBackTo(park.Record), nil
	}
	vm, err := n.Proxmox.VMConfig(ctx, n.plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	ended := n.out.has(n.plan.Node) // asked before its steps it is not out yet
	m, err := n.Talos.System(ctx, n.plan.Addr)
	switch {
	case err != nil && ended:
		return "", fmt.Errorf("read machine %s: %w", n.plan.Addr, err)
	case err != nil || m.ConfigHidden:
		return "", nil //nolint:nilerr // a machine that does not answer is not finished; bring-up says why
	}
	k, err := n.Kube.Node(ctx, n.plan.Node)
	switch {
	case err == nil || errors.Is(err, ErrNotFound):
	case ended:
		return "", fmt.Errorf("ask Kubernetes for node %s: %w", n.plan.Node, err)
	default:
		return "", nil //nolint:nilerr // a single control plane's API is away with it
	}
	known := err == nil
	if known {
		m = k.corrected(m)
	}
	f := Found{Name: n.want.Name, VM: &vm, Machine: &m}
	if park.VM.ID != 0 {
		f.Parking = &park
	}
	if known {
		f.Node = &k
	}
	if Diff(n.want, f, n.History).rollable() {
		return "", nil
	}
	n.out.remove(n.plan.Node)
	return fmt.Sprintf("runs %s build %s", n.want.Build.TalosVersion, words.Short(n.want.Build.ID)), nil
}

func (n *nodeRoll) say(id, text string) { n.Say(n.path+"/"+id, text) }

// parking reads the node's parking VM afresh; ErrNotFound while there is none.
func (n *nodeRoll) parking(ctx context.Context) (Parking, error) {
	id, err := n.parkingID(ctx)
	if err != nil {
		return Parking{}, err
	}
	vm, err := n.Proxmox.VMConfig(ctx, id)
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
	case n.plan.found.Parking == nil && (!ok && vm.Name != parkingName(n.plan.Node) || ok && rec.Node != n.plan.Node):
		// The number was only meant for it; another VM took it first.
		return Parking{}, fmt.Errorf("parking VM of %s: %w", n.plan.Node, ErrNotFound)
	}
	return Parking{}, descriptionChanged(vm, n.plan.Node)
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
