package images

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/schematics"
)

// ErrDenied says that a registry refuses these credentials, or requires some. Adapters wrap it.
var ErrDenied = errors.New("denied by the registry")

// ErrNoStorage says that a host has no storage of that name. Adapters wrap it.
var ErrNoStorage = errors.New("no such storage")

// ErrOtherContent says that a file has another checksum than it should. Adapters wrap it.
var ErrOtherContent = errors.New("it has another checksum")

// ErrNotSent says that a Store asked no server for a change, because it may not make one now. A Store of a run that
// has to hold a claim wraps it.
var ErrNotSent = errors.New("nothing was sent")

// Factory is the Image Factory that builds the images.
type Factory interface {
	schematics.Factory // what it would build
	// Knows reports whether a schematic of that ID is registered.
	Knows(ctx context.Context, id string) (bool, error)
	// Register registers a canonical schematic. It returns the ID that the factory assigned,
	// and the schematic as the factory stores it, which the ID is derived from.
	Register(ctx context.Context, canonical string) (id, stored string, err error)
	// Image starts the download of a boot ISO, or of a disk image in the format qcow2. The
	// factory builds it first, so the answer may take minutes. The body resumes after a
	// broken connection. The caller closes it. sizeBytes is -1 if unknown. note, which may
	// be nil, receives the duration of the build so far and every retry.
	Image(ctx context.Context, of Artefact, req ISORequest, note func(text string)) (
		body io.ReadCloser, sizeBytes int64, err error)
	// SigningKey is the public key (PEM) with which the factory says it signs installers; nil if it has none.
	SigningKey(ctx context.Context) (pem []byte, err error)
	// BuildInstaller builds the installer of a schematic and returns when it can be
	// pulled, which may take minutes. note is as with Image.
	BuildInstaller(ctx context.Context, req ISORequest, note func(text string)) error
	// InstallerRepository is where the factory serves installers of a schematic,
	// as a node pulls them: "factory.talos.dev/nocloud-installer/<id>".
	InstallerRepository(req ISORequest) string
	URLs
}

// URLs are where anyone can download what a factory builds.
type URLs interface {
	ImageURL(of Artefact, req ISORequest) string
}

// ISORequest names one image of the factory.
type ISORequest struct {
	SchematicID string
	Talos       string // "v1.13.9"
	Platform    string // "nocloud"
	Arch        string // "amd64"
	SecureBoot  bool
}

// Registry resolves image references.
type Registry interface {
	// Digest returns the digest of what ref (a tag or a digest) names, which may be
	// an index. found is false only if the registry definitely has none.
	Digest(ctx context.Context, ref string) (digest string, found bool, err error)
}

// Puller reads the content of images.
type Puller interface {
	verify.Images
	// Signatures returns the cosign signatures of what ref (by digest) names, from
	// the tag sha256-<hex>.sig; none: an empty list.
	Signatures(ctx context.Context, ref string) ([]Signature, error)
}

// Signature is one signature in cosign's format.
type Signature struct {
	Payload   []byte // simple signing JSON, which names the digest
	Signature []byte // of Payload
}

// Copier copies images from one registry to another.
type Copier interface {
	// Head is Digest for a tag at the cost of one request, without verification.
	// ErrDenied if the registry refuses: some do so for a repository that does not
	// exist yet.
	Head(ctx context.Context, tag string) (digest string, found bool, err error)
	// Copy copies what source (by digest) names into a repository under the same
	// digest: a complete index, with everything it refers to, its cosign signature
	// and its referrers. It does not send again what exists; a signature that
	// differs is not overwritten but an error. progress may be nil; the total is
	// that of what source names, without signature and referrers.
	Copy(ctx context.Context, source, repository string, progress func(doneBytes, totalBytes int64)) error
	// Tag sets a tag to what ref (by digest, in the same repository) names, and moves an existing one.
	Tag(ctx context.Context, ref, tag string) error
}

// Store is where Proxmox keeps ISOs, and disk images as content "import", for the
// machines that boot them instead of an ISO.
type Store interface {
	Users
	Downloader
	Storages
	Finder
	// Upload streams a file to a storage and returns when Proxmox has checked and
	// stored it, not when it has received it. It replaces a file of that name.
	Upload(ctx context.Context, u Upload) error
}

