package verify

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"testing"
)

// TestEachFile: a tar is read to its end, whatever follows.
func TestEachFile(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/"}, {Typeflag: tar.TypeReg, Name: "./usr/a"}, {Typeflag: tar.TypeSymlink, Name: "usr/b", Linkname: "a"},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b.WriteString("what follows")
	var names []string
	err := eachFile(&b, func(name string, _ io.Reader) error {
		names = append(names, name)
		return nil
	})
	if err != nil || !slices.Equal(names, []string{"usr/a"}) || b.Len() != 0 {
		t.Errorf("%v %v, %d bytes left", names, err, b.Len())
	}
}
