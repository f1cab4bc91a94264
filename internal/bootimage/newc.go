package bootimage

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// newc is a cpio archive in the only format that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
//
// u-root v0.16.0 and cavaliergopher/cpio v1.0.1 take an archive that is cut between two
// files for a whole one. For a header of 110 bytes the former allocates 1 GiB; the latter
// reads "0000 1a4" as 0.
type newc struct {
	r    *bufio.Reader
	body *io.LimitedReader // of the entry read last
	pad  int64             // after the body
}

const (
	newcMagic       = "070701"
	newcHeaderBytes = 110
	newcTrailer     = "TRAILER!!!"
)

// cpioEntry is one file of a cpio archive.
type cpioEntry struct {
	name      string
	mode      uint32
	sizeBytes int64
	links     uint32
	id        inode
}

// inode identifies the entries of one file: all but one of them lack the content.
type inode struct{ number, major, minor uint32 }

// next moves to the next entry and returns its content; io.EOF is the archive's own end.
func (c *newc) next() (cpioEntry, io.Reader, error) {
	if c.body != nil {
		if _, err := io.Copy(io.Discard, c.body); err != nil {
			return cpioEntry{}, nil, err
		}
		if c.body.N > 0 {
			return cpioEntry{}, nil, io.ErrUnexpectedEOF
		}
		if err := c.skipPadding(c.pad); err != nil {
			return cpioEntry{}, nil, err
		}
	}
	var h [newcHeaderBytes]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return cpioEntry{}, nil, unexpected(err)
	}
	e, nameBytes, err := parseNewc(h)
	if err != nil {
		return cpioEntry{}, nil, err
	}
	name := make([]byte, nameBytes)
	if _, err := io.ReadFull(c.r, name); err != nil {
		return cpioEntry{}, nil, unexpected(err)
	}
	if i := bytes.IndexByte(name, 0); i != len(name)-1 {
		return cpioEntry{}, nil, errors.New("a file name of the wrong length")
	}
	e.name = string(name[:len(name)-1])
	if err := c.skipPadding(-(newcHeaderBytes + nameBytes) & 3); err != nil {
		return cpioEntry{}, nil, err
	}
	if e.name == newcTrailer {
		if e.sizeBytes != 0 {
			return cpioEntry{}, nil, errors.New("a trailer with content")
		}
		return cpioEntry{}, nil, io.EOF
	}
	c.body, c.pad = &io.LimitedReader{R: c.r, N: e.sizeBytes}, -e.sizeBytes&3
	return e, c.body, nil
}

func (c *newc) skipPadding(n int64) error {
	for range n {
		if _, err := c.r.ReadByte(); err != nil {
			return unexpected(err)
		}
	}
	return nil
}

func parseNewc(h [newcHeaderBytes]byte) (e cpioEntry, nameBytes int64, err error) {
	if string(h[:len(newcMagic)]) != newcMagic {
		return cpioEntry{}, 0, fmt.Errorf("no cpio header: %q", h[:len(newcMagic)])
	}
	var fields [13]uint32
	for i := range fields {
		text := string(h[len(newcMagic)+8*i:][:8])
		n, err := strconv.ParseUint(text, 16, 32)
		if err != nil {
			return cpioEntry{}, 0, fmt.Errorf("%q in a cpio header is not a number", text)
		}
		fields[i] = uint32(n)
	}
	e = cpioEntry{
		mode: fields[1], links: fields[4], sizeBytes: int64(fields[6]),
		id: inode{number: fields[0], major: fields[7], minor: fields[8]},
	}
	nameBytes = int64(fields[11])
	if nameBytes < 1 || nameBytes > maxPathBytes {
		return cpioEntry{}, 0, fmt.Errorf("a file name of %d bytes", nameBytes)
	}
	return e, nameBytes, nil
}

// unexpected turns an end of input where more has to come into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
