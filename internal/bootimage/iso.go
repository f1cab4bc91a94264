package bootimage

import (
	"errors"
	"fmt"
	"io"
)

// ISO is a boot ISO: what UEFI boots from it, what a BIOS boots, or both.
type ISO struct {
	ESP
	GRUB *GRUB // nil if the ISO does not boot with GRUB
}

// GRUB is what the default entry of /boot/grub/grub.cfg boots.
type GRUB struct {
	Cmdline string
	Kernel  *io.SectionReader // /boot/vmlinuz
	Initrd  *io.SectionReader // /boot/initramfs.xz
}

const isoPart = "ISO"

// OpenISO reads the structure of a boot ISO of sizeBytes; it has at least one of the
// two ways to boot.
//
// imager makes three forms (pkg/imager/iso of Talos): for UEFI only, with an EFI
// system partition that holds the UKI; for GRUB only, in Talos before 1.10 and for
// arm64; and both in one. GRUB's own EFI system partition is a FAT12 without a UKI.
func OpenISO(r io.ReaderAt, sizeBytes int64) (*ISO, error) {
	src := &sourceAt{r: r}
	i, err := openISO(io.NewSectionReader(src, 0, sizeBytes))
	if err != nil {
		return nil, refuse(isoPart, src.or(err))
	}
	return i, nil
}

func openISO(r *io.SectionReader) (*ISO, error) {
	v, err := openVolume(r)
	if err != nil {
		return nil, err
	}
	i := &ISO{}
	if v.efi != nil {
		if err := i.readESP(v.efi); err != nil {
			return nil, fmt.Errorf("EFI system partition: %w", err)
		}
	}
	if i.GRUB, err = v.grub(); err != nil {
		return nil, err
	}
	if v.bios && i.GRUB == nil {
		return nil, errors.New("a BIOS would boot something other than GRUB")
	}
	if i.UKI == nil && i.GRUB == nil {
		return nil, errors.New("it boots neither a UKI nor GRUB")
	}
	return i, nil
}
