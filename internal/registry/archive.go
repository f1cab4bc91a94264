package registry

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
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

// archived is the only image in a tarball.
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

// unexpectedPath returns a path in a layer that the imager would not put upon a base:
// it could hide the base's own programs. The imager writes regular files
// (pkg/imager/filemap).
func unexpectedPath(layer v1.Layer) (odd string, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		name := path.Clean("/" + h.Name)
		within := strings.HasPrefix(name, "/usr/install/") || strings.HasPrefix(name, "/overlay/")
		switch {
		case h.Typeflag == tar.TypeDir: // leaves an existing one as it is
		case h.Typeflag != tar.TypeReg || !within || strings.HasPrefix(path.Base(name), ".wh."):
			odd = name
		}
	}
	_, err = io.Copy(io.Discard, content) // its digest is checked at its end
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
