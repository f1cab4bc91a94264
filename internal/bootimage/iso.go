package bootimage

import (
	"errors"
	"fmt"
	"io"
)

// ISO is a boot ISO: what UEFI boots of it, what a BIOS does, or both.
type ISO struct {
	UKI  *UKI  // of the EFI system partition; nil where there is none
	GRUB *GRUB // nil where the ISO does not boot by GRUB
}

// GRUB is what the default entry of /boot/grub/grub.cfg boots.
type GRUB struct {
	Cmdline string
	Kernel  *io.SectionReader // /boot/vmlinuz
	Initrd  *io.SectionReader // /boot/initramfs.xz
}

const isoPart = "ISO"

// OpenISO reads the structure of a boot ISO of sizeBytes; at least one of its two ways to boot is there.
//
// imager makes three forms (pkg/imager/iso of Talos): for UEFI only, with an EFI
// system partition that holds the UKI; for GRUB only, of Talos before 1.10 and for
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
		if i.UKI, err = ukiOfESP(v.efi); err != nil {
			return nil, fmt.Errorf("EFI system partition: %w", err)
		}
	}
	if i.GRUB, err = v.grub(); err != nil {
		return nil, err
	}
	if v.bios && i.GRUB == nil {
		return nil, errors.New("a BIOS boots what is not GRUB")
	}
	if i.UKI == nil && i.GRUB == nil {
		return nil, errors.New("it boots neither a UKI nor GRUB")
	}
	return i, nil
}

// ukiOfESP is the one UKI in EFI/Linux of an EFI system partition. sd-boot would also
// boot what loader/entries names, which no image of Talos has.
func ukiOfESP(r *io.SectionReader) (*UKI, error) {
	fat, err := openFAT(r)
	if errors.Is(err, errNotFAT32) {
		return nil, nil //nolint:nilnil // GRUB's own partition: it has no UKI
	}
	if err != nil {
		return nil, err
	}
	if entries, err := fat.glob("loader/entries", ""); err != nil || len(entries) > 0 {
		return nil, errors.Join(err, errIf(len(entries) > 0, "loader/entries has boot entries"))
	}
	ukis, err := fat.glob("EFI/Linux", ".efi")
	if err != nil {
		return nil, err
	}
	switch len(ukis) {
	case 0:
		return nil, nil //nolint:nilnil // ditto
	case 1:
	default:
		return nil, fmt.Errorf("EFI/Linux holds %d images", len(ukis))
	}
	file, err := fat.open(ukis[0])
	if err != nil {
		return nil, fmt.Errorf("EFI/Linux/%s: %w", ukis[0].name, err)
	}
	uki, err := openUKI(file, file.Size())
	if err != nil {
		return nil, fmt.Errorf("EFI/Linux/%s: %w", ukis[0].name, err)
	}
	return uki, nil
}

func errIf(is bool, text string) error {
	if is {
		return errors.New(text)
	}
	return nil
}
