package bootimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"sort"
	"strings"
	"unicode/utf16"
)

// fat32 reads an EFI system partition as mkfs.vfat -F 32 makes it (Microsoft's FAT32
// File System Specification 1.03).
//
// go-diskfs v1.9.4 follows a circular chain of clusters until memory runs out, begins in
// cluster 2 wherever the root is, and takes a long name that belongs to another file.
type fat32 struct {
	r            *io.SectionReader
	clusterBytes int64
	tableAt      int64
	dataAt       int64
	clusters     uint32 // the highest number
	root         uint32
	page         []byte // of the table, the last one read
	pageAt       int64
}

var errNotFAT32 = errors.New("no FAT32")

const (
	fatEntryBytes   = 32
	fatLongName     = 0x0f
	fatVolumeLabel  = 0x08
	fatDirectory    = 0x10
	fatEnd          = 0x0ffffff8
	fatSelf         = ".          "
	fatParent       = "..         "
	fatPageBytes    = 4096
	maxFATDirectory = 2 << 20 // by the specification
	maxFATPieces    = 1 << 16 // of one file; mcopy writes one

	maxFATDirectories = 64 // of Talos: 8
	maxFATFiles       = 1024
)

// openFAT recognises FAT32 by the BIOS parameter block. Firmware that counts
// clusters would take a small one for FAT16; imager pads its own to be large enough.
func openFAT(r *io.SectionReader) (*fat32, error) {
	b, err := bytesAt(r, 0, 512)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if b[510] != 0x55 || b[511] != 0xaa {
		return nil, errors.New("no boot sector")
	}
	if le.Uint16(b[22:]) != 0 || le.Uint16(b[17:]) != 0 {
		return nil, errNotFAT32 // the table's size, or that of a root directory, in FAT12 and FAT16
	}
	sector, perCluster := int64(le.Uint16(b[11:])), int64(b[13])
	tables, tableSectors := int64(b[16]), int64(le.Uint32(b[36:]))
	total, reserved := int64(le.Uint32(b[32:])), int64(le.Uint16(b[14:]))
	if !powerOfTwo(sector) || sector < 512 || sector > 4096 || !powerOfTwo(perCluster) || tables < 1 || tables > 2 || reserved < 1 {
		return nil, errors.New("its parameters are out of range")
	}
	f := &fat32{
		r: r, clusterBytes: sector * perCluster, tableAt: reserved * sector,
		dataAt: (reserved + tables*tableSectors) * sector, root: le.Uint32(b[44:]), pageAt: -1,
	}
	data := total*sector - f.dataAt
	if data < f.clusterBytes || total*sector > r.Size() {
		return nil, io.ErrUnexpectedEOF
	}
	count := data / f.clusterBytes
	if count > 1<<28 || (count+2)*4 > tableSectors*sector {
		return nil, errors.New("its table is too small")
	}
	f.clusters = uint32(count) + 1
	return f, nil
}

func powerOfTwo(n int64) bool { return n > 0 && n&(n-1) == 0 }

// next is the cluster after another.
func (f *fat32) next(cluster uint32) (uint32, error) {
	at := f.tableAt + 4*int64(cluster)
	if page := at &^ (fatPageBytes - 1); page != f.pageAt {
		b := make([]byte, fatPageBytes)
		if n, err := f.r.ReadAt(b, page); n < len(b) && !errors.Is(err, io.EOF) {
			return 0, err
		}
		f.page, f.pageAt = b, page
	}
	return binary.LittleEndian.Uint32(f.page[at-f.pageAt:]) & 0x0fffffff, nil
}

// chain returns the content from a cluster on, up to limit bytes.
func (f *fat32) chain(cluster uint32, limit int64) (extents, error) {
	var found extents
	for cluster < fatEnd {
		if cluster < 2 || cluster > f.clusters {
			return nil, fmt.Errorf("no cluster %d", cluster)
		}
		if found.size() >= limit || len(found) > maxFATPieces {
			return nil, errors.New("a chain of clusters is too long, or in too many pieces")
		}
		found = found.add(f.dataAt+int64(cluster-2)*f.clusterBytes, f.clusterBytes)
		var err error
		if cluster, err = f.next(cluster); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// extent is a piece of a file: its place in the file and in the image.
type extent struct{ from, at, size int64 }

type extents []extent

func (x extents) size() int64 {
	if len(x) == 0 {
		return 0
	}
	return x[len(x)-1].from + x[len(x)-1].size
}

func (x extents) add(at, size int64) extents {
	if n := len(x); n > 0 && x[n-1].at+x[n-1].size == at {
		x[n-1].size += size
		return x
	}
	return append(x, extent{from: x.size(), at: at, size: size})
}

// scattered reads a file from its pieces.
type scattered struct {
	r      io.ReaderAt
	pieces extents
}

func (s scattered) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		i := sort.Search(len(s.pieces), func(i int) bool { return s.pieces[i].from+s.pieces[i].size > at })
		if i == len(s.pieces) {
			return done, io.EOF
		}
		within := at - s.pieces[i].from
		n := min(int64(len(p)-done), s.pieces[i].size-within)
		got, err := s.r.ReadAt(p[done:done+int(n)], s.pieces[i].at+within)
		done += got
		if int64(got) < n {
			return done, unexpected(err)
		}
	}
	return done, nil
}

