package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// ImagerBuilder builds, with Talos' imager, what no Image Factory can build: schematics with extensions that only
// their own registry has.
type ImagerBuilder struct {
	// Builds reports whether the imager builds a schematic; nil: it builds none.
	Builds   func(schematic string) bool
	Imager   Imager
	Archives Archives
	Copier   Copier
	// Base is the repository of the base installer, with a tag for every Talos
	// version: "ghcr.io/siderolabs/installer-base".
	Base    string
	Scratch string // directory for temporary files
}

// builds reports whether the imager builds a schematic's images.
func (i ImagerBuilder) builds(schematic string) bool { return i.Builds != nil && i.Builds(schematic) }

// imagerSteps returns the steps that end with an installer in the mirror, and an ISO and, if wanted, a disk image in
// the lock.
//
// The imager never makes the same bytes twice (times of files, see docs/notes/images.md). So the mirror keeps all
// images for everyone who has the lock or resolves the same build: installers under their tags, boot ISOs and disk
// images beside the installers.
func (b Builder) imagerSteps(name string) []step.Step {
	title := "have the imager build installer and boot ISO"
	if len(b.wanted(name)) > 1 {
		title = "have the imager build installer, boot ISO and disk image"
	}
	return []step.Step{{
		ID: "run-imager", Title: title,
		Skip: func(ctx context.Context) (string, error) { return b.haveAll(ctx, name) },
		Do: func(ctx context.Context) (err error) {
			if err := b.imagerCan(name); err != nil {
				return err
			}
			w := &workspace{Builder: b, name: name}
			defer func() { err = errors.Join(err, w.remove()) }()
			err = w.installer(ctx)
			for _, a := range b.wanted(name) {
				if err == nil {
					err = w.file(ctx, a)
				}
			}
			return err
		},
	}}
}

// imagerCan returns why the imager cannot build a schematic; nil if it can.
func (b Builder) imagerCan(name string) error {
	lock, e := b.Ledger.entry(name)
	switch {
	case b.Mirror == "":
		return fault.WithHint(fault.BuildFailed.Configf("schematic %q is built by the imager, but there is no repository to pull its installer from", name),
			"name a repository of yours in images.mirror, such as ghcr.io/acme/talos")
	case lock.SecureBoot:
		return fault.WithHint(fault.BuildFailed.Refusedf("schematic %q is built by the imager, which has no key to sign images for Secure Boot with", name),
			"let the Image Factory build it: only official extensions, images.builder: factory")
	case e.EmbedsConfig():
		return fault.WithHint(fault.BuildFailed.Refusedf("schematic %q embeds a machine configuration, which the imager would print with its secrets", name),
			"remove embeddedMachineConfiguration from %s", e.File)
	}
	return nil
}

// installer ensures that the mirror has the installer, and records it in the lock.
func (w *workspace) installer(ctx context.Context) error {
	have, err := w.pullable(ctx, w.name)
	if err != nil || have != "" {
		return err
	}
	lock, e := w.Ledger.entry(w.name)
	tag := w.Mirror + ":" + TagOf(lock, e)
	if e.Installer != "" {
		return fault.WithHint(fault.ImageDiffers.Refusedf("the lock's installer %s is gone, and the imager never makes the same bytes again", e.Installer),
			"put it back into the registry. To have a new one built, remove recast.lock and run `recast lock`: every node is stale then")
	}
	digest, found, err := w.tagged(ctx, tag)
	switch {
	case err != nil:
		return err
	case found:
		w.say("%s is there already: it is verified instead of being built again", tag)
	default:
		if digest, err = w.makeInstaller(ctx, lock, e); err != nil {
			return err
		}
	}
	ref := w.Mirror + "@" + digest
	if found {
		if err := w.builtUponBase(ctx, lock, ref); err != nil {
			return w.explainMismatch(err, tag, found)
		}
	}
	if w.built.boot, err = w.installerBoot(ctx, lock, e, ref, w.note); err != nil {
		return w.explainMismatch(fmt.Errorf("verify %s: %w", ref, err), tag, found)
	}
	// The tag comes last: it marks the pushed image as complete and verified.
	if !found {
		if err := w.ByImager.Copier.Tag(ctx, ref, tag); err != nil {
			return fmt.Errorf("tag the installer: %w", err)
		}
	}
	return w.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer, e.Signer = ref, "" })
}

