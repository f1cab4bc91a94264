package artefact

import (
	"encoding/binary"
	"slices"
	"strings"
)

const (
	cidataLabel  = "cidata"
	userDataFile = "USER-DATA.;1" // Linux shows it as user-data (fs/isofs/namei.c)
	isoFiles     = isoPrimary + 8
)

// CloudInitISO is a cloud-init volume as tools burn it, with only user data.
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

// UserData is the user data on a cloud-init volume; false if b is not one or has none.
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
