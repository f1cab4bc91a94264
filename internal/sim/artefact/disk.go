package artefact

import (
	"bytes"
	"cmp"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
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
	// Whole says that the entry is no partition, but the disk's one filesystem.
	Whole bool `json:",omitempty"`
	// Keys open the partition, by LUKS key slot; none: the partition is not encrypted. Filesystem and Data are what
	// is inside.
	Keys map[int]string `json:",omitempty"`
	Data []byte         // the caller of ReadDisk must not change its bytes
}

// WriteDisk makes the bytes of a disk; a disk without partitions is blank and has no bytes.
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
	d, err := readDisks.of(sha256.Sum256(b), func() (d Disk, err error) {
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
		return d, nil
	})
	return Disk{Partitions: slices.Clone(d.Partitions)}, err
}

// DiskForm holds what a disk image has beside its content.
type DiskForm struct {
	Meta map[uint8]string // values of the META partition
	BIOS bool             // with the partitions of GRUB, which are blank: no machine of the lab boots them
	By   Compression
	// Files are further files of the EFI system partition, by path.
	Files map[string][]byte
}

const (
	mib          = 1 << 20
	gptSector    = 512
	dualBootMeta = 0x11
	labDisk      = "61636572-7473-6C20-6162-206469736B21"
)

// DiskImage makes a disk image for UEFI in qcow2 format, as imager does: EFI and META, with BIOS and BOOT between
// them where GRUB would boot the image too. Its kernel command line is an installer's.
func DiskImage(img Image, form DiskForm) ([]byte, error) {
	files, err := bootFiles(img, "") // of a valid image
	if err != nil {
		return nil, err
	}
	maps.Copy(files, form.Files)
	esp, err := espImage(files)
	if err != nil {
		return nil, err
	}
	values := map[uint8]string{}
	maps.Copy(values, form.Meta)
	partitions := []rawPartition{{"EFI", gpt.EFISystemPartition, padded(esp, mib)}}
	if form.BIOS {
		partitions = append(partitions, rawPartition{"BIOS", gpt.BIOSBoot, make([]byte, mib)}, rawPartition{"BOOT", gpt.LinuxFilesystem, make([]byte, mib)})
		values[dualBootMeta] = "dual-boot"
	}
	raw, err := partitioned(append(partitions, rawPartition{"META", gpt.LinuxFilesystem, metaPartition(values)}))
	if err != nil {
		return nil, err
	}
	return QCOW2(raw, form.By)
}

type rawPartition struct {
	label   string
	kind    gpt.Type
	content []byte
}

func partitioned(list []rawPartition) ([]byte, error) {
	table := gpt.Table{LogicalSectorSize: gptSector, PhysicalSectorSize: gptSector, ProtectiveMBR: true, GUID: labDisk}
	disk := make([]byte, mib)
	for i, p := range list {
		first, sectors := uint64(len(disk)/gptSector), uint64(len(p.content)/gptSector)
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: i + 1, Start: first, End: first + sectors - 1, Type: p.kind, Name: p.label, GUID: PartitionUUID(p.label),
		})
		disk = append(disk, p.content...)
	}
	disk = append(disk, make([]byte, mib)...) // imager's disk is larger than its partitions, too
	err := table.Write(inMemory{disk: disk}, int64(len(disk)))
	return disk, err
}

// inMemory is a disk that can be written, and nothing else.
type inMemory struct {
	backend.WritableFile

	disk []byte
}

func (m inMemory) WriteAt(b []byte, off int64) (int, error) { return copy(m.disk[off:], b), nil }

// PartitionUUID returns the UUID of a partition in each disk image of imager since Talos 1.13 (GUIDFromLabel in
// pkg/makefs).
func PartitionUUID(label string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte(label), 8).String()
}

// metaPartition returns a META partition; without values the partition is blank. See adv/talos in siderolabs/go-adv.
func metaPartition(values map[uint8]string) []byte {
	const length, sum = 256 << 10, 36
	out := make([]byte, mib)
	if len(values) == 0 {
		return out
	}
	one, be := make([]byte, length), binary.BigEndian
	be.PutUint32(one, 0x5a4b3c2d)
	be.PutUint32(one[length-4:], 0xa5b4c3d2)
	data := one[4 : length-sum]
	for _, key := range slices.SortedFunc(maps.Keys(values), cmp.Compare[uint8]) {
		be.PutUint32(data, uint32(key))
		be.PutUint32(data[4:], uint32(len(values[key])))
		data = data[8+copy(data[8:], values[key]):]
	}
	hash := sha256.Sum256(one)
	copy(one[length-sum:], hash[:])
	copy(out, one)
	copy(out[length:], one)
	return out
}