// explainMismatch adds a hint to the error of an image that differs from the lock.
func (w *workspace) explainMismatch(err error, tag string, found bool) error {
	if found {
		return fault.WithHint(err, "someone has pushed something else as %s: see whose it is; once nobody uses that tag, delete it from the registry", tag)
	}
	return fault.WithHint(err, "the imager has built something else than requested: check which version images.imager names")
}

// builtUponBase checks the installer's own programs, which no other check covers.
func (w *workspace) builtUponBase(ctx context.Context, lock schematics.Lock, ref string) error {
	base, err := w.pinned(ctx, w.ByImager.Base, lock.Talos)
	if err != nil {
		return fmt.Errorf("resolve the base installer: %w", err)
	}
	return w.ByImager.Archives.BuiltUpon(ctx, ref, base, lock.Arch)
}

// tagged looks for an installer that was built and pushed before, for instance by a
// run that was killed before it wrote the lock.
func (w *workspace) tagged(ctx context.Context, tag string) (digest string, found bool, err error) {
	digest, found, err = w.ByImager.Copier.Head(ctx, tag)
	if errors.Is(err, ErrDenied) {
		return "", false, nil // either the first push creates the repository, or the push will be denied, too
	}
	if err != nil {
		return "", false, fmt.Errorf("look for an installer in the mirror: %w", err)
	}
	return digest, found, nil
}

func (w *workspace) makeInstaller(ctx context.Context, lock schematics.Lock, e schematics.Locked) (digest string, err error) {
	job, err := w.job(ctx, lock, e)
	if err != nil {
		return "", err
	}
	job.Output = OutputInstaller
	if job.BaseInstaller, err = w.baseInstaller(ctx, lock); err != nil {
		return "", err
	}
	file, err := w.ByImager.Imager.Build(ctx, w.dir, job, w.note)
	if err != nil {
		return "", fmt.Errorf("build the installer: %w", err)
	}
	w.say("pushing the installer to %s", w.Mirror)
	digest, err = w.ByImager.Archives.PushArchive(ctx, ArchivePush{
		File: filepath.Join(w.dir, file), Repository: w.Mirror, Arch: lock.Arch, Base: job.BaseInstaller.Ref, Progress: progress(-1, w.note),
	})
	if err != nil {
		return "", fmt.Errorf("push the installer: %w", err)
	}
	return digest, nil
}

// file ensures that the boot ISO or the disk image is in the cache and beside the installer, and records it in the
// lock.
func (w *workspace) file(ctx context.Context, a Artefact) error {
	have, err := w.haveFile(ctx, a, w.name)
	if err != nil || have != "" {
		return err
	}
	lock, e := w.Ledger.entry(w.name)
	want := a.File(lock, e)
	kept, found, err := w.kept(ctx, a, e, want)
	if err != nil {
		return err
	}
	if !found && want.SHA256 != "" {
		return fault.WithHint(fault.ImageDiffers.Refusedf("%s is neither in the cache nor beside the installer in %s, and the imager never makes the same bytes again", want.Name, w.Mirror),
			"copy it from a storage that has it to %s. To have a new one built, remove recast.lock and run `recast lock`", w.Cache.path(want.Name))
	}
	var got schematics.Disk
	if found {
		got, err = w.fetchKept(ctx, a, e, kept)
	} else {
		got, err = w.makeFile(ctx, a, lock, e)
	}
	if err != nil || got.BootFile == want {
		return err
	}
	return w.record(a, e, got)
}

// mirrored reports whether the installer is in the mirror. An installer that the factory built, before the imager
// took over, is not.
func (w *workspace) mirrored(e schematics.Locked) bool {
	return strings.HasPrefix(e.Installer, w.Mirror+"@")
}

// kept looks beside the installer for the build's file: the locked file, or any if none is locked yet.
func (w *workspace) kept(ctx context.Context, a Artefact, e schematics.Locked, want schematics.BootFile) (schematics.BootFile, bool, error) {
	if !w.mirrored(e) {
		return schematics.BootFile{}, false, nil
	}
	list, err := w.ByImager.Archives.Attached(ctx, e.Installer)
	if err != nil {
		return schematics.BootFile{}, false, fmt.Errorf("look for a %s beside the installer: %w", a, err)
	}
	list = slices.DeleteFunc(list, func(f schematics.BootFile) bool {
		return f.Name != want.Name || want.SHA256 != "" && f != want
	})
	if len(list) == 0 {
		return schematics.BootFile{}, false, nil
	}
	return slices.MinFunc(list, func(a, b schematics.BootFile) int { return strings.Compare(a.SHA256, b.SHA256) }), true, nil
}

