// Package verify compares the content of images with the lock: of an installer, a boot ISO and a
// disk image of the same build. A difference is a [Mismatch].
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// Images reads the content of images in registries.
type Images interface {
	// Extract streams the files of an image (for an index, the manifest for arch) as
	// one tar, its layers flattened. At EOF every byte has been checked against its
	// digest. The caller closes it.
	Extract(ctx context.Context, ref, arch string) (io.ReadCloser, error)
}

// Verifier compares the content of installers, boot ISOs and disk images with the lock: names,
// tags and labels prove nothing. One Verifier serves a whole run and reads every
// locked extension image once. It is not safe for concurrent use.
//
// It cannot compare the installer's own programs and an ISO's GRUB, the bytes of
// Talos itself and of systemd-boot (they are the same in ISO and installer, and
// signed by the factory), and the output of depmod, of which it compares the names.
type Verifier struct {
	images  Images
	parent  string
	scratch string // "" until something was kept
	known   map[string]*lockedExtension
	largest int64 // installer, unpacked
}

// New reads extension images through images and keeps temporary files in its
// own directory below dir.
func New(images Images, dir string) *Verifier {
	return &Verifier{images: images, parent: dir, known: map[string]*lockedExtension{}, largest: Largest}
}

// Close removes the temporary files.
func (v *Verifier) Close() error {
	if v.scratch == "" {
		return nil
	}
	err := os.RemoveAll(v.scratch)
	v.scratch, v.known = "", map[string]*lockedExtension{}
	return err
}

// abandonedAfter is the age of a directory that only a killed run can have left.
const abandonedAfter = 24 * time.Hour

const scratchPattern = ".verify-*"

// temp returns a new directory for temporary files.
func (v *Verifier) temp() (string, error) {
	if v.scratch == "" {
		if err := os.MkdirAll(v.parent, 0o700); err != nil {
			return "", fmt.Errorf("make a directory to verify in: %w", err)
		}
		sweepScratch(v.parent)
		dir, err := os.MkdirTemp(v.parent, scratchPattern)
		if err != nil {
			return "", fmt.Errorf("make a directory to verify in: %w", err)
		}
		v.scratch = dir
	}
	dir, err := os.MkdirTemp(v.scratch, "")
	if err != nil {
		return "", fmt.Errorf("make a directory to verify in: %w", err)
	}
	return dir, nil
}

// sweepScratch removes what killed runs left long ago.
func sweepScratch(parent string) {
	left, err := filepath.Glob(filepath.Join(parent, scratchPattern))
	if err != nil {
		return // only a malformed pattern can cause that
	}
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			_ = os.RemoveAll(dir) // a directory that cannot be removed only costs space
		}
	}
}

// Boot is what a verified installer boots; an ISO of the same build boots the same.
type Boot struct {
	kernel string // see programSum
	talos  string // SHA-256 of Talos' own part of the initramfs
	loader string // systemd-boot: see programSum
	stub   string // the program of the UKI: see bootimage.UKI
}

