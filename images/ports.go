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

// ErrDenied says that a registry refuses the credentials, or requires some. Adapters wrap it.
var ErrDenied = errors.New("denied by the registry")

// ErrNoStorage says that a host has no storage of the given name. Adapters wrap it.
var ErrNoStorage = errors.New("no such storage")

// ErrOtherContent says that a file does not have the expected checksum. Adapters wrap it.
var ErrOtherContent = errors.New("it has another checksum")

// ErrNotSent says that a Store sent no change to any server, because it may not make changes now. The Store of a run
// that has to hold a claim wraps it.
var ErrNotSent = errors.New("nothing was sent")

// Factory is the Image Factory that builds the images.
type Factory interface {
	schematics.Factory // what the factory would build
	// Knows reports whether a schematic with the given ID is registered.
	Knows(ctx context.Context, id string) (bool, error)
	// Register registers a canonical schematic. It returns the ID that the factory assigned, and the schematic as the
	// factory stores it, from which the ID is derived.
	Register(ctx context.Context, canonical string) (id, stored string, err error)
	// Image starts the download of a boot ISO, or of a disk image in the format qcow2. The factory builds it first, so the
	// answer may take minutes. The body resumes after a broken connection. The caller closes it. sizeBytes is -1 if
	// unknown. note, which may be nil, receives the duration of the build so far and every retry.
	Image(ctx context.Context, of Artefact, req ISORequest, note func(text string)) (
		body io.ReadCloser, sizeBytes int64, err error)
	// SigningKey returns the public key (PEM) with which the factory says it signs installers; nil if the factory has
	// none.
	SigningKey(ctx context.Context) (pem []byte, err error)
	// BuildInstaller builds the installer of a schematic and returns when the installer can be pulled, which may take
	// minutes. note is as in Image.
	BuildInstaller(ctx context.Context, req ISORequest, note func(text string)) error
	// InstallerRepository returns where the factory serves installers of a schematic, as a node pulls them:
	// "factory.talos.dev/nocloud-installer/<id>".
	InstallerRepository(req ISORequest) string
	URLs
}

// URLs says where anyone can download the images that a factory builds.
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
	// Digest returns the digest of the manifest that ref (a tag or a digest) names; the manifest may be an index.
	// found is false only if the registry definitely has no such manifest.
	Digest(ctx context.Context, ref string) (digest string, found bool, err error)
}

// Puller reads the content of images.
type Puller interface {
	verify.Images
	// Signatures returns the cosign signatures of the image that ref (by digest) names, from the tag
	// sha256-<hex>.sig. The list is empty if there are none.
	Signatures(ctx context.Context, ref string) ([]Signature, error)
}

// Signature is one signature in cosign's format.
type Signature struct {
	Payload   []byte // simple signing JSON, which names the digest
	Signature []byte // of Payload
}

// Copier copies images from one registry to another.
type Copier interface {
	// Head returns the digest of a tag with one request, without verification. The error is ErrDenied if the registry
	// refuses: some registries refuse for a repository that does not exist yet.
	Head(ctx context.Context, tag string) (digest string, found bool, err error)
	// Copy copies the image that source (by digest) names into a repository under the same digest: a complete index,
	// with everything it refers to, its cosign signature and its referrers. It does not send again what the
	// repository has. A different signature in the repository is an error and is not overwritten. progress may be
	// nil; its total covers the image without signature and referrers.
	Copy(ctx context.Context, source, repository string, progress func(doneBytes, totalBytes int64)) error
	// Tag sets a tag to the image that ref (by digest, in the same repository) names. An existing tag is moved.
	Tag(ctx context.Context, ref, tag string) error
}

// Store is the storage where Proxmox keeps ISOs and disk images. Disk images have the content type "import"; machines
// boot them instead of an ISO.
type Store interface {
	Users
	Downloader
	Storages
	Finder
	// Upload streams a file to a storage. It returns when Proxmox has checked and stored the file, not when Proxmox
	// has received it. It replaces a file with the same name.
	Upload(ctx context.Context, u Upload) error
}

// Finder finds files on storages.
type Finder interface {
	// ISO looks for an ISO by its file name. found is false only if the storage definitely has no such ISO.
	ISO(ctx context.Context, host, storage, name string) (file StoredISO, found bool, err error)
	// DiskImage does the same as ISO for a disk image, whose name ends in .qcow2.
	DiskImage(ctx context.Context, host, storage, name string) (file StoredISO, found bool, err error)
}

// Users knows what refers to files.
type Users interface {
	// Uses reads every configuration in the whole Proxmox cluster that can refer to a file. It refuses unless the
	// token provably sees all of these configurations.
	Uses(ctx context.Context) ([]Use, error)
}

