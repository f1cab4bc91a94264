package images

import (
	"context"
	"io"

	"github.com/recast-sh/recast/schematics"
)

// Imager runs Talos' imager, which builds what no Image Factory knows.
type Imager interface {
	// Image is the repository of the container image that is run, which has a tag
	// for every Talos version; "" where a program of the user's is run instead.
	Image() string
	// Ready says what would be run, or why nothing can be.
	Ready(ctx context.Context) (what string, err error)
	// Build runs it once, in a directory that holds the job's inputs already, and
	// returns the name of the file in it that was made. The program is gone when
	// Build returns, whatever came of it. note is told what it prints.
	Build(ctx context.Context, dir string, job ImagerJob, note func(text string)) (file string, err error)
}

// ImagerOutput is what the imager makes.
type ImagerOutput string

// The outputs of the imager, by its own names for them.
const (
	OutputInstaller ImagerOutput = "installer" // a tarball as docker saves images
	OutputISO       ImagerOutput = "iso"
)

// ImagerJob is one image that the imager is to make. Files are named by their
// paths in the job's directory.
type ImagerJob struct {
	Image         string // of the imager, by digest; "" where a program of the user's is run
	Output        ImagerOutput
	Talos         string // "v1.13.9"
	Arch          string
	Platform      string
	Customization schematics.Customization
	BaseInstaller ImagerInput   // an OCI layout; an ISO needs none
	Extensions    []ImagerInput // flattened images as tars, in the order in which they are built in
	Overlay       *ImagerOverlay
	// Schematic has the imager add the entry by which a node says what it runs, as the
	// Image Factory adds it.
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
	// PushArchive puts the image in a tarball, as docker saves them, into a repository
	// as the only one of an index, and returns the index's digest. No tag is set.
	// What is there already isn't sent again.
	PushArchive(ctx context.Context, p ArchivePush) (digest string, err error)
	// BuiltUpon refuses an image that does not begin with the layers of base, both by
	// digest, for an architecture.
	BuiltUpon(ctx context.Context, ref, base, arch string) error
	// AttachISO puts a boot ISO beside the installer (by digest) that it belongs to,
	// where it is found by that, is copied with it and goes with it. progress may be nil.
	AttachISO(ctx context.Context, installer, file string, iso schematics.ISO, progress func(doneBytes int64)) error
	// AttachedISOs lists what is beside an installer.
	AttachedISOs(ctx context.Context, installer string) ([]schematics.ISO, error)
	// ISO streams one of them, checked against its checksum. The caller closes it.
	ISO(ctx context.Context, installer string, iso schematics.ISO) (io.ReadCloser, error)
}

// ArchivePush is an image in a tarball on its way to a registry.
type ArchivePush struct {
	File       string
	Repository string
	Arch       string                // that it has to be for
	Base       string                // by digest: the image that it has to be built upon
	Progress   func(doneBytes int64) // may be nil
}
