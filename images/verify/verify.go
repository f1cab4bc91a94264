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
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// Images reads the content of images in registries.
type Images interface {
	// Extract streams the files of an image (for an index, the manifest for arch) as one tar, its layers flattened. At EOF
	// every byte has been checked against its digest. The caller closes it.
	Extract(ctx context.Context, ref, arch string) (io.ReadCloser, error)
}

// Verifier compares the content of installers, boot ISOs and disk images with the lock: names,
// tags and labels prove nothing. One Verifier serves a whole run and reads every
// locked extension image once. It is not safe for concurrent use.
//
// A Verifier cannot compare the installer's own programs, an ISO's GRUB, or the bytes of Talos itself and systemd-boot
// (they are the same in ISO and installer, and signed by the factory). Of depmod's output it compares only the names.
type Verifier struct {
	images  Images
	parent  string
	scratch string // "" until something was kept
	known   map[string]*lockedExtension
	largest int64 // bytes; the limit for an unpacked installer
}

// New returns a Verifier that reads extension images through images and keeps temporary files in a directory of its
// own below dir.
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

// AbandonedAfter is the age from which a temporary directory can only be left from a killed run.
const AbandonedAfter = 24 * time.Hour

// temp returns a new directory for temporary files.
func (v *Verifier) temp() (dir string, err error) {
	if v.scratch == "" {
		if err = os.MkdirAll(v.parent, 0o700); err == nil {
			Sweep(v.parent, ".verify-*", AbandonedAfter, os.RemoveAll)
			v.scratch, err = os.MkdirTemp(v.parent, ".verify-*")
		}
	}
	if err == nil {
		dir, err = os.MkdirTemp(v.scratch, "")
	}
	if err != nil {
		return "", fmt.Errorf("make a directory to verify in: %w", err)
	}
	return dir, nil
}

// Sweep removes what killed runs left in a directory long ago, under names that match a pattern. Anything younger than
// olderThan may belong to another process.
func Sweep(dir, pattern string, olderThan time.Duration, remove func(path string) error) {
	left, err := os.ReadDir(dir)
	if err != nil {
		return // a directory that cannot be listed only costs space
	}
	for _, e := range left {
		ours, _ := filepath.Match(pattern, e.Name()) // only a malformed pattern is an error
		if info, err := e.Info(); ours && err == nil && time.Since(info.ModTime()) > olderThan {
			_ = remove(filepath.Join(dir, e.Name())) // a file that cannot be removed only costs space
		}
	}
}

// Boot is what a verified installer boots. An ISO of the same build boots the same.
type Boot struct {
	kernel string // see programSum
	talos  string // SHA-256 of Talos' own part of the initramfs
	loader string // systemd-boot: see programSum
	stub   string // the program of the UKI: see bootimage.UKI
}

// Installer verifies the installer of e for the lock's architecture. files is the tar of its flattened files, which is
// read to its end. All differences are reported together, as Mismatches of kind Refused. note receives the progress.
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

// ISO verifies the boot ISO of e: every way to boot it, and that it is of the same build as the installer that boot
// describes.
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
	microcode   map[string][]string // local files with the parts of each blob
}

// extension reads a locked extension image, once. It calls begin before it reads.
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

// An image that a BIOS boots, too, says this in META: see buildImage in pkg/imager of siderolabs/talos. Talos removes
// the value on the first boot.
const (
	bootloaderMeta = 0x11
	dualBoot       = "dual-boot"
)

