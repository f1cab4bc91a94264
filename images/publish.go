package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// Publisher puts the boot ISOs, or the disk images, of a lock onto Proxmox storage.
//
// An existing file with its name and size counts as published: the name holds the
// build ID. If the token may make a host download files, Proxmox compares the
// checksum as well, once per run.
type Publisher struct {
	Of       Artefact
	Store    Store
	Factory  URLs // from where Proxmox can download files
	Cache    *Cache
	Ledger   *Ledger
	Storages []string            // every one gets the file
	Hosts    map[string][]string // schematic → the hosts whose VMs boot its file; without any it is not published
	Delivery Delivery
	// ByImager reports whether the imager built a schematic's file, which then has no
	// URL; nil: none.
	ByImager func(schematic string) bool
	// Note receives the progress of the step at a path below Step: "publish/default/upload-cephfs",
	// for disk images "publish-disks/default/upload-cephfs". May be nil.
	Note func(path, text string)

	verified map[string]bool // target and file → Proxmox has compared its checksum in this run, or cannot
}

// Step is a tree that ends with every file on every storage that needs it. Run it after the Builder's.
func (p Publisher) Step() step.Step {
	p.verified = map[string]bool{}
	return step.Step{
		ID: p.id(), Title: fmt.Sprintf("publish %ss", p.Of),
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

func (p Publisher) id() string {
	if p.Of == DiskImage {
		return "publish-disks"
	}
	return "publish"
}

// Published says where the file of a schematic is; "" if it was not built yet or is
// missing somewhere.
func (p Publisher) Published(ctx context.Context, name string) (string, error) {
	j, err := p.job(ctx, name)
	if err != nil {
		return "", err
	}
	return j.published(), nil
}

func (j job) published() string {
	if len(j.present) == 0 || len(j.missing) > 0 {
		return ""
	}
	return j.file.Name + " is on " + describeTargets(j.present)
}

// job is the work for one schematic.
type job struct {
	Publisher
	schematic string
	file      schematics.BootFile
	url       string
	present   []target
	missing   []target // or with a file of another size under its name
}

// job looks at every target of a schematic that was built; an unbuilt one has none.
func (p Publisher) job(ctx context.Context, name string) (job, error) {
	lock, e, err := p.Ledger.entry(name)
	if err != nil {
		return job{}, err
	}
	j := job{Publisher: p, schematic: name, file: p.Of.File(lock, e), url: p.Of.URL(p.Factory, RequestOf(lock, e))}
	if j.file.SHA256 == "" || len(p.Hosts[name]) == 0 {
		return j, nil
	}
	all, err := targets(ctx, p.Store, p.Of, p.Storages, p.Hosts[name])
	if err != nil {
		return j, err
	}
	var errs []error
	for _, t := range all {
		sizeBytes, found, err := j.look(ctx, t)
		switch {
		case err != nil:
			errs = append(errs, err)
		case found && sizeBytes == j.file.SizeBytes:
			j.present = append(j.present, t)
		default:
			t.wrong = found
			j.missing = append(j.missing, t)
		}
	}
	return j, errors.Join(errs...)
}

func (p Publisher) schematic(name string) step.Step {
	return step.Step{
		ID: name, Title: fmt.Sprintf("publish the %s of schematic %s", strings.TrimSuffix(p.Of.Plural(), "s"), name),
		Skip: func(ctx context.Context) (string, error) { return p.done(ctx, name) },
		Steps: func(ctx context.Context) ([]step.Step, error) {
			j, err := p.job(ctx, name)
			if err != nil {
				return nil, err
			}
			if j.file.SHA256 == "" {
				return nil, fault.WithHint(fault.LockStale.Configf("schematic %q is not built yet", name), "run `recast publish --only build`")
			}
			return j.steps(ctx)
		},
	}
}

// done is Published for a file whose checksums were compared wherever possible.
func (p Publisher) done(ctx context.Context, name string) (string, error) {
	j, err := p.job(ctx, name)
	if err != nil || j.published() == "" {
		return "", err
	}
	if open, err := j.unverified(ctx); err != nil || len(open) > 0 {
		return "", err
	}
	return j.published(), nil
}

func (j job) steps(ctx context.Context) ([]step.Step, error) {
	unverified, err := j.unverified(ctx)
	if err != nil {
		return nil, err
	}
	var steps []step.Step
	for _, t := range unverified {
		steps = append(steps, j.verify(t))
	}
	if len(j.missing) == 0 {
		return steps, nil
	}
	ways := make([]way, len(j.missing))
	for i, t := range j.missing {
		if ways[i], err = j.way(ctx, t); err != nil {
			return nil, err
		}
	}
	steps = append(steps, step.Step{
		ID: "check-storages", Title: "check the space for " + j.file.Name,
		Do: func(ctx context.Context) error { return j.check(ctx, ways) },
	})
	for i, t := range j.missing {
		steps = append(steps, j.deliver(t, ways[i]))
	}
	return steps, nil
}

// look reports whether a file of that name is on the target, and its size.
func (j job) look(ctx context.Context, t target) (sizeBytes int64, found bool, err error) {
	sizeBytes, found, err = j.Of.Stored(ctx, j.Store, t.host, t.storage, j.file.Name)
	if err != nil {
		return 0, false, fmt.Errorf("look for %s on %s: %w", j.file.Name, t, err)
	}
	return sizeBytes, found, nil
}

// check checks everything that can be checked before the first byte is sent.
func (j job) check(ctx context.Context, ways []way) error {
	var errs []error
	if slices.ContainsFunc(ways, func(w way) bool { return w.cached }) {
		errs = append(errs, j.checkCache())
	}
	for _, t := range j.missing {
		if t.info.FreeBytes < j.file.SizeBytes {
			errs = append(errs, fault.WithHint(
				fault.StorageFull.Refusedf("too little space on %s: %s needs %d bytes, %d are free", t, j.file.Name, j.file.SizeBytes, t.info.FreeBytes),
				"recast prune removes %s of ours that nothing uses; or name another storage in %s", j.Of.Plural(), j.Of.Setting()))
		}
		if t.wrong {
			errs = append(errs, j.mayReplace(ctx, t))
		}
	}
	return errors.Join(errs...)
}

func (j job) checkCache() error {
	cached, found, err := j.Cache.look(j.file.Name)
	if err != nil {
		return err
	}
	if !found || cached != j.file {
		return fault.WithHint(fault.LockStale.Configf("%s is not in the cache as the lock has it", j.file.Name), "run `recast publish --only build`")
	}
	return nil
}

// mayReplace refuses to overwrite a file that a VM has in a drive, or would have
// after a rollback to a snapshot. Proxmox itself does not check: it overwrites a
// file in use (API2/Storage/Status.pm).
func (j job) mayReplace(ctx context.Context, t target) error {
	uses, err := j.Store.Uses(ctx)
	if err != nil {
		return fmt.Errorf("%s is on %s with other content than the lock has, and may only be replaced if nothing uses it: %w", j.file.Name, t, err)
	}
	by := usersOf(uses, j.file.Name)
	if len(by) == 0 {
		return nil
	}
	return fault.WithHint(
		fault.ISODiffers.Refusedf("%s on %s has other content than the lock has, and is in use by %s: it is not overwritten", j.file.Name, t, strings.Join(by, ", ")),
		"an interrupted upload leaves such a file. It is replaced once no drive and no snapshot names it: qm config VMID and qm listsnapshot VMID show what those VMs have, and qm set VMID --ide2 none,media=cdrom ejects it")
}

func describeTargets(all []target) string {
	var text strings.Builder
	for i, t := range all {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(t.String())
	}
	return text.String()
}
