package verify

import (
	"io"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Largest is far above any installer, boot ISO or disk image: these have 80 to 400 MiB, or
// somewhat more with firmware and drivers of graphics cards. A server that sends
// more does not send an image of Talos, and might never end.
const Largest = 4 << 30

// Bounded returns a reader of r that fails after most bytes.
func Bounded(r io.Reader, most int64) io.Reader { return &bounded{Reader: r, most: most} }

type bounded struct {
	io.Reader
	most, read int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.read += int64(n); b.read > b.most {
		return n, TooLarge(b.most)
	}
	return n, err
}

// TooLarge is the error of a file with more than most bytes, of kind Refused.
func TooLarge(most int64) error {
	return fault.WithHint(fault.Refusedf("more than %s, which no image of Talos has", words.Size(most)),
		"see what answers at images.factory and images.mirror, and whether a proxy is in between")
}
