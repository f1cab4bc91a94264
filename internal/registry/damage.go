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

// damagedError says that a blob came with other bytes than those it was asked for by.
type damagedError struct{ want, got string }

func (e *damagedError) Error() string {
	return fmt.Sprintf("a blob was damaged on the way: sha256:%s came with digest sha256:%s", e.want, e.got)
}

// damaged is err with its remedy if bytes were changed between here and a registry, in either direction.
func damaged(err error) (explained error, ok bool) {
	_, ok = errors.AsType[*damagedError](err)
	if e, answered := errors.AsType[*transport.Error](err); answered {
		ok = slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.DigestInvalidErrorCode })
		err = fmt.Errorf("a blob was damaged on the way: %w", err)
	}
	return fault.WithHint(fault.BuildFailed.Of(err), "run it again: what is asked for has not changed. If it is damaged each time, look for a proxy or a cache on the way that keeps it so"), ok
}

// checked compares the bytes of a blob with its digest. go-containerregistry does so, too, but
// whoever unpacks the blob meanwhile fails first, and blames its format.
type checked struct {
	io.ReadCloser
	want   string
	left   int64 // bytes that are still to come
	sum    hash.Hash
	damage error // nil if nothing is wrong, or there is more to come
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

// layerReader reads what a layer holds. It remembers what that is unpacked from.
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

// why is the reason for an error: the rest of what is in no format is read, to see whether the
// bytes are those that were asked for.
func (r *layerReader) why(err error) error {
	if r.packed == nil || !r.failed && !errors.Is(err, tar.ErrHeader) {
		return err
	}
	// What it says of its format, go-containerregistry's checks included, is no matter any more.
	if _, _ = io.Copy(io.Discard, r.packed); r.packed.damage != nil {
		return r.packed.damage
	}
	return err
}
