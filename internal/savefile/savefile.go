// Package savefile writes files that only their owner may read, completely or not at all.
package savefile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file with what write writes, completely or not at all; only its owner may read it. A file that is
// not regular is written in place: root must not replace /dev/null.
func Write(file string, write func(io.Writer) error) error {
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return writeTo(file, write)
	}
	return replace(file, 0o600, write)
}

// Replace replaces a file with data, completely or not at all.
func Replace(file string, data []byte, mode fs.FileMode) error {
	return replace(file, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

func replace(file string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".recast-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // err matters more
		}
	}()
	if err = errors.Join(buffered(f, write), f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), file); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(file))
}

// SyncDir makes a rename in a directory survive a power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeTo writes to a pipe, a device, or the target of a link.
func writeTo(file string, write func(io.Writer) error) error {
	if isOutput(file) {
		return fmt.Errorf("%s is the file that standard output goes to: use - instead", file)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return errors.Join(buffered(f, write), f.Close())
}

// isOutput says whether file is the regular file that is our stdout. Opened a second
// time, it would be written from its beginning twice.
func isOutput(file string) bool {
	there, err := os.Stat(file)
	if err != nil || !there.Mode().IsRegular() {
		return false
	}
	out, err := os.Stdout.Stat()
	return err == nil && os.SameFile(there, out)
}

func buffered(f *os.File, write func(io.Writer) error) error {
	b := bufio.NewWriter(f)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}
