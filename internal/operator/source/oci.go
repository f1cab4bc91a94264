package source

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// fluxLayer is the media type of the layer that flux push artifact makes, as Flux documents it
// (https://fluxcd.io/flux/cheatsheets/oci-artifacts/).
const fluxLayer = "application/vnd.cncf.flux.content.v1.tar+gzip"

// fromOCI unpacks an artifact. Credentials are those of docker, in the directory that DOCKER_CONFIG names.
func (t *target) fromOCI(ctx context.Context, src v1alpha1.OCISource) (string, error) {
	var options []name.Option
	if src.Insecure {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(src.Reference, options...)
	if err != nil {
		return "", fmt.Errorf("spec.source.oci.reference: %w", err)
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", src.Reference, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", src.Reference, err)
	}
	layer, err := archive(img)
	if err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	r, err := layer.Uncompressed()
	if err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	defer r.Close()
	if err := t.untar(r, src.Path); err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	return digest.String(), nil
}

// archive returns the layer with the files: the first of Flux' type, or the only one.
func archive(img v1.Image) (v1.Layer, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if mt, err := l.MediaType(); err == nil && string(mt) == fluxLayer {
			return l, nil
		}
	}
	if len(layers) != 1 {
		return nil, fmt.Errorf("has %d layers and none of the type %s", len(layers), fluxLayer)
	}
	return layers[0], nil
}

// untar unpacks the regular files below a directory of an archive.
func (t *target) untar(r io.Reader, dir string) error {
	dir = strings.Trim(path.Clean("/"+dir), "/")
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		file := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if dir != "" {
			below, ok := strings.CutPrefix(file, dir+"/")
			if !ok {
				continue
			}
			file = below
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := t.add(file, archive); err != nil {
			return err
		}
	}
}
