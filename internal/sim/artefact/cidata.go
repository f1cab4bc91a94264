package artefact

import (
	"encoding/binary"
	"slices"
	"strings"
)

const (
	cidataLabel  = "cidata"
	userDataFile = "USER-DATA.;1" // which Linux shows as user-data (fs/isofs/namei.c)
	isoFiles     = isoPrimary + 8
)

// CloudInitISO is a volume of cloud-init data as tools burn them, with user data alone.
func CloudInitISO(userData []byte) []byte {
	b := burn(cidataLabel, userData) // what is to be read lies where a boot ISO has its partition
	record := make([]byte, 34+len(userDataFile)-len(userDataFile)%2)
	record[0] = byte(len(record))
	bothEndian32(record[2:], isoFiles)
	bothEndian32(record[10:], len(userData))
	bothEndian16(record[28:], 1)
	record[32] = byte(len(userDataFile))
	copy(record[33:], userDataFile)
	clear(b[isoBootRecord*isoSector : (isoBootRecord+1)*isoSector])
	copy(b[isoBootRecord*isoSector:], "\xffCD001\x01") // it boots nothing
	copy(b[isoRoot*isoSector:], slices.Concat(isoDirectory(0), isoDirectory(1), record))
	return b
}

// UserData is the user data on a volume of cloud-init data, false if b is none or has
// none. Talos takes one of that label in either case (platform/nocloud/metadata.go,
// configFromCD).
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
