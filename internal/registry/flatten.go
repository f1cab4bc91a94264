package registry

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Bounds of what an image may make us keep in memory. The largest extensions have some thousand files.
const (
	maxFiles      = 200_000
	maxPathBytes  = 4096 // PATH_MAX of Linux
	maxPathDepth  = 128
	maxNamesBytes = 16 << 20 // of all paths
)

// In layers, names with this prefix hide what lower layers have (the OCI image
// specification, layer.md, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq" // everything in that directory
)

// flatten streams an image's files as one tar, upper layers before lower ones. The
// tar ends properly only if everything was read and had the right digests.
// mutate.Extract of go-containerregistry is not used: it ends the archive properly
// before it reports an error, remembers every name without a bound and takes the
// first of two files with the same name in a layer, whereas a node takes the last.
func flatten(img v1.Image) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeFlat(img, w)) }() // ends when r is read to its end or closed
	return r
}

func writeFlat(img v1.Image, w io.Writer) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	f := flattener{out: tar.NewWriter(w), above: map[string]bool{}}
	for _, l := range slices.Backward(layers) {
		if err := f.add(l); err != nil {
			digest, errDigest := l.Digest()
			return errors.Join(fmt.Errorf("layer %s: %w", digest, err), errDigest)
		}
	}
	return f.out.Close()
}

// layerNames are the names in one layer; they hide entries of lower layers only.
type layerNames struct {
	files map[string]bool // true: not a directory
	gone  map[string]bool // whiteouts: always true
}

type flattener struct {
	out   *tar.Writer
	above map[string]bool // what upper layers have; true: it hides everything that lower ones have below it
	names int             // bytes of all paths so far
}

// add writes the files of a layer that no upper layer has or hides.
func (f *flattener) add(l v1.Layer) (err error) {
	content, err := openLayer(l)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = content.why(err)
		}
		err = errors.Join(err, content.Close())
	}()
	here := layerNames{files: map[string]bool{}, gone: map[string]bool{}}
	for in := tar.NewReader(content); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := f.entry(here, h, in); err != nil {
			return err
		}
	}
	for name, hides := range here.files {
		f.above[name] = f.above[name] || hides
	}
	maps.Copy(f.above, here.gone)
	// The digest covers the whole layer, so it is known only at the end.
	_, err = io.Copy(io.Discard, content)
	return err
}

func (f *flattener) entry(here layerNames, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := f.name(h.Name)
	if err != nil || name == "." {
		return err
	}
	if len(f.above)+len(here.files)+len(here.gone) >= maxFiles {
		return fmt.Errorf("more than %d files", maxFiles)
	}
	dir, base := path.Split(name)
	switch taken, isWhiteout := strings.CutPrefix(base, whiteout); {
	case base == opaque:
		here.gone[path.Clean(dir)] = true
		return nil
	case isWhiteout:
		here.gone[dir+taken] = true
		return nil
	}
	isDir := h.Typeflag == tar.TypeDir
	if file, there := here.files[name]; there {
		if isDir && !file {
			return nil
		}
		return fmt.Errorf("%s occurs twice", name)
	}
	here.files[name] = !isDir
	if f.hidden(name) {
		return nil
	}
	if err := f.out.WriteHeader(flatHeader(h, name)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := io.Copy(f.out, content); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// name returns a clean path without a leading slash.
func (f *flattener) name(name string) (string, error) {
	f.names += len(name)
	clean := path.Clean(strings.TrimLeft(name, "/"))
	switch {
	case len(name) > maxPathBytes || strings.Count(clean, "/") >= maxPathDepth:
		return "", fmt.Errorf("a path of %d bytes", len(name))
	case f.names > maxNamesBytes:
		return "", fmt.Errorf("more than %d bytes of paths", maxNamesBytes)
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return "", fmt.Errorf("%q leads out of the image", name)
	}
	return clean, nil
}

// hidden reports whether an upper layer has that path, or hides it.
func (f *flattener) hidden(name string) bool {
	if _, there := f.above[name]; there {
		return true
	}
	for dir := name; dir != "."; {
		if dir = path.Dir(dir); f.above[dir] {
			return true
		}
	}
	return false
}

// flatHeader is a header with what still holds after reading: for example, sparse files
// are whole. Extended attributes stay; imager takes the SELinux label from them.
func flatHeader(h *tar.Header, name string) *tar.Header {
	to := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode,
		Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Devmajor: h.Devmajor, Devminor: h.Devminor,
		PAXRecords: map[string]string{},
	}
	if to.Typeflag == tar.TypeGNUSparse {
		to.Typeflag = tar.TypeReg
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			to.PAXRecords[key] = value
		}
	}
	return to
}
