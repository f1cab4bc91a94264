package images

import (
	"io"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

// largestImage is far above any installer or boot ISO: these have 80 to 400 MiB, or
// somewhat more with firmware and drivers of graphics cards. A server that sends
// more does not send an image of Talos, and might never end.
const largestImage = 4 << 30

// bounded is a reader that fails after most bytes.
type bounded struct {
	io.Reader
	most, read int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.read += int64(n); b.read > b.most {
		return n, tooLarge(b.most)
	}
	return n, err
}

func tooLarge(most int64) error {
	return fault.WithHint(fault.Refusedf("more than %s, which no image of Talos has", size(most)),
		"see what answers at images.factory and images.mirror, and whether a proxy is in between")
}

// freeSpace returns how many bytes a user other than root may write to a directory's file system.
func freeSpace(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
