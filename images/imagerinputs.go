package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// abandonedAfter is the age of a directory that only a killed run can have left.
const abandonedAfter = 24 * time.Hour

// workspace is where the imager builds one schematic.
type workspace struct {
	Builder
	name  string
	top   string // private; "" until something is built
	dir   string // in top: what the imager sees
	made  ImagerJob
	built sharedState // of the verified installer
}

func (w *workspace) note(text string) { w.noteFor(w.name, "run-imager")(text) }

func (w *workspace) say(format string, args ...any) { w.note(fmt.Sprintf(format, args...)) }

// job fetches the inputs of all outputs on its first call. The imager itself gets
// no credentials and needs no network.
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

// open creates the directories. The outer one is private. The inner one, which is
// mounted into a container, is writable for all, because user namespaces may map
// root in there to any user.
func (w *workspace) open() error {
	if err := os.MkdirAll(w.ByImager.Scratch, 0o700); err != nil {
		return err
	}
	w.sweep()
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

// sweep removes what killed runs left long ago; younger directories may belong to
// another process.
func (w *workspace) sweep() {
	left, err := os.ReadDir(w.ByImager.Scratch)
	if err != nil {
		return // what cannot be listed only costs space
	}
	for _, d := range left {
		if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			_ = os.RemoveAll(filepath.Join(w.ByImager.Scratch, d.Name())) // as above
		}
	}
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

// pinned is a repository with the current digest of its tag for a Talos version.
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

// overlay fetches it twice: its own programs run beside the imager, its files go
// into the image.
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

// fetch writes the files of an image into the directory as one tar.
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
