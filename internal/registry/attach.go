package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// What is beside an installer is a manifest whose subject is the installer (OCI
// 1.1), with the file as its only layer.
const titleOfALayer = "org.opencontainers.image.title"

// attachment has the media types of such a manifest's configuration, by which it is known, and layer.
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
	if err != nil {
		return nil, explain(err, of.Context())
	}
	return body, nil
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
