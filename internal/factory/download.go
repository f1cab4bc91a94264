package factory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// heldBack is how many of the received bytes are not yet passed on. If the factory's
// own store breaks, "internal server error" ends up in the body: the factory answers
// by http.Error after sending half the image (image-factory,
// internal/frontend/http/image.go). The held bytes are dropped when a connection
// breaks.
const heldBack = 64

// download is an ISO or a disk image in transit. The factory ignores Range, so that an interrupted
// download is read again from its beginning. The bytes up to the break must be the
// same: the factory does not build the same bytes twice.
type download struct {
	what    string // "ISO"
	open    func(after time.Duration) (io.ReadCloser, int64, error)
	note    func(string)
	explain func(error) error

	body     io.ReadCloser // nil between two connections
	size     int64         // announced; -1: unknown
	received int64         // received on this connection
	passed   int64         // passed to the reader
	sum      hash.Hash     // of what was passed on
	buffer   [heldBack + 32<<10]byte
	held     []byte // in buffer: received, not passed on
	whole    bool
	breaks   int
	failed   error
}

// Read returns all but the last bytes received; those once it is complete.
func (d *download) Read(p []byte) (int, error) {
	for d.failed == nil {
		if give := d.readable(); give > 0 {
			n := copy(p, d.held[:give])
			d.held = d.held[n:]
			d.sum.Write(p[:n]) // never fails
			d.passed += int64(n)
			return n, nil
		}
		if d.whole {
			return 0, io.EOF
		}
		d.failed = d.fill()
	}
	return 0, d.failed
}

func (d *download) readable() int {
	if d.whole {
		return len(d.held)
	}
	return len(d.held) - heldBack
}

// fill reads more from the connection, or opens a new one.
func (d *download) fill() error {
	kept := copy(d.buffer[:], d.held)
	n, err := d.body.Read(d.buffer[kept:])
	d.held = d.buffer[:kept+n]
	d.received += int64(n)
	switch {
	case errors.Is(err, io.EOF) && (d.size < 0 || d.received == d.size):
		d.whole = true
		return nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	case err == nil:
		return nil
	}
	return d.again(err)
}

// again reopens the download and skips to where it broke.
func (d *download) again(cause error) error {
	d.held = nil
	for {
		_ = d.body.Close() // it broke already
		d.body = nil
		d.breaks++
		switch {
		case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
			return d.explain(cause)
		case d.breaks == attempts:
			return d.explain(fmt.Errorf("the download broke off %d times, at last after %d MiB: %w", attempts, d.passed>>20, cause))
		}
		wait := time.Second << (d.breaks - 1)
		d.note(fmt.Sprintf("the download broke off after %d MiB (%s), beginning again in %s (%d of %d)",
			d.passed>>20, innermost(cause), wait, d.breaks+1, attempts))
		body, size, err := d.open(wait)
		if err != nil {
			return err
		}
		d.body = body
		if size != d.size {
			return d.differs()
		}
		same := sha256.New()
		if d.received, cause = io.CopyN(same, body, d.passed); cause != nil {
			continue
		}
		if !bytes.Equal(same.Sum(nil), d.sum.Sum(nil)) {
			return d.differs()
		}
		return nil
	}
}

func (d *download) differs() error {
	return fault.WithHint(d.explain(fmt.Errorf("after the download broke off, the factory sends another %s than before", d.what)),
		"it has rebuilt the %s, and a rebuild never has the same bytes: run it again", d.what)
}

// Close ends the download.
func (d *download) Close() error {
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}
