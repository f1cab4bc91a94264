package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/access"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Kinds of things that Prune removes.
const (
	PruneISOs  = "isos"
	PruneDisks = "disks" // also empty parking VMs, and scratch VMs of killed runs
	PruneCache = "cache" // of ISOs, on this machine
	// PruneMirror is pruned only on request: a registry can't tell who else needs its
	// contents.
	PruneMirror = "mirror"
)

// PruneOptions choose what Prune removes.
type PruneOptions struct {
	Only      string        // one kind; "": all except the mirror
	OlderThan time.Duration // keep ISOs, cached ISOs and mirrored installers that are younger
	KeepDisks *int          // how many old system disks of a node to keep; nil: roll.keepDisks
	Mirror    images.MirrorShelf
	// Confirm is called with what would be removed and kept. Its error, or false, ends the run.
	Confirm func(PruneReport) (bool, error)
	// Holder and Dead are as in RollOptions.
	Holder claim.Holder
	Dead   func(claim.Holder) bool
}

func (o PruneOptions) takes(kind string) bool {
	return o.Only == kind || o.Only == "" && kind != PruneMirror
}

// PruneReport is what was found, and what was done with it.
type PruneReport struct {
	ISOs    []images.Verdict       `json:"isos"`              // recast's own, on the configured storages
	Disks   []prune.KeptVerdict    `json:"disks"`             // old system disks
	VMs     []prune.ParkingVerdict `json:"vms"`               // parking VMs
	Scratch []roll.ScratchVerdict  `json:"scratch,omitempty"` // scratch VMs of killed runs
	Cache   []images.CacheVerdict  `json:"cache"`             // recast's files in the ISO cache
	Mirror  []images.MirrorVerdict `json:"mirror,omitzero"`   // installers with recast's tags; only on request
	Unseen  []string               `json:"unseen,omitempty"`  // what could not be checked, in words
}

// GoingISOs lists the ISOs to remove.
func (r PruneReport) GoingISOs() []images.Verdict {
	return slices.DeleteFunc(slices.Clone(r.ISOs), func(v images.Verdict) bool { return len(v.Keep) > 0 })
}

// GoingDisks lists the old system disks to free.
func (r PruneReport) GoingDisks() []prune.KeptVerdict {
	return slices.DeleteFunc(slices.Clone(r.Disks), func(v prune.KeptVerdict) bool { return len(v.Keep) > 0 })
}

// GoingVMs lists the parking VMs to delete: they own nothing after that.
func (r PruneReport) GoingVMs() []prune.ParkingVerdict {
	return slices.DeleteFunc(slices.Clone(r.VMs), func(v prune.ParkingVerdict) bool { return len(v.Keep) > 0 })
}

// GoingScratch lists the scratch VMs to delete.
func (r PruneReport) GoingScratch() []roll.ScratchVerdict {
	return slices.DeleteFunc(slices.Clone(r.Scratch), func(v roll.ScratchVerdict) bool { return len(v.Keep) > 0 })
}

// GoingCache lists the files of the ISO cache to remove.
func (r PruneReport) GoingCache() []images.CacheVerdict {
	return slices.DeleteFunc(slices.Clone(r.Cache), func(v images.CacheVerdict) bool { return len(v.Keep) > 0 })
}

// GoingMirror lists the mirrored installers to remove.
func (r PruneReport) GoingMirror() []images.MirrorVerdict {
	return slices.DeleteFunc(slices.Clone(r.Mirror), func(v images.MirrorVerdict) bool { return len(v.Keep) > 0 })
}

// host is where to create the claim if there is none; "" if nothing is removed.
func (r PruneReport) host(online []string) string {
	for _, v := range r.GoingDisks() {
		return v.Host
	}
	for _, v := range r.GoingVMs() {
		return v.Host
	}
	for _, v := range r.GoingScratch() {
		return v.Host
	}
	for _, v := range r.GoingISOs() {
		return v.Host
	}
	if len(r.GoingMirror())+len(r.GoingCache()) > 0 && len(online) > 0 {
		return online[0]
	}
	return ""
}

