package artefact

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// An ISO has an unused system area, a primary volume descriptor and a
// terminator as ISO 9660 has them, then the UKI, filled up to whole sectors.
const (
	sectorBytes    = 2048
	isoDescriptor  = 16 * sectorBytes
	isoTerminator  = isoDescriptor + sectorBytes
	isoContent     = isoTerminator + sectorBytes
	isoVolumeID    = isoDescriptor + 40
	isoVolumeSpace = isoDescriptor + 80
	isoBlockSize   = isoDescriptor + 128
)

// ISO makes a boot ISO. Its kernel command line gets HaltIfInstalled, as every ISO of Talos has it.
func ISO(img Image) ([]byte, error) {
	if !slices.Contains(strings.Fields(img.Cmdline), HaltIfInstalled) {
		img.Cmdline = strings.TrimSpace(img.Cmdline + " " + HaltIfInstalled)
	}
	uki, err := UKI(img)
	if err != nil {
		return nil, err
	}
	return burn(uki, img.TalosVersion), nil
}

// ReadISO reads a boot ISO; anything else, or a damaged one, is ErrNotBootable.
func ReadISO(b []byte) (Image, error) {
	if len(b) <= isoContent {
		return Image{}, fmt.Errorf("%w: ISO: %d bytes are too few", ErrNotBootable, len(b))
	}
	content := b[isoContent:]
	img, rest, err := readUKI(content)
	if err != nil {
		return Image{}, fmt.Errorf("ISO: %w", err)
	}
	if !bytes.Equal(b, burn(content[:len(content)-len(rest)], img.TalosVersion)) {
		return Image{}, fmt.Errorf("%w: ISO: the volume does not fit its content", ErrNotBootable)
	}
	return img, nil
}

func burn(uki []byte, version string) []byte {
	sectors := (isoContent + len(uki) + sectorBytes - 1) / sectorBytes
	b := make([]byte, sectors*sectorBytes)
	copy(b[isoDescriptor:], "\x01CD001\x01")
	copy(b[isoVolumeID:isoVolumeID+32], fmt.Sprintf("%-32s", "TALOS_"+version))
	binary.LittleEndian.PutUint32(b[isoVolumeSpace:], uint32(sectors))
	binary.BigEndian.PutUint32(b[isoVolumeSpace+4:], uint32(sectors))
	binary.LittleEndian.PutUint16(b[isoBlockSize:], sectorBytes)
	binary.BigEndian.PutUint16(b[isoBlockSize+2:], sectorBytes)
	copy(b[isoTerminator:], "\xffCD001\x01")
	copy(b[isoContent:], uki)
	return b
}