// Installer verifies the installer of e for the lock's architecture. files is the
// tar of its flattened files, which is read to its end. All differences are reported
// together, as Mismatches of kind Refused. note receives the progress.
func (v *Verifier) Installer(ctx context.Context, lock schematics.Lock, e schematics.Locked, files io.Reader, note func(text string)) (Boot, error) {
	dir, err := v.temp()
	if err != nil {
		return Boot{}, err
	}
	defer os.RemoveAll(dir)
	note("reading what the installer holds")
	// The stream must not wait while extensions are read.
	held, err := unpackInstaller(lock.Arch, Bounded(files, v.largest), dir)
	if err != nil {
		return Boot{}, fmt.Errorf("installer: %w", err)
	}
	if held.uki == "" {
		return Boot{}, held.noUKI(lock.Arch)
	}
	f, err := os.Open(held.uki)
	if err != nil {
		return Boot{}, fmt.Errorf("installer: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Boot{}, fmt.Errorf("installer: %w", err)
	}
	odd, err := v.compareBootFiles(ctx, lock, e, held)
	if err != nil {
		return Boot{}, err
	}
	loader, loaderErrs, err := held.loaderSum(lock)
	if err != nil {
		return Boot{}, err
	}
	odd = append(odd, loaderErrs...)
	uki, err := bootimage.OpenUKI(f, info.Size())
	if err != nil {
		return Boot{}, errors.Join(append(odd, unreadable("installer", err))...)
	}
	odd = append(odd, checkSigned("installer: its UKI", uki.File, lock)...)
	want, err := v.wanted(ctx, lock, e, note)
	if err != nil {
		return Boot{}, err
	}
	boot, errs, err := want.check(ukiPart("installer", uki, false), dir)
	if err != nil {
		return Boot{}, err
	}
	boot.loader, boot.stub = loader, uki.Stub
	return boot.Boot, errors.Join(append(odd, errs...)...)
}

// ISO verifies the boot ISO of e, every way to boot it, and that it is of the same
// build as the installer that boot describes.
func (v *Verifier) ISO(ctx context.Context, lock schematics.Lock, e schematics.Locked, r io.ReaderAt, sizeBytes int64, boot Boot, note func(text string)) error {
	dir, err := v.temp()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	iso, err := bootimage.OpenISO(r, sizeBytes)
	if err != nil {
		return unreadable("boot ISO", err)
	}
	want, err := v.wanted(ctx, lock, e, note)
	if err != nil {
		return err
	}
	note("verifying what the boot ISO holds")
	var parts []part
	if iso.UKI != nil {
		parts = append(parts, ukiPart("boot ISO", iso.UKI, true))
	}
	if iso.GRUB != nil {
		p := part{name: "boot ISO, for BIOS", iso: true, cmdline: iso.GRUB.Cmdline, kernel: iso.GRUB.Kernel, initrd: iso.GRUB.Initrd}
		if iso.UKI != nil {
			p.uname = iso.UKI.Uname
		}
		parts = append(parts, p)
	}
	var errs []error
	var read checked
	for _, p := range parts {
		p.read = read
		got, mismatches, err := want.check(p, dir)
		if err != nil {
			return err
		}
		errs = append(errs, mismatches...)
		if got.Boot == (Boot{}) {
			continue // it could not be read to its end
		}
		errs = append(errs, sameBuild(p.name, "ISO", got.Boot, boot)...)
		read = got
	}
	loaders, err := want.loaders(iso, boot)
	if err != nil {
		return err
	}
	return errors.Join(append(errs, loaders...)...)
}

// sameBuild compares what an ISO or a disk image boots with what the installer installs.
func sameBuild(name, what string, got, want Boot) []error {
	var parts []string
	if got.kernel != want.kernel {
		parts = append(parts, fmt.Sprintf("kernel %s, the installer's is %s", shortSum(got.kernel), shortSum(want.kernel)))
	}
	if got.talos != want.talos {
		parts = append(parts, fmt.Sprintf("Talos initramfs %s, the installer's is %s", shortSum(got.talos), shortSum(want.talos)))
	}
	if len(parts) == 0 {
		return nil
	}
	return []error{mismatch(OtherBuild, "%s: the %s is of another build than the installer: %s", name, what, strings.Join(parts, "; "))}
}

// lockedExtension is the content of a locked extension image.
type lockedExtension struct {
	locked      schematics.Extension
	is          bootimage.Extension
	kept, moved bootimage.Tree
	microcode   map[string][]string // local files with the parts of a blob
}

// extension reads a locked extension image, once; it calls begin if it has to read.
func (v *Verifier) extension(ctx context.Context, x schematics.Extension, arch string, begin func()) (*lockedExtension, error) {
	ref := x.Ref + "@" + x.Digest
	if known := v.known[ref+" "+arch]; known != nil {
		return known, nil
	}
	begin()
	image, err := v.images.Extract(ctx, ref, arch)
	if err != nil {
		return nil, fmt.Errorf("read the locked extension %s: %w", ref, err)
	}
	defer image.Close()
	l := &lockedExtension{locked: x}
	if l.is, err = bootimage.ReadExtension(image); err != nil {
		return nil, fmt.Errorf("read the locked extension %s: %w", ref, err)
	}
	var microcode map[string][]string
	if l.kept, l.moved, microcode, err = split(l.is.Files); err != nil {
		return nil, fmt.Errorf("extension %s: %w", ref, err)
	}
	if len(microcode) > 0 {
		dir, err := v.temp()
		if err != nil {
			return nil, err
		}
		if l.microcode, err = v.keepMicrocode(ctx, ref, arch, dir, microcode); err != nil {
			return nil, fmt.Errorf("read the locked extension %s: %w", ref, err)
		}
	}
	v.known[ref+" "+arch] = l
	return l, nil
}

// modulesRoot holds a directory for each kernel release.
const modulesRoot = "/usr/lib/modules/"

// hasModules reports whether imager would run depmod for the extension.
func (l *lockedExtension) hasModules() bool {
	for name := range l.kept {
		if strings.HasPrefix(name, modulesRoot) {
			return true
		}
	}
	return false
}
