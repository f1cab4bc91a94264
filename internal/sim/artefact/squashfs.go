package artefact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// squash makes the squashfs of a tree of regular files and symbolic links, by absolute path:
// version 4.0 of the format (fs/squashfs/squashfs_fs.h of Linux). It is uncompressed, which
// the format allows: the enclosing archive is compressed. KarpelesLab/squashfs v1.2.0 takes
// sixty times as long and 3 MB for three files; go-diskfs v1.9.4 writes the time into it.
func squash(files map[string][]byte, links map[string]string) ([]byte, error) {
	w := squashWriter{data: make([]byte, squashSuperBytes), next: 1}
	leaves := map[string]squashLeaf{}
	for name, content := range files {
		leaves[name] = squashLeaf{content: content}
	}
	for name, target := range links {
		leaves[name] = squashLeaf{link: target}
	}
	root := newSquashDir()
	for _, name := range slices.Sorted(maps.Keys(leaves)) {
		if err := root.add(strings.TrimPrefix(name, "/"), leaves[name]); err != nil {
			return nil, fmt.Errorf("squashfs: %s: %w", name, err)
		}
	}
	ref, err := w.dir(root, 0)
	if err != nil {
		return nil, fmt.Errorf("squashfs: %w", err)
	}
	return w.finish(ref), nil
}

const (
	squashSuperBytes = 96
	squashBlockLog   = 17
	squashMetaBytes  = 8192
	squashMetaRaw    = 1 << 15
	squashDataRaw    = 1 << 24
	squashZstd       = 6
	squashNone       = ^uint64(0)
	squashNoFragment = ^uint32(0)
	squashHeaderMax  = 256 // entries after one header of a directory
	// No compression, no fragments, no extended attributes.
	squashFlags = 0x1 | 0x2 | 0x8 | 0x10 | 0x200
)

// The types of inodes.
const (
	squashTypeDir  = 1
	squashTypeFile = 2
	squashTypeLink = 3
)

type squashDir struct {
	dirs   map[string]*squashDir
	leaves map[string]squashLeaf
}

// squashLeaf is a file, or a symbolic link if link is set.
type squashLeaf struct {
	content []byte
	link    string
}

func newSquashDir() *squashDir {
	return &squashDir{dirs: map[string]*squashDir{}, leaves: map[string]squashLeaf{}}
}

func (d *squashDir) add(name string, leaf squashLeaf) error {
	dir, rest, deeper := strings.Cut(name, "/")
	if _, isLeaf := d.leaves[dir]; isLeaf {
		return errors.New("a file is a directory too")
	}
	if !deeper {
		if d.dirs[name] != nil {
			return errors.New("a directory is a file too")
		}
		d.leaves[name] = leaf
		return nil
	}
	if d.dirs[dir] == nil {
		d.dirs[dir] = newSquashDir()
	}
	return d.dirs[dir].add(rest, leaf)
}

type squashWriter struct {
	data     []byte // space for the superblock, and the files' content
	inodes   squashTable
	listings squashTable
	next     uint32 // inode number
}

// squashTable is a table of metadata, not yet split into blocks.
type squashTable []byte

// ref is the location of the next byte: its block's position, and the offset in it.
func (t squashTable) ref() (block uint32, offset uint16) {
	n := len(t) / squashMetaBytes
	return uint32(n * (squashMetaBytes + 2)), uint16(len(t) % squashMetaBytes)
}

func (t squashTable) blocks() []byte {
	var b []byte
	for chunk := range slices.Chunk(t, squashMetaBytes) {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(chunk))|squashMetaRaw)
		b = append(b, chunk...)
	}
	return b
}

// squashEntry is a file or directory that its parent lists.
type squashEntry struct {
	name   string
	kind   uint16
	block  uint32
	offset uint16
	number uint32
}

