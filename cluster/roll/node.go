package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// node is one node in a roll (DESIGN §9): what the plan says about it, and what only this process knows. Its steps
// are in order in life.go; the other files have the bodies by topic.
type node struct {
	*rolling.Node
	roller *Roller
	hooks  cluster.Hooks

	record    *record           // the record on the parking VM, and the exchange that it describes
	etcd      *etcdMember       // membership of a control plane in etcd
	config    savedConfig       // its machine configuration
	userGates rolling.UserGates // the user's gates
	healing   healing           // volumes of which other nodes have copies
	served    served            // volumes of servers that may know the node by name
	serving   serving           // the VM while the node serves

	pulled    bool      // it was told to fetch the installer
	answered  bool      // with the cluster's certificates, since it was replaced
	renewed   bool      // it got another blank system disk after an interrupted installation
	settledAt time.Time // when it had been healthy for the settling time; zero: not yet
}

// planned returns node n of p, in one of the phases of p.
func (r *Roller) planned(p planning.Plan, n planning.NodePlan, phase planning.Phase) *node {
	n.ControlPlanes, n.Heed = p.ControlPlanes, p.Heed
	of := r.node(rolling.Node{Plan: n, Want: n.Wanted, Path: planning.StepPath(phase, n.Node)})
	of.userGates.Gates, of.hooks = p.Gates, p.Hooks
	return of
}

// node returns a node of this roll.
func (r *Roller) node(h rolling.Node) *node {
	h.Roll = r.Roll
	n := &node{Node: &h, roller: r, config: savedConfig{Node: &h, files: r.MachineConfig}}
	n.record = &record{Node: &h, roller: r, asks: n.RequireNoLossOff, forget: n.config.forget}
	n.etcd = &etcdMember{Node: &h, record: n.record, files: r.Files, backOut: n.backOut}
	n.userGates = rolling.UserGates{Node: &h, Objects: r.Objects, Commands: r.Commands, LeftOpen: n.batchLeftOpen}
	n.healing = healing{Node: &h, leaving: &r.leaving, LeftOpen: n.batchLeftOpen}
	n.served = served{Node: &h, Files: r.Files, LeftOpen: n.batchLeftOpen}
	n.serving = serving{Node: &h}
	return n
}

func (n *node) branch() step.Step {
	title := fmt.Sprintf("%s %s (VM %d on %s)", n.Plan.Strategy, n.Plan.Node, n.Plan.VMID, n.Plan.Host)
	if n.Plan.Run != "" {
		title += ", left unfinished by run " + n.Run
	}
	s := step.Step{ID: n.Plan.Node, Title: title, Risk: step.Destructive, Whole: true, Uses: n.Plan.Slots, Ahead: n.RepeatingAll("", n.pullSteps())}
	s.Skip = n.Repeating("", step.Step{Skip: n.finished}).Skip
	s.Lacks = n.unfinished
	s.Steps = func(context.Context) ([]step.Step, error) { return n.life(), nil }
	if !n.Plan.Strategy.KeepsVM() {
		s = n.explained(s)
	}
	return s
}

// explained returns s with failures that say where the node's disks are.
func (n *node) explained(s step.Step) step.Step {
	return exchange.Explained(s, func(ctx context.Context, err error) error {
		mem, errMemory := n.Memory(ctx)
		if errMemory != nil {
			return err // nothing was started
		}
		park, errPark := n.Parking(ctx)
		rec := park.Record
		if errPark != nil {
			// The record can't be read; the memory has the same facts.
			if rec, errMemory = n.record.opening().Opened(mem, nil); errMemory != nil {
				return err
			}
			park.VM.ID, _ = n.ParkingID(ctx) // 0: not known
		}
		if !rec.Open || rec.Run != n.Run {
			return err
		}
		return n.record.of(mem, rec, park.VM.ID).Located(ctx, err)
	})
}

