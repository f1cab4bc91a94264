package pipeline

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

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
