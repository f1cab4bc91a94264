package registry

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/recast-sh/recast/internal/fault"
)

// damagedError says that a blob does not have the digest that was requested.
type damagedError struct{ want, got string }

func (e *damagedError) Error() string {
	return fmt.Sprintf("a blob was damaged on the way: sha256:%s came with digest sha256:%s", e.want, e.got)
}

// damaged adds a remedy to err if bytes were changed between here and a registry, in either direction.
func damaged(err error) (explained error, ok bool) {
	_, ok = errors.AsType[*damagedError](err)
	if e, answered := errors.AsType[*transport.Error](err); answered {
		ok = slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.DigestInvalidErrorCode })
		err = fmt.Errorf("a blob was damaged on the way: %w", err)
	}
	return fault.WithHint(fault.BuildFailed.Of(err), "run it again. If the blob is damaged each time, look for a proxy or a cache on the way that serves the damaged one"), ok
}

// checked compares a blob's bytes with its digest. go-containerregistry does so,
// too, but the code that unpacks the blob fails first, and blames the format.
type checked struct {
	io.ReadCloser
	want   string
	left   int64 // bytes still to come
	sum    hash.Hash
	damage error // nil if nothing is wrong so far
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.sum.Write(p[:n])
	if c.left -= int64(n); c.left == 0 && n > 0 {
		if got := hex.EncodeToString(c.sum.Sum(nil)); got != c.want {
			c.damage = &damagedError{want: c.want, got: got}
			return n, c.damage
		}
	}
	return n, err
}

// layerReader reads a layer's content. It keeps the packed stream.
type layerReader struct {
	v1.Layer
	packed  *checked
	content io.ReadCloser
	failed  bool // unpacking
}

func openLayer(l v1.Layer) (*layerReader, error) {
	r := &layerReader{Layer: l}
	layer, err := partial.CompressedToLayer(r)
	if err != nil {
		return nil, err
	}
	if r.content, err = layer.Uncompressed(); err != nil {
		r.failed = true
		return nil, r.why(err)
	}
	return r, nil
}

// Compressed is what go-containerregistry unpacks.
func (r *layerReader) Compressed() (io.ReadCloser, error) {
	digest, err := r.Digest()
	if err != nil {
		return nil, err
	}
	size, err := r.Size()
	if err != nil {
		return nil, err
	}
	packed, err := r.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	r.packed = &checked{ReadCloser: packed, want: digest.Hex, left: size, sum: sha256.New()}
	return r.packed, nil
}

func (r *layerReader) Read(p []byte) (int, error) {
	n, err := r.content.Read(p)
	r.failed = r.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}

func (r *layerReader) Close() error { return r.content.Close() }

// why returns the reason for an error: if the format is wrong, it reads the rest of
// the packed bytes to check their digest.
func (r *layerReader) why(err error) error {
	if r.packed == nil || !r.failed && !errors.Is(err, tar.ErrHeader) {
		return err
	}
	// Errors about the format, including go-containerregistry's own checks, no longer matter.
	if _, _ = io.Copy(io.Discard, r.packed); r.packed.damage != nil {
		return r.packed.damage
	}
	return err
}
