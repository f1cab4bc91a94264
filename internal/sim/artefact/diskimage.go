package artefact

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/google/uuid"

	"github.com/recast-sh/recast/internal/diskimage"
)

// DiskForm is what a disk image has beside its content.
type DiskForm struct {
	Meta map[uint8]string // values of the META partition
	BIOS bool             // with the partitions of GRUB, which are blank: no machine of the lab boots them
	By   Compression
	// Files are further ones of the EFI system partition, by path.
	Files map[string][]byte
}

const (
	mib          = 1 << 20
	gptSector    = 512
	gptEntries   = 128
	gptEntry     = 128
	gptArray     = gptEntries * gptEntry / gptSector // sectors
	dualBootMeta = 0x11
)

// DiskImage makes a disk image for UEFI in qcow2 format, as imager does: EFI and META,
// with BIOS and BOOT between them where GRUB would boot it, too. Its kernel command
// line is an installer's.
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
	uki, err := UKI(img)
	if err != nil {
		return nil, err
	}
	loader, err := SystemdBoot(img.Arch)
	if err != nil {
		return nil, err
	}
	removable := "EFI/BOOT/BOOTX64.EFI"
	if img.Arch == "arm64" {
		removable = "EFI/BOOT/BOOTAA64.EFI"
	}
	files := map[string][]byte{
		removable: loader,
		"EFI/Linux/Talos-" + img.TalosVersion + ".efi": uki,
		"loader/loader.conf":                           []byte("# systemd-boot configuration\n\ntimeout 10\n"),
	}
	maps.Copy(files, form.Files)
	esp, err := espImage(files)
	if err != nil {
		return nil, err
	}
	const linux = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
	values := maps.Clone(form.Meta)
	partitions := []rawPartition{{"EFI", "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", padded(esp, mib)}}
	if form.BIOS {
		partitions = append(partitions, rawPartition{"BIOS", "21686148-6449-6E6F-744E-656564454649", make([]byte, mib)}, rawPartition{"BOOT", linux, make([]byte, mib)})
		if values == nil {
			values = map[uint8]string{}
		}
		values[dualBootMeta] = "dual-boot"
	}
	return partitioned(append(partitions, rawPartition{"META", linux, metaPartition(values)})), nil
}

type rawPartition struct {
	label, kind string
	content     []byte
}

// partitioned makes a disk with a GUID partition table and its backup.
func partitioned(list []rawPartition) []byte {
	at := 2048 // sectors
	entries := make([]byte, gptEntries*gptEntry)
	disk := make([]byte, at*gptSector)
	for i, p := range list {
		e := entries[i*gptEntry:]
		copy(e, mixedGUID(p.kind))
		copy(e[16:32], mixedGUID(strings.ToUpper(PartitionUUID(p.label))))
		binary.LittleEndian.PutUint64(e[32:], uint64(at))
		at += len(p.content) / gptSector
		binary.LittleEndian.PutUint64(e[40:], uint64(at-1))
		for n, u := range utf16.Encode([]rune(p.label)) {
			binary.LittleEndian.PutUint16(e[56+2*n:], u)
		}
		disk = append(disk, p.content...)
	}
	disk = append(disk, make([]byte, mib)...) // imager's disk is larger than its partitions, too
	last := len(disk)/gptSector - 1
	protective(disk, last)
	copy(disk[2*gptSector:], entries)
	copy(disk[(last-gptArray)*gptSector:], entries)
	copy(disk[gptSector:], gptHeader(entries, 1, last, 2, last))
	copy(disk[last*gptSector:], gptHeader(entries, last, 1, last-gptArray, last))
	return disk
}

// PartitionUUID is that of a partition in each disk image of imager since Talos 1.13 (GUIDFromLabel in pkg/makefs).
func PartitionUUID(label string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte(label), 8).String()
}

// protective writes the boot sector before a partition table.
func protective(disk []byte, last int) {
	e := disk[446:]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0})
	binary.LittleEndian.PutUint32(e[12:], uint32(last))
	disk[510], disk[511] = 0x55, 0xaa
}

func gptHeader(entries []byte, at, other, entriesAt, last int) []byte {
	h, le := make([]byte, 92), binary.LittleEndian
	copy(h, "EFI PART\x00\x00\x01\x00")
	le.PutUint32(h[12:], uint32(len(h)))
	le.PutUint64(h[24:], uint64(at))
	le.PutUint64(h[32:], uint64(other))
	le.PutUint64(h[40:], 2+gptArray)
	le.PutUint64(h[48:], uint64(last-gptArray-1))
	copy(h[56:], "recast lab disk!")
	le.PutUint64(h[72:], uint64(entriesAt))
	le.PutUint32(h[80:], gptEntries)
	le.PutUint32(h[84:], gptEntry)
	le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
	le.PutUint32(h[16:], crc32.ChecksumIEEE(h))
	return h
}

// mixedGUID is a GUID as a partition table has it: its first three parts little-endian.
func mixedGUID(text string) []byte {
	var a uint32
	var b, c, d uint16
	var e uint64
	if _, err := fmt.Sscanf(text, "%08X-%04X-%04X-%04X-%012X", &a, &b, &c, &d, &e); err != nil {
		panic(fmt.Sprintf("artefact: %q: %v", text, err))
	}
	out := binary.LittleEndian.AppendUint32(nil, a)
	out = binary.LittleEndian.AppendUint16(out, b)
	out = binary.LittleEndian.AppendUint16(out, c)
	out = binary.BigEndian.AppendUint16(out, d)
	return append(out, binary.BigEndian.AppendUint64(nil, e)[2:]...)
}

// metaPartition is a META partition; without values it is blank. See adv/talos in
// siderolabs/go-adv.
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

// ReadDiskImage reads a disk that was made from a disk image and never booted, byte for
// byte: the labels of its partitions, in order, and the image that UEFI boots from it. Any
// other disk is ErrNoPartitionTable.
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
