// Package bootimage reads the content of Talos' boot media from their bytes alone: a
// unified kernel image ([UKI]), an [ISO], an [Initrd], a system [Extension]. It needs no
// root, mount or other program, and its memory does not grow with an image.
//
// All input is untrusted. Whatever is damaged, foreign or not understood is refused
// with ErrFormat; nothing is skipped. Extended attributes are not compared, but
// those that grant rights are refused.
package bootimage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// ErrFormat says that bytes are damaged, or not in the expected format.
var ErrFormat = errors.New("damaged or of a foreign format")

// refuse wraps the error of a part. The error becomes ErrFormat, unless the bytes are not to blame for it.
func refuse(part string, err error) error {
	if o, ok := errors.AsType[outsideError](err); ok {
		return fmt.Errorf("%s: %w", part, o.err)
	}
	return fmt.Errorf("%s: %w: %w", part, ErrFormat, err)
}

// outsideError is an error that the bytes did not cause: they could not be fetched, a temporary file could not be
// written, or the consumer stopped.
type outsideError struct{ err error }

func (e outsideError) Error() string { return e.err.Error() }
func (e outsideError) Unwrap() error { return e.err }

func outside(err error) error {
	if err == nil {
		return nil
	}
	return outsideError{err}
}

// source records the error that ended reading, whatever its readers make of the error.
type source struct {
	io.Reader
	io.ReaderAt // for random access
	err         error
}

func (s *source) Read(p []byte) (int, error) { return s.record(s.Reader.Read(p)) }

func (s *source) ReadAt(p []byte, off int64) (int, error) { return s.record(s.ReaderAt.ReadAt(p, off)) }

func (s *source) record(n int, err error) (int, error) {
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

// or returns the recorded error of reading instead of err, if there is one. A nil err stays nil.
func (s *source) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// opened returns v, or the reason why src does not hold a part.
func opened[T any](part string, src *source, v T, err error) (T, error) {
	if err != nil {
		var none T
		return none, refuse(part, src.or(err))
	}
	return v, nil
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); got < n {
		return nil, unexpected(err)
	}
	return b, nil
}

// File is a regular file or a symbolic link.
type File struct {
	Mode      fs.FileMode // permissions, set-id and sticky bits; a link's are fs.ModeSymlink | 0o777
	SizeBytes int64       // of a regular file
	SHA256    string      // hex, of a regular file's content
	Link      string      // target of a symbolic link
	// HardLink says that the archive of an image has the file as a hard link to an earlier file, whose content is
	// given here. imager makes an empty file of the link (Untar in pkg/archiver of Talos).
	HardLink bool
	LinkMode fs.FileMode // of a hard link's own entry: the empty file has these permissions
}

// Tree holds the files of a file system by absolute path on the node, without directories.
type Tree map[string]File

// Contents receives each regular file while it is read: image is the squashfs that holds the file ("0.sqsh"; "" for a
// loose file), path is the file's path. Contents need not read the file to its end.
type Contents func(image, path string, content io.Reader) error

// Bounds of one initramfs or extension. Talos' largest extensions have about 5000
// files and 1 GiB; an untrusted image could be a bomb.
const (
	maxFiles     = 100_000
	maxFileBytes = int64(8) << 30 // of all files together
	maxNameBytes = 32 << 20       // of all names and link targets together, which are kept
	maxPathBytes = 4096           // PATH_MAX of Linux
)

var (
	errTooManyFiles = errors.New("too many files")
	errTooLarge     = errors.New("too large")
)

// budget is what may still be read.
type budget struct {
	files    int
	bytes    int64
	names    int
	unpacked int64 // of all compressed members together
}

func newBudget() *budget {
	return &budget{files: maxFiles, bytes: maxFileBytes, names: maxNameBytes, unpacked: maxUnpackedBytes}
}

func (b *budget) take(sizeBytes int64) error {
	if b.files--; b.files < 0 {
		return errTooManyFiles
	}
	if sizeBytes < 0 || sizeBytes > b.bytes {
		return errTooLarge
	}
	b.bytes -= sizeBytes
	return nil
}

// keep counts texts that are kept in memory.
func (b *budget) keep(texts ...string) error {
	for _, text := range texts {
		b.names -= len(text)
	}
	if b.names < 0 {
		return fmt.Errorf("%w: names and links of more than %d bytes", errTooLarge, maxNameBytes)
	}
	return nil
}

// add adds a file. It refuses a second file with the same name: which of the two counts depends on the unpacker.
func (t Tree) add(name string, f File) error {
	if _, ok := t[name]; ok {
		return fmt.Errorf("%s occurs twice", name)
	}
	t[name] = f
	return nil
}

// absolute returns the path on the node for a name in an archive: "rootfs/usr", "./usr" and "/usr" are usual.
func absolute(name string) (string, error) {
	if len(name) > maxPathBytes || strings.ContainsRune(name, 0) {
		return "", errors.New("a file name is not a path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%q leads out of its directory", name)
		}
	}
	return path.Clean("/" + name), nil
}

// The bits of a mode in Linux, cpio and squashfs.
const (
	unixType    = 0o170000
	unixDir     = 0o040000
	unixRegular = 0o100000
	unixSymlink = 0o120000
)

// permissions converts the low bits of a Unix mode to Go's.
func permissions(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func symlink(target string) File { return File{Mode: fs.ModeSymlink | 0o777, Link: target} }

// regular reads a regular file to its end.
func regular(mode fs.FileMode, content io.Reader, visit func(io.Reader) error) (File, error) {
	sum := sha256.New()
	var n countingWriter
	tee := io.TeeReader(content, io.MultiWriter(sum, &n))
	if visit != nil {
		if err := visit(tee); err != nil {
			return File{}, err
		}
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return File{}, err
	}
	return File{Mode: mode, SizeBytes: int64(n), SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

type countingWriter int64

func (n *countingWriter) Write(p []byte) (int, error) {
	*n += countingWriter(len(p))
	return len(p), nil
}

// readAll reads a small input; more than limit is an error.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return b, err
}
