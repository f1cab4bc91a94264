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
	"slices"
	"strings"

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
	if err := img.validate(); err != nil {
		return nil, err
	}
	raw, err := rawDiskImage(img, form)
	if err != nil {
		return nil, err
	}
	return QCOW2(raw, form.By)
}

func rawDiskImage(img Image, form DiskForm) ([]byte, error) {
	files, err := bootFiles(img, "")
	if err != nil {
		return nil, err
	}
	maps.Copy(files, form.Files)
	esp, err := espImage(files)
	if err != nil {
		return nil, err
	}
	values := maps.Clone(form.Meta)
	partitions := []rawPartition{{"EFI", gpt.EFISystemPartition, padded(esp, mib)}}
	if form.BIOS {
		partitions = append(partitions, rawPartition{"BIOS", gpt.BIOSBoot, make([]byte, mib)}, rawPartition{"BOOT", gpt.LinuxFilesystem, make([]byte, mib)})
		if values == nil {
			values = map[uint8]string{}
		}
		values[dualBootMeta] = "dual-boot"
	}
	return partitioned(append(partitions, rawPartition{"META", gpt.LinuxFilesystem, metaPartition(values)}))
}

type rawPartition struct {
	label   string
	kind    gpt.Type
	content []byte
}

// partitioned makes a disk with a GUID partition table and its backup.
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
	w := &qcow2Writer{first: make([]uint64, roundUp(tables, perTable)), pack: by}
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
		if w.first[n] = 0; !allZero(table) {
			w.align()
			w.first[n] = uint64(w.append(bigEndian(table))) | qcow2Copied
		}
	}
	w.align()
	copy(w.file[firstAt:], bigEndian(w.first))
	countsAt := w.counts()
	w.header(len(disk), tables, firstAt, countsAt)
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
	if w.pack == Plain {
		w.align()
		return uint64(w.append(b)) | qcow2Copied, nil
	}
	small, err := w.packed(b)
	if err != nil {
		return 0, err
	}
	if len(small) >= qcow2Cluster { // QEMU stores it as it is, too
		w.align()
		return uint64(w.append(b)) | qcow2Copied, nil
	}
	at := w.append(small)
	last := at + len(small) - 1
	if w.refs == nil {
		w.refs = map[int]uint16{}
	}
	for c := at / qcow2Cluster; c <= last/qcow2Cluster; c++ {
		w.refs[c]++
	}
	const bits = 62 - (qcow2Bits - 8)
	return qcow2Packed | uint64(last/512-at/512)<<bits | uint64(at), nil
}

func (w *qcow2Writer) packed(b []byte) ([]byte, error) {
	if w.pack == Zstd {
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
		count := uint16(1)
		if shared := w.refs[n]; shared > 0 {
			count = shared
		}
		binary.BigEndian.PutUint16(w.file[first+2*n:], count)
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
	b := make([]byte, 0, 8*len(table))
	for _, entry := range table {
		b = binary.BigEndian.AppendUint64(b, entry)
	}
	return b
}

func allZero(table []uint64) bool {
	return !slices.ContainsFunc(table, func(entry uint64) bool { return entry != 0 })
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
