package registry

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// totalBytes is the most that a copy may have to send: the manifests, and each blob
// once. It fetches only manifests.
func totalBytes(desc *remote.Descriptor) (int64, error) {
	sizes := map[v1.Hash]int64{}
	if err := addSizes(desc, sizes); err != nil {
		return 0, err
	}
	var total int64
	for _, size := range sizes {
		total += size
	}
	return total, nil
}

func addSizes(desc *remote.Descriptor, sizes map[v1.Hash]int64) error {
	sizes[desc.Digest] = desc.Size
	switch {
	case desc.MediaType.IsIndex():
		index, err := desc.ImageIndex()
		if err != nil {
			return err
		}
		return addIndex(index, sizes)
	case desc.MediaType.IsImage():
		img, err := desc.Image()
		if err != nil {
			return err
		}
		return addImage(img, sizes)
	}
	return nil
}

func addIndex(index v1.ImageIndex, sizes map[v1.Hash]int64) error {
	m, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range m.Manifests {
		sizes[d.Digest] = d.Size
		switch {
		case d.MediaType.IsIndex():
			below, err := index.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			if err := addIndex(below, sizes); err != nil {
				return err
			}
		case d.MediaType.IsImage():
			img, err := index.Image(d.Digest)
			if err != nil {
				return err
			}
			if err := addImage(img, sizes); err != nil {
				return err
			}
		}
	}
	return nil
}

func addImage(img v1.Image, sizes map[v1.Hash]int64) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, d := range append(m.Layers, m.Config) {
		sizes[d.Digest] = d.Size
	}
	return nil
}
