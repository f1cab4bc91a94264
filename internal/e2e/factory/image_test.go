package factory

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var architectures = []string{"amd64", "arm64"}

// entry is a file of a layer; a link if link is set, a directory without link and content.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
	link    string
}

func directory(name string) entry { return entry{name: name + "/", mode: 0o755} }

// packed makes a layer.
func packed(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.name[len(e.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		mustDo(t, w.WriteHeader(h))
		must(w.Write(e.content))(t)
	}
	mustDo(t, w.Close())
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return must(tarball.LayerFromOpener(opener, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer)))(t)
}

// image makes an OCI image of one platform.
func image(t *testing.T, arch string, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := must(mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: arch, OS: "linux", Config: config, RootFS: v1.RootFS{Type: "layers"}}))(t)
	return must(mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON), layers...))(t)
}

// index makes an image for every architecture.
func index(one func(arch string) v1.Image) v1.ImageIndex {
	idx := v1.ImageIndex(empty.Index)
	for _, arch := range architectures {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: one(arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{Architecture: arch, OS: "linux"}},
		})
	}
	return idx
}
