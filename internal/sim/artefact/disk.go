package artefact

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// ErrNoPartitionTable says that a disk has content but no readable partition table.
var ErrNoPartitionTable = errors.New("no readable partition table")

const diskKind = "disk"

// Disk is a partitioned disk. A blank disk has no bytes and no partitions.
type Disk struct {
	Partitions []Partition
}

// Partition is one partition, in the order of the partition table.
type Partition struct {
	Label          string // "EPHEMERAL", "META", …
	UUID           string // of the partition
	FilesystemUUID string
	Filesystem     string // "xfs", "vfat", …; "" for none
	VolumeGroup    string `json:",omitempty"` // that an "lvm2-pv" belongs to
	// Whole says that it is no partition, but the disk's one filesystem.
	Whole bool `json:",omitempty"`
	// Keys open it, by LUKS key slot; none: it is not encrypted. Filesystem and Data are what is inside.
	Keys map[int]string `json:",omitempty"`
	Data []byte         // the caller of ReadDisk must not change its bytes
}

// WriteDisk makes the bytes of a disk; a disk without partitions is blank and has none.
func WriteDisk(d Disk) []byte {
	if len(d.Partitions) == 0 {
		return nil
	}
	b, err := seal(diskKind, d)
	if err != nil {
		// Strings and bytes always marshal.
		panic(fmt.Sprintf("artefact: %v", err))
	}
	return b
}

// ReadDisk reads the content of a disk. No bytes are a blank disk; foreign content is ErrNoPartitionTable.
func ReadDisk(b []byte) (Disk, error) {
	if len(b) == 0 {
		return Disk{}, nil
	}
	key := sha256.Sum256(b)
	d, known := readDisks.get(key)
	if !known {
		rest, err := unseal(diskKind, b, &d)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%d bytes after its end", len(rest))
		}
		if err != nil {
			return Disk{}, fmt.Errorf("%w: %w", ErrNoPartitionTable, err)
		}
		for i, p := range d.Partitions {
			d.Partitions[i].Data = slices.Clip(p.Data) // append copies it
		}
		readDisks.put(key, d, keptImages)
	}
	return Disk{Partitions: slices.Clone(d.Partitions)}, nil
}
