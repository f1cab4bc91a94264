package diskimage

import (
	"errors"
	"io"

	"github.com/recast-sh/recast/internal/bootimage"
)

// OpenDisk is Open for a disk as it is: the fuzzer need not pack it.
func OpenDisk(r io.ReaderAt, sizeBytes int64) (*Image, error) {
	i, err := openDisk(io.NewSectionReader(r, 0, sizeBytes))
	if err != nil && !errors.Is(err, bootimage.ErrFormat) {
		err = damaged{err}
	}
	return i, err
}