// Reacher knows what a host may download, and whether the host can reach it.
type Reacher interface {
	// MayDownload says why the token may not make a host download to a storage; "" if it may.
	MayDownload(ctx context.Context, host, storage string) (why string, err error)
	// URLSize returns the size that the server of a URL reports to a host; 0 if unknown.
	URLSize(ctx context.Context, host, url string) (sizeBytes int64, err error)
}

// Importer knows from which disk images the token may make disks of VMs.
type Importer interface {
	// MayImport says why the token may not make disks of a VM from disk images on a storage; "" if it may.
	MayImport(ctx context.Context, host, storage string) (why string, err error)
}

// Downloader makes Proxmox download files.
type Downloader interface {
	Reacher
	// Download makes a host download a file and returns when the file is checked and stored. An existing file with
	// the same name is compared: with the right checksum it is kept, without a request to the URL; otherwise the
	// error is ErrOtherContent.
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

// refersTo reports whether the configuration names a file, on any storage: two storages can be the same directory.
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

// Imager runs Talos' imager, which builds images that no Image Factory has.
type Imager interface {
	// Image returns the repository of the container image that is run; "" if a user's program is run instead.
	Image() string
	// Ready says what would be run, or why nothing can be run.
	Ready(ctx context.Context) (what string, err error)
	// Build runs the imager once, in a directory that already holds the job's inputs, and returns the name of the
	// output file in that directory. The imager has ended when Build returns, whatever the result. note receives what
	// the imager prints.
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
	Image         string // the imager's image, by digest; "" if a user's program is run
	Output        ImagerOutput
	Talos         string // "v1.13.9"
	Arch          string
	Platform      string
	Customization schematics.Customization
	BaseInstaller ImagerInput   // an OCI layout; only an installer needs a base
	Extensions    []ImagerInput // flattened images as tars, in build order
	Overlay       *ImagerOverlay
	// SchematicID and Schematic make the imager add the entry that tells a node which schematic it runs, as the Image
	// Factory does.
	SchematicID string
	Schematic   string // canonical
}

// ImagerInput is an image that the imager builds in.
type ImagerInput struct {
	Ref  string // by digest
	File string // "in/0.tar"
}

// ImagerOverlay is an overlay that the imager builds in.
type ImagerOverlay struct {
	Name   string
	Host   ImagerInput // for the architecture that the imager runs on
	Target ImagerInput // for the image's architecture
}

// Archives moves images between files and registries.
type Archives interface {
	// SaveLayout writes an image (by digest; of an index, the manifest for arch) into a directory as an OCI layout
	// whose index lists only this image.
	SaveLayout(ctx context.Context, ref, arch, dir string) error
	// PushArchive pushes the image in a tarball, as docker saves images, into a repository as the only image of an
	// index, and returns the index's digest. It sets no tag and does not send again what the repository has.
	PushArchive(ctx context.Context, p ArchivePush) (digest string, err error)
	// BuiltUpon refuses an image that does not begin with the layers of base, for an architecture. Both references
	// are by digest.
	BuiltUpon(ctx context.Context, ref, base, arch string) error
	// Attach puts a file beside its installer (by digest). The file can be found, copied and deleted with the
	// installer. progress may be nil.
	Attach(ctx context.Context, installer, file string, of Artefact, as schematics.BootFile, progress func(doneBytes int64)) error
	// Attached lists the boot ISOs and disk images beside an installer.
	Attached(ctx context.Context, installer string) ([]schematics.BootFile, error)
	// AttachedFile streams a file from beside an installer and compares it with the checksum in f. The caller closes
	// the stream.
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
	Labels map[string]string // what readers want to know of the record without reading its content
	Digest string            // changes with the content
	// SizeBytes is the size of the content.
	SizeBytes int64
	Written   time.Time
}

// Records keeps lists of files in a registry. A list is a tag of a repository,
// "ghcr.io/acme/talos:recast-history-prod"; one request reads the whole list.
type Records interface {
	// List reads a list, the newest record first. It returns none if the list does not exist.
	List(ctx context.Context, list string) ([]Record, error)
	// Read reads the content of a record.
	Read(ctx context.Context, list string, r Record) ([]byte, error)
	// Keep puts a record on a list, in place of the record with the same name. If the list then has more than most
	// records, Keep takes the oldest ones off.
	Keep(ctx context.Context, list string, r Record, content []byte, most int) error
	// ForAnyone reports whether anyone on the internet could read the repository of a list: its registry answers
	// without a login, at a public address.
	ForAnyone(ctx context.Context, list string) (bool, error)
}
