package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// LockOptions are the options of Lock.
type LockOptions struct {
	Update bool // take the digests that the registry has now
	Check  bool // write nothing, only report what would change
	// Rebuild names schematics to build again with the same content, under another ID.
	Rebuild []string
	// Say is called with what is checked next. May be nil.
	Say func(text string)
}

// LockResult is the result of Lock.
type LockResult struct {
	Lock     schematics.Lock      `json:"lock"`
	Differs  bool                 `json:"differs"` // from the previous recast.lock, even if no build differs
	Changes  []LockChange         `json:"changes"`
	Warnings []schematics.Warning `json:"warnings,omitempty"`
	Written  bool                 `json:"written"`
	Newest   bool                 `json:"newest"` // newer digests were looked for
}

// LockChange is a schematic whose image changes, and the nodes that should run it, which
// become stale.
type LockChange struct {
	schematics.Change
	Nodes []string `json:"nodes"`
}

// Lock resolves the configured schematics to digests and writes recast.lock.
// The replaced lock is kept in .recast/locks, so that drift can name the digests that
// nodes still run.
func Lock(ctx context.Context, p Project, c Images, o LockOptions) (LockResult, error) {
	req, err := request(p.Config)
	if err != nil {
		return LockResult{}, err
	}
	if err := rebuild(req.Files, o.Rebuild); err != nil {
		return LockResult{}, err
	}
	req.Update, req.Note = o.Update || o.Check, o.Say
	old, err := schematics.ReadLock(p.LockFile())
	switch {
	case err == nil:
		req.Old = &old
	case !errors.Is(err, fs.ErrNotExist):
		return LockResult{}, err
	}
	lock, warnings, err := schematics.Resolve(ctx, req, schematics.Sources{Catalog: c.Catalog, Images: c.Registry, Factory: c.Factory})
	if err != nil {
		return LockResult{}, err
	}
	res := LockResult{Lock: lock, Newest: req.Update, Differs: old.Checksum != lock.Checksum, Changes: changes(p.Config.Nodes, old, lock), Warnings: warnings}
	if o.Check || !res.Differs {
		return res, nil
	}
	if req.Old != nil {
		if err := journal.KeepOutOfGit(p.State()); err != nil {
			return res, err
		}
		if err := schematics.Archive(p.Locks().Dir, old); err != nil {
			return res, err
		}
	}
	if err := schematics.ReplaceLock(p.LockFile(), old, lock); err != nil {
		return res, err
	}
	res.Written = true
	return res, nil
}

// rebuild marks the schematics to build again.
func rebuild(files map[string]schematics.File, names []string) error {
	for _, name := range names {
		f, ok := files[name]
		if !ok {
			return fault.WithHint(fault.Configf("no schematic %q to rebuild", name),
				"the schematics are: %s", strings.Join(slices.Sorted(maps.Keys(files)), ", "))
		}
		f.Rebuild = true
		files[name] = f
	}
	return nil
}

// changes returns the differences between two locks, with the nodes that they concern.
func changes(nodes []config.Node, before, after schematics.Lock) []LockChange {
	list := []LockChange{}
	for _, c := range schematics.Compare(before, after) {
		change := LockChange{Change: c, Nodes: []string{}}
		for _, n := range nodes {
			if n.Schematic == c.Schematic {
				change.Nodes = append(change.Nodes, n.Name)
			}
		}
		list = append(list, change)
	}
	return list
}

// request reads the configured schematic files.
func request(c *config.Config) (schematics.Request, error) {
	req := schematics.Request{
		Talos: c.Talos.Version, TalosPlace: placed(c, "talos.version"), Arch: c.Images.Arch, Platform: c.Images.Platform, SecureBoot: c.Images.SecureBoot,
		Files: map[string]schematics.File{},
	}
	var problems []error
	for name, s := range c.Schematics {
		data, err := os.ReadFile(s.Path)
		if err != nil {
			problems = append(problems, fault.Configf("schematic %s: %w", name, err))
			continue
		}
		req.Files[name] = schematics.File{
			Path: s.File, Data: data, Extensions: explicit(c, name), Imager: c.Images.BuilderOf(s) == config.BuilderImager,
		}
	}
	if err := errors.Join(problems...); err != nil {
		return schematics.Request{}, fmt.Errorf("%s: %w", c.Place("schematics"), err)
	}
	return req, nil
}

// explicit returns the extensions that the configuration adds to a schematic's file.
func explicit(c *config.Config, schematic string) []schematics.Explicit {
	var list []schematics.Explicit
	for i, ref := range c.Schematics[schematic].Extensions {
		list = append(list, schematics.Explicit{
			Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest, Place: placed(c, fmt.Sprintf("schematics.%s.extensions[%d]", schematic, i)),
		})
	}
	return list
}

// placed is a path in the configuration, prefixed with its position.
func placed(c *config.Config, path string) string { return c.Place(path) + ": " + path }
