package images

import (
	"io"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

// largestImage is far above what any installer or boot ISO has: 80 to 400 MiB, with
// firmware and drivers of graphics cards somewhat more. Whoever sends more does not
// send an image of Talos, and might never end.
const largestImage = 4 << 30

// bounded is a reader that fails when there is more to read than it may have.
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

// freeSpace is how many bytes a user who is not root may write to the file system of a directory.
func freeSpace(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
