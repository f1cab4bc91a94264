package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Kinds of things that Prune removes.
const (
	PruneISOs  = "isos"  // and disk images
	PruneDisks = "disks" // also empty parking VMs, and scratch VMs of killed runs
	PruneCache = "cache" // of ISOs, on this machine
	// PruneMirror is pruned only on request: a registry can't tell who else needs its contents.
	PruneMirror = "mirror"
)

type PruneOptions struct {
	Only      string        // one kind; "": all except the mirror
	OlderThan time.Duration // keep ISOs, cached ISOs and mirrored installers that are younger
	KeepDisks *int          // how many old system disks of a node to keep; nil: roll.keepDisks
	Mirror    images.MirrorShelf
	Removed   string // a node that was removed: only its disks are freed
	// Confirm is called with what would be removed and kept. Its error, or false, ends the run.
	Confirm func(PruneReport) (bool, error)
	// These are as in RollOptions.
	Holder    claim.Holder
	Dead      func(claim.Holder) bool
	Suspended func(claim.Holder) bool
	MayAsk    func() error
}

func (o PruneOptions) takes(kind string) bool {
	if o.Removed != "" {
		return kind == PruneDisks
	}
	return o.Only == kind || o.Only == "" && kind != PruneMirror
}

// PruneReport is what was found, and what was done with it.
type PruneReport struct {
	ISOs    []images.Verdict       `json:"isos"`              // recast's own, and its disk images, on the configured storages
	Disks   []prune.KeptVerdict    `json:"disks"`             // old system disks
	VMs     []prune.ParkingVerdict `json:"vms"`               // parking VMs
	Scratch []roll.ScratchVerdict  `json:"scratch,omitempty"` // scratch VMs of killed runs
	Cache   []images.CacheVerdict  `json:"cache"`             // recast's files in the ISO cache
	Mirror  []images.MirrorVerdict `json:"mirror,omitzero"`   // installers with recast's tags; only on request
	Unseen  []string               `json:"unseen,omitempty"`  // what could not be checked, in words
}

