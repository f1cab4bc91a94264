package images

import (
	"context"
	"io"

	"github.com/recast-sh/recast/schematics"
)

// Imager runs Talos' imager, which builds what no Image Factory has.
type Imager interface {
	// Image is the repository of the container image that is run, with a tag for
	// every Talos version; "" if a user's program is run instead.
	Image() string
	// Ready says what would be run, or why nothing can be.
	Ready(ctx context.Context) (what string, err error)
	// Build runs it once, in a directory that already holds the job's inputs, and
	// returns the name of its output file there. The program has ended when Build
	// returns, whatever the result. note receives what it prints.
	Build(ctx context.Context, dir string, job ImagerJob, note func(text string)) (file string, err error)
}

// ImagerOutput is what the imager makes.
type ImagerOutput string

// The outputs of the imager, by its own names for them.
const (
	OutputInstaller ImagerOutput = "installer" // a tarball as docker saves images
	OutputISO       ImagerOutput = "iso"
	OutputDisk      ImagerOutput = "image" // in qcow2 format
)

// ImagerJob is one image for the imager to make. Files are named by their paths in
// the job's directory.
type ImagerJob struct {
	Image         string // of the imager, by digest; "" if a user's program is run
	Output        ImagerOutput
	Talos         string // "v1.13.9"
	Arch          string
	Platform      string
	Customization schematics.Customization
	BaseInstaller ImagerInput   // an OCI layout; only an installer needs one
	Extensions    []ImagerInput // flattened images as tars, in build order
	Overlay       *ImagerOverlay
	// Schematic makes the imager add the entry that tells a node what it runs, as
	// the Image Factory does.
	SchematicID string
	Schematic   string // canonical
}

// ImagerInput is an image that is built in.
type ImagerInput struct {
	Ref  string // by digest
	File string // "in/0.tar"
}

// ImagerOverlay is an overlay that is built in.
type ImagerOverlay struct {
	Name   string
	Host   ImagerInput // for the architecture that the imager runs on
	Target ImagerInput // for that of the image
}

// Archives moves images between files and registries.
type Archives interface {
	// SaveLayout writes an image (by digest; of an index the manifest for arch) into
	// a directory as an OCI layout whose index has only that one.
	SaveLayout(ctx context.Context, ref, arch, dir string) error
	// PushArchive pushes the image in a tarball, as docker saves them, into a
	// repository as the only one of an index, and returns the index's digest. It
	// sets no tag and does not send again what exists.
	PushArchive(ctx context.Context, p ArchivePush) (digest string, err error)
	// BuiltUpon refuses an image that does not begin with the layers of base, both by
	// digest, for an architecture.
	BuiltUpon(ctx context.Context, ref, base, arch string) error
	// Attach puts a file beside its installer (by digest), where it can be found,
	// copied and deleted with the installer. progress may be nil.
	Attach(ctx context.Context, installer, file string, of Artefact, as schematics.BootFile, progress func(doneBytes int64)) error
	// Attached lists the boot ISOs and disk images beside an installer.
	Attached(ctx context.Context, installer string) ([]schematics.BootFile, error)
	// AttachedFile streams one of them, checked against its checksum. The caller closes it.
	AttachedFile(ctx context.Context, installer string, f schematics.BootFile) (io.ReadCloser, error)
}

// ArchivePush is an image in a tarball to push to a registry.
type ArchivePush struct {
	File       string
	Repository string
	Arch       string                // required architecture
	Base       string                // by digest: the required base image
	Progress   func(doneBytes int64) // may be nil
}