// dir writes a directory's content, listing and inode, and returns the inode's reference;
// parent is 0 for the root.
func (w *squashWriter) dir(d *squashDir, parent uint32) (uint64, error) {
	number := w.next
	w.next++
	var entries []squashEntry
	names := slices.Sorted(maps.Keys(d.leaves))
	names = append(names, slices.Collect(maps.Keys(d.dirs))...)
	slices.Sort(names)
	for _, name := range names {
		e := squashEntry{name: name, kind: squashTypeDir, number: w.next}
		var ref uint64
		if sub := d.dirs[name]; sub != nil {
			var err error
			if ref, err = w.dir(sub, number); err != nil {
				return 0, err
			}
		} else {
			e.kind, ref = w.leaf(d.leaves[name])
		}
		e.block, e.offset = uint32(ref>>16), uint16(ref)
		entries = append(entries, e)
	}
	block, offset := w.listings.ref()
	listing := squashListing(entries)
	if len(listing) > 1<<16-4 {
		return 0, errors.New("a directory is too large for a basic inode")
	}
	w.listings = append(w.listings, listing...)
	at, within := w.inodes.ref()
	w.inode(squashTypeDir, 0o755, number)
	w.inodes = numbers(w.inodes, block, uint32(2+len(d.dirs)), uint16(len(listing)+3), offset, parent)
	return uint64(at)<<16 | uint64(within), nil
}

// squashListing groups entries after headers: the inodes of a group are in one block.
func squashListing(entries []squashEntry) []byte {
	var b []byte
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && n < squashHeaderMax && entries[n].block == entries[0].block {
			n++
		}
		b = numbers(b, uint32(n-1), entries[0].block, entries[0].number)
		for _, e := range entries[:n] {
			b = append(numbers(b, e.offset, uint16(e.number-entries[0].number), e.kind, uint16(len(e.name)-1)), e.name...)
		}
		entries = entries[n:]
	}
	return b
}

func (w *squashWriter) inode(kind, mode uint16, number uint32) {
	const owner, group, time = uint16(0), uint16(0), uint32(0)
	w.inodes = numbers(w.inodes, kind, mode, owner, group, time, number)
}

// numbers appends numbers of fixed size.
func numbers(b []byte, all ...any) []byte {
	for _, n := range all {
		b, _ = binary.Append(b, binary.LittleEndian, n) // never fails for them
	}
	return b
}

// leaf writes the inode of a file or link, and returns its type and reference.
func (w *squashWriter) leaf(l squashLeaf) (kind uint16, ref uint64) {
	at, within := w.inodes.ref()
	ref = uint64(at)<<16 | uint64(within)
	if l.link != "" {
		w.link(l.link)
		return squashTypeLink, ref
	}
	w.file(l.content)
	return squashTypeFile, ref
}

func (w *squashWriter) link(target string) {
	w.inode(squashTypeLink, 0o777, w.next)
	w.next++
	const names = uint32(1)
	w.inodes = append(numbers(w.inodes, names, uint32(len(target))), target...)
}

func (w *squashWriter) file(content []byte) {
	w.inode(squashTypeFile, fileMode, w.next)
	w.next++
	w.inodes = numbers(w.inodes, uint32(len(w.data)), squashNoFragment, uint32(0), uint32(len(content)))
	for block := range slices.Chunk(content, 1<<squashBlockLog) {
		w.inodes = numbers(w.inodes, uint32(len(block))|squashDataRaw)
		w.data = append(w.data, block...)
	}
}

func (w *squashWriter) finish(root uint64) []byte {
	b := w.data
	inodes := len(b)
	b = append(b, w.inodes.blocks()...)
	listings := len(b)
	b = append(b, w.listings.blocks()...)
	ids := len(b)
	b = append(b, squashTable{0, 0, 0, 0}.blocks()...) // the only owner is root
	idTable := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(ids))
	super := struct {
		Magic, Inodes, Time, BlockBytes, Fragments                           uint32
		Compressor, BlockLog, Flags, IDs, Major, Minor                       uint16
		Root, Used, IDTable, XattrTable, InodeTable, DirTable, Fragment, Exp uint64
	}{
		Magic: 0x73717368, Inodes: w.next - 1, BlockBytes: 1 << squashBlockLog,
		Compressor: squashZstd, BlockLog: squashBlockLog, Flags: squashFlags, IDs: 1, Major: 4,
		Root: root, Used: uint64(len(b)), IDTable: uint64(idTable), XattrTable: squashNone,
		InodeTable: uint64(inodes), DirTable: uint64(listings), Fragment: squashNone, Exp: squashNone,
	}
	var head bytes.Buffer
	// Writing numbers to memory never fails.
	_ = binary.Write(&head, binary.LittleEndian, super)
	copy(b, head.Bytes())
	return b
}
