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
	return replace(file, func(f *os.File) error { return buffered(f, write) })
}

// Replace replaces a file with data, completely or not at all, and makes that survive a power failure.
func Replace(file string, data []byte, mode fs.FileMode) error {
	err := replace(file, func(f *os.File) error {
		_, err := f.Write(data)
		return errors.Join(err, f.Chmod(mode))
	})
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(file))
}

func replace(file string, fill func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".recast-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // err matters more
		}
	}()
	if err = fill(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
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
