package roll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Rehearsed is what came of trying one image out.
type Rehearsed struct {
	Host     string `json:"host"`
	Firmware string `json:"firmware"` // in words: "OVMF, q35, CPU host"
	planning.Medium
	Nodes  []string   `json:"nodes"`            // that are to boot it like that
	Addr   netip.Addr `json:"address,omitzero"` // where it answered
	Unseen string     `json:"unseen,omitempty"` // why nobody could look at what it booted; "": it was as wanted
}

func (r Rehearsed) String() string {
	if r.Unseen != "" {
		return fmt.Sprintf("a VM like those of the nodes starts with it; what it booted was not seen: %s", r.Unseen)
	}
	return fmt.Sprintf("it booted to maintenance mode at %s, and is what its name says", r.Addr)
}

// Rehearser tries out what the nodes of one plan will boot.
type Rehearser struct {
	// Proxmox checks that the claim is still ours before each change: see Held.Guard.
	Proxmox     cluster.Proxmox
	Maintenance cluster.Maintenance
	Kube        cluster.NodeReader
	Journal     trialJournal

	Cluster string
	Run     string         // ID of the run
	VMIDs   []cluster.VMID // for scratch VMs, the last free one is taken first
	Timing  cluster.Timing
	Say     func(path, text string) // receives what a running step waits for; never nil
	// HandedOver reports whether the journal of an earlier run has the fact; nil: none is known.
	HandedOver func(cluster.HandsOver) (bool, error)

	mu      sync.Mutex
	results []Rehearsed
}

// trialJournal records which trials passed. Every write is durable when it returns.
type trialJournal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
}

// Results returns the results of the trials.
func (r *Rehearser) Results() []Rehearsed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.results)
}

// Steps returns the steps before any node is looked at: scratch VMs of killed runs are deleted, what a
// replacement relies on is proved, and what the nodes will boot is tried out.
func (r *Rehearser) Steps(p planning.Plan) []step.Step {
	var steps []step.Step
	if len(p.Scratch) > 0 {
		steps = append(steps, r.clear(p.Scratch))
	}
	all := step.Step{ID: "prove", Title: "prove on scratch VMs that a node's VM can be created again, and its disks handed over"}
	if len(p.Trials) > 0 {
		all = step.Step{ID: "rehearse", Code: fault.RehearsalFailed, Title: "try out on scratch VMs what the nodes will boot"}
	}
	byHost := r.proofs(p, "roll/"+all.ID)
	for _, t := range p.Trials {
		byHost[t.Host] = append(byHost[t.Host], r.try(t))
	}
	if len(byHost) == 0 {
		return steps
	}
	var branches []step.Step
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		branches = append(branches, step.Step{ID: host, Title: "on " + host, Steps: step.List(byHost[host]...)})
	}
	all.Limit, all.Steps = len(branches), step.List(branches...)
	return append(steps, all)
}

// clear deletes the scratch VMs of killed runs, unless they were changed.
func (r *Rehearser) clear(left []planning.LeftScratch) step.Step {
	pruner := r.pruner()
	for _, l := range left {
		pruner.VMs = append(pruner.VMs, ScratchVerdict{LeftScratch: l})
	}
	return step.Step{
		ID: "clear-scratch", Title: "delete scratch VMs that a run has left", Risk: step.Destructive,
		Steps: func(context.Context) ([]step.Step, error) { return pruner.Steps(), nil },
	}
}

// try boots what nodes will boot.
func (r *Rehearser) try(t planning.Trial) step.Step {
	run := &trial{Trial: t, Rehearser: r}
	s := step.Step{
		ID: t.ID, Kind: "try-boot", Title: fmt.Sprintf("boot %s with %s, as %s will", t.Medium, t.Firmware, strings.Join(t.Nodes, ", ")),
		Skip: run.done, Do: run.do, Yields: true,
	}
	if t.Addr.IsValid() {
		s.Uses = []string{"rehearse/" + t.Addr.Addr().String()}
	}
	return s
}

// trial is one trial in progress.
type trial struct {
	planning.Trial
	*Rehearser
	scratchVM // zero until it is created
}

func (t *trial) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.Host, Firmware: t.Firmware, Medium: t.Medium, Nodes: t.Nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.requireWhole(vm); err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.Nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}

func (t *trial) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	if err = t.remove(ctx, err); err != nil {
		return err
	}
	t.mu.Lock()
	t.results = append(t.results, was)
	t.mu.Unlock()
	return fault.Prefix("journal", t.Journal.Put(t.key(), was))
}

// done asks the journal: the scratch VM is deleted, so the world can't tell.
func (t *trial) done(context.Context) (string, error) {
	var was Rehearsed
	found, err := t.Journal.Get(t.key(), &was)
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	if !found || was.Medium != t.Medium || was.Firmware != t.Firmware {
		return "", nil
	}
	return was.String(), nil
}

func (t *trial) key() string {
	sum := sha256.Sum256([]byte(t.Host + "/" + t.ID))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// scratchTimeout limits each part that an interruption does not cancel: the wait for the tasks of a
// scratch VM, and its deletion.
const scratchTimeout = 2 * time.Minute

func (t *trial) path() string { return "roll/rehearse/" + t.Host + "/" + t.ID }

// wait waits until look succeeds, and shows what it sees.
func (t *trial) wait(ctx context.Context, name string, look wait.Look) error {
	return t.Timing.Await(ctx, wait.For{Name: name, Timeout: t.Timing.Boot, Seen: func(seen string) { t.say(name + ": " + seen) }}, look)
}
