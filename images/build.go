package images

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Builder has an Image Factory build what the lock describes.
type Builder struct {
	Factory  Factory
	Registry Registry
	Cache    *Cache
	Ledger   *Ledger
	// Mirror is the repository from which nodes pull installers; "": from the
	// factory's. An installer that is there need not be with the factory any more.
	Mirror string
	// Published says where the ISO of a schematic is already, so that it need not
	// be fetched; "" if it is missing somewhere. May be nil: always fetch.
	Published func(ctx context.Context, schematic string) (reason string, err error)
	// Note is told the progress of the step at a path below Step: "build/default/fetch-iso". May be nil.
	Note func(path, text string)
}

// Step is a tree that ends with an installer and a boot ISO for every schematic of the lock.
func (b Builder) Step() step.Step {
	return step.Step{
		ID: "build", Title: "build images",
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range b.Ledger.Lock().Names() {
				steps = append(steps, b.schematic(name))
			}
			return steps, nil
		},
	}
}

func (b Builder) schematic(name string) step.Step {
	return step.Step{
		ID: name, Title: "build schematic " + name,
		Skip: func(ctx context.Context) (string, error) {
			installer, err := b.haveInstaller(ctx, name)
			if err != nil || installer == "" {
				return "", err
			}
			iso, err := b.haveISO(ctx, name)
			if err != nil || iso == "" {
				return "", err
			}
			return installer + "; " + iso, nil
		},
		Steps: func(context.Context) ([]step.Step, error) {
			return []step.Step{
				{
					ID: "check-factory", Title: "compare the factory's extensions with the lock",
					Do: func(ctx context.Context) error { return b.checkFactory(ctx, name) },
				},
				{
					ID: "register-schematic", Title: "register the schematic",
					Skip: func(ctx context.Context) (string, error) { return b.registered(ctx, name) },
					Do:   func(ctx context.Context) error { return b.register(ctx, name) },
				},
				{
					ID: "resolve-installer", Title: "have the installer built",
					Skip: func(ctx context.Context) (string, error) { return b.haveInstaller(ctx, name) },
					Do:   func(ctx context.Context) error { return b.resolveInstaller(ctx, name) },
				},
				{
					ID: "fetch-iso", Title: "fetch the boot ISO",
					Skip: func(ctx context.Context) (string, error) { return b.haveISO(ctx, name) },
					Do:   func(ctx context.Context) error { return b.fetchISO(ctx, name) },
				},
			}, nil
		},
	}
}

// checkFactory refuses to build while the factory would build something else
// than the lock says under the lock's name.
func (b Builder) checkFactory(ctx context.Context, name string) error {
	lock, e, err := b.Ledger.entry(name)
	if err != nil {
		return err
	}
	served, err := b.Factory.Extensions(ctx, lock.Talos)
	if err != nil {
		return fmt.Errorf("list the factory's extensions for Talos %s: %w", lock.Talos, err)
	}
	var errs []error
	for _, w := range e.Outdated(served) {
		errs = append(errs, fault.WithHint(errors.New(w.String()), "%s", w.Hint))
	}
	return fault.As(fault.Refused, errors.Join(errs...))
}

func (b Builder) registered(ctx context.Context, name string) (string, error) {
	_, e, err := b.Ledger.entry(name)
	if err != nil {
		return "", err
	}
	known, err := b.Factory.Knows(ctx, e.SchematicID)
	if err != nil || !known {
		return "", err
	}
	return "the factory knows schematic " + schematics.Short(e.SchematicID), nil
}

func (b Builder) register(ctx context.Context, name string) error {
	_, e, err := b.Ledger.entry(name)
	if err != nil {
		return err
	}
	id, err := b.Factory.Register(ctx, e.Schematic)
	if err != nil {
		return fmt.Errorf("register schematic %s: %w", name, err)
	}
	if id != e.SchematicID {
		return fault.WithHint(
			fault.Refusedf("the factory gives schematic %s the ID %s, but the lock has %s", name, id, e.SchematicID),
			"the factory writes YAML in another way; strings such as yes, no, on and off in the schematic are the usual cause")
	}
	return nil
}

// haveInstaller says which installer the lock records, if it can be pulled.
func (b Builder) haveInstaller(ctx context.Context, name string) (string, error) {
	lock, e, err := b.Ledger.entry(name)
	if err != nil {
		return "", err
	}
	repository, digest, _ := strings.Cut(e.Installer, "@")
	if digest == "" || repository != b.Mirror && repository != b.Factory.InstallerRepository(RequestOf(lock, e)) {
		return "", nil
	}
	got, found, err := b.Registry.Digest(ctx, e.Installer)
	if err != nil {
		return "", fmt.Errorf("look for the installer: %w", err)
	}
	if !found || got != digest {
		return "", nil
	}
	return "installer " + shortDigest(digest) + " is there", nil
}

func (b Builder) resolveInstaller(ctx context.Context, name string) error {
	lock, e, err := b.Ledger.entry(name)
	if err != nil {
		return err
	}
	repository := b.Factory.InstallerRepository(RequestOf(lock, e))
	tag := repository + ":" + lock.Talos
	digest, found, err := b.Registry.Digest(ctx, tag)
	if err != nil {
		return fmt.Errorf("resolve the installer: %w", err)
	}
	if !found {
		return fmt.Errorf("resolve the installer: the factory has no %s", tag)
	}
	if _, old, _ := strings.Cut(e.Installer, "@"); old != "" && old != digest {
		return fault.WithHint(
			fault.Refusedf("%s is %s now, but the lock has %s, which is gone", tag, digest, old),
			"the factory has built it anew, or someone changed it. To trust the new one, remove recast.lock and run `recast lock`")
	}
	return b.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer = repository + "@" + digest })
}

// haveISO says where the ISO that the lock records is, cached or published.
func (b Builder) haveISO(ctx context.Context, name string) (string, error) {
	_, e, err := b.Ledger.entry(name)
	if err != nil || e.ISO.SHA256 == "" {
		return "", err
	}
	cached, found, err := b.Cache.look(e.ISO.Name)
	if err != nil {
		return "", err
	}
	if found && cached == e.ISO {
		return e.ISO.Name + " is in the cache", nil
	}
	if b.Published == nil {
		return "", nil
	}
	return b.Published(ctx, name)
}

func (b Builder) fetchISO(ctx context.Context, name string) error {
	lock, e, err := b.Ledger.entry(name)
	if err != nil {
		return err
	}
	body, size, err := b.Factory.ISO(ctx, RequestOf(lock, e))
	if err != nil {
		return fmt.Errorf("fetch the boot ISO: %w", err)
	}
	defer body.Close()
	note := func(text string) {
		if b.Note != nil {
			b.Note("build/"+name+"/fetch-iso", text)
		}
	}
	iso, err := b.Cache.store(&counted{Reader: body, tell: progress(size, note)}, size, e.ISO)
	if err != nil {
		return err
	}
	if iso == e.ISO {
		return nil
	}
	return b.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.ISO = iso })
}

// RequestOf names the images of a locked schematic to the factory.
func RequestOf(lock schematics.Lock, e schematics.Locked) ISORequest {
	return ISORequest{
		SchematicID: e.SchematicID, Talos: lock.Talos, Platform: lock.Platform, Arch: lock.Arch, SecureBoot: lock.SecureBoot,
	}
}

func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }
