package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// LockOptions choose what Lock does beside resolving.
type LockOptions struct {
	Update bool // take the digests that the registry has now
	Check  bool // write nothing, only say what would change
}

// LockResult is what resolving came to.
type LockResult struct {
	Lock     schematics.Lock      `json:"lock"`
	Changes  []schematics.Change  `json:"changes"`
	Warnings []schematics.Warning `json:"warnings,omitempty"`
	Written  bool                 `json:"written"`
}

// Lock resolves the configured schematics to digests and writes recast.lock.
// The lock that it replaces is kept in .recast/locks, so that a drift can name
// the digests that nodes still run.
func Lock(ctx context.Context, p Project, c Images, o LockOptions) (LockResult, error) {
	req, err := p.request()
	if err != nil {
		return LockResult{}, err
	}
	req.Update = o.Update || o.Check
	old, err := schematics.ReadLock(p.LockFile())
	switch {
	case err == nil:
		req.Old = &old
	case !errors.Is(err, fs.ErrNotExist):
		return LockResult{}, err
	}
	lock, warnings, err := schematics.Resolve(ctx, req, c.Catalog, c.Factory)
	if err != nil {
		return LockResult{}, err
	}
	res := LockResult{Lock: lock, Changes: schematics.Compare(old, lock), Warnings: warnings}
	if o.Check || req.Old != nil && old.Checksum == lock.Checksum {
		return res, nil
	}
	if req.Old != nil {
		if err := schematics.Archive(p.pastLocks(), old); err != nil {
			return res, err
		}
	}
	if err := schematics.WriteLock(p.LockFile(), lock); err != nil {
		return res, err
	}
	res.Written = true
	return res, nil
}

// request reads the schematic files that the configuration names.
func (p Project) request() (schematics.Request, error) {
	c := p.Config
	req := schematics.Request{
		Talos: c.Talos.Version, Arch: c.Images.Arch, Platform: c.Images.Platform, SecureBoot: c.Images.SecureBoot,
		Files: map[string]schematics.File{},
	}
	var problems []error
	for name, s := range c.Schematics {
		data, err := os.ReadFile(s.Path)
		if err != nil {
			problems = append(problems, fault.Configf("schematic %s: %w", name, err))
			continue
		}
		req.Files[name] = schematics.File{Path: s.File, Data: data}
	}
	if err := errors.Join(problems...); err != nil {
		return schematics.Request{}, fmt.Errorf("%s: %w", c.Place("schematics"), err)
	}
	return req, nil
}