// finished is the goal of the whole branch: the node runs what is wanted, and no run has left anything to clean up.
func (n *node) finished(ctx context.Context) (string, error) {
	s := n.Plan.Strategy
	switch {
	case s.From() == cluster.Blank:
		return n.serves(ctx)
	case s.KeepsVM() && !s.Upgrades():
		return newApplyConfig(n).given(ctx)
	case s.VM() == cluster.VMGone:
		return n.removed(ctx)
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	case s.Reshapes():
		return n.reshaped(ctx)
	case s.System() == cluster.SystemOld:
		n.Out.Remove(n.Plan.Node)
		return "its old system disk is back", nil
	case s.System() == cluster.SystemKept:
		return n.rolledBackTo(park.Record), nil
	}
	ended := n.Out.Has(n.Plan.Node) // false before its steps: it is not out yet
	if s.From() == cluster.Nowhere && !ended {
		return "", nil
	}
	d, known, err := n.drift(ctx, park, ended)
	if err != nil || !known || d.Rollable() {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return fmt.Sprintf("runs %s build %s", n.Want.Build.TalosVersion, words.Short(n.Want.Build.ID)), nil
}

// unfinished names what keeps the node from being finished.
func (n *node) unfinished(ctx context.Context) (string, error) {
	if !n.Plan.Strategy.BringsImage() {
		return "", nil // its goal is another one, named by the title
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return fmt.Sprintf("the record on %s is still open", park.VM), nil
	}
	d, known, err := n.drift(ctx, park, false)
	if err != nil || !known {
		return "its machine does not answer", err
	}
	reasons := cluster.Each(d.Reasons, func(r cluster.Reason) string { return r.Text })
	return strings.Join(reasons, "; "), nil
}

// drift returns how the node differs from what is wanted now. known is false if its machine does not answer, which
// is an error once the node has ended.
func (n *node) drift(ctx context.Context, park parking.Parking, ended bool) (d observe.Drift, known bool, err error) {
	vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
	if err != nil {
		return d, false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	m, err := cluster.ReadCompared(ctx, n.Talos, n.Plan.Addr)
	switch {
	case err != nil && ended:
		return d, false, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	case err != nil || m.ConfigHidden:
		return d, false, nil //nolint:nilerr // a machine that does not answer is not finished; bring-up says why
	}
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case err == nil || errors.Is(err, cluster.ErrNotFound):
	case ended:
		return d, false, fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	default:
		return d, false, nil //nolint:nilerr // a single control plane's API is down with it
	}
	inKubernetes := err == nil
	if inKubernetes {
		m.RunningSystem = k.Corrected(m.RunningSystem, "")
	}
	f := observe.Found{Name: n.Want.Name, VM: &vm, Machine: &m}
	if len(n.Plan.VM) > 0 {
		if _, f.Shape, err = n.serving.Running().Now(ctx); err != nil {
			return d, false, err
		}
	}
	if park.VM.ID != 0 {
		f.Parking = &park
	}
	if inKubernetes {
		f.Node = &k
	}
	return observe.Diff(n.Want, f, n.roller.History), true, nil
}

// rolledBackTo is the goal of a rollback: the kept disk is no longer parked.
func (n *node) rolledBackTo(rec parking.Record) string {
	parked := slices.ContainsFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.Key == n.Plan.Restore.Key && k.Run == n.Plan.Restore.Run })
	if parked {
		return ""
	}
	n.Out.Remove(n.Plan.Node)
	return "it runs its earlier system again"
}

// reshaped is the goal of a node that only gets another VM. What a newer recast.yaml wants of a resumed node is
// planned again afterwards.
func (n *node) reshaped(ctx context.Context) (string, error) {
	ended := n.Out.Has(n.Plan.Node) // false before its steps
	done, err := n.serving.Finished(ctx)
	reason := ""
	if err == nil && (n.Plan.Resume || done) {
		reason, err = n.uncordoned(ctx)
	}
	switch {
	case err != nil && !ended:
		return "", nil //nolint:nilerr // its steps say what is wrong
	case err != nil || reason == "":
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "its VM is as wanted", nil
}
