package artefact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// gzips pools writers: each has a megabyte of tables.
var gzips = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// layer packs files and symbolic links, by path without a leading slash, into a gzipped layer.
func layer(files map[string][]byte, links map[string]string, mediaType types.MediaType) (v1.Layer, error) {
	var buf bytes.Buffer
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(&buf)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: links[name], Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end archive: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("end compression: %w", err)
	}
	return partial.CompressedToLayer(gzipped{bytes: buf.Bytes(), mediaType: mediaType})
}

// gzipped is a layer as stored in the registry.
type gzipped struct {
	bytes     []byte
	mediaType types.MediaType
}

var _ partial.CompressedLayer = gzipped{}

func (g gzipped) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(g.bytes))
	return h, err
}

func (g gzipped) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(g.bytes)), nil
}

func (g gzipped) Size() (int64, error)                { return int64(len(g.bytes)), nil }
func (g gzipped) MediaType() (types.MediaType, error) { return g.mediaType, nil }

// image makes a single-platform image; its media type follows that of its layers.
func image(arch string, config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Config:       config,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return mutate.AppendLayers(img, layers...)
}

func ociImage(img v1.Image) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
}

func withPlatform(index v1.ImageIndex, img v1.Image, arch string) v1.ImageIndex {
	return mutate.AppendManifests(index, mutate.IndexAddendum{
		Add:        img,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{Architecture: arch, OS: "linux"}},
	})
}

// imageFor finds the image of one architecture in an index.
func imageFor(idx v1.ImageIndex, arch string) (v1.Image, error) {
	manifest, err := idx.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	for _, desc := range manifest.Manifests {
		if desc.Platform != nil && desc.Platform.OS == "linux" && desc.Platform.Architecture == arch {
			img, err := idx.Image(desc.Digest)
			if err != nil {
				return nil, fmt.Errorf("read %s image: %w", arch, err)
			}
			return img, nil
		}
	}
	return nil, fmt.Errorf("index has no image for linux/%s", arch)
}

// readFiles reads the regular files of an image and the targets of its symbolic links; later
// layers override earlier ones.
func readFiles(img v1.Image) (files map[string][]byte, links map[string]string, err error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, nil, fmt.Errorf("read layers: %w", err)
	}
	files, links = map[string][]byte{}, map[string]string{}
	for i, l := range layers {
		if err := readLayer(l, files, links); err != nil {
			return nil, nil, fmt.Errorf("read layer %d: %w", i, err)
		}
	}
	return files, links, nil
}

func readLayer(l v1.Layer, files map[string][]byte, links map[string]string) (err error) {
	rc, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	r := tar.NewReader(rc)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			// The rest is read too, so that the layer's digest is verified.
			_, err = io.Copy(io.Discard, rc)
			return err
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			b := make([]byte, h.Size)
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			files[h.Name] = b
			delete(links, h.Name)
		case tar.TypeSymlink:
			links[h.Name] = h.Linkname
			delete(files, h.Name)
		}
	}
}
