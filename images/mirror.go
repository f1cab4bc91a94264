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

// Mirror copies the installers of a lock into the user's own repository, and makes
// the lock name them there.
type Mirror struct {
	Copier     Copier
	Ledger     *Ledger
	Repository string // "ghcr.io/acme/talos"
	// Note receives the progress of the step at a path below Step: "mirror/default". May be nil.
	Note func(path, text string)
}

// Step is a tree that ends with every installer in the repository, tagged with
// its Talos version and build ID. Run it after the Builder's.
func (m Mirror) Step() step.Step {
	return step.Step{
		ID: "mirror", Code: fault.BuildFailed, Title: "mirror installers to " + m.Repository,
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range m.Ledger.Lock().Names() {
				steps = append(steps, step.Step{
					ID: name, Kind: "mirror-installer", Title: "mirror the installer of schematic " + name,
					Skip: func(ctx context.Context) (string, error) { return m.mirrored(ctx, name) },
					Do:   func(ctx context.Context) error { return m.mirror(ctx, name) },
				})
			}
			return steps, nil
		},
	}
}

// mirrored says where the installer is, if it exists and the lock names it there.
func (m Mirror) mirrored(ctx context.Context, name string) (string, error) {
	lock, e, err := m.Ledger.entry(name)
	if err != nil || e.Installer == "" {
		return "", err
	}
	tag := m.tag(lock, e)
	found, err := m.tagged(ctx, tag, e)
	if errors.Is(err, ErrDenied) {
		return "", nil // a repository that the first push creates; Do checks again after it
	}
	if repository, _, _ := strings.Cut(e.Installer, "@"); err != nil || !found || repository != m.Repository {
		return "", err
	}
	return tag + " is there", nil
}

// mirror sets the tag last, so an interrupted copy never looks like a complete
// installer.
func (m Mirror) mirror(ctx context.Context, name string) error {
	lock, e, err := m.Ledger.entry(name)
	if err != nil {
		return err
	}
	_, digest, _ := strings.Cut(e.Installer, "@")
	if digest == "" {
		return fault.WithHint(fault.LockStale.Configf("schematic %q is not built yet", name), "run `recast publish --only build`")
	}
	note := func(text string) {
		if m.Note != nil {
			m.Note("mirror/"+name, text)
		}
	}
	var tell func(doneBytes int64)
	report := func(doneBytes, totalBytes int64) {
		if tell == nil {
			tell = progress(totalBytes, note)
		}
		tell(doneBytes)
	}
	if err := m.Copier.Copy(ctx, e.Installer, m.Repository, report); err != nil {
		return fmt.Errorf("copy %s: %w", e.Installer, err)
	}
	tag, ref := m.tag(lock, e), m.Repository+"@"+digest
	found, err := m.tagged(ctx, tag, e)
	if err != nil {
		return err
	}
	if !found {
		if err := m.Copier.Tag(ctx, ref, tag); err != nil {
			return fmt.Errorf("tag the installer: %w", err)
		}
	}
	if e.Installer == ref {
		return nil
	}
	return m.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer = ref })
}

// tagged reports whether the tag exists. Its name holds the build ID, so a tag on
// another image than the lock's is refused.
func (m Mirror) tagged(ctx context.Context, tag string, e schematics.Locked) (bool, error) {
	got, found, err := m.Copier.Head(ctx, tag)
	if err != nil {
		return false, fmt.Errorf("look for the mirrored installer: %w", err)
	}
	if _, want, _ := strings.Cut(e.Installer, "@"); found && got != want {
		return false, fault.WithHint(
			fault.ImageDiffers.Refusedf("%s is %s, but the lock has %s: it is never overwritten", tag, got, want),
			"the factory has rebuilt it since it was mirrored, or someone moved the tag. "+
				"Use the recast.lock that has the mirrored digest, or delete the tag from the registry")
	}
	return found, nil
}

func (m Mirror) tag(lock schematics.Lock, e schematics.Locked) string {
	return m.Repository + ":" + TagOf(lock, e)
}

// TagOf is the tag under which the installer of a locked schematic is mirrored.
func TagOf(lock schematics.Lock, e schematics.Locked) string {
	return lock.Talos + "-" + schematics.Short(e.BuildID)
}
