package cluster

import (
	"context"
	"io"
	"io/fs"
	"net/netip"
)

// FileReader opens the files of running machines.
type FileReader interface {
	// Files hands the files of the machine at addr to look; all that look reads
	// comes from one boot of it. It refuses unless the machine has that UUID.
	Files(ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, MachineFiles) error) error
}

// MachineFiles are the files of one running machine.
type MachineFiles interface {
	// List hands what is in a directory to each, which must not call back: all that
	// is below it, or, unless deep, only its entries. ErrNotFound if there is no such directory.
	List(ctx context.Context, dir string, deep bool, each func(MachineFile) error) error
	// Read writes a regular file to w. One that has not exactly sizeBytes is an error.
	Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error
}

// MachineFile is what a machine lists of one of its files.
type MachineFile struct {
	Path      string
	Mode      fs.FileMode
	SizeBytes int64
	Link      string // target of a symbolic link
}
