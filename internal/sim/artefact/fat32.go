package artefact

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"
)

const (
	fatSector   = 512
	fatReserved = 32
	fatBackup   = 6 // sector
	fatEnd      = 0x0fffffff
	fatRoot     = 2 // cluster
	fatDirAttr  = 0x10
	fatFileAttr = 0x20
)

// espImage makes an EFI system partition: a FAT32 with clusters of one sector. Firmware
// that goes by the number of clusters would take it for a FAT16; a real FAT32 has at least
// 33 MB, and a lab has thousands of ISOs. go-diskfs v1.9.4 gives the directories in the
// root another parent than fsck.vfat wants.
func espImage(files map[string][]byte) ([]byte, error) {
	f := &fatWriter{table: []uint32{0x0ffffff8, fatEnd}}
	f.alloc(nil) // the root directory must have the first cluster
	root := newSquashDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := root.add(name, squashLeaf{content: files[name]}); err != nil {
			return nil, fmt.Errorf("EFI system partition: %s: %w", name, err)
		}
	}
	if err := f.directory(root, fatRoot, 0); err != nil {
		return nil, fmt.Errorf("EFI system partition: %w", err)
	}
	return f.image(), nil
}

type fatWriter struct {
	table    []uint32
	clusters [][]byte
}

// alloc writes content to consecutive clusters and returns the first; empty content takes one too.
func (f *fatWriter) alloc(content []byte) uint32 {
	first := uint32(len(f.table))
	for {
		c := make([]byte, fatSector)
		content = content[copy(c, content):]
		f.clusters = append(f.clusters, c)
		if len(content) == 0 {
			f.table = append(f.table, fatEnd)
			return first
		}
		f.table = append(f.table, uint32(len(f.table))+1)
	}
}

// fill appends further clusters to a directory.
func (f *fatWriter) fill(cluster uint32, content []byte) {
	n := copy(f.clusters[cluster-2], content)
	if rest := content[n:]; len(rest) > 0 {
		f.table[cluster] = uint32(len(f.table))
		f.alloc(rest)
	}
}

func (f *fatWriter) directory(d *squashDir, self, parent uint32) error {
	var b []byte
	if self != fatRoot {
		b = append(fatEntry(".          ", fatDirAttr, self, 0), fatEntry("..         ", fatDirAttr, parent, 0)...)
	}
	names := slices.Concat(slices.Collect(maps.Keys(d.dirs)), slices.Collect(maps.Keys(d.leaves)))
	slices.Sort(names)
	for n, name := range names {
		short := fmt.Sprintf("LAB~%-4d%3s", n, "EFI")
		if len(names) > 9999 {
			return fmt.Errorf("%d files in one directory", len(names))
		}
		b = append(b, longNames(name, short)...)
		if sub := d.dirs[name]; sub != nil {
			cluster := f.alloc(nil)
			grand := self
			if self == fatRoot {
				grand = 0 // ".." has 0 for the root
			}
			if err := f.directory(sub, cluster, grand); err != nil {
				return err
			}
			b = append(b, fatEntry(short, fatDirAttr, cluster, 0)...)
			continue
		}
		content := d.leaves[name].content
		b = append(b, fatEntry(short, fatFileAttr, f.alloc(content), len(content))...)
	}
	f.fill(self, b)
	return nil
}

func fatEntry(short string, attributes byte, cluster uint32, size int) []byte {
	b := make([]byte, 32)
	copy(b, short)
	b[11] = attributes
	binary.LittleEndian.PutUint16(b[20:], uint16(cluster>>16))
	binary.LittleEndian.PutUint16(b[26:], uint16(cluster))
	binary.LittleEndian.PutUint32(b[28:], uint32(size))
	return b
}

// longNames are the entries before a short one with the long name, its end first.
func longNames(name, short string) []byte {
	var sum byte
	for _, c := range []byte(short) {
		sum = sum<<7 | sum>>1
		sum += c
	}
	units := utf16.Encode([]rune(name))
	if len(units)%13 != 0 {
		units = append(units, 0)
	}
	for len(units)%13 != 0 {
		units = append(units, 0xffff)
	}
	var b []byte
	for n := len(units) / 13; n > 0; n-- {
		e := make([]byte, 32)
		e[0], e[11], e[13] = byte(n), 0x0f, sum
		if n == len(units)/13 {
			e[0] |= 0x40
		}
		for i, at := range []int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30} {
			binary.LittleEndian.PutUint16(e[at:], units[13*(n-1)+i])
		}
		b = append(b, e...)
	}
	return b
}

func (f *fatWriter) image() []byte {
	tableSectors := (len(f.table)*4 + fatSector - 1) / fatSector
	total := fatReserved + tableSectors + len(f.clusters)
	b := make([]byte, total*fatSector)
	le := binary.LittleEndian
	copy(b, "\xeb\x58\x90mkfs.fat")
	le.PutUint16(b[11:], fatSector)
	b[13] = 1
	le.PutUint16(b[14:], fatReserved)
	b[16] = 1    // table
	b[21] = 0xf8 // a fixed disk
	le.PutUint32(b[32:], uint32(total))
	le.PutUint32(b[36:], uint32(tableSectors))
	le.PutUint32(b[44:], fatRoot)
	le.PutUint16(b[48:], 1) // the sector with the number of free clusters
	b[64], b[66] = 0x80, 0x29
	copy(b[71:], "NO NAME    FAT32   ")
	le.PutUint16(b[50:], fatBackup)
	info := b[fatSector:]
	copy(info, "RRaA")
	copy(info[484:], "rrAa\x00\x00\x00\x00\xff\xff\xff\xff")
	b[510], b[511], info[510], info[511] = 0x55, 0xaa, 0x55, 0xaa
	copy(b[fatBackup*fatSector:], b[:2*fatSector])
	for i, next := range f.table {
		le.PutUint32(b[fatReserved*fatSector+4*i:], next)
	}
	for i, c := range f.clusters {
		copy(b[(fatReserved+tableSectors+i)*fatSector:], c)
	}
	return b
}
