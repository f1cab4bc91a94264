package artefact

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/partition/gpt"
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
	dualBootMeta = 0x11
	labDisk      = "61636572-7473-6C20-6162-206469736B21"
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

// PartitionUUID is that of a partition in each disk image of imager since Talos 1.13 (GUIDFromLabel in pkg/makefs).
func PartitionUUID(label string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte(label), 8).String()
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
