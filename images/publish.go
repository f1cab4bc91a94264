package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Publisher puts the boot ISOs of a lock onto Proxmox storage.
type Publisher struct {
	Store    Store
	Cache    *Cache
	Ledger   *Ledger
	Storages []string            // every one gets the ISO
	Hosts    map[string][]string // schematic → the hosts whose VMs boot its ISO; without any it isn't published
	// Note is told the progress of the step at a path below Step: "publish/default/upload-cephfs". May be nil.
	Note func(path, text string)
}

// Step is a tree that ends with every ISO on every storage that needs it. Run it after the Builder's.
func (p Publisher) Step() step.Step {
	return step.Step{
		ID: "publish", Title: "publish boot ISOs",
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range p.Ledger.Lock().Names() {
				if len(p.Hosts[name]) > 0 {
					steps = append(steps, p.schematic(name))
				}
			}
			return steps, nil
		},
	}
}

// Published says where the ISO of a schematic is; "" if it was not built yet or
// is missing somewhere.
func (p Publisher) Published(ctx context.Context, name string) (string, error) {
	_, e, err := p.Ledger.entry(name)
	if err != nil || e.ISO.SHA256 == "" || len(p.Hosts[name]) == 0 {
		return "", err
	}
	missing, all, err := p.missing(ctx, name, e)
	if err != nil || len(missing) > 0 {
		return "", err
	}
	return e.ISO.Name + " is on " + words(all), nil
}

func (p Publisher) schematic(name string) step.Step {
	return step.Step{
		ID: name, Title: "publish the ISO of schematic " + name,
		Skip: func(ctx context.Context) (string, error) { return p.Published(ctx, name) },
		Steps: func(ctx context.Context) ([]step.Step, error) {
			_, e, err := p.Ledger.entry(name)
			if err != nil {
				return nil, err
			}
			if e.ISO.SHA256 == "" {
				return nil, fault.WithHint(fault.Configf("schematic %q is not built yet", name), "run `recast build`")
			}
			missing, _, err := p.missing(ctx, name, e)
			if err != nil {
				return nil, err
			}
			steps := []step.Step{{
				ID: "check-storages", Title: "check the space for " + e.ISO.Name,
				Do: func(context.Context) error { return p.checkUpload(e.ISO, missing) },
			}}
			for _, t := range missing {
				steps = append(steps, p.upload(name, e.ISO, t))
			}
			return steps, nil
		},
	}
}

// missing returns the targets that lack the ISO, and all of them.
func (p Publisher) missing(ctx context.Context, name string, e schematics.Locked) (missing, all []target, err error) {
	all, err = targets(ctx, p.Store, p.Storages, p.Hosts[name])
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, t := range all {
		found, err := p.has(ctx, t, e.ISO)
		if err != nil {
			errs = append(errs, err)
		} else if !found {
			missing = append(missing, t)
		}
	}
	return missing, all, errors.Join(errs...)
}

// has says whether the ISO is on the target. Its name holds the build ID, so one
// of that name and another size is no ISO of ours, or half of one.
func (p Publisher) has(ctx context.Context, t target, iso schematics.ISO) (bool, error) {
	size, found, err := p.Store.ISO(ctx, t.host, t.storage, iso.Name)
	if err != nil {
		return false, fmt.Errorf("look for %s on %s: %w", iso.Name, t, err)
	}
	if found && size != iso.SizeBytes {
		return false, fault.WithHint(
			fault.Refusedf("%s on %s has %d bytes, but the lock has %d: it is never overwritten", iso.Name, t, size, iso.SizeBytes),
			"an upload that was cut off leaves such a file. If no VM uses it: `pvesm free %s:iso/%s` on %s", t.storage, iso.Name, t.host)
	}
	return found, nil
}

// checkUpload checks all that can be checked before the first byte is sent.
func (p Publisher) checkUpload(iso schematics.ISO, missing []target) error {
	cached, found, err := p.Cache.look(iso.Name)
	if err != nil {
		return err
	}
	if !found || cached != iso {
		return fault.WithHint(fault.Configf("%s is not in the cache as the lock has it", iso.Name), "run `recast build`")
	}
	var errs []error
	for _, t := range missing {
		if t.info.FreeBytes < iso.SizeBytes {
			errs = append(errs, fault.WithHint(
				fault.Refusedf("too little space on %s: %s needs %d bytes, %d are free", t, iso.Name, iso.SizeBytes, t.info.FreeBytes),
				"remove ISOs that nothing uses, or name another storage in images.iso.storage"))
		}
	}
	return errors.Join(errs...)
}

func (p Publisher) upload(name string, iso schematics.ISO, t target) step.Step {
	id := "upload-" + t.id()
	return step.Step{
		ID: id, Title: fmt.Sprintf("upload %s to %s", iso.Name, t),
		Skip: func(ctx context.Context) (string, error) {
			found, err := p.has(ctx, t, iso)
			if err != nil || !found {
				return "", err
			}
			return "it is on " + t.String(), nil
		},
		Do: func(ctx context.Context) error {
			note := func(text string) {
				if p.Note != nil {
					p.Note("publish/"+name+"/"+id, text)
				}
			}
			err := p.Store.Upload(ctx, Upload{
				Host: t.host, Storage: t.storage, Name: iso.Name, SizeBytes: iso.SizeBytes, SHA256: iso.SHA256,
				Open:     func() (io.ReadCloser, error) { return p.Cache.open(iso.Name) },
				Progress: progress(iso.SizeBytes, note),
			})
			if err != nil {
				return fmt.Errorf("upload to %s: %w", t, err)
			}
			return nil
		},
	}
}

func words(all []target) string {
	var text strings.Builder
	for i, t := range all {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(t.String())
	}
	return text.String()
}