// Disk verifies the disk image of e, a qcow2 file, and that it is of the same build as the installer that boot
// describes. It returns the size of the disk in the file. A copy of the disk is recognised by this size.
//
// Disk compares only META and what UEFI boots. An image may also have GRUB for a BIOS, on a file system that nothing
// here reads: no machine may boot the image by BIOS.
func (v *Verifier) Disk(ctx context.Context, lock schematics.Lock, e schematics.Locked, r io.ReaderAt, fileBytes int64, boot Boot, note func(text string)) (diskBytes int64, err error) {
	const name = "disk image"
	dir, err := v.temp()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	disk, err := diskimage.Open(r, fileBytes)
	if err != nil {
		return 0, unreadable(name, err)
	}
	want, err := v.wanted(ctx, lock, e, note)
	if err != nil {
		return 0, err
	}
	note("verifying what the disk image holds")
	got, errs, err := want.check(ukiPart(name, disk.ESP.UKI, false), dir)
	if err != nil {
		return 0, err
	}
	if got.Boot != (Boot{}) { // it could be read to its end
		errs = append(errs, sameBuild(name, name, got.Boot, boot)...)
	}
	loaders, err := want.uefi(name, *disk.ESP, boot)
	if err != nil {
		return 0, err
	}
	others, err := want.besideUKI(name, disk.ESP)
	if err != nil {
		return 0, err
	}
	errs = slices.Concat(errs, loaders, others, want.metaValues(name, disk))
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return disk.SizeBytes, nil
}

// besideUKI compares the other files of the EFI system partition. A disk image for
// Secure Boot brings keys that systemd-boot enrols: those of the locked certificate.
func (w *wanted) besideUKI(name string, esp *bootimage.ESP) (mismatches []error, err error) {
	if w.lock.SecureBoot && len(esp.Keys) > 0 {
		enrolled, err := esp.Enrolled()
		if err != nil {
			return nil, unreadable(name, err)
		}
		if !slices.Equal(enrolled, []string{w.lock.SecureBootKey}) {
			mismatches = append(mismatches, mismatch(OtherSigner, "%s: it enrols other certificates for Secure Boot than the locked one, %s: %s",
				name, shortSum(w.lock.SecureBootKey), firstFew(enrolled)))
		}
	}
	return append(mismatches, w.oddFiles(name, *esp)...), nil
}

// oddFiles reports what is on an EFI system partition beside the boot loader and its UKI. Keys belong there only for
// Secure Boot.
func (w *wanted) oddFiles(name string, esp bootimage.ESP) []error {
	odd := slices.Clone(esp.Odd)
	if !w.lock.SecureBoot {
		odd = append(odd, esp.Keys...)
	}
	if len(odd) == 0 {
		return nil
	}
	return []error{mismatch(Bootloader, "%s: it has unexpected files beside its boot loader: %s", name, firstFew(odd))}
}

// metaValues compares META with the schematic's values. The last value of a key counts. Values may be secrets, so
// only keys are named.
func (w *wanted) metaValues(name string, disk *diskimage.Image) []error {
	want, got := map[uint8]string{}, map[uint8]string{}
	for _, m := range w.args.meta {
		want[m.Key] = m.Value
	}
	if disk.BIOS {
		want[bootloaderMeta] = dualBoot
	}
	for _, m := range disk.Meta {
		got[m.Key] = m.Value
	}
	differ := differences(want, got, "%#x", "is not the schematic's", func(want, got string) string {
		if want != got {
			return "has another value"
		}
		return ""
	})
	if len(differ) == 0 {
		return nil
	}
	return []error{mismatch(OtherConfig, "%s: other META values than locked: %s", name, strings.Join(differ, "; "))}
}

// MismatchKind says how an image differs from the lock.
type MismatchKind string

// The kinds of mismatch.
const (
	Damaged          MismatchKind = "damaged"           // or in no format that Talos has
	OtherArch        MismatchKind = "other-arch"        // built for another architecture
	OtherTalos       MismatchKind = "other-talos"       // of another Talos version
	ExtensionMissing MismatchKind = "extension-missing" // the lock has it, the image does not
	ExtensionAdded   MismatchKind = "extension-added"   // the image has it, the lock does not
	ExtensionOrder   MismatchKind = "extension-order"   // the right extensions in another order
	ExtensionVersion MismatchKind = "extension-version" // the locked name, but another version
	ExtensionContent MismatchKind = "extension-content" // the locked name and version, but other files
	OtherFirmware    MismatchKind = "other-firmware"    // files beside the extensions
	OtherModules     MismatchKind = "other-modules"     // the generated dependencies of kernel modules
	OtherConfig      MismatchKind = "other-config"      // the machine configuration that the image brings, or its META values
	OtherSchematic   MismatchKind = "other-schematic"   // the entry that says what the image was made of
	OtherArgs        MismatchKind = "other-args"        // kernel arguments
	OtherFiles       MismatchKind = "other-files"       // files of the installer, where Talos' boot files lie
	Bootloader       MismatchKind = "bootloader"        // what starts an ISO is not what the installer installs
	OtherSigner      MismatchKind = "other-signer"      // signed for Secure Boot by another certificate than the locked one
	OtherBuild       MismatchKind = "other-build"       // ISO and installer differ in kernel or Talos itself
)

