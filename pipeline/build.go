package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Build builds the installer, the boot ISO and, if machines may boot it, the disk image of every schematic of the lock, compares their
// contents with the lock, and records their digests in it.
func Build(ctx context.Context, p Project, c Images, run *step.Runner) (schematics.Lock, error) {
	lock, err := p.Lock()
	if err != nil {
		return schematics.Lock{}, err
	}
	w := newWorkshop(p, lock, c, run)
	return w.build(ctx, w.hasDisk, nil)
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

func (w workshop) build(ctx context.Context, disk func(string) bool, published func(context.Context, images.Artefact, string) (string, error)) (schematics.Lock, error) {
	if err := journal.KeepOutOfGit(w.State()); err != nil {
		return w.ledger.Lock(), err
	}
	for _, name := range w.ledger.Lock().Names() {
		if why := w.Project.build(w.ledger.Lock(), name).NoDisk; why != "" {
			w.run.Note("build/"+name, "no disk image of it is made: "+why)
		}
	}
	verifier := verify.New(w.images.Registry, w.isoCache())
	b := images.Builder{
		Factory: w.images.Factory, Registry: w.images.Registry, Puller: w.images.Registry, Verifier: verifier, Signature: w.signature(),
		Cache: w.cache, Ledger: w.ledger, ByImager: w.imager(), Mirror: w.Config.Images.Mirror, Disk: disk, Published: published, Note: w.run.Note,
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
	isos := images.Publisher{
		Store: store, Factory: w.images.Factory, Cache: w.cache, Ledger: w.ledger, Storages: w.Config.Images.ISO.Storage, Hosts: hosts,
		Delivery: images.Delivery(w.Config.Images.ISO.Delivery), ByImager: w.ByImager, Note: w.run.Note,
	}
	disks := isos
	disks.Of = images.DiskImage
	disks.Hosts = maps.Clone(hosts)
	maps.DeleteFunc(disks.Hosts, func(name string, _ []string) bool { return !w.hasDisk(name) })
	usable, why, err := images.DiskHosts(ctx, store, w.Config.Images.Disk.Storage, disks.Hosts, w.Config.Images.Boot == config.BootDisk)
	if err != nil {
		return w.ledger.Lock(), err
	}
	disks.Storages = usable
	for _, reason := range why {
		w.run.Note("publish-disks", fmt.Sprintf("machines boot the ISO there: %v", reason))
	}
	hasDisk := func(schematic string) bool { return len(disks.Hosts[schematic]) > 0 }
	published := func(ctx context.Context, of images.Artefact, schematic string) (string, error) {
		if of == images.DiskImage {
			return disks.Published(ctx, schematic)
		}
		return isos.Published(ctx, schematic)
	}
	if lock, err := w.build(ctx, hasDisk, published); err != nil {
		return lock, err
	}
	if err := w.mirror(ctx); err != nil {
		return w.ledger.Lock(), err
	}
	err = w.run.Run(ctx, isos.Step())
	if err == nil && len(disks.Hosts) > 0 {
		err = w.run.Run(ctx, disks.Step())
	}
	return w.ledger.Lock(), err
}

// hasDisk reports whether new machines of a schematic may boot its disk image.
func (w workshop) hasDisk(schematic string) bool {
	return w.Project.build(w.ledger.Lock(), schematic).DiskName != ""
}

// dropUnusable leaves the nodes on hosts that see no usable storage for disk images without one.
func (p Project) dropUnusable(ctx context.Context, store images.Storages, wanted []cluster.Wanted, o observe.Observation) error {
	if p.Config.Images.Boot != config.BootAuto {
		return nil
	}
	var hosts []string
	for _, f := range o.Found {
		if f.VM != nil && !slices.Contains(hosts, f.VM.Host) {
			hosts = append(hosts, f.VM.Host)
		}
	}
	usable, served, _, err := images.Usable(ctx, store, images.DiskImage, p.Config.Images.Disk.Storage, hosts)
	for i, f := range o.Found {
		if wanted[i].DiskStorages = usable; f.VM == nil || !slices.Contains(served, f.VM.Host) {
			wanted[i].DiskStorages = nil
		}
	}
	return err
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