// Finder finds files on storages.
type Finder interface {
	// ISO looks for an ISO by its file name. found is false only if the storage definitely has none.
	ISO(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error)
	// DiskImage is ISO for a disk image, whose name ends in .qcow2.
	DiskImage(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error)
}

// Users knows what refers to files.
type Users interface {
	// Uses reads every configuration in the whole Proxmox cluster that can refer to
	// a file. It refuses unless the token provably sees all of them.
	Uses(ctx context.Context) ([]Use, error)
}

// Reacher knows what a host may download, and whether it can reach it.
type Reacher interface {
	// MayDownload says why the token may not make a host download to a storage; "" if it may.
	MayDownload(ctx context.Context, host, storage string) (why string, err error)
	// URLSize is the size that a URL's server reports to a host; 0 if unknown.
	URLSize(ctx context.Context, host, url string) (sizeBytes int64, err error)
}

// Importer knows what the token may make disks of VMs from.
type Importer interface {
	// MayImport says why the token may not make disks of a VM from disk images on a storage; "" if it may.
	MayImport(ctx context.Context, host, storage string) (why string, err error)
}

// Downloader makes Proxmox download files.
type Downloader interface {
	Reacher
	// Download makes a host download a file and returns when it is checked and
	// stored. An existing file of that name is compared: with the right checksum it
	// is kept, without a request to the URL, otherwise it is ErrOtherContent.
	Download(ctx context.Context, d Download) error
}

// StorageInfo is a Proxmox storage as one host sees it.
type StorageInfo struct {
	Active    bool     // enabled and reachable from the host
	Shared    bool     // every host sees the same content
	Content   []string // "iso", "import", "images", …
	FreeBytes int64
}

// Upload is an ISO or a disk image to be stored.
type Upload struct {
	Host      string // receives and spools the upload
	Storage   string
	Name      string // file name: "recast-v1.13.9-3f2a…-nocloud-amd64.iso"
	SizeBytes int64
	SHA256    string                        // hex
	Open      func() (io.ReadCloser, error) // called once for each attempt
	Progress  func(sentBytes int64)         // may be nil
}

// Download is an ISO or a disk image for Proxmox to download.
type Download struct {
	Host      string // downloads it
	Storage   string
	Name      string // file name
	URL       string
	SizeBytes int64
	SHA256    string // hex
}

// Use is one configuration that Proxmox keeps: a VM's, with its pending changes, or a snapshot's.
type Use struct {
	By     string   // "VM 101 \"wk1\" on pve1"
	Values []string // of all keys except the description
}

// refersTo reports whether the configuration names a file, on whatever storage: two
// storages can be the same directory.
func (u Use) refersTo(name string) bool {
	return slices.ContainsFunc(u.Values, func(v string) bool { return strings.Contains(v, name) })
}

// usersOf lists who refers to a file.
func usersOf(uses []Use, name string) []string {
	var by []string
	for _, u := range uses {
		if u.refersTo(name) {
			by = append(by, u.By)
		}
	}
	return by
}

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

// ImagerJob is one image for the imager to make. Files are named by their paths in the job's directory.
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
	// Schematic makes the imager add the entry that tells a node what it runs, as the Image Factory does.
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
	// BuiltUpon refuses an image that does not begin with the layers of base, both by digest, for an architecture.
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

// Record is a small file that is kept beside the images of a mirror, on a list of such files.
type Record struct {
	Name   string            // unique on its list
	Labels map[string]string // what readers want to know of it without its content
	Digest string            // changes with the content
	// SizeBytes is that of the content.
	SizeBytes int64
	Written   time.Time
}

// Records keeps lists of files in a registry. A list is a tag of a repository,
// "ghcr.io/acme/talos:recast-history-prod", and one request reads it whole.
type Records interface {
	// List reads a list, the newest first; none if there is no such list.
	List(ctx context.Context, list string) ([]Record, error)
	// Read reads the content of one.
	Read(ctx context.Context, list string, r Record) ([]byte, error)
	// Keep puts a file on a list, in place of what has its name there. Of more than most it takes the oldest ones off.
	Keep(ctx context.Context, list string, r Record, content []byte, most int) error
	// ForAnyone says whether anyone on the internet could read the repository of a list: it answers
	// without a login, at a public address.
	ForAnyone(ctx context.Context, list string) (bool, error)
}
