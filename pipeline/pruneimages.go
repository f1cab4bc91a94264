package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// judgeISOs judges every ISO and disk image of recast, on the storages and in the cache.
func (p *pruning) judgeISOs(ctx context.Context, vms []cluster.VM, uses []images.Use) error {
	open, err := openUses(vms)
	if err != nil {
		return err
	}
	need, err := neededISOs(p.Project, vms)
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

// openUses returns the VMs that unfinished replacements, of any Talos cluster, may have to
// create again.
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

// neededISOs returns the ISOs and disk images of the lock, of the previous lock, of unfinished
// replacements and of the builds that VMs were created from.
func neededISOs(p Project, vms []cluster.VM) (images.Needed, error) {
	need := images.Needed{Names: map[string]string{}, Builds: map[string]string{}}
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return need, err
	}
	previous, _, err := schematics.Previous(p.Locks().Dir, lock)
	if err != nil {
		return need, err
	}
	for _, e := range previous.Schematics {
		need.Names[e.ISO.Name], need.Names[e.Disk.Name] = previousHas, previousHas
	}
	for _, e := range lock.Schematics {
		need.Names[e.ISO.Name], need.Names[e.Disk.Name] = lockHas, lockHas
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

// judgeMirror judges every installer of recast in the mirror.
func (p *pruning) judgeMirror(ctx context.Context, vms []cluster.VM) ([]images.MirrorVerdict, error) {
	need, err := neededInstallers(p.Project, vms)
	if err != nil {
		return nil, err
	}
	tags, err := images.ListMirror(ctx, p.o.Mirror, p.Config.Images.Mirror)
	if err != nil {
		return nil, err
	}
	return images.JudgeMirror(tags, need, p.o.OlderThan, time.Now()), nil
}

// neededInstallers returns the installers of the same locks and builds as neededISOs, by
// tag, and by the digest in a lock, whatever their tag is.
func neededInstallers(p Project, vms []cluster.VM) (images.Needed, error) {
	need, err := neededISOs(p, vms)
	if err != nil {
		return need, err
	}
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return need, err
	}
	previous, _, err := schematics.Previous(p.Locks().Dir, lock)
	if err != nil {
		return need, err
	}
	need.Names = map[string]string{}
	add := func(lock schematics.Lock, reason string) {
		for _, e := range lock.Schematics {
			need.Names[images.TagOf(lock, e)] = reason
			if _, digest, ok := strings.Cut(e.Installer, "@"); ok {
				need.Names[digest] = reason
			}
		}
	}
	add(previous, previousHas)
	add(lock, lockHas)
	return need, nil
}

// mayPruneMirror refuses if there is no mirror, or if the token can't create the claim or
// see all VMs.
func (p *pruning) mayPruneMirror(ctx context.Context) error {
	if p.Config.Images.Mirror == "" {
		return fault.WithHint(fault.As(fault.Config, errors.New("images.mirror is not set: there is no mirror to prune")),
			"set images.mirror to the repository that installers are mirrored to")
	}
	return survey.NeedsToPrune(nil, nil).Check(ctx, p.px)
}
