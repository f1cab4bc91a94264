package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// layerOf is a layer with these entries: "name" for a file, "name/" for a directory,
// "name -> target" for a symbolic link; a file's content is the layer's name.
func layerOf(t *testing.T, layer string, entries ...string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e, Mode: 0o644, Size: int64(len(layer))}
		if strings.HasSuffix(e, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if name, target, link := strings.Cut(e, " -> "); link {
			h.Typeflag, h.Name, h.Linkname, h.Size = tar.TypeSymlink, name, target, 0
		}
		noError(t, w.WriteHeader(h))
		if h.Size > 0 {
			if _, err := io.WriteString(w, layer); err != nil {
				t.Fatal(err)
			}
		}
	}
	noError(t, w.Close())
	l := must(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithCompressionLevel(gzip.BestSpeed)))(t)
	return l
}

// flattened lists the content of a tar, a line for each entry.
func flattened(t *testing.T, layers ...v1.Layer) ([]string, error) {
	t.Helper()
	img := must(mutate.AppendLayers(empty.Image, layers...))(t)
	archive := flatten(img)
	defer archive.Close()
	var list []string
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return list, err
		}
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s%s", h.Name, content, h.Linkname)))
	}
}

func TestFlatten(t *testing.T) {
	t.Parallel()
	type row struct {
		lower, upper []string
		want         []string
		err          string
	}
	each(t, map[string]row{
		"both":                     {lower: []string{"a/", "a/x"}, upper: []string{"a/", "a/y"}, want: []string{"a", "a/y upper", "a/x lower"}},
		"the upper one counts":     {lower: []string{"./a"}, upper: []string{"/a"}, want: []string{"a upper"}},
		"a file hides a directory": {lower: []string{"a/", "a/x"}, upper: []string{"a"}, want: []string{"a upper"}},
		"a link hides a directory": {lower: []string{"a/x"}, upper: []string{"a -> ../../b"}, want: []string{"a ../../b"}},
		"removed":                  {lower: []string{"a/", "a/x", "b"}, upper: []string{".wh.a"}, want: []string{"b lower"}},
		"removed and restored":     {lower: []string{"a/x"}, upper: []string{".wh.a", "a/", "a/y"}, want: []string{"a", "a/y upper"}},
		"only this directory":      {lower: []string{"a/x", "b"}, upper: []string{"a/.wh..wh..opq", "a/y"}, want: []string{"a/y upper", "b lower"}},
		"nothing but this":         {lower: []string{"a/x", "b"}, upper: []string{".wh..wh..opq", "c"}, want: []string{"c upper"}},
		"not in its own layer":     {lower: []string{".wh.b", "b"}, upper: []string{"c"}, want: []string{"c upper", "b lower"}},
		"a directory twice":        {lower: []string{"a/", "a/"}, upper: []string{"c"}, want: []string{"c upper", "a"}},
		"a file twice":             {lower: []string{"a", "./a"}, upper: []string{"c"}, want: []string{"c upper", "a lower"}, err: "a occurs twice"},
		"out of the image":         {lower: []string{"a/../../b"}, upper: []string{"c"}, want: []string{"c upper"}, err: `"a/../../b" leads out of the image`},
		"a long path":              {lower: []string{strings.Repeat("a", 4097)}, upper: []string{"c"}, want: []string{"c upper"}, err: "a path of 4097 bytes"},
		"a deep path":              {lower: []string{strings.Repeat("a/", 128) + "b"}, upper: []string{"c"}, want: []string{"c upper"}, err: "a path of 257 bytes"},
	}, func(t *testing.T, tc row) {
		got, err := flattened(t, layerOf(t, "lower", tc.lower...), layerOf(t, "upper", tc.upper...))
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("error %v, want %q", err, tc.err)
		}
		same(t, "result", tc.want, got)
	})
}

// TestFlattenThreeLayers: what the upper one hides stays hidden, whatever the middle one says.
func TestFlattenThreeLayers(t *testing.T) {
	t.Parallel()
	got := must(flattened(t, layerOf(t, "lower", "a/x", "b/x"), layerOf(t, "middle", "a/", "b"), layerOf(t, "upper", "a", "b/", "b/y")))(t)
	same(t, "result", []string{"a upper", "b", "b/y upper"}, got)
}

// TestFlattenIsBounded: an image that is small in transit cannot make us keep much in memory.
func TestFlattenIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	long := strings.Repeat("a", 4000)
	names := make([]string, maxNamesBytes/4000+1)
	for i := range names {
		names[i] = fmt.Sprintf("%s%08d", long, i)
	}
	if _, err := flattened(t, layerOf(t, "", names...)); err == nil || !strings.Contains(err.Error(), "bytes of paths") {
		t.Errorf("error %v", err)
	}
}
