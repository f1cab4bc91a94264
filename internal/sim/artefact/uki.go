package artefact

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
)

// platformArg is the kernel argument that tells Talos where it runs.
const platformArg = "talos.platform="

// labKernel is the kernel release (uname -r) of the lab's images.
const labKernel = "6.18.0-talos"

func (img Image) kernel() string { return cmp.Or(img.Kernel, labKernel) }

// linux is a fake kernel with its release in it. Only an x86 kernel has that, in its boot
// header: Documentation/arch/x86/boot.rst of Linux.
func (img Image) linux() []byte {
	name := fmt.Appendf(nil, "%s (lab@recast) #1 SMP %s\x00", img.kernel(), img.Arch)
	if img.Arch != "amd64" {
		return name
	}
	const magic, version, setup, at = 0x202, 0x20e, 0x200, 0x100
	b := make([]byte, setup+at)
	copy(b[magic:], "HdrS")
	binary.LittleEndian.PutUint16(b[version:], at)
	return append(b, name...)
}

// UKI makes a unified kernel image: kernel, command line and initramfs with the extensions in
// one file. Results are cached; the caller must not change the bytes.
func UKI(img Image) ([]byte, error) {
	if err := img.validate(); err != nil {
		return nil, err
	}
	return madeUKIs.get(img, func() ([]byte, error) {
		initrd, err := initramfs(img)
		if err != nil {
			return nil, fmt.Errorf("make initramfs: %w", err)
		}
		return portableExecutable(img.Arch, []section{
			{".osrel", osRelease(img.TalosVersion)},
			{".cmdline", []byte(img.Cmdline)},
			{".uname", []byte(img.kernel())},
			{".linux", img.linux()},
			{".initrd", initrd},
		})
	})
}

// ReadUKI reads a unified kernel image; anything else, or a damaged one, is ErrNotBootable.
func ReadUKI(b []byte) (Image, error) {
	return readImages.get(b, func() (Image, error) {
		u, err := bootimage.OpenUKI(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
		return imageOf(u)
	})
}

// imageOf is what a machine finds when it boots a UKI.
func imageOf(u *bootimage.UKI) (Image, error) {
	img := Image{TalosVersion: u.Talos, Arch: u.Arch, Cmdline: u.Cmdline}
	if u.Uname != labKernel {
		img.Kernel = u.Uname
	}
	for arg := range strings.FieldsSeq(u.Cmdline) {
		if platform, ok := strings.CutPrefix(arg, platformArg); ok {
			img.Platform = platform
		}
	}
	files := map[string]map[string][]byte{}
	initrd, err := bootimage.ReadInitrdContents(u.Initrd, os.TempDir(), func(image, path string, content io.Reader) error {
		b, err := io.ReadAll(content)
		if files[image] == nil {
			files[image] = map[string][]byte{}
		}
		files[image][path] = b
		return err
	})
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	img.Loose = files[""] // imager copies firmware, so it contains no links
	for _, e := range initrd.Extensions {
		if e.Name == schematicName {
			img.SchematicID, img.SchematicYAML = e.Version, e.ExtraInfo
			img.SchematicAuthor = e.Author
			continue
		}
		img.Extensions = append(img.Extensions, Extension{
			Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description,
			Files: files[e.Image], Links: linksOf(e.Files),
		})
	}
	if err := img.validate(); err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	return img, nil
}

func linksOf(tree bootimage.Tree) map[string]string {
	var links map[string]string
	for name, f := range tree {
		if f.Mode.Type() != fs.ModeSymlink {
			continue
		}
		if links == nil {
			links = map[string]string{}
		}
		links[name] = f.Link
	}
	return links
}

// clone is an image whose maps and lists are the caller's own.
func (img Image) clone() Image {
	img.Loose = maps.Clone(img.Loose)
	img.Extensions = append([]Extension(nil), img.Extensions...)
	for i := range img.Extensions {
		e := &img.Extensions[i]
		e.Files, e.Links = maps.Clone(e.Files), maps.Clone(e.Links)
	}
	return img
}
