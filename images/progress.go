package images

import (
	"fmt"
	"io"
)

const mib = 1 << 20

// progress returns what turns a count of bytes into a note now and then: every
// tenth of the total, or every 64 MiB where the total is unknown.
func progress(total int64, note func(string)) func(done int64) {
	every := int64(64 * mib)
	if total > 0 {
		every = max(total/10, 1)
	}
	next := every
	return func(done int64) {
		if done < next {
			return
		}
		next = (done/every + 1) * every
		if total > 0 {
			note(size(done) + " of " + size(total))
		} else {
			note(size(done))
		}
	}
}

func size(bytes int64) string {
	if bytes < mib {
		return fmt.Sprintf("%d KiB", (bytes+1023)/1024)
	}
	return fmt.Sprintf("%d MiB", bytes/mib)
}

// counted tells how many bytes were read so far.
type counted struct {
	io.Reader
	done int64
	tell func(done int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	c.tell(c.done)
	return n, err
}