// ReadDiskImage reads a disk that was made from a disk image and never booted, byte for byte: the labels of its
// partitions, in order, and the image that UEFI boots from it. Any other disk is ErrNoPartitionTable.
func ReadDiskImage(disk []byte) (labels []string, uki []byte, err error) {
	i, err := diskimage.OpenRaw(bytes.NewReader(disk), int64(len(disk)))
	if err == nil {
		uki, err = io.ReadAll(i.ESP.UKI.File)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoPartitionTable, err)
	}
	labels = []string{"EFI", "META"}
	if i.BIOS {
		labels = []string{"EFI", "BIOS", "BOOT", "META"}
	}
	return labels, uki, nil
}

// Compression is the compression of the clusters of a qcow2 file.
type Compression int

// The kinds of compression: Plain is what imager makes, by "qemu-img convert".
const (
	Plain Compression = iota
	Zlib
	Zstd
)

const (
	qcow2Bits    = 13 // clusters of 8 KiB, as the Image Factory orders them
	qcow2Cluster = 1 << qcow2Bits
	qcow2Copied  = 1 << 63
	qcow2Packed  = 1 << 62
	qcow2Header  = 112
)

// QCOW2 makes a qcow2 file of a disk's bytes: of version 3, without the clusters that
// are zero. See docs/interop/qcow2.rst of QEMU.
func QCOW2(disk []byte, by Compression) ([]byte, error) {
	disk = padded(bytes.Clone(disk), 512)
	perTable := qcow2Cluster / 8
	clusters := roundUp(len(disk), qcow2Cluster) / qcow2Cluster
	tables := roundUp(clusters, perTable) / perTable
	w := &qcow2Writer{first: make([]uint64, roundUp(tables, perTable)), pack: by, refs: map[int]uint16{}}
	w.file = make([]byte, qcow2Cluster) // the header
	firstAt := w.append(make([]byte, len(w.first)*8))
	for n := range tables {
		table := make([]uint64, perTable)
		for i := range table {
			from := (n*perTable + i) * qcow2Cluster
			if from >= len(disk) {
				break
			}
			entry, err := w.cluster(disk[from:min(from+qcow2Cluster, len(disk))])
			if err != nil {
				return nil, err
			}
			table[i] = entry
		}
		if slices.Max(table) > 0 {
			w.align()
			w.first[n] = uint64(w.append(bigEndian(table))) | qcow2Copied
		}
	}
	w.align()
	copy(w.file[firstAt:], bigEndian(w.first))
	w.header(len(disk), tables, firstAt, w.counts())
	return w.file, nil
}

type qcow2Writer struct {
	file  []byte
	first []uint64
	pack  Compression
	refs  map[int]uint16 // of clusters that several compressed clusters share
}

func (w *qcow2Writer) align() { w.file = padded(w.file, qcow2Cluster) }

func (w *qcow2Writer) append(b []byte) (at int) {
	at = len(w.file)
	w.file = append(w.file, b...)
	return at
}

// cluster writes a cluster, and returns its entry in a table.
func (w *qcow2Writer) cluster(b []byte) (uint64, error) {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return 0, nil
	}
	b = padded(bytes.Clone(b), qcow2Cluster)
	small, err := w.packed(b)
	if err != nil || len(small) >= qcow2Cluster { // QEMU stores it as it is, too
		w.align()
		return uint64(w.append(b)) | qcow2Copied, err
	}
	at := w.append(small)
	last := at + len(small) - 1
	for c := at / qcow2Cluster; c <= last/qcow2Cluster; c++ {
		w.refs[c]++
	}
	const bits = 62 - (qcow2Bits - 8)
	return qcow2Packed | uint64(last/512-at/512)<<bits | uint64(at), nil
}