// Prune removes what is no longer needed: old system disks and empty parking VMs, scratch
// VMs of killed runs, ISOs on the configured storages and in the cache, installers in the
// mirror: check → claim → check again → confirm → remove, each after another check. It
// refuses unless it provably sees every VM that may use one of them.
func Prune(ctx context.Context, p Project, px cluster.Proxmox, shelf images.Shelf, run *step.Runner, o PruneOptions) (rep PruneReport, err error) {
	rep = PruneReport{ISOs: []images.Verdict{}, Disks: []prune.KeptVerdict{}, VMs: []prune.ParkingVerdict{}, Cache: []images.CacheVerdict{}}
	if err := p.mayPrune(ctx, px, o); err != nil {
		return rep, err
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil {
		return rep, err
	}
	if _, err := p.prunable(ctx, px, shelf, o, &rep); err != nil {
		return rep, err
	}
	online, _, err := shelf.Nodes(ctx)
	if err != nil {
		return rep, fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	host := rep.host(online)
	if host == "" {
		// A run that was killed at its very end has left only its claim.
		if host, err = p.claimLeft(ctx, px); err != nil || host == "" {
			return rep, err
		}
	}
	held, err := p.pruneClaim(ctx, px, run, o, host)
	if err != nil {
		return rep, err
	}
	all := ctx
	ctx, done := held.Within(all)
	defer func() {
		done()
		err = held.Judge(err)
		release, cancel := context.WithTimeout(context.WithoutCancel(all), releaseTimeout)
		defer cancel()
		err = errors.Join(err, held.Release(release))
	}()
	vms, _, err := p.readable(ctx, px)
	if err != nil {
		return rep, err
	}
	// A killed run may have left tasks, which may still create VMs.
	err = p.awaitTasks(ctx, px, vms, func(seen string) {
		run.Note("prune", "waiting for tasks of an earlier recast: "+seen)
	})
	if err != nil {
		return rep, err
	}
	parked, err := p.prunable(ctx, px, shelf, o, &rep)
	if err != nil || rep.host(online) == "" {
		return rep, err
	}
	ok, err := o.Confirm(rep)
	if err != nil {
		return rep, err
	}
	if !ok {
		return rep, fault.NotConfirmed.Of(fault.As(fault.Interrupted, errors.New("not confirmed; nothing was removed")))
	}
	parked.Proxmox = held.Guard(px)
	parked.Say = func(text string) { run.Note("prune", text) }
	scratch := p.scratchPruner(held.Guard(px))
	scratch.VMs = rep.Scratch
	isos := images.Pruner{Shelf: shelf, Verdicts: rep.ISOs, Guard: held.Check}
	cache := images.CachePruner{Cache: images.NewCache(p.isoCache()), Verdicts: rep.Cache, Guard: held.Check}
	mirror := images.MirrorPruner{Shelf: o.Mirror, Verdicts: rep.Mirror, Guard: held.Check}
	return rep, run.Run(ctx, step.Step{
		ID: "prune", Title: "remove what is no longer needed",
		Steps: func(context.Context) ([]step.Step, error) {
			return slices.Concat(scratch.Steps(), parked.Steps(), isos.Steps(), cache.Steps(), mirror.Steps()), nil
		},
	})
}

// mayPrune refuses if the token lacks privileges for removing a kind.
func (p Project) mayPrune(ctx context.Context, px cluster.Proxmox, o PruneOptions) error {
	if o.takes(PruneMirror) {
		return p.mayPruneMirror(ctx, px)
	}
	if o.Only == PruneCache {
		return access.NeedsToPrune(nil).Check(ctx, px)
	}
	var errs []error
	for _, kind := range []string{PruneISOs, PruneDisks} {
		if !o.takes(kind) {
			continue
		}
		needs, other := access.NeedsToPrune(p.Config.Images.ISO.Storage), PruneDisks
		if kind == PruneDisks {
			vms, err := px.VMs(ctx)
			if err != nil {
				return fmt.Errorf("read Proxmox: %w", err)
			}
			needs, other = access.NeedsToFree(p.parkedOn(vms)), PruneISOs
			if len(planning.ScratchVMs(vms, p.Config.Cluster)) > 0 {
				needs = needs.With(access.NeedsToClear())
			}
		}
		err := needs.Check(ctx, px)
		if err != nil && o.Only == "" {
			err = fault.WithHint(err, "or leave those alone: recast prune --only %s", other)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prunable judges everything of the selected kinds.
func (p Project) prunable(ctx context.Context, px cluster.Proxmox, shelf images.Shelf, o PruneOptions, rep *PruneReport) (parked prune.ParkingPruner, err error) {
	uses, err := shelf.Uses(ctx)
	if err != nil {
		return parked, err
	}
	vms, err := px.VMs(ctx)
	if err != nil {
		return parked, fmt.Errorf("read Proxmox: %w", err)
	}
	if o.takes(PruneDisks) {
		if parked, err = p.judgeDisks(ctx, px, shelf, vms, uses, o); err != nil {
			return parked, err
		}
		scratch := p.scratchPruner(px)
		if err := scratch.Judge(ctx, vms); err != nil {
			return parked, err
		}
		rep.Disks, rep.VMs, rep.Scratch = parked.Kept, parked.VMs, scratch.VMs
	}
	if o.takes(PruneISOs) || o.takes(PruneCache) {
		err = p.judgeISOs(ctx, shelf, vms, uses, o, rep)
	}
	if o.takes(PruneMirror) {
		rep.Mirror, err = p.judgeMirror(ctx, o.Mirror, vms, o)
	}
	return parked, err
}

// claimLeft is the host of the claim, held or left over; "" if there is none.
func (p Project) claimLeft(ctx context.Context, px cluster.Proxmox) (host string, err error) {
	vms, err := px.VMs(ctx)
	if err != nil {
		return "", fmt.Errorf("read Proxmox: %w", err)
	}
	claim, _, err := claim.Peek(vms, p.Config.Cluster, p.claimID())
	return claim.VM.Host, err
}

func (p Project) pruneClaim(ctx context.Context, px cluster.Proxmox, run *step.Runner, o PruneOptions, host string) (*claim.Held, error) {
	id, err := RollOptions{}.newRunID()
	if err != nil {
		return nil, err
	}
	c := &claim.Claim{
		Proxmox: px, Cluster: p.Config.Cluster, VMID: p.claimID(), VMIDs: p.vmids(), Nodes: p.nodeVMs(planning.Plan{}), Parked: true,
		Host: host, Holder: o.Holder, Run: id,
		Dead: o.Dead, Say: func(text string) { run.Note("prune", text) },
	}
	return c.Acquire(ctx)
}
