package registry

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/schematics"
)

var _ images.Archives = (*Client)(nil)

// SaveLayout writes an image into a directory: see images.Archives.
func (c *Client) SaveLayout(ctx context.Context, ref, arch, dir string) error {
	r, err := name.NewDigest(ref)
	if err != nil {
		return fault.Configf("image reference %q: %w", ref, err)
	}
	img, err := c.image(ctx, r, arch)
	if err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", ref, explain(err, r.Context()))
	}
	return nil
}

// PushArchive pushes the image in a tarball: see images.Archives.
func (c *Client) PushArchive(ctx context.Context, p images.ArchivePush) (string, error) {
	to, errTo := name.NewRepository(p.Repository)
	upon, errUpon := name.NewDigest(p.Base)
	if err := errors.Join(errTo, errUpon); err != nil {
		return "", fault.As(fault.Config, err)
	}
	base, err := c.image(ctx, upon, p.Arch)
	if err != nil {
		return "", err
	}
	img, err := archived(p.File, p.Arch)
	if err != nil {
		return "", fmt.Errorf("read the tarball of the image: %w", err)
	}
	if err := builtUpon(img, base, p.Base); err != nil {
		return "", err
	}
	// Nodes pull through an index, whoever built the image.
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.Arch}},
	})
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("read the tarball of the image: %w", err)
	}
	return digest.String(), c.upload(ctx, to.Digest(digest.String()), index, p.Progress)
}

// BuiltUpon compares layers: see images.Archives.
func (c *Client) BuiltUpon(ctx context.Context, ref, base, arch string) error {
	r, errRef := name.NewDigest(ref)
	upon, errUpon := name.NewDigest(base)
	if err := errors.Join(errRef, errUpon); err != nil {
		return fault.As(fault.Config, err)
	}
	img, err := c.image(ctx, r, arch)
	if err != nil {
		return err
	}
	from, err := c.image(ctx, upon, arch)
	if err != nil {
		return err
	}
	return builtUpon(img, from, base)
}

// archived returns the only image in a tarball.
func archived(file, arch string) (v1.Image, error) {
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.Architecture != arch {
		return nil, fault.Refusedf("the image is for %q, not for %s", config.Architecture, arch)
	}
	return img, nil
}

// builtUpon returns an error unless the image begins with the base's layers: all of
// them, or, as the imager builds it, the first of two (siderolabs/talos
// pkg/imager/out.go, outInstaller). Layers are compared unpacked.
func builtUpon(img, base v1.Image, baseRef string) error {
	other := func(format string, args ...any) error {
		return fault.Refusedf("the image is not based on %s: %s", baseRef, fmt.Sprintf(format, args...))
	}
	config, err := base.ConfigFile()
	if err != nil {
		return err
	}
	want := config.RootFS.DiffIDs
	if len(want) == 2 {
		want = want[:1]
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	if len(layers) <= len(want) {
		return other("it has only %d layers", len(layers))
	}
	for i, w := range want {
		got, err := unpacked(layers[i])
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if got != w {
			return other("layer %d is %s, not %s", i, got, w)
		}
	}
	for i, layer := range layers[len(want):] {
		odd, err := unexpectedPath(layer)
		if err != nil {
			return fmt.Errorf("layer %d: %w", len(want)+i, err)
		}
		if odd != "" {
			return other("layer %d changes %s", len(want)+i, odd)
		}
	}
	return nil
}

// unexpectedPath returns a path in a layer that the imager would not put upon a base; "" if there is none. Such a
// path could hide the base's own programs. The imager writes only regular files (pkg/imager/filemap).
func unexpectedPath(layer v1.Layer) (odd string, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	err = eachEntry(content, func(h *tar.Header, _ io.Reader) error {
		name := path.Clean("/" + h.Name)
		within := strings.HasPrefix(name, "/usr/install/") || strings.HasPrefix(name, "/overlay/")
		switch {
		case h.Typeflag == tar.TypeDir: // leaves an existing directory as it is
		case h.Typeflag != tar.TypeReg || !within || strings.HasPrefix(path.Base(name), whiteout):
			odd = name
		}
		return nil
	})
	return odd, err
}

func unpacked(layer v1.Layer) (sum v1.Hash, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	sum, _, err = v1.SHA256(content)
	return sum, err
}

// A file beside an installer is a manifest whose subject is the installer (OCI 1.1), with the file as its only layer.
const titleOfALayer = "org.opencontainers.image.title"

// attachment holds the media types of a manifest beside an installer: of its configuration, by which the manifest is
// known, and of its layer.
type attachment struct{ config, layer types.MediaType }

var attachments = map[images.Artefact]attachment{
	images.BootISO:   {"application/vnd.recast.boot-iso.v1+json", "application/x-iso9660-image"},
	images.DiskImage: {"application/vnd.recast.disk-image.v1+json", "application/x-qemu-disk"},
}

// Attach puts a file beside an installer: see images.Archives.
func (c *Client) Attach(ctx context.Context, installer, file string, of images.Artefact, as schematics.BootFile, progress func(doneBytes int64)) error {
	to, err := name.NewDigest(installer)
	if err != nil {
		return fault.Configf("image reference %q: %w", installer, err)
	}
	subject, err := c.head(ctx, to)
	if err != nil {
		return explain(err, to.Context())
	}
	img, err := attachedImage(file, attachments[of], as, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size})
	if err != nil {
		return fmt.Errorf("attach %s: %w", as.Name, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("attach %s: %w", as.Name, err)
	}
	return c.upload(ctx, to.Context().Digest(digest.String()), img, progress)
}

func attachedImage(file string, kind attachment, as schematics.BootFile, subject v1.Descriptor) (v1.Image, error) {
	digest, err := v1.NewHash("sha256:" + as.SHA256)
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), kind.config),
		mutate.Addendum{
			Layer: fileLayer{file: file, digest: digest, size: as.SizeBytes, kind: kind.layer}, MediaType: kind.layer,
			Annotations: map[string]string{titleOfALayer: as.Name},
		})
	if err != nil {
		return nil, err
	}
	attached, ok := mutate.Subject(img, subject).(v1.Image)
	if !ok {
		return nil, errors.New("go-containerregistry gives an image with a subject another type")
	}
	return attached, nil
}

