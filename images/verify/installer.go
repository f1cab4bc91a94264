package verify

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// The paths where imager puts what it adds to the base installer: constants.UKIAssetPath and
// constants.ImagerOverlayBasePath of siderolabs/talos, and outInstaller in pkg/imager. Since Talos 1.10 the UKI has
// the same name for Secure Boot.
const (
	installRoot   = "usr/install/"
	ukiFile       = "vmlinuz.efi"
	bootFile      = "systemd-boot.efi"
	overlayRoot   = "overlay/"
	overlayArgs   = overlayRoot + "extra-options" // the schematic's options of the overlay
	overlayBinary = overlayRoot + "installers/default"
)

// installerFiles describes what an installer holds in addition to its own programs.
type installerFiles struct {
	uki     string         // local file; "" if there is none
	loader  string         // likewise, of systemd-boot
	options string         // likewise, of the overlay's options
	overlay bootimage.Tree // by the path in the image
	odd     []string       // unexpected files among those that the installer installs
	archs   []string       // the architectures of the files in odd
}

// unpackInstaller reads an installer to its end and keeps the UKI, the boot loader and the overlay's options in dir.
func unpackInstaller(arch string, files io.Reader, dir string) (installerFiles, error) {
	held := installerFiles{overlay: bootimage.Tree{}}
	own := installRoot + arch + "/"
	err := eachEntry(files, func(kind byte, name string, r io.Reader) (err error) {
		switch {
		case kind == tar.TypeDir:
		case kind != tar.TypeReg:
			// Unpacking the image would follow such a link instead of using the file that is compared here.
			if inside := name + "/"; strings.HasPrefix(inside, installRoot) || strings.HasPrefix(inside, overlayRoot) || strings.HasPrefix(installRoot, inside) {
				held.odd = append(held.odd, "/"+name)
			}
		case name == own+ukiFile && held.uki == "":
			held.uki = filepath.Join(dir, ukiFile)
			return writeFile(held.uki, r)
		case name == own+bootFile && held.loader == "":
			held.loader = filepath.Join(dir, bootFile)
			return writeFile(held.loader, r)
		case name == overlayArgs && held.options == "":
			held.overlay[name], held.options = bootimage.File{}, filepath.Join(dir, "extra-options")
			return writeFile(held.options, r)
		case strings.HasPrefix(name, overlayRoot):
			held.overlay[name], err = hashed256(r)
			return err
		case strings.HasPrefix(name, installRoot):
			held.odd = append(held.odd, "/"+name)
			a, _, nested := strings.Cut(strings.TrimPrefix(name, installRoot), "/")
			if nested && !slices.Contains(held.archs, a) {
				held.archs = append(held.archs, a)
			}
		}
		return nil
	})
	return held, err
}

func hashed256(r io.Reader) (bootimage.File, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	return bootimage.File{SizeBytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// noUKI says why an image is not an installer for an architecture.
func (h installerFiles) noUKI(arch string) error {
	if len(h.archs) > 0 && !slices.Contains(h.archs, arch) {
		return mismatch(OtherArch, "installer: it is for %s, but the lock is for %s", strings.Join(h.archs, " and "), arch)
	}
	return mismatch(Damaged, "installer: it has no /%s%s/%s: it is not an installer of Talos 1.10 or later", installRoot, arch, ukiFile)
}

// compareBootFiles compares what an installer holds beside its UKI.
func (v *Verifier) compareBootFiles(ctx context.Context, lock schematics.Lock, e schematics.Locked, held installerFiles) (mismatches []error, err error) {
	if len(held.odd) > 0 {
		mismatches = append(mismatches, mismatch(OtherFiles, "installer: it holds unexpected boot files: %s", firstFew(held.odd)))
	}
	want := bootimage.Tree{}
	from := "no overlay is locked"
	if e.Overlay != nil {
		from = fmt.Sprintf("locked is %s (%s)", e.Overlay.Name, e.Overlay.Digest)
		if want, err = v.overlay(ctx, lock.Arch, *e.Overlay); err != nil {
			return nil, err
		}
		want[overlayArgs] = held.overlay[overlayArgs]
		other, err := held.otherOptions(e)
		if err != nil {
			return nil, err
		}
		mismatches = append(mismatches, other...)
	}
	if diff := treeDiff(want, held.overlay, sameContent); diff != "" {
		mismatches = append(mismatches, mismatch(OtherFiles, "installer: it has another overlay, %s: %s", from, diff))
	}
	return mismatches, nil
}

// otherOptions compares the options that the installer passes to the overlay's program with the schematic's options.
// imager rewrites the options as YAML.
func (h installerFiles) otherOptions(e schematics.Locked) ([]error, error) {
	if h.options == "" {
		return nil, nil // compareBootFiles reports the file as missing
	}
	c, err := e.Customization()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(h.options)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	defer f.Close()
	options, err := bootimage.ReadOverlayOptions(f)
	if err != nil {
		return []error{unreadable("installer", err)}, nil
	}
	if len(options)+len(c.OverlayOptions) == 0 || reflect.DeepEqual(options, c.OverlayOptions) {
		return nil, nil
	}
	return []error{mismatch(OtherFiles, "installer: /%s gives the overlay other options than the locked schematic", overlayArgs)}, nil
}

// overlay returns the files that a locked overlay adds to an installer.
func (v *Verifier) overlay(ctx context.Context, arch string, o schematics.Overlay) (bootimage.Tree, error) {
	ref := o.Ref + "@" + o.Digest
	image, err := v.images.Extract(ctx, ref, arch)
	if err != nil {
		return nil, fmt.Errorf("read the locked overlay %s: %w", ref, err)
	}
	defer image.Close()
	files := bootimage.Tree{}
	err = eachFile(image, func(name string, r io.Reader) (err error) {
		switch {
		case name == "installers/"+o.Name:
			files[overlayBinary], err = hashed256(r)
		case strings.HasPrefix(name, "artifacts/"):
			files[overlayRoot+name], err = hashed256(r)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the locked overlay %s: %w", ref, err)
	}
	return files, nil
}

// firstFew formats the first few names of a list.
func firstFew(list []string) string {
	text := strings.Join(list[:min(len(list), maxNamed)], ", ")
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
