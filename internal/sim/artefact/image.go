// Package artefact makes and reads every image of the lab: boot ISOs, unified
// kernel images, installers, extension images, and the disks that Talos
// partitions. All but the disks have the formats of the real ones, with tiny
// content, and are the same for the same input; whoever reads one trusts nothing but its bytes.
package artefact

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// ErrNotBootable says that bytes hold no boot image, or a damaged one.
var ErrNotBootable = errors.New("not a bootable image")

// HaltIfInstalled is the kernel argument that only boot ISOs have: Talos halts
// when it finds itself installed on a disk.
const HaltIfInstalled = "talos.halt_if_installed=1"

// Image is what a boot image holds, whatever its packaging.
type Image struct {
	TalosVersion string // "v1.13.9"
	Arch         string // "amd64" or "arm64"
	Platform     string // "nocloud", "metal", …
	Kernel       string `json:",omitempty"` // its release (uname -r); empty for the one that images of the lab have
	Cmdline      string // kernel command line, with the schematic's extra arguments
	// The entry among the extensions that says what the image was built of, as an Image
	// Factory makes it; empty for an image without one.
	SchematicID     string
	SchematicYAML   string
	SchematicAuthor string      // "Image Factory (<url>)"
	Extensions      []Extension // in build order, without that entry
	// Loose are files that lie beside the extensions, by absolute path. An image is made with
	// the firmware among its extensions' files; in one that was read it is here, as imager moves it.
	Loose map[string][]byte
}

// Extension is a system extension: what its manifest says, and its files.
type Extension struct {
	Name, Version, Author, Description string
	// Digest is the index digest of the extension image that it was read from; no
	// boot image tells it.
	Digest string            `json:"-"`
	Files  map[string][]byte // by absolute path on the node: "/usr/local/bin/tool"
	Links  map[string]string `json:",omitempty"` // targets of symbolic links, as they are, by absolute path
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
			return fmt.Errorf("%q is no absolute path", file)
		}
	}
	return nil
}
