// Package artefact makes and reads every [Image] of the lab: boot ISOs, unified kernel
// images, installers, extension images, and the disks that Talos partitions. All but the
// disks have the real formats, with tiny content, and are deterministic; readers rely
// only on the bytes.
package artefact

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// ErrNotBootable says that there is no boot image, or a damaged one.
var ErrNotBootable = errors.New("not a bootable image")

// HaltIfInstalled is a kernel argument of boot ISOs only: Talos halts if it finds itself
// installed on a disk.
const HaltIfInstalled = "talos.halt_if_installed=1"

// Image is the content of a boot image, whatever its packaging.
type Image struct {
	TalosVersion string // "v1.13.9"
	Arch         string // "amd64" or "arm64"
	Platform     string // "nocloud", "metal", …
	Kernel       string `json:",omitempty"` // its release (uname -r); empty: that of the lab's images
	Cmdline      string // kernel command line, with the schematic's extra arguments
	// The entry among the extensions with the image's schematic, as an Image Factory adds it;
	// empty without one.
	SchematicID     string
	SchematicYAML   string
	SchematicAuthor string      // "Image Factory (<url>)"
	Extensions      []Extension // in build order, without that entry
	// Loose are files beside the extensions, by absolute path. When an image is made, firmware is
	// among its extensions' files; in a parsed image it is here, because imager moves it.
	Loose map[string][]byte
	// Signed: boot loader and UKI of its installer have a signature, as those of an Image Factory have that holds
	// keys for Secure Boot (siderolabs/image-factory#538). Those of its ISO have none.
	Signed bool `json:"-"`
}

// Extension is a system extension: its manifest, and its files.
type Extension struct {
	Name, Version, Author, Description string
	// Digest is the index digest of the extension's image; boot images don't contain it.
	Digest string            `json:"-"`
	Files  map[string][]byte // by absolute path on the node: "/usr/local/bin/tool"
	Links  map[string]string `json:",omitempty"` // unresolved targets of symbolic links, by absolute path
}

func (img Image) validate() error {
	switch {
	case img.TalosVersion == "":
		return errors.New("image without a Talos version")
	case img.Platform == "":
		return errors.New("image without a platform")
	case !slices.Contains(strings.Fields(img.Cmdline), platformArg+img.Platform):
		return fmt.Errorf("the command line of an image for %s does not say so: %q", img.Platform, img.Cmdline)
	case img.Arch != "amd64" && img.Arch != "arm64":
		return fmt.Errorf("image for unknown architecture %q", img.Arch)
	}
	for _, e := range img.Extensions {
		if err := e.validate(); err != nil {
			return err
		}
	}
	return absolutePaths(img.Loose)
}

func (e Extension) validate() error {
	if e.Name == "" || e.Version == "" {
		return fmt.Errorf("extension without a name or version: %q %q", e.Name, e.Version)
	}
	if err := errors.Join(absolutePaths(e.Files), absolutePaths(e.Links)); err != nil {
		return fmt.Errorf("extension %s: %w", e.Name, err)
	}
	for link, target := range e.Links {
		if _, isFile := e.Files[link]; isFile || target == "" {
			return fmt.Errorf("extension %s: %s is a file too, or a link to nothing", e.Name, link)
		}
	}
	return nil
}

func absolutePaths[V any](files map[string]V) error {
	for file := range files {
		if !strings.HasPrefix(file, "/") || file == "/" || path.Clean(file) != file {
			return fmt.Errorf("%q is not an absolute path", file)
		}
	}
	return nil
}