// fetchKept fetches a file from the mirror.
func (w *workspace) fetchKept(ctx context.Context, a Artefact, e schematics.Locked, kept schematics.BootFile) (schematics.Disk, error) {
	w.say("fetching %s from %s", kept.Name, w.Mirror)
	body, err := w.ByImager.Archives.AttachedFile(ctx, e.Installer, kept)
	if err != nil {
		return schematics.Disk{}, fmt.Errorf("fetch the %s: %w", a, err)
	}
	defer body.Close()
	got, err := w.keep(ctx, a, w.name, &w.built, &counted{Reader: body, tell: progress(kept.SizeBytes, w.note)}, kept.SizeBytes, kept, w.note)
	if err != nil {
		return got, fault.WithHint(err, "it was kept beside %s: if it is not its %s, delete it there (an OCI manifest with the installer as its subject)", e.Installer, a)
	}
	return got, nil
}

// makeFile builds a file. It pushes the file to the mirror before the file is recorded: only then is a lock that
// names the file of use to others.
func (w *workspace) makeFile(ctx context.Context, a Artefact, lock schematics.Lock, e schematics.Locked) (got schematics.Disk, err error) {
	job, err := w.job(ctx, lock, e)
	if err != nil {
		return got, err
	}
	job.Output = artefacts[a].output
	file, err := w.ByImager.Imager.Build(ctx, w.dir, job, w.note)
	if err != nil {
		return got, fmt.Errorf("build the %s: %w", a, err)
	}
	f, err := os.Open(filepath.Join(w.dir, file))
	if err != nil {
		return got, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return got, err
	}
	got, err = w.keep(ctx, a, w.name, &w.built, f, info.Size(), schematics.BootFile{Name: a.File(lock, e).Name}, w.note)
	if _, other := errors.AsType[*verify.Mismatch](err); other {
		err = w.explainMismatch(err, "", false)
	}
	if err != nil || !w.mirrored(e) {
		return got, err
	}
	w.say("pushing %s to %s", got.Name, w.Mirror)
	if err := w.ByImager.Archives.Attach(ctx, e.Installer, w.Cache.path(got.Name), a, got.BootFile, progress(got.SizeBytes, w.note)); err != nil {
		return got, fmt.Errorf("push the %s: %w", a, err)
	}
	return got, nil
}

// workspace is where the imager builds one schematic.
type workspace struct {
	Builder
	name  string
	top   string // private; "" until something is built
	dir   string // in top: the directory that the imager sees
	made  ImagerJob
	built sharedState // of the verified installer
}

func (w *workspace) note(text string) { w.noteFor(w.name, "run-imager")(text) }

func (w *workspace) say(format string, args ...any) { w.note(fmt.Sprintf(format, args...)) }

// job returns the inputs of all outputs, which it fetches on its first call. The imager itself gets no credentials
// and needs no network.
func (w *workspace) job(ctx context.Context, lock schematics.Lock, e schematics.Locked) (ImagerJob, error) {
	if w.top != "" {
		return w.made, nil
	}
	if _, err := w.ByImager.Imager.Ready(ctx); err != nil {
		return ImagerJob{}, err
	}
	if err := w.open(); err != nil {
		return ImagerJob{}, fmt.Errorf("make a directory to build in: %w", err)
	}
	job := ImagerJob{
		Talos: lock.Talos, Arch: lock.Arch, Platform: lock.Platform, SchematicID: e.SchematicID, Schematic: e.Schematic,
	}
	var err error
	if job.Customization, err = e.Customization(); err != nil {
		return job, err
	}
	if repository := w.ByImager.Imager.Image(); repository != "" {
		if job.Image, err = w.pinned(ctx, repository, lock.Talos); err != nil {
			return job, fmt.Errorf("resolve the imager's image: %w", err)
		}
		w.say("building with %s", job.Image)
	}
	list, err := e.BuildOrder()
	if err != nil {
		return job, err
	}
	for i, x := range list {
		w.say("fetching extension %s %s (%d of %d)", x.Name, x.Version, i+1, len(list))
		in, err := w.fetch(ctx, x.Ref+"@"+x.Digest, lock.Arch, strconv.Itoa(i)+".tar")
		if err != nil {
			return job, fmt.Errorf("fetch extension %s: %w", x.Name, err)
		}
		job.Extensions = append(job.Extensions, in)
	}
	if job.Overlay, err = w.overlay(ctx, lock, e); err != nil {
		return job, fmt.Errorf("fetch overlay %s: %w", e.Overlay.Name, err)
	}
	w.made = job
	return job, nil
}