// fatEntry is a file or directory.
type fatEntry struct {
	path    string // in lower case
	name    string // the long one, if any
	short   string // "LINUX", "TALOS-~1.EFI"
	dir     bool
	cluster uint32
	size    int64
}

func (f *fat32) open(e fatEntry) (*io.SectionReader, error) {
	if e.size == 0 {
		return nil, errors.New("it is missing, or empty")
	}
	pieces, err := f.chain(e.cluster, e.size)
	if err != nil {
		return nil, err
	}
	if pieces.size() < e.size {
		return nil, io.ErrUnexpectedEOF
	}
	return io.NewSectionReader(scattered{f.r, pieces}, 0, e.size), nil
}

// files lists all files by path, in lower case. Firmware knows a file by its long
// and by its short name, so no two files of a directory may share either.
func (f *fat32) files() (map[string]fatEntry, error) {
	found := map[string]fatEntry{}
	directories := []fatEntry{{cluster: f.root}}
	for n := 0; n < len(directories); n++ {
		if n == maxFATDirectories || len(found) > maxFATFiles {
			return nil, errTooManyFiles
		}
		entries, err := f.list(directories[n].cluster)
		if err != nil {
			return nil, fmt.Errorf("/%s: %w", directories[n].path, err)
		}
		names := map[string]int{}
		for i, e := range entries {
			for _, name := range []string{e.name, e.short} {
				name = strings.ToLower(name)
				if other, ok := names[name]; ok && other != i {
					return nil, fmt.Errorf("/%s: %s occurs twice", directories[n].path, name)
				}
				names[name] = i
			}
			e.path = path.Join(directories[n].path, strings.ToLower(e.name))
			if e.dir {
				directories = append(directories, e)
			} else {
				found[e.path] = e
			}
		}
	}
	return found, nil
}

// list reads a directory, without "." and "..".
func (f *fat32) list(cluster uint32) ([]fatEntry, error) {
	pieces, err := f.chain(cluster, maxFATDirectory)
	if err != nil {
		return nil, err
	}
	b, err := bytesAt(scattered{f.r, pieces}, 0, int(pieces.size()))
	if err != nil {
		return nil, err
	}
	var found []fatEntry
	long, sum := "", byte(0)
	for ; len(b) >= fatEntryBytes && b[0] != 0; b = b[fatEntryBytes:] {
		attributes := b[11]
		switch {
		case b[0] == 0xe5: // deleted
			long = ""
			continue
		case attributes&0x3f == fatLongName:
			long, sum = longName(b[:fatEntryBytes])+long, b[13]
			continue
		case attributes&fatVolumeLabel != 0 || string(b[:11]) == fatSelf || string(b[:11]) == fatParent:
			long = ""
			continue
		}
		if long != "" && sum != shortSum(b[:11]) {
			// Firmware would use only the short name.
			return nil, fmt.Errorf("the name %.40q belongs to another file", long)
		}
		e := fatEntry{
			name: long, short: shortName(b[:11]), dir: attributes&fatDirectory != 0, size: int64(binary.LittleEndian.Uint32(b[28:])),
			cluster: uint32(binary.LittleEndian.Uint16(b[20:]))<<16 | uint32(binary.LittleEndian.Uint16(b[26:])),
		}
		if e.name == "" {
			e.name = e.short
		}
		long = ""
		found = append(found, e)
	}
	return found, nil
}

// longName returns the part of a long name in one entry; the last part comes first.
func longName(b []byte) string {
	var units []uint16
	for _, span := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
		for i := span[0]; i < span[1]; i += 2 {
			u := binary.LittleEndian.Uint16(b[i:])
			if u == 0 || u == 0xffff {
				return string(utf16.Decode(units))
			}
			units = append(units, u)
		}
	}
	return string(utf16.Decode(units))
}

func shortName(b []byte) string {
	name, ext := strings.TrimRight(string(b[:8]), " "), strings.TrimRight(string(b[8:11]), " ")
	if ext == "" {
		return name
	}
	return name + "." + ext
}

// shortSum is the checksum of a short name in the parts of its long name.
func shortSum(b []byte) (sum byte) {
	for _, c := range b {
		sum = sum<<7 | sum>>1
		sum += c
	}
	return sum
}