// Attached lists the boot ISOs and disk images beside an installer: see images.Archives.
func (c *Client) Attached(ctx context.Context, installer string) ([]schematics.BootFile, error) {
	of, err := name.NewDigest(installer)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", installer, err)
	}
	list, err := c.referrers(ctx, of)
	if err != nil {
		return nil, err
	}
	var found []schematics.BootFile
	for _, digest := range list {
		img, err := remote.Image(of.Context().Digest(digest), c.options(ctx)...)
		if err != nil {
			return nil, explain(err, of.Context())
		}
		m, err := img.Manifest()
		if err != nil {
			return nil, explain(err, of.Context())
		}
		ours := slices.ContainsFunc(slices.Collect(maps.Values(attachments)), func(a attachment) bool { return a.config == m.Config.MediaType })
		if ours && len(m.Layers) == 1 {
			file := m.Layers[0]
			found = append(found, schematics.BootFile{Name: file.Annotations[titleOfALayer], SHA256: file.Digest.Hex, SizeBytes: file.Size})
		}
	}
	return found, nil
}

// AttachedFile streams a file from beside an installer: see images.Archives.
func (c *Client) AttachedFile(ctx context.Context, installer string, f schematics.BootFile) (io.ReadCloser, error) {
	of, err := name.NewDigest(installer)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", installer, err)
	}
	layer, err := remote.Layer(of.Context().Digest("sha256:"+f.SHA256), c.options(ctx)...)
	if err != nil {
		return nil, explain(err, of.Context())
	}
	body, err := layer.Compressed() // as it was pushed; its digest is checked
	return body, explain(err, of.Context())
}

// fileLayer is a file as an uncompressed layer.
type fileLayer struct {
	file   string
	digest v1.Hash
	size   int64
	kind   types.MediaType
}

var _ v1.Layer = fileLayer{}

func (l fileLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.file) }
func (l fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.file) }
func (l fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l fileLayer) MediaType() (types.MediaType, error)  { return l.kind, nil }

// sigstore/cosign, specs/SIGNATURE_SPEC.md: a signature is a layer, with the signature itself in an annotation.
const (
	signatureType       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"

	maxSignatures   = 64
	maxPayloadBytes = 1 << 20 // usual payloads have some hundred bytes
)

// Signatures returns the cosign signatures of an image: see images.Puller.
func (c *Client) Signatures(ctx context.Context, ref string) ([]images.Signature, error) {
	of, err := name.NewDigest(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	tag := of.Context().Tag(signatureTag(of))
	img, err := remote.Image(tag, c.options(ctx)...)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err, of.Context())
	}
	signatures, err := signaturesIn(img)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tag, explain(err, of.Context()))
	}
	return signatures, nil
}

// signatureTag returns the tag under which cosign keeps the signatures of a digest.
func signatureTag(of name.Digest) string {
	return strings.Replace(of.DigestStr(), ":", "-", 1) + ".sig"
}

func signaturesIn(img v1.Image) ([]images.Signature, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if len(m.Layers) > maxSignatures {
		return nil, fmt.Errorf("it has %d layers; no more than %d signatures are read", len(m.Layers), maxSignatures)
	}
	var signatures []images.Signature
	for _, d := range m.Layers {
		if d.MediaType != signatureType {
			continue
		}
		signature, err := base64.StdEncoding.DecodeString(d.Annotations[signatureAnnotation])
		if err != nil || len(signature) == 0 {
			return nil, fmt.Errorf("layer %s: annotation %s is missing or damaged", d.Digest, signatureAnnotation)
		}
		payload, err := payloadOf(img, d)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", d.Digest, foreign.Error(err))
		}
		signatures = append(signatures, images.Signature{Payload: payload, Signature: signature})
	}
	return signatures, nil
}

func payloadOf(img v1.Image, d v1.Descriptor) ([]byte, error) {
	if d.Size > maxPayloadBytes {
		return nil, fmt.Errorf("it has %d bytes; no more than %d are read", d.Size, maxPayloadBytes)
	}
	return pushed(img, d.Digest)
}

// pushed reads a layer as it was pushed: as many bytes as the manifest says, with their digest, or an error.
func pushed(img v1.Image, digest v1.Hash) ([]byte, error) {
	layer, err := img.LayerByDigest(digest)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content)
}