// open creates two directories. The outer one is private. The inner one is mounted into a container and is writable
// for all, because user namespaces may map root in the container to any user.
func (w *workspace) open() error {
	if err := os.MkdirAll(w.ByImager.Scratch, 0o700); err != nil {
		return err
	}
	verify.Sweep(w.ByImager.Scratch, "*", verify.AbandonedAfter, os.RemoveAll)
	top, err := os.MkdirTemp(w.ByImager.Scratch, w.name+"-")
	if err != nil {
		return err
	}
	w.top, w.dir = top, filepath.Join(top, "out")
	if err := os.MkdirAll(filepath.Join(w.dir, "in"), 0o755); err != nil {
		return err
	}
	return os.Chmod(w.dir, 0o777)
}

func (w *workspace) remove() error {
	if w.top == "" {
		return nil
	}
	if err := os.RemoveAll(w.top); err != nil {
		return fault.WithHint(fmt.Errorf("remove what the imager has worked on: %w", err), "a container that runs as root leaves files of root's: remove %s", w.top)
	}
	return nil
}

// pinned returns a repository with the current digest of its tag for a Talos version.
func (w *workspace) pinned(ctx context.Context, repository, talos string) (string, error) {
	digest, found, err := w.Registry.Digest(ctx, repository+":"+talos)
	if err != nil {
		return "", err
	}
	if !found {
		return "", fault.WithHint(fault.BuildFailed.Configf("there is no %s:%s", repository, talos),
			"Talos publishes one with each version: see images.imager.image, images.extensions and talos.version")
	}
	return repository + "@" + digest, nil
}

func (w *workspace) baseInstaller(ctx context.Context, lock schematics.Lock) (ImagerInput, error) {
	in := ImagerInput{File: "in/installer-base"}
	var err error
	if in.Ref, err = w.pinned(ctx, w.ByImager.Base, lock.Talos); err != nil {
		return in, fmt.Errorf("resolve the base installer: %w", err)
	}
	w.say("fetching %s", in.Ref)
	if err := w.ByImager.Archives.SaveLayout(ctx, in.Ref, lock.Arch, filepath.Join(w.dir, in.File)); err != nil {
		return in, fmt.Errorf("fetch the base installer: %w", err)
	}
	return in, nil
}

// overlay fetches the overlay twice: for this machine, where the overlay's programs run beside the imager, and for
// the image, which gets the overlay's files.
func (w *workspace) overlay(ctx context.Context, lock schematics.Lock, e schematics.Locked) (*ImagerOverlay, error) {
	if e.Overlay == nil {
		return nil, nil
	}
	ref := e.Overlay.Ref + "@" + e.Overlay.Digest
	host, err := w.fetch(ctx, ref, runtime.GOARCH, "overlay-host.tar")
	if err != nil {
		return nil, err
	}
	target, err := w.fetch(ctx, ref, lock.Arch, "overlay.tar")
	if err != nil {
		return nil, err
	}
	return &ImagerOverlay{Name: e.Overlay.Name, Host: host, Target: target}, nil
}

// fetch writes the files of an image into the job's directory as one tar.
func (w *workspace) fetch(ctx context.Context, ref, arch, name string) (in ImagerInput, err error) {
	in = ImagerInput{Ref: ref, File: "in/" + name}
	body, err := w.Puller.Extract(ctx, ref, arch)
	if err != nil {
		return in, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	f, err := os.Create(filepath.Join(w.dir, in.File))
	if err != nil {
		return in, err
	}
	_, err = io.Copy(f, body)
	return in, errors.Join(err, f.Close())
}
