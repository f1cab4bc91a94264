package artefact

import "encoding/binary"

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

// isoDirectory is the record of the root directory; name is 0 for itself, 1 for its
// parent.
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
