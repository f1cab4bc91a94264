package images

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/images/verify"

	"github.com/recast-sh/recast/schematics"
)

// ErrDenied says that a registry refuses these credentials, or requires some.
// Adapters wrap it.
var ErrDenied = errors.New("denied by the registry")

// ErrNoStorage says that a host has no storage of that name. Adapters wrap it.
var ErrNoStorage = errors.New("no such storage")

// ErrOtherContent says that a file has another checksum than it should. Adapters wrap it.
var ErrOtherContent = errors.New("it has another checksum")

// Factory is the Image Factory that builds the images.
type Factory interface {
	schematics.Factory // what it would build
	Registrar
	// ISO starts the download of a boot ISO. The factory builds it first, so the
	// answer may take minutes. The body resumes after a broken connection. The
	// caller closes it. sizeBytes is -1 if unknown. note, which may be nil, receives
	// the duration of the build so far and every retry.
	ISO(ctx context.Context, req ISORequest, note func(text string)) (body io.ReadCloser, sizeBytes int64, err error)
	// Disk is ISO for a disk image in the format qcow2.
	Disk(ctx context.Context, req ISORequest, note func(text string)) (body io.ReadCloser, sizeBytes int64, err error)
	// SigningKey is the public key (PEM) with which the factory says it signs
	// installers; nil if it has none.
	SigningKey(ctx context.Context) (pem []byte, err error)
	// BuildInstaller builds the installer of a schematic and returns when it can be
	// pulled, which may take minutes. note is as with ISO.
	BuildInstaller(ctx context.Context, req ISORequest, note func(text string)) error
	// InstallerRepository is where the factory serves installers of a schematic,
	// as a node pulls them: "factory.talos.dev/nocloud-installer/<id>".
	InstallerRepository(req ISORequest) string
	URLs
}

// URLs are where anyone can download what a factory builds.
type URLs interface {
	ISOURL(req ISORequest) string
	DiskURL(req ISORequest) string
}

// Registrar keeps the factory's schematics.
type Registrar interface {
	// Knows reports whether a schematic of that ID is registered.
	Knows(ctx context.Context, id string) (bool, error)
	// Register registers a canonical schematic. It returns the ID that the factory
	// assigned, and the schematic as the factory stores it, which the ID is derived
	// from.
	Register(ctx context.Context, canonical string) (id, stored string, err error)
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
	// Tag sets a tag to what ref (by digest, in the same repository) names, and
	// moves an existing one.
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
	// MayImport says why the token may not make disks of a VM from disk images on a
	// storage; "" if it may.
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

// Use is one configuration that Proxmox keeps: a VM's, with its pending changes, or
// a snapshot's.
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