func (r PruneReport) GoingISOs() []images.Verdict {
	return slices.DeleteFunc(slices.Clone(r.ISOs), func(v images.Verdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingDisks() []prune.KeptVerdict {
	return slices.DeleteFunc(slices.Clone(r.Disks), func(v prune.KeptVerdict) bool { return len(v.Keep) > 0 })
}

// GoingVMs lists the parking VMs to delete: they own nothing after that.
func (r PruneReport) GoingVMs() []prune.ParkingVerdict {
	return slices.DeleteFunc(slices.Clone(r.VMs), func(v prune.ParkingVerdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingScratch() []roll.ScratchVerdict {
	return slices.DeleteFunc(slices.Clone(r.Scratch), func(v roll.ScratchVerdict) bool { return len(v.Keep) > 0 })
}

func (r PruneReport) GoingCache() []images.CacheVerdict {
	return slices.DeleteFunc(slices.Clone(r.Cache), func(v images.CacheVerdict) bool { return len(v.Keep) > 0 })
}

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

// Prune removes what is no longer needed: old system disks and empty parking VMs, scratch VMs of killed runs, ISOs on
// the configured storages and in the cache, installers in the mirror: check → claim → check again → confirm → remove,
// each after another check. It refuses unless it provably sees every VM that may use one of them.
func Prune(ctx context.Context, p Project, px cluster.Proxmox, shelf images.Shelf, run *step.Runner, o PruneOptions) (PruneReport, error) {
	pr := &pruning{Project: p, px: px, shelf: shelf, run: run, o: o, rep: PruneReport{
		ISOs: []images.Verdict{}, Disks: []prune.KeptVerdict{}, VMs: []prune.ParkingVerdict{}, Cache: []images.CacheVerdict{},
	}}
	err := pr.prune(ctx)
	return pr.rep, err
}

// pruning is a running Prune.
type pruning struct {
	Project
	px    cluster.Proxmox
	shelf images.Shelf
	run   *step.Runner
	o     PruneOptions
	rep   PruneReport
}

func (p *pruning) prune(ctx context.Context) (err error) {
	if err := p.mayPrune(ctx); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, p.px); err != nil {
		return err
	}
	if _, err := p.judge(ctx); err != nil {
		return err
	}
	online, _, err := p.shelf.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	host := p.rep.host(online)
	if host == "" {
		// A run that was killed at its very end has left only its claim.
		if host, err = p.claimLeft(ctx); err != nil || host == "" {
			return err
		}
	}
	if err := p.requireAnswer(ctx); err != nil {
		return err
	}
	held, err := p.claim(ctx, host)
	if err != nil {
		return err
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
	vms, _, err := readable(ctx, p.Project, p.px)
	if err != nil {
		return err
	}
	// A killed run may have left tasks, which may still create VMs.
	err = awaitTasks(ctx, p.Project, p.px, vms, func(seen string) { p.say("waiting for tasks of an earlier recast: " + seen) })
	if err != nil {
		return err
	}
	parked, err := p.judge(ctx)
	if err != nil || p.rep.host(online) == "" {
		return err
	}
	if err := confirm(p.o.Confirm, p.rep, "not confirmed; nothing was removed"); err != nil {
		return err
	}
	parked.Proxmox, parked.Say = held.Guard(p.px), p.say
	scratch := p.scratchPruner(held.Guard(p.px))
	scratch.VMs = p.rep.Scratch
	isos := images.Pruner{Shelf: p.shelf, Verdicts: p.rep.ISOs, Write: held.Write}
	cache := images.CachePruner{Cache: images.NewCache(p.isoCache()), Verdicts: p.rep.Cache, Write: held.Write}
	mirror := images.MirrorPruner{Shelf: p.o.Mirror, Verdicts: p.rep.Mirror, Write: held.Write}
	return p.run.Run(ctx, step.Step{
		ID: "prune", Title: "remove what is no longer needed",
		Steps: func(context.Context) ([]step.Step, error) {
			return slices.Concat(scratch.Steps(), parked.Steps(), isos.Steps(), cache.Steps(), mirror.Steps()), nil
		},
	})
}

// mayPrune refuses if the token lacks privileges for removing a kind.
func (p *pruning) mayPrune(ctx context.Context) error {
	if p.o.takes(PruneMirror) {
		return p.mayPruneMirror(ctx)
	}
	if p.o.Only == PruneCache {
		return survey.NeedsToPrune(nil, nil).Check(ctx, p.px)
	}
	var errs []error
	for _, kind := range []string{PruneISOs, PruneDisks} {
		if !p.o.takes(kind) {
			continue
		}
		needs, other := survey.NeedsToPrune(p.Config.Images.ISO.Storage, p.Config.Images.Disk.Storage), PruneDisks
		if kind == PruneDisks {
			vms, err := p.px.VMs(ctx)
			if err != nil {
				return fmt.Errorf("read Proxmox: %w", err)
			}
			storages, parked := parkedOn(vms, p.Config.Cluster)
			needs, other = survey.NeedsToFree(storages, parked...), PruneISOs
			var scratch []cluster.VM
			for _, s := range planning.ScratchVMs(vms, p.Config.Cluster) {
				scratch = append(scratch, s.VM)
			}
			if len(scratch) > 0 {
				needs = needs.With(survey.NeedsToClear(scratch...))
			}
		}
		err := needs.Check(ctx, p.px)
		if err != nil && p.o.Only == "" {
			err = fault.WithHint(err, "or leave those alone: recast prune --only %s", other)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// judge judges everything of the selected kinds.
func (p *pruning) judge(ctx context.Context) (parked prune.ParkingPruner, err error) {
	uses, err := p.shelf.Uses(ctx)
	if err != nil {
		return parked, err
	}
	vms, err := p.px.VMs(ctx)
	if err != nil {
		return parked, fmt.Errorf("read Proxmox: %w", err)
	}
	if p.o.takes(PruneDisks) {
		if parked, err = p.judgeDisks(ctx, vms, uses); err != nil {
			return parked, err
		}
		scratch := p.scratchPruner(p.px)
		if err := scratch.Judge(ctx, vms); err != nil {
			return parked, err
		}
		p.rep.Disks, p.rep.VMs, p.rep.Scratch = parked.Kept, parked.VMs, scratch.VMs
	}
	if p.o.takes(PruneISOs) || p.o.takes(PruneCache) {
		err = p.judgeISOs(ctx, vms, uses)
	}
	if p.o.takes(PruneMirror) {
		p.rep.Mirror, err = p.judgeMirror(ctx, vms)
	}
	return parked, err
}

// claimLeft is the host of the claim, held or left over; "" if there is none.
func (p *pruning) claimLeft(ctx context.Context) (host string, err error) {
	vms, err := p.px.VMs(ctx)
	if err != nil {
		return "", fmt.Errorf("read Proxmox: %w", err)
	}
	claim, _, err := claim.Peek(vms, p.Config.Cluster, p.ClaimID())
	return claim.VM.Host, err
}

// requireAnswer fails if nobody could answer the question and the claim's run may be alive: watching that claim would
// be in vain.
func (p *pruning) requireAnswer(ctx context.Context) error {
	if p.o.MayAsk == nil {
		return nil
	}
	err := p.o.MayAsk()
	if err == nil {
		return nil
	}
	vms, errRead := p.px.VMs(ctx)
	if errRead != nil {
		return fmt.Errorf("read Proxmox: %w", errRead)
	}
	s, found, errRead := claim.Peek(vms, p.Config.Cluster, p.ClaimID())
	if errRead != nil || !found || p.o.Dead != nil && p.o.Dead(s.Holder) {
		return errRead // the report says first what would be removed
	}
	return err
}

func (p *pruning) claim(ctx context.Context, host string) (*claim.Held, error) {
	id, err := RollOptions{}.newRunID()
	if err != nil {
		return nil, err
	}
	c := &claim.Claim{
		Proxmox: p.px, Cluster: p.Config.Cluster, VMID: p.ClaimID(), VMIDs: p.VMIDs(), Nodes: p.NodeVMs(planning.Plan{}), Parked: true,
		Host: host, Holder: p.o.Holder, Run: id,
		Dead: p.o.Dead, Suspended: p.o.Suspended, Say: p.say,
	}
	return c.Acquire(ctx)
}

func (p *pruning) say(text string) { p.run.Note("prune", text) }

// judgeISOs judges every ISO and disk image of recast, on the storages and in the cache.
func (p *pruning) judgeISOs(ctx context.Context, vms []cluster.VM, uses []images.Use) error {
	open, err := openUses(vms)
	if err != nil {
		return err
	}
	need, err := needed(p.Project, vms, imageNames)
	if err != nil {
		return err
	}
	uses = append(uses, open...)
	if p.o.takes(PruneCache) {
		found, err := images.NewCache(p.isoCache()).Files()
		if err != nil {
			return err
		}
		p.rep.Cache = images.JudgeCache(found, uses, need, p.o.OlderThan, time.Now())
	}
	if p.o.takes(PruneISOs) {
		found, unseen, err := images.ListISOs(ctx, p.shelf, images.BootISO, p.Config.Images.ISO.Storage)
		if err != nil {
			return err
		}
		disks, unseenDisks, err := images.ListISOs(ctx, p.shelf, images.DiskImage, p.Config.Images.Disk.Storage)
		if err != nil {
			return err
		}
		found, unseen = append(found, disks...), slices.Compact(slices.Sorted(slices.Values(append(unseen, unseenDisks...))))
		p.rep.ISOs, p.rep.Unseen = images.JudgeISOs(found, uses, need, p.o.OlderThan, time.Now()), unseen
	}
	return nil
}

// Why a file of a lock stays.
const (
	previousHas = "the previous lock has it: the way back"
	lockHas     = "recast.lock has it"
)

// openUses returns the VMs that unfinished replacements, of any Talos cluster, may have to create again.
func openUses(vms []cluster.VM) ([]images.Use, error) {
	var uses []images.Use
	for _, vm := range vms {
		rec, is, err := parking.ReadRecord(vm)
		if err != nil {
			return nil, err
		}
		if !is || !rec.Open {
			continue
		}
		was, err := rec.Remembered()
		if err != nil {
			return nil, fault.WithHint(fault.ParkedHalf.Refusedf("%s: %w", vm, err), "finish that replacement first: recast roll or recast undo %s", rec.Node)
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

// needed returns the builds that unfinished replacements need and that VMs were created from, and the names that of
// gives to what the lock and the previous lock hold.
func needed(p Project, vms []cluster.VM, of func(schematics.Lock, schematics.Locked) []string) (images.Needed, error) {
	need := images.Needed{Names: map[string]string{}, Builds: map[string]string{}}
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return need, err
	}
	previous, _, err := schematics.Previous(p.Locks().Dir, lock)
	if err != nil {
		return need, err
	}
	for _, has := range []struct {
		lock   schematics.Lock
		reason string
	}{{previous, previousHas}, {lock, lockHas}} {
		for _, e := range has.lock.Schematics {
			for _, name := range of(has.lock, e) {
				need.Names[name] = has.reason
			}
		}
	}
	delete(need.Names, "") // of builds without a disk image
	for _, vm := range vms {
		if build := vm.MadeFrom(); build != "" {
			need.Builds[build] = vm.String() + " was created from it"
		}
	}
	for _, vm := range vms {
		rec, is, err := parking.ReadRecord(vm)
		if err != nil {
			return need, err
		}
		if is && rec.Open && rec.Build != "" {
			need.Builds[rec.Build] = fmt.Sprintf("the unfinished replacement of node %s needs it", rec.Node)
		}
	}
	return need, nil
}

// imageNames are the ISO's and the disk image's.
func imageNames(_ schematics.Lock, e schematics.Locked) []string {
	return []string{e.ISO.Name, e.Disk.Name}
}

// judgeMirror judges every installer of recast in the mirror.
func (p *pruning) judgeMirror(ctx context.Context, vms []cluster.VM) ([]images.MirrorVerdict, error) {
	need, err := needed(p.Project, vms, installerNames)
	if err != nil {
		return nil, err
	}
	tags, err := images.ListMirror(ctx, p.o.Mirror, p.Config.Images.Mirror)
	if err != nil {
		return nil, err
	}
	return images.JudgeMirror(tags, need, p.o.OlderThan, time.Now()), nil
}

// installerNames are the tag, and the digest in the lock, whatever its tag is.
func installerNames(lock schematics.Lock, e schematics.Locked) []string {
	_, digest, _ := strings.Cut(e.Installer, "@")
	return []string{images.TagOf(lock, e), digest}
}

// mayPruneMirror refuses if there is no mirror, or if the token can't create the claim or see all VMs.
func (p *pruning) mayPruneMirror(ctx context.Context) error {
	if p.Config.Images.Mirror == "" {
		return fault.WithHint(fault.As(fault.Config, errors.New("images.mirror is not set: there is no mirror to prune")),
			"set images.mirror to the repository that installers are mirrored to")
	}
	return survey.NeedsToPrune(nil, nil).Check(ctx, p.px)
}

// retention says which old system disks to keep; keep is the command-line option, nil: use the configuration.
func retention(p Project, keep *int) prune.Retention {
	r := prune.Retention{Cluster: p.Config.Cluster, Keep: p.Config.Roll.KeepDisks, Except: p.ClaimID(), Nodes: nodeNames(p.Config)}
	if keep != nil {
		r.Keep = *keep
	}
	for _, n := range p.Config.Nodes {
		if n.Holder != 0 {
			r.Holders = append(r.Holders, cluster.VMID(n.Holder))
		}
	}
	return r
}

func (p *pruning) retention() prune.Retention {
	r := retention(p.Project, p.o.KeepDisks)
	r.Removed = p.o.Removed
	return r
}

// judgeDisks judges every old system disk and every parking VM of this cluster.
func (p *pruning) judgeDisks(ctx context.Context, vms []cluster.VM, uses []images.Use) (prune.ParkingPruner, error) {
	pr := p.parkingPruner()
	pr.Kept, pr.VMs = prune.JudgeParked(vms, clusterUses(uses), p.retention())
	for i := range pr.Kept {
		if pr.Kept[i].Replaced.IsZero() {
			pr.Kept[i].Replaced = journal.RunBegan(pr.Kept[i].Run)
		}
	}
	if node := p.o.Removed; node != "" && !slices.ContainsFunc(pr.Kept, func(v prune.KeptVerdict) bool { return v.OfRemoved && v.Node == node }) {
		return pr, fault.WithHint(fault.NoWayBack.Refusedf("node %s: no disks of a removed node of that name are parked", node), "recast remove %s removes the node first; recast status lists what is parked", node)
	}
	return pr, pr.KeepUnnamed(ctx, vms)
}

func (p *pruning) parkingPruner() prune.ParkingPruner {
	return prune.ParkingPruner{
		Proxmox: p.px, Cluster: p.Config.Cluster,
		Uses: func(ctx context.Context) ([]cluster.Use, error) {
			uses, err := p.shelf.Uses(ctx)
			return clusterUses(uses), err
		},
		Storages: func(ctx context.Context, host string) ([]string, error) {
			return diskStorages(ctx, p.px, p.shelf, host)
		},
	}
}

func (p *pruning) scratchPruner(px cluster.Proxmox) roll.ScratchPruner {
	return roll.ScratchPruner{Proxmox: px, Cluster: p.Config.Cluster, Timing: timing(p.Config)}
}

func clusterUses(uses []images.Use) []cluster.Use {
	return cluster.Each(uses, func(u images.Use) cluster.Use { return cluster.Use(u) })
}

// diskStorages lists the storages for disks that a host sees. A storage that does not
// answer is an error, since its content is unknown.
func diskStorages(ctx context.Context, px cluster.Proxmox, shelf images.Shelf, host string) ([]string, error) {
	all, err := px.Storages(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		info, err := shelf.Storage(ctx, host, s.Name)
		switch {
		case errors.Is(err, images.ErrNoStorage):
			continue
		case err != nil:
			return nil, fmt.Errorf("read storage %q on %s: %w", s.Name, host, err)
		case !slices.Contains(info.Content, "images"):
			continue
		case !info.Active:
			return nil, fmt.Errorf("storage %s is not active on %s", s.Name, host)
		}
		out = append(out, s.Name)
	}
	return out, nil
}

// parkedOn lists the storages that have old system disks of a cluster, sorted.
func parkedOn(vms []cluster.VM, name string) (out []string, parked []cluster.VM) {
	parkings, _ := parking.Parkings(vms, name) // records that can't be read do not count: their disks are not freed
	for _, park := range parkings {
		parked = append(parked, park.VM)
		for _, k := range park.Record.Kept {
			if d, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key]); err == nil && !slices.Contains(out, d.Storage()) {
				out = append(out, d.Storage())
			}
		}
	}
	slices.Sort(out)
	return out, parked
}