func (w *qcow2Writer) packed(b []byte) ([]byte, error) {
	switch w.pack {
	case Plain:
		return b, nil
	case Zstd:
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.EncodeAll(b, nil), z.Close()
	}
	var out bytes.Buffer
	z, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

// counts writes the reference counts of all clusters, their own included.
func (w *qcow2Writer) counts() (at int) {
	const perBlock = qcow2Cluster / 2 // counts of 16 bits
	used := len(w.file) / qcow2Cluster
	blocks := 1
	for roundUp(used+1+blocks, perBlock)/perBlock > blocks {
		blocks++
	}
	at = w.append(make([]byte, qcow2Cluster))
	first := w.append(make([]byte, blocks*qcow2Cluster))
	for n := range len(w.file) / qcow2Cluster {
		binary.BigEndian.PutUint16(w.file[first+2*n:], max(1, w.refs[n]))
	}
	for n := range blocks {
		binary.BigEndian.PutUint64(w.file[at+8*n:], uint64(first+n*qcow2Cluster))
	}
	return at
}

func (w *qcow2Writer) header(diskBytes, tables, firstAt, countsAt int) {
	h, be := w.file, binary.BigEndian
	copy(h, "QFI\xfb")
	be.PutUint32(h[4:], 3)
	be.PutUint32(h[20:], qcow2Bits)
	be.PutUint64(h[24:], uint64(diskBytes))
	be.PutUint32(h[36:], uint32(tables))
	be.PutUint64(h[40:], uint64(firstAt))
	be.PutUint64(h[48:], uint64(countsAt))
	be.PutUint32(h[56:], 1)
	be.PutUint32(h[96:], 4) // counts of 2^4 bits
	be.PutUint32(h[100:], qcow2Header)
	if w.pack == Zstd {
		be.PutUint64(h[72:], 1<<3)
		h[104] = 1
	}
}

func bigEndian(table []uint64) []byte {
	b, _ := binary.Append(nil, binary.BigEndian, table) // numbers: no error
	return b
}

const (
	cidataLabel  = "cidata"
	userDataFile = "USER-DATA.;1" // Linux shows it as user-data (fs/isofs/namei.c)
	isoFiles     = isoPrimary + 8
)

// CloudInitISO returns a cloud-init volume as tools burn it, with only user data.
func CloudInitISO(userData []byte) []byte {
	b := burn(cidataLabel, userData) // the file lies in place of a boot ISO's partition
	record := make([]byte, 34+len(userDataFile)-len(userDataFile)%2)
	record[0] = byte(len(record))
	bothEndian32(record[2:], isoFiles)
	bothEndian32(record[10:], len(userData))
	bothEndian16(record[28:], 1)
	record[32] = byte(len(userDataFile))
	copy(record[33:], userDataFile)
	clear(b[isoBootRecord*isoSector : (isoBootRecord+1)*isoSector])
	copy(b[isoBootRecord*isoSector:], "\xffCD001\x01") // not bootable
	copy(b[isoRoot*isoSector:], slices.Concat(isoDirectory(0), isoDirectory(1), record))
	return b
}

// UserData returns the user data on a cloud-init volume; false if b is no cloud-init volume or has no user data.
// Talos accepts the label in either case (platform/nocloud/metadata.go, configFromCD).
func UserData(b []byte) ([]byte, bool) {
	if len(b) < isoFiles*isoSector || !strings.EqualFold(strings.TrimRight(string(b[isoPrimary*isoSector+40:isoPrimary*isoSector+72]), " "), cidataLabel) {
		return nil, false
	}
	for root := b[isoRoot*isoSector : (isoRoot+1)*isoSector]; len(root) > 33 && root[0] > 33; root = root[root[0]:] {
		from, size := int(binary.LittleEndian.Uint32(root[2:]))*isoSector, int(binary.LittleEndian.Uint32(root[10:]))
		if string(root[33:33+int(root[32])]) == userDataFile && from+size <= len(b) {
			return b[from : from+size], true
		}
	}
	return nil, false
}

// ISO makes a boot ISO for UEFI. Its kernel command line gets HaltIfInstalled, as in every Talos ISO. ISO caches
// results; the caller must not change the bytes.
func ISO(img Image) ([]byte, error) {
	if !slices.Contains(strings.Fields(img.Cmdline), HaltIfInstalled) {
		img.Cmdline = strings.TrimSpace(img.Cmdline + " " + HaltIfInstalled)
	}
	if err := img.validate(); err != nil {
		return nil, err
	}
	return made(&madeISOs, img, func() ([]byte, error) {
		files, err := bootFiles(img, "\nsecure-boot-enroll off\n")
		if err != nil {
			return nil, err
		}
		files["loader/random-seed"] = make([]byte, 32)
		esp, err := espImage(files)
		if err != nil {
			return nil, err
		}
		return burn("TALOS_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(img.TalosVersion)), esp), nil
	})
}

// bootFiles returns the files of an EFI system partition, by path; more is the end of loader.conf.
func bootFiles(img Image, more string) (map[string][]byte, error) {
	uki, err := UKI(img)
	if err != nil {
		return nil, err
	}
	loader, err := SystemdBoot(img.Arch)
	removable := "EFI/BOOT/BOOTX64.EFI"
	if img.Arch == "arm64" {
		removable = "EFI/BOOT/BOOTAA64.EFI"
	}
	return map[string][]byte{
		removable: loader,
		"EFI/Linux/Talos-" + img.TalosVersion + ".efi": uki,
		"loader/loader.conf":                           []byte("# systemd-boot configuration\n\ntimeout 10\n" + more),
	}, err
}

// SystemdBoot returns the boot loader for that architecture, in ISOs and installers alike.
func SystemdBoot(arch string) ([]byte, error) {
	return portableExecutable(arch, []section{{".sdmagic", []byte("#### LoaderInfo: systemd-boot 258 ####\x00")}})
}

// ReadISO reads a boot ISO; any other file, or a damaged ISO, is ErrNotBootable.
func ReadISO(b []byte) (Image, error) {
	return readImage(&readISOs, b, func() (Image, error) {
		iso, err := bootimage.OpenISO(bytes.NewReader(b), int64(len(b)))
		if err == nil && iso.UKI == nil {
			err = errors.New("ISO: nothing in it for UEFI, which every machine of the lab has")
		}
		if err != nil {
			return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
		return imageOf(iso.UKI)
	})
}

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

// ref returns the location of the next byte: its block's position, and the offset in it.
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

// dir writes a directory's content, listing and inode, and returns the inode's reference; parent is 0 for the root.
func (w *squashWriter) dir(d *squashDir, parent uint32) (uint64, error) {
	number := w.next
	w.next++
	var entries []squashEntry
	names := slices.Concat(slices.Collect(maps.Keys(d.dirs)), slices.Collect(maps.Keys(d.leaves)))
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
	copy(b, numbers(nil, super))
	return b
}

// The volume of an ISO (ECMA-119), sector by sector. Its file system is empty: UEFI boots
// the EFI system partition, which El Torito's catalogue points to. go-diskfs v1.9.4 would
// write the time into it: no two ISOs of an image would be the same.
const (
	isoSector     = 2048
	isoPrimary    = 16 // then come a boot record, a terminator, the catalogue, the root directory and two path tables
	isoBootRecord = isoPrimary + 1
	isoTerminator = isoPrimary + 2
	isoCatalogue  = isoPrimary + 3
	isoRoot       = isoPrimary + 4
	isoPathsLE    = isoPrimary + 5
	isoPathsBE    = isoPrimary + 6
	isoESP        = isoPrimary + 8
)

// burn makes a bootable volume of an EFI system partition.
func burn(volumeID string, esp []byte) []byte {
	sectors := isoESP + roundUp(len(esp), isoSector)/isoSector
	b := make([]byte, sectors*isoSector)
	at := func(sector int) []byte { return b[sector*isoSector:] }
	primaryDescriptor(at(isoPrimary), volumeID, sectors)
	copy(at(isoBootRecord), "\x00CD001\x01EL TORITO SPECIFICATION")
	binary.LittleEndian.PutUint32(at(isoBootRecord)[0x47:], isoCatalogue)
	copy(at(isoTerminator), "\xffCD001\x01")
	bootCatalogue(at(isoCatalogue), isoESP, len(esp))
	self := isoDirectory(0)
	copy(at(isoRoot), append(self, isoDirectory(1)...))
	copy(at(isoPathsLE), []byte{1, 0, isoRoot, 0, 0, 0, 1, 0})
	copy(at(isoPathsBE), []byte{1, 0, 0, 0, 0, isoRoot, 0, 1})
	copy(at(isoESP), esp)
	return b
}

func primaryDescriptor(b []byte, volumeID string, sectors int) {
	copy(b, "\x01CD001\x01")
	spaces(b[8:40], "")
	spaces(b[40:72], volumeID)
	bothEndian32(b[80:], sectors)
	bothEndian16(b[120:], 1)
	bothEndian16(b[124:], 1)
	bothEndian16(b[128:], isoSector)
	bothEndian32(b[132:], 10) // a path table with only the root
	binary.LittleEndian.PutUint32(b[140:], isoPathsLE)
	binary.BigEndian.PutUint32(b[148:], isoPathsBE)
	copy(b[156:], isoDirectory(0))
	spaces(b[190:813], "")
	for i := 813; i < 881; i += 17 {
		copy(b[i:], "0000000000000000") // unset dates
	}
	b[881] = 1
}

// isoDirectory returns a record of the root directory; name is 0 for the directory itself, 1 for its parent.
func isoDirectory(name byte) []byte {
	b := make([]byte, 34)
	b[0] = 34
	bothEndian32(b[2:], isoRoot)
	bothEndian32(b[10:], isoSector)
	b[25] = 2 // a directory
	bothEndian16(b[28:], 1)
	b[32], b[33] = 1, name
	return b
}

// bootCatalogue has one entry, for UEFI.
func bootCatalogue(b []byte, sector, sizeBytes int) {
	b[0], b[1] = 1, 0xef
	b[30], b[31] = 0x55, 0xaa
	var sum uint16
	for i := 0; i < 32; i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	binary.LittleEndian.PutUint16(b[28:], -sum)
	b[32] = 0x88
	binary.LittleEndian.PutUint16(b[38:], uint16(min(sizeBytes/512, 0xffff)))
	binary.LittleEndian.PutUint32(b[40:], uint32(sector))
}

func spaces(b []byte, text string) {
	for i := copy(b, text); i < len(b); i++ {
		b[i] = ' '
	}
}

func bothEndian16(b []byte, v int) {
	binary.LittleEndian.PutUint16(b, uint16(v))
	binary.BigEndian.PutUint16(b[2:], uint16(v))
}

func bothEndian32(b []byte, v int) {
	binary.LittleEndian.PutUint32(b, uint32(v))
	binary.BigEndian.PutUint32(b[4:], uint32(v))
}

const (
	fatSector   = 512
	fatReserved = 32
	fatBackup   = 6 // sector
	fatEnd      = 0x0fffffff
	fatRoot     = 2 // cluster
	fatDirAttr  = 0x10
	fatFileAttr = 0x20
)

// espImage makes an EFI system partition: a FAT32 with clusters of one sector. Firmware that goes by the number of
// clusters would take it for a FAT16; a real FAT32 has at least 33 MB, and a lab has thousands of ISOs. go-diskfs
// v1.9.4 gives the directories in the root another parent than fsck.vfat wants.
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

// alloc writes content to consecutive clusters and returns the first cluster; empty content takes a cluster too.
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

// longNames returns the entries with the long name, which come before the short entry; the end of the name comes first.
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

// cpioArchive packs regular files, by path with or without a leading slash, like `cpio -H
// newc --reproducible -R +0:+0`: directories first, inode numbers from 1, no times.
func cpioArchive(files map[string][]byte) []byte {
	dirs := map[string]bool{}
	for name := range files {
		for d := path.Dir(relative(name)); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	var b []byte
	inode := 0
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		inode++
		b = cpioEntry(b, d, 0o40755, inode, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		inode++
		b = cpioEntry(b, relative(name), 0o100000|fileMode, inode, files[name])
	}
	b = cpioEntry(b, "TRAILER!!!", 0, 0, nil)
	return padded(b, cpioBlockBytes)
}

const cpioBlockBytes = 512

func relative(name string) string {
	if name[0] == '/' {
		return name[1:]
	}
	return name
}

func cpioEntry(b []byte, name string, mode, inode int, content []byte) []byte {
	links := 1
	b = fmt.Appendf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	b = padded(append(append(b, name...), 0), 4)
	return padded(append(b, content...), 4)
}

// padded pads b with zero bytes.
func padded(b []byte, multiple int) []byte {
	return append(b, make([]byte, (multiple-len(b)%multiple)%multiple)...)
}
