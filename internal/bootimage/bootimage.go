// Package bootimage reads the content of Talos' boot media from their bytes alone: a
// unified kernel image ([UKI]), an [ISO], an [Initrd], a system [Extension]. It needs no
// root, mount or other program, and its memory does not grow with an image.
//
// All input is untrusted. Whatever is damaged, foreign or not understood is refused
// with ErrFormat; nothing is skipped. Extended attributes are not compared, but
// those that grant rights are refused.
package bootimage

import (
	"errors"
	"fmt"
	"io"
)

// ErrFormat says that bytes are damaged, or not in the expected format.
var ErrFormat = errors.New("damaged or of a foreign format")

// refuse wraps the error of a part: with ErrFormat, unless the bytes are not to blame.
func refuse(part string, err error) error {
	if o, ok := errors.AsType[outsideError](err); ok {
		return fmt.Errorf("%s: %w", part, o.err)
	}
	return fmt.Errorf("%s: %w: %w", part, ErrFormat, err)
}

// outsideError is an error that the bytes are not to blame for: they could not be
// fetched, a temporary file could not be written, or the consumer stopped.
type outsideError struct{ err error }

func (e outsideError) Error() string { return e.err.Error() }
func (e outsideError) Unwrap() error { return e.err }

func outside(err error) error {
	if err == nil {
		return nil
	}
	return outsideError{err}
}

// source records why reading ended, whatever its readers make of that.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

// or returns the error of reading, or err if there was none.
func (s *source) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// sourceAt is source for random access.
type sourceAt struct {
	r   io.ReaderAt
	err error
}

func (s *sourceAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.r.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

func (s *sourceAt) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); got < n {
		return nil, unexpected(err)
	}
	return b, nil
}
