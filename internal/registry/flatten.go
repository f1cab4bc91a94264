package registry

import (
	"bufio"
	"errors"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// trailerBytes is what a tar archive ends with: two blocks of zeros.
const trailerBytes = 2 * 512

// flatten streams an image's files as one tar, whose end is read only if all of it
// was there and had the right digests. mutate.Extract ends the archive properly
// before it tells of an error, so that whoever reads a tar up to its end, as all
// do, takes what broke off for whole.
func flatten(img v1.Image) io.ReadCloser {
	archive := mutate.Extract(img)
	return &heldBack{ahead: bufio.NewReaderSize(archive, 64<<10), Closer: archive}
}

// heldBack passes the end of a stream on when there has been no error at it.
type heldBack struct {
	ahead *bufio.Reader
	io.Closer
}

func (h *heldBack) Read(p []byte) (int, error) {
	_, err := h.ahead.Peek(trailerBytes + 1)
	switch {
	case err == nil:
		return h.ahead.Read(p[:min(len(p), h.ahead.Buffered()-trailerBytes)])
	case errors.Is(err, io.EOF):
		return h.ahead.Read(p)
	}
	return 0, err
}
