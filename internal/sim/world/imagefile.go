package world

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math"
	"path"
	"strings"

	"github.com/recast-sh/recast/internal/qcow2"
)

// errNoInfo is what Proxmox makes of qemu-img's failure to open a file.
var errNoInfo = failf("failed to query file information with qemu-img")

// image is the disk in a file, as QEMU reads it.
type image struct {
	io.ReaderAt
	size int64
}

// bytes is the disk without the zeros at its end. Those within it need no memory, since nothing writes them.
func (i image) bytes() ([]byte, error) {
	var end int64
	err := i.written(func(at int64, part []byte) { end = at + int64(len(part)) })
	if err != nil || end == 0 {
		return nil, err
	}
	b := make([]byte, end)
	return b, i.written(func(at int64, part []byte) { copy(b[at:], part) })
}

// written visits the parts of the disk that are not zeros.
func (i image) written(visit func(at int64, part []byte)) error {
	const step = 64 << 10
	chunk, zeros := make([]byte, step), make([]byte, step)
	for at := int64(0); at < i.size; at += step {
		part := chunk[:min(step, i.size-at)]
		if n, err := i.ReadAt(part, at); n < len(part) {
			return err
		}
		if !bytes.Equal(part, zeros[:len(part)]) {
			visit(at, part)
		}
	}
	return nil
}

// openImage opens a file that may come from anyone, as file_size_info of
// Storage/Plugin.pm does. name is its path.
func openImage(name, format string, m *Media) (image, error) {
	content := endless{m.content()}
	switch format {
	case "raw":
		return image{content, roundUp(m.Size(), 512)}, nil // in sectors
	case "qcow2":
	default:
		return image{}, errNoInfo // the simulator has no other file that QEMU would open
	}
	disk, err := qcow2.Open(content, math.MaxInt64)
	switch {
	case errors.Is(err, qcow2.ErrBackingFile):
		return image{}, failf("backing file not allowed for untrusted image '%s'!", name)
	case errors.Is(err, qcow2.ErrDataFile):
		return image{}, failf("%s: 'data-file' references are not allowed!", name)
	case err != nil:
		return image{}, errNoInfo
	}
	return image{disk, disk.Size()}, nil
}

// endless continues a file with zeros, as QEMU does: qemu-img info and qemu-img convert
// end without an error for an image that was cut short, and what is missing is zero.
type endless struct{ io.ReaderAt }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	n, err := e.ReaderAt.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		return len(p), nil
	}
	return n, err
}

// checkImage is the check of a file that becomes content "import" (upload and
// download_url in API2/Storage/Status.pm). ISOs are checked, too, but any bytes pass.
func checkImage(content, filename, tmp string, m *Media) error {
	format := strings.TrimPrefix(path.Ext(filename), ".")
	switch {
	case content != importKind:
		return nil
	case format == "ova":
		return checkOVA(tmp, m)
	}
	_, err := openImage(tmp, format, m)
	return err
}

// checkOVA is assert_ova_contents of API2/Storage/Status.pm.
func checkOVA(tmp string, m *Media) error {
	for t := tar.NewReader(m.Open()); ; {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return failf("ova archive has no .ovf file inside")
		case err != nil:
			return failf("command 'tar -t -f %s' failed: exit code 2", tmp)
		case strings.HasSuffix(h.Name, ".ovf"):
			return nil
		}
	}
}
