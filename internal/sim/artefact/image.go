// Package artefact makes and reads every image of the lab: boot ISOs, unified
// kernel images, installers, extension images, and the disks that Talos
// partitions. All of them are self-contained bytes or real OCI images, the same
// for the same input, and whoever reads one trusts nothing but its bytes.
package artefact

import (
	"errors"
	"fmt"
	"path"
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
	Cmdline      string // kernel command line, with the schematic's extra arguments
	// SchematicID and SchematicYAML are the Image Factory's own entry among the extensions; empty for an image without one.
	SchematicID   string
	SchematicYAML string
	FactoryURL    string      // of the factory that built it; the entry's author is "Image Factory (<url>)"
	Extensions    []Extension // in build order, without the factory's own entry
}

// Extension is a system extension: what its manifest says, and its files.
type Extension struct {
	Name, Version, Author, Description string
	// Digest is the index digest of the extension image that it was read from.
	// It is provenance for the lab's own checks; no node shows it.
	Digest string
	Files  map[string][]byte // by absolute path on the node: "/usr/local/bin/tool"
}

func (img Image) validate() error {
	switch {
	case img.TalosVersion == "":
		return errors.New("image without a Talos version")
	case img.Platform == "":
		return errors.New("image without a platform")
	case img.Arch != "amd64" && img.Arch != "arm64":
		return fmt.Errorf("image for unknown architecture %q", img.Arch)
	}
	for _, e := range img.Extensions {
		if err := e.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (e Extension) validate() error {
	if e.Name == "" || e.Version == "" {
		return fmt.Errorf("extension without a name or version: %q %q", e.Name, e.Version)
	}
	for file := range e.Files {
		if !strings.HasPrefix(file, "/") || file == "/" || path.Clean(file) != file {
			return fmt.Errorf("extension %s: %q is no absolute path", e.Name, file)
		}
	}
	return nil
}
