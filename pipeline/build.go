package pipeline

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Build builds the installer and boot ISO of every schematic of the lock, compares their
// contents with the lock, and records their digests in it.
func Build(ctx context.Context, p Project, c Images, run *step.Runner) (schematics.Lock, error) {
	lock, err := p.Lock()
	if err != nil {
		return schematics.Lock{}, err
	}
	w := newWorkshop(p, lock, c, run)
	return w.build(ctx, nil)
}

// workshop builds and publishes the images of one lock.
type workshop struct {
	Project
	images Images
	run    *step.Runner
	ledger *images.Ledger
	cache  *images.Cache
}

func newWorkshop(p Project, lock schematics.Lock, c Images, run *step.Runner) workshop {
	return workshop{Project: p, images: c, run: run, ledger: images.NewLedger(lock, saver(p.LockFile(), lock)), cache: images.NewCache(p.isoCache())}
}

// saver returns a function that writes the lock to a file after each new record.
func saver(file string, was schematics.Lock) func(schematics.Lock) error {
	return func(l schematics.Lock) error {
		if err := schematics.ReplaceLock(file, was, l); err != nil {
			return err
		}
		was = l
		return nil
	}
}

func (w workshop) build(ctx context.Context, published func(context.Context, string) (string, error)) (schematics.Lock, error) {
	if err := journal.KeepOutOfGit(w.State()); err != nil {
		return w.ledger.Lock(), err
	}
	verifier := verify.New(w.images.Registry, w.isoCache())
	b := images.Builder{
		Factory: w.images.Factory, Registry: w.images.Registry, Puller: w.images.Registry, Verifier: verifier, Signature: w.signature(),
		Cache: w.cache, Ledger: w.ledger, ByImager: w.imager(), Mirror: w.Config.Images.Mirror, Published: published, Note: w.run.Note,
	}
	err := w.run.Run(ctx, b.Step())
	return w.ledger.Lock(), errors.Join(err, verifier.Close())
}

// signature is the configured policy for signatures of installers.
func (w workshop) signature() images.SignaturePolicy {
	p := images.SignaturePolicy{Mode: images.SignatureMode(w.Config.Images.Signature)}
	if file := w.Config.Images.SigningKey; file != "" {
		p.Key = func() ([]byte, error) { return os.ReadFile(file) }
	}
	return p
}

func (w workshop) publish(ctx context.Context, store images.Store, hosts map[string][]string) (schematics.Lock, error) {
	p := images.Publisher{
		Store: store, Factory: w.images.Factory, Cache: w.cache, Ledger: w.ledger, Storages: w.Config.Images.ISO.Storage, Hosts: hosts,
		Delivery: images.Delivery(w.Config.Images.ISO.Delivery), ByImager: w.ByImager, Note: w.run.Note,
	}
	if lock, err := w.build(ctx, p.Published); err != nil {
		return lock, err
	}
	if err := w.mirror(ctx); err != nil {
		return w.ledger.Lock(), err
	}
	err := w.run.Run(ctx, p.Step())
	return w.ledger.Lock(), err
}

// mirror runs before the ISOs: a boot ISO does not help a node that can't pull its installer.
func (w workshop) mirror(ctx context.Context) error {
	if w.Config.Images.Mirror == "" {
		return nil
	}
	m := images.Mirror{Copier: w.images.Registry, Ledger: w.ledger, Repository: w.Config.Images.Mirror, Note: w.run.Note}
	return w.run.Run(ctx, m.Step())
}

// imager configures builds with the imager. Its directory is below the project's: Docker
// Desktop and similar tools mount only directories in the user's home.
func (w workshop) imager() images.ImagerBuilder {
	return images.ImagerBuilder{
		Builds: w.ByImager, Imager: w.images.Imager, Archives: w.images.Registry, Copier: w.images.Registry,
		Base: w.Config.Images.Extensions + "/installer-base", Scratch: filepath.Join(w.cacheDir(), "imager"),
	}
}