// Mismatch is one difference between an image and the lock.
type Mismatch struct {
	Kind MismatchKind
	Text string
}

func (m *Mismatch) Error() string { return m.Text }

// mismatch returns a Mismatch with its remedy, of kind Refused.
func mismatch(kind MismatchKind, format string, args ...any) error {
	err := fault.ImageDiffers.Of(fault.As(fault.Refused, &Mismatch{Kind: kind, Text: fmt.Sprintf(format, args...)}))
	if hint := kind.hint(); hint != "" {
		return fault.WithHint(err, "%s", hint)
	}
	return err
}

// unreadable wraps the error of reading a boot image. The image is Damaged, unless reading failed for another reason,
// such as a full disk.
func unreadable(what string, err error) error {
	if errors.Is(err, bootimage.ErrFormat) {
		return mismatch(Damaged, "%s: %v", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// A factory keeps its list of extensions until it restarts, and serves an installer
// for ever once it is built: see docs/notes/images.md.
const otherContentHint = "the factory built other content under this name, or someone pushed it. Restart the factory, or wait until it has the locked extensions. " +
	"It serves an installer for ever once built: if it is still refused then, " + rebuildHint

// rebuildHint says how to get around what a factory, or a mirror, has under a name.
const rebuildHint = "`recast lock --rebuild SCHEMATIC` builds the same content under another name"

func (k MismatchKind) hint() string {
	switch k {
	case Damaged:
		return "an ISO may have been damaged on the way, an installer is what the registry has: run it again, and if that does not help, " + rebuildHint
	case OtherArch, OtherTalos, OtherSchematic:
		return "it is the image of something else: check images.factory, images.mirror and what answers there"
	case ExtensionOrder:
		return "the order decides which file wins: the builder has read the schematic differently; " + rebuildHint
	case OtherArgs:
		return "if Talos itself brings an argument that this recast does not know, update recast, or name it in the schematic's extraKernelArgs"
	case Bootloader:
		return "nothing else starts on a node before it, and nothing can check what it does: rebuild installer and boot ISO with the same factory, " +
			"and check whether someone pushed other content"
	case OtherSigner:
		return "machines that have enrolled only the locked certificate do not start it: make sure that every replica of the factory signs with that one, " +
			"or that the machines know the new one, then run `recast lock --update`"
	case OtherBuild:
		return "the factory rebuilt one of the two: check whether someone pushed other content; " + rebuildHint
	default:
		return otherContentHint
	}
}

// Largest is a limit far above any installer, boot ISO or disk image: these have 80 to 400 MiB, or somewhat more with
// firmware and drivers of graphics cards. A server that sends more does not send an image of Talos, and might never
// end.
const Largest = 4 << 30

// Bounded returns a reader of r that fails after more than most bytes.
func Bounded(r io.Reader, most int64) io.Reader { return &bounded{Reader: r, most: most} }

type bounded struct {
	io.Reader
	most, read int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.read += int64(n); b.read > b.most {
		return n, TooLarge(b.most)
	}
	return n, err
}

// TooLarge returns the error of a file with more than most bytes, of kind Refused.
func TooLarge(most int64) error {
	return fault.WithHint(fault.Refusedf("more than %s, which no image of Talos has", words.Size(most)),
		"see what answers at images.factory and images.mirror, and whether a proxy is in between")
}
