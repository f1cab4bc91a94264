package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// A boot ISO beside an installer is a manifest whose subject is the installer (OCI
// 1.1), with the ISO as its only layer.
const (
	isoArtifact   = "application/vnd.recast.boot-iso.v1+json"
	isoMediaType  = "application/x-iso9660-image"
	titleOfALayer = "org.opencontainers.image.title"
)

// AttachISO puts a boot ISO beside an installer: see images.Archives.
func (c *Client) AttachISO(ctx context.Context, installer, file string, iso schematics.BootFile, progress func(doneBytes int64)) error {
	of, err := name.NewDigest(installer)
	if err != nil {
		return fault.Configf("image reference %q: %w", installer, err)
	}
	subject, err := c.head(ctx, of)
	if err != nil {
		return explain(err, of.Context())
	}
	img, err := isoImage(file, iso, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size})
	if err != nil {
		return fmt.Errorf("attach %s: %w", iso.Name, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("attach %s: %w", iso.Name, err)
	}
	return c.upload(ctx, of.Context().Digest(digest.String()), img, progress)
}

func isoImage(file string, iso schematics.BootFile, subject v1.Descriptor) (v1.Image, error) {
	digest, err := v1.NewHash("sha256:" + iso.SHA256)
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), isoArtifact),
		mutate.Addendum{
			Layer: isoLayer{file: file, digest: digest, size: iso.SizeBytes}, MediaType: isoMediaType,
			Annotations: map[string]string{titleOfALayer: iso.Name},
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

// AttachedISOs lists the boot ISOs beside an installer: see images.Archives.
func (c *Client) AttachedISOs(ctx context.Context, installer string) ([]schematics.BootFile, error) {
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
		if m.Config.MediaType == isoArtifact && len(m.Layers) == 1 {
			iso := m.Layers[0]
			found = append(found, schematics.BootFile{Name: iso.Annotations[titleOfALayer], SHA256: iso.Digest.Hex, SizeBytes: iso.Size})
		}
	}
	return found, nil
}

// ISO streams a boot ISO from beside an installer: see images.Archives.
func (c *Client) ISO(ctx context.Context, installer string, iso schematics.BootFile) (io.ReadCloser, error) {
	of, err := name.NewDigest(installer)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", installer, err)
	}
	layer, err := remote.Layer(of.Context().Digest("sha256:"+iso.SHA256), c.options(ctx)...)
	if err != nil {
		return nil, explain(err, of.Context())
	}
	body, err := layer.Compressed() // as it was pushed; its digest is checked
	if err != nil {
		return nil, explain(err, of.Context())
	}
	return body, nil
}

// isoLayer is a file as an uncompressed layer.
type isoLayer struct {
	file   string
	digest v1.Hash
	size   int64
}

var _ v1.Layer = isoLayer{}

func (l isoLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l isoLayer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l isoLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.file) }
func (l isoLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.file) }
func (l isoLayer) Size() (int64, error)                 { return l.size, nil }
func (l isoLayer) MediaType() (types.MediaType, error)  { return isoMediaType, nil }
