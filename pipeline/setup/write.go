package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// extraFile is a file of a new cluster.
type extraFile struct {
	name    string
	mode    fs.FileMode
	content func(context.Context) ([]byte, error)
}

// write creates all files in a temporary directory, locks them there, and then moves them to their places.
func (in *initial) write(ctx context.Context) error {
	var files []string
	for _, p := range in.plans {
		files = append(files, p.file())
	}
	for _, f := range in.extra {
		files = append(files, f.name)
	}
	if err := Vacant(in.Dir, in.Force, files...); err != nil {
		return err
	}
	files = append(files, "recast.lock", "recast.yaml") // recast.yaml last: it completes the set
	err := Place(in.Dir, files, func(stage string) error {
		if err := in.lockIn(ctx, stage); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := in.keepOldLock(); err != nil {
			return err
		}
		if in.fresh {
			return keepsSecrets(in.Dir)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(files)
	in.res.Files, in.res.Dir = files, in.Dir
	return nil
}

// Place writes all of the files or none: fill makes them in a temporary directory, from which they are moved.
func Place(dir string, files []string, fill func(stage string) error) (err error) {
	if _, errThere := os.Stat(dir); errors.Is(errThere, fs.ErrNotExist) {
		defer func() {
			if err != nil {
				_ = os.Remove(dir) // the directory is empty
			}
		}()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.Configf("create the directory: %w", err)
	}
	stage, err := os.MkdirTemp(dir, ".recast-init-*")
	if err != nil {
		return fault.Configf("write to %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	if err := fill(stage); err != nil {
		return err
	}
	return moveIn(stage, dir, files)
}

// lockIn writes the files to stage, locks them, and compares the nodes with the lock.
func (in *initial) lockIn(ctx context.Context, stage string) error {
	for _, p := range in.plans {
		mode := fs.FileMode(0o644)
		if len(p.Secrets()) > 0 {
			mode = 0o600
		}
		if err := WriteSynced(filepath.Join(stage, p.file()), []byte(p.content()), mode); err != nil {
			return err
		}
	}
	for _, f := range in.extra {
		text, err := f.content(ctx)
		if err != nil {
			return err
		}
		if err := WriteSynced(filepath.Join(stage, f.name), text, f.mode); err != nil {
			return err
		}
	}
	here := in.draft // paths are relative to the file
	if here.CAFile != "" && !filepath.IsAbs(here.CAFile) {
		dir, err := filepath.Abs(in.Dir)
		if err != nil {
			return fault.Configf("find %s: %w", in.Dir, err)
		}
		here.CAFile = filepath.Join(dir, here.CAFile)
	}
	if err := renderTo(filepath.Join(stage, "recast.yaml"), here.Render); err != nil {
		return in.otherwise(err)
	}
	p, err := in.src.Load(filepath.Join(stage, "recast.yaml"))
	if err != nil {
		return err
	}
	im, err := in.src.Images(p)
	if err != nil {
		return err
	}
	res, err := pipeline.Lock(ctx, p, im, pipeline.LockOptions{})
	if err != nil {
		what := "lock what the nodes run"
		if in.fresh {
			what = "lock the schematic"
		}
		return fault.WithHint(fmt.Errorf("%s: %w", what, err),
			"the official extensions are read from %s, and the factory is %s: --extensions and --factory change that. Nothing was written", in.draft.Extensions, in.draft.Factory)
	}
	for _, w := range res.Warnings {
		in.warn("%s; %s", w, w.Hint)
	}
	if in.fresh {
		return nil
	}
	p.Config.Dir = in.Dir // where past locks are
	if err := in.compare(p, res.Lock); err != nil {
		return err
	}
	return renderTo(filepath.Join(stage, "recast.yaml"), in.draft.Render)
}

// compare compares the nodes with the lock, as drift does.
func (in *initial) compare(p pipeline.Project, lock schematics.Lock) error {
	past, err := p.History(lock)
	if err != nil {
		return err
	}
	for i, w := range p.Wanted(lock) {
		d := observe.Diff(w, in.found.Nodes[i].Found(), past)
		in.res.Drift = append(in.res.Drift, d)
		for _, r := range d.Reasons {
			if r.Code != "extension-extra" {
				continue
			}
			for j, s := range in.draft.Schematics {
				if s.Name == w.Schematic {
					in.draft.Schematics[j].Unknown = append(s.Unknown, r.Text)
				}
			}
		}
	}
	for j, s := range in.draft.Schematics {
		slices.Sort(s.Unknown)
		in.draft.Schematics[j].Unknown = slices.Compact(s.Unknown)
	}
	return nil
}

// keepOldLock archives the lock that will be replaced, as recast lock does: it describes
// the builds that nodes may still run.
func (in *initial) keepOldLock() error {
	old, err := schematics.ReadLock(filepath.Join(in.Dir, "recast.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.WithHint(err, "or move it elsewhere and keep it: nodes may still run its builds. Nothing was changed")
	}
	state := filepath.Join(in.Dir, ".recast")
	if err := journal.CheckPrivate(state); err != nil {
		return err
	}
	if err := journal.KeepOutOfGit(state); err != nil {
		return err
	}
	return schematics.Archive(filepath.Join(state, "locks"), old)
}

func renderTo(path string, render func() ([]byte, error)) error {
	b, err := render()
	if err != nil {
		return err
	}
	return WriteSynced(path, b, 0o644)
}

// WriteSynced writes a file and syncs it to disk.
func WriteSynced(path string, content []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return f.Sync()
}

// moveIn renames files of one directory into another. If one of them fails, it moves the
// others back and restores the files that they replaced.
func moveIn(from, to string, files []string) (err error) {
	type step struct{ was, is string }
	var done []step
	move := func(was, is string) error {
		if err := os.MkdirAll(filepath.Dir(is), 0o755); err != nil {
			return err
		}
		if err := os.Rename(was, is); err != nil {
			return err
		}
		done = append(done, step{was, is})
		return nil
	}
	defer func() {
		if err == nil {
			return
		}
		for _, s := range slices.Backward(done) {
			err = errors.Join(err, os.Rename(s.is, s.was))
		}
		err = fault.As(fault.Config, fmt.Errorf("write to %s: %w", to, err))
	}()
	for _, name := range files {
		path := filepath.Join(to, name)
		if err := move(path, filepath.Join(from, "replaced", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := move(filepath.Join(from, name), path); err != nil {
			return err
		}
	}
	return nil
}
