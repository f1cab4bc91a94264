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

// Rehearsed is what came of trying one boot ISO out.
type Rehearsed struct {
	Host     string     `json:"host"`
	Firmware string     `json:"firmware"` // in words: "OVMF, q35, CPU host"
	ISO      string     `json:"iso"`
	Nodes    []string   `json:"nodes"`            // that are to boot it like that
	Addr     netip.Addr `json:"address,omitzero"` // where it answered
	Unseen   string     `json:"unseen,omitempty"` // why nobody could look at what it booted; "": it was as wanted
}

func (r Rehearsed) String() string {
	if r.Unseen != "" {
		return fmt.Sprintf("a VM like those of the nodes starts with it; what it booted was not seen: %s", r.Unseen)
	}
	return fmt.Sprintf("it booted to maintenance mode at %s, and is what its name says", r.Addr)
}

// Rehearsed are the boot ISOs that this roll has tried out.
func (r *Roller) Rehearsed() []Rehearsed {
	r.rehearsed.mu.Lock()
	defer r.rehearsed.mu.Unlock()
	return slices.Clone(r.rehearsed.all)
}

// clearScratch deletes what killed runs have left.
func (r *Roller) clearScratch(left []planning.LeftScratch) step.Step {
	pruner := r.scratchPruner()
	for _, l := range left {
		pruner.VMs = append(pruner.VMs, ScratchVerdict{LeftScratch: l})
	}
	return step.Step{
		ID: "clear-scratch", Title: "delete scratch VMs that a run has left", Risk: step.Destructive,
		Steps: func(context.Context) ([]step.Step, error) { return pruner.Steps(), nil },
	}
}

func (r *Roller) rehearseHost(host string, trials []planning.Trial) step.Step {
	var steps []step.Step
	for _, t := range trials {
		run := &rehearsal{Trial: t, node: wired(&node{Roller: r, plan: t.Model, want: t.Model.Wanted, path: "roll/rehearse/" + host})}
		s := step.Step{
			ID: t.ID, Kind: "try-boot", Title: fmt.Sprintf("boot %s with %s, as %s will", t.ISO, t.Firmware, strings.Join(t.Nodes, ", ")),
			Skip: run.done, Do: run.do, Yields: true,
		}
		if t.Addr.IsValid() {
			s.Uses = []string{"rehearse/" + t.Addr.Addr().String()}
		}
		steps = append(steps, s)
	}
	return step.Step{ID: host, Title: "on " + host, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// rehearseSteps are what comes before any node is looked at: scratch VMs of killed
// runs go, as they were made or not at all, and the boot ISOs are tried out.
func (r *Roller) rehearseSteps(p planning.Plan) []step.Step {
	var steps []step.Step
	if len(p.Scratch) > 0 {
		steps = append(steps, r.clearScratch(p.Scratch))
	}
	if len(p.Trials) == 0 {
		return steps
	}
	var branches []step.Step
	byHost := map[string][]planning.Trial{}
	for _, t := range p.Trials {
		byHost[t.Host] = append(byHost[t.Host], t)
	}
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		branches = append(branches, r.rehearseHost(host, byHost[host]))
	}
	return append(steps, step.Step{
		ID: "rehearse", Code: fault.RehearsalFailed, Title: "try the boot ISOs out on scratch VMs", Limit: len(branches),
		Steps: func(context.Context) ([]step.Step, error) { return branches, nil },
	})
}

// rehearsal is one trial in progress.
type rehearsal struct {
	planning.Trial
	*node // of the node that it is modelled on, which is only read

	vmid cluster.VMID // that was asked for; 0: none
	uuid string
}

func (t *rehearsal) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.Host, Firmware: t.Firmware, ISO: t.ISO, Nodes: t.Nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.Nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}

func (t *rehearsal) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	if t.vmid != 0 {
		after := context.WithoutCancel(ctx)
		if errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil { // Proxmox may be about to make it, or to start it
			err = errors.Join(err, t.settle(after))
		}
		after, cancel := context.WithTimeout(after, scratchTimeout)
		defer cancel()
		err = errors.Join(err, t.scratchPruner().delete(after, t.vmid, t.uuid))
	}
	if err != nil {
		return err
	}
	t.rehearsed.mu.Lock()
	t.rehearsed.all = append(t.rehearsed.all, was)
	t.rehearsed.mu.Unlock()
	return fault.Prefix("journal", t.Journal.Put(t.key(), was))
}

// done asks the journal: of a scratch VM that is deleted, the world tells nothing.
func (t *rehearsal) done(context.Context) (string, error) {
	var was Rehearsed
	found, err := t.Journal.Get(t.key(), &was)
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	if !found || was.ISO != t.ISO || was.Firmware != t.Firmware {
		return "", nil
	}
	return was.String(), nil
}

func (t *rehearsal) key() string {
	sum := sha256.Sum256([]byte(t.Host + "/" + t.ID))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// settle waits for the tasks about the scratch VM, and for no others of ours: those
// may take longer than anybody waits after Ctrl-C.
func (t *rehearsal) settle(ctx context.Context) error {
	w := wait.For{
		Name: fmt.Sprintf("tasks of scratch VM %d to end", t.vmid), Every: t.Timing.Poll, Timeout: scratchTimeout,
		Seen: func(seen string) { t.say(t.ID, seen) },
	}
	return awaitTasks(ctx, w, func(ctx context.Context) ([]string, error) {
		return t.Proxmox.OwnTasksOf(ctx, t.Host, t.vmid)
	})
}

// rehearsedISOs gathers what came of the trials of one roll.
type rehearsedISOs struct {
	mu  sync.Mutex
	all []Rehearsed
}

// scratchTimeout bounds each part of what an interruption does not cut off: the wait
// for what Proxmox does with a scratch VM, and the VM's end.
const scratchTimeout = 2 * time.Minute
