package artefact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
)

// platformArg is the kernel argument that tells Talos where it runs.
const platformArg = "talos.platform="

// kernelRelease is `uname -r` of every kernel of the lab.
const kernelRelease = "6.18.0-talos"

// UKI makes a unified kernel image: kernel, command line and initramfs with the
// extensions in one file. What was made lately is kept; the bytes are the caller's to read only.
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
			{".uname", []byte(kernelRelease)},
			{".linux", fmt.Appendf(nil, "Linux %s %s\n", kernelRelease, img.Arch)},
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
	if base, err := baseInitramfs(img); err != nil || sum(base) != initrd.BaseSHA256 {
		// A kernel would find the damage when it unpacks and runs it.
		return Image{}, errors.Join(fmt.Errorf("%w: Talos' own part of the initramfs is damaged", ErrNotBootable), err)
	}
	img.Loose = files[""]
	for _, e := range initrd.Extensions {
		if e.Name == schematicName {
			img.SchematicID, img.SchematicYAML = e.Version, e.ExtraInfo
			img.SchematicAuthor = e.Author
			continue
		}
		img.Extensions = append(img.Extensions, Extension{
			Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description, Files: files[e.Image],
		})
	}
	if err := img.validate(); err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	return img, nil
}

// clone is an image of which the maps and lists are the caller's own.
func (img Image) clone() Image {
	img.Loose = maps.Clone(img.Loose)
	img.Extensions = append([]Extension(nil), img.Extensions...)
	for i := range img.Extensions {
		img.Extensions[i].Files = maps.Clone(img.Extensions[i].Files)
	}
	return img
}
