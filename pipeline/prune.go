package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// PruneOptions choose what Prune removes and whom it asks.
type PruneOptions struct {
	OlderThan time.Duration // younger ISOs stay
	// Confirm is shown what would go and what stays. Its error, or false, ends the run.
	Confirm func(PruneReport) (bool, error)
	// Holder and Dead are as in RollOptions.
	Holder cluster.Holder
	Dead   func(cluster.Holder) bool
}

// PruneReport is what was found, and what became of it.
type PruneReport struct {
	ISOs   []images.Verdict `json:"isos"`             // with names of ours, on the configured storages
	Unseen []string         `json:"unseen,omitempty"` // where it could not be looked, in words
}

// Going lists the ISOs that nothing needs.
func (r PruneReport) Going() []images.Verdict {
	var going []images.Verdict
	for _, v := range r.ISOs {
		if len(v.Keep) == 0 {
			going = append(going, v)
		}
	}
	return going
}

// Prune removes the ISOs that nothing needs any more from the configured
// storages: look → claim → look again → confirm → delete, each after another look.
// It refuses unless it provably sees every VM that may use one of them.
func Prune(ctx context.Context, p Project, px cluster.Proxmox, shelf images.Shelf, run *step.Runner, o PruneOptions) (rep PruneReport, err error) {
	if err := cluster.NeedsToPrune(p.Config.Images.ISO.Storage).Check(ctx, px); err != nil {
		return rep, err
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil {
		return rep, err
	}
	if rep, err = p.prunable(ctx, px, shelf, o); err != nil || len(rep.Going()) == 0 {
		return rep, err
	}
	held, err := p.pruneClaim(ctx, px, run, o, rep.Going()[0].Host)
	if err != nil {
		return rep, err
	}
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, held.Release(release))
	}()
	// A run that was killed may have left tasks, which make VMs still.
	err = cluster.AwaitOwnTasks(ctx, px, p.timing().Poll, func(seen string) {
		run.Note("prune", "waiting for tasks of an earlier recast: "+seen)
	})
	if err != nil {
		return rep, err
	}
	if rep, err = p.prunable(ctx, px, shelf, o); err != nil || len(rep.Going()) == 0 {
		return rep, err
	}
	ok, err := o.Confirm(rep)
	if err != nil {
		return rep, err
	}
	if !ok {
		return rep, fault.As(fault.Interrupted, errors.New("not confirmed; nothing was removed"))
	}
	pruner := images.Pruner{Shelf: shelf, Verdicts: rep.ISOs, Guard: held.Check}
	return rep, run.Run(ctx, pruner.Step())
}

func (p Project) pruneClaim(ctx context.Context, px cluster.Proxmox, run *step.Runner, o PruneOptions, host string) (*cluster.Held, error) {
	id, err := RollOptions{}.newRunID()
	if err != nil {
		return nil, err
	}
	c := &cluster.Claim{
		Proxmox: px, Cluster: p.Config.Cluster, VMID: p.claimID(), Host: host, Holder: o.Holder, Run: id,
		Dead: o.Dead, Say: func(text string) { run.Note("prune", text) },
	}
	return c.Acquire(ctx)
}

// prunable judges every ISO of ours.
func (p Project) prunable(ctx context.Context, px cluster.Proxmox, shelf images.Shelf, o PruneOptions) (PruneReport, error) {
	rep := PruneReport{ISOs: []images.Verdict{}}
	uses, err := shelf.Uses(ctx)
	if err != nil {
		return rep, err
	}
	vms, err := px.VMs(ctx)
	if err != nil {
		return rep, fmt.Errorf("read Proxmox: %w", err)
	}
	open, err := openUses(vms)
	if err != nil {
		return rep, err
	}
	need, err := p.neededISOs(vms)
	if err != nil {
		return rep, err
	}
	isos, unseen, err := images.ListISOs(ctx, shelf, p.Config.Images.ISO.Storage)
	if err != nil {
		return rep, err
	}
	rep.ISOs, rep.Unseen = images.JudgeISOs(isos, append(uses, open...), need, o.OlderThan, time.Now()), unseen
	return rep, nil
}

// openUses are the VMs that unfinished replacements, of whatever Talos cluster,
// may have to make again as they were.
func openUses(vms []cluster.VM) ([]images.Use, error) {
	var uses []images.Use
	for _, vm := range vms {
		rec, is, err := cluster.ReadRecord(vm)
		if err != nil {
			return nil, err
		}
		if !is || !rec.Open {
			continue
		}
		was, err := rec.Remembered()
		if err != nil {
			return nil, fault.WithHint(fault.Refusedf("%s: %w", vm, err), "finish that replacement first: recast roll or recast recover %s", rec.Node)
		}
		use := images.Use{By: fmt.Sprintf("%s as it was before the unfinished replacement of node %s", was, rec.Node)}
		for key, value := range was.Config {
			if key != "description" {
				use.Values = append(use.Values, value)
			}
		}
		uses = append(uses, use)
	}
	return uses, nil
}

// neededISOs are those of the lock, of the one before it, of unfinished
// replacements and of the builds that VMs were made from.
func (p Project) neededISOs(vms []cluster.VM) (images.Needed, error) {
	need := images.Needed{Names: map[string]string{}, Builds: map[string]string{}}
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return need, err
	}
	previous, _, err := schematics.Previous(p.pastLocks(), lock)
	if err != nil {
		return need, err
	}
	for _, e := range previous.Schematics {
		need.Names[e.ISO.Name] = "the lock before recast.lock has it: the way back"
	}
	for _, e := range lock.Schematics {
		need.Names[e.ISO.Name] = "recast.lock has it"
	}
	for _, vm := range vms {
		if build := vm.MadeFrom(); build != "" {
			need.Builds[build] = vm.String() + " was made from it"
		}
	}
	for _, vm := range vms {
		rec, is, err := cluster.ReadRecord(vm)
		if err != nil {
			return need, err
		}
		if is && rec.Open && rec.Build != "" {
			need.Builds[rec.Build] = fmt.Sprintf("the unfinished replacement of node %s brings it", rec.Node)
		}
	}
	return need, nil
}
