package bootimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The boot catalogue of "El Torito" Bootable CD-ROM Format Specification 1.0,
// 2.0, and the UEFI specification, 13.3.2.1.
const (
	toritoEntryBytes  = 32
	toritoEntries     = isoSector / toritoEntryBytes
	toritoBootable    = 0x88
	toritoNotBootable = 0x00
	toritoHeader      = 0x90 // toritoLastHeader for the last one
	toritoLastHeader  = 0x91
	toritoExtension   = 0x44
	platformBIOS      = 0x00
	platformEFI       = 0xef
)

func (v *volume) readCatalogue(at int64) error {
	b, err := bytesAt(v.r, at, isoSector)
	if err != nil {
		return fmt.Errorf("boot catalogue: %w", err)
	}
	var sum uint16
	for i := 0; i < toritoEntryBytes; i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	if b[0] != 1 || b[30] != 0x55 || b[31] != 0xaa || sum != 0 {
		return errors.New("boot catalogue: no validation entry")
	}
	platform, left, last := b[1], 1, false
	for n := 1; n < toritoEntries; n++ {
		e := b[n*toritoEntryBytes:][:toritoEntryBytes]
		switch {
		case e[0] == toritoExtension:
		case left > 0 && (e[0] == toritoBootable || e[0] == toritoNotBootable):
			left--
			if e[0] == toritoBootable {
				err = v.bootEntry(platform, e)
			}
		case left > 0:
			err = fmt.Errorf("an entry of unknown type %#x", e[0])
		case last || e[0] == 0:
			return nil
		case e[0] == toritoHeader, e[0] == toritoLastHeader:
			platform, left, last = e[1], int(binary.LittleEndian.Uint16(e[2:])), e[0] == toritoLastHeader
		default:
			err = fmt.Errorf("a header of unknown type %#x", e[0])
		}
		if err != nil {
			return fmt.Errorf("boot catalogue: %w", err)
		}
	}
	return nil
}

// bootEntry records an entry; e[8:] is its first sector. The size beside it is too
// small for an EFI system partition, and firmware ignores it.
func (v *volume) bootEntry(platform byte, e []byte) error {
	switch platform {
	case platformBIOS:
		v.bios = true
	case platformEFI:
		if v.efi != nil {
			return errors.New("more than one EFI system partition")
		}
		at := int64(binary.LittleEndian.Uint32(e[8:])) * isoSector
		if at >= v.r.Size() {
			return errors.New("the EFI system partition lies beyond the end")
		}
		v.efi = io.NewSectionReader(v.r, at, v.r.Size()-at)
	default:
		return fmt.Errorf("platform %#x is not known", platform)
	}
	return nil
}
