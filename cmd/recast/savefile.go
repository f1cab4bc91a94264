package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// saveFile has write fill a file, which is whole then or as it was; only its owner may
// read it. What is no regular file is written to where it is: a root who replaces
// /dev/null has taken it from everybody.
func saveFile(file string, write func(io.Writer) error) (err error) {
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return writeTo(file, write)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".recast-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the error says more
		}
	}()
	err = buffered(f, write)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// writeTo writes to a pipe, a device, or whatever a link leads to.
func writeTo(file string, write func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return errors.Join(buffered(f, write), f.Close())
}

func buffered(f *os.File, write func(io.Writer) error) error {
	b := bufio.NewWriter(f)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}
