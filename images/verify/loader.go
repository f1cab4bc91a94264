package verify

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// loaderSum identifies the boot loader that an installer installs.
func (h installerFiles) loaderSum(lock schematics.Lock) (sum string, mismatches []error, err error) {
	if h.loader == "" {
		return "", []error{mismatch(Bootloader, "installer: it has no boot loader, /%s%s/%s", installRoot, lock.Arch, bootFile)}, nil
	}
	f, err := os.Open(h.loader)
	if err != nil {
		return "", nil, fmt.Errorf("installer: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, fmt.Errorf("installer: %w", err)
	}
	return loaderSum("installer", io.NewSectionReader(f, 0, info.Size()), lock)
}

func loaderSum(name string, loader *io.SectionReader, lock schematics.Lock) (sum string, mismatches []error, err error) {
	sum, err = programSum(loader)
	if err == nil {
		return sum, checkSigned(name+": systemd-boot", loader, lock), nil
	}
	err = unreadable(name+": systemd-boot", err)
	if _, ok := errors.AsType[*Mismatch](err); ok {
		return "", []error{err}, nil
	}
	return "", nil, err
}

// checkSigned requires that a program of an image for Secure Boot is signed by the locked certificate.
func checkSigned(name string, program *io.SectionReader, lock schematics.Lock) []error {
	if !lock.SecureBoot {
		return nil
	}
	if err := notSigned(program, lock.SecureBootKey); err != nil {
		return []error{mismatch(OtherSigner, "%s is not signed by the certificate that is locked for Secure Boot, %s: %v", name, shortSum(lock.SecureBootKey), err)}
	}
	return nil
}

// loaders compares the boot loaders of a boot ISO with the installer's. GRUB cannot
// be compared: it comes with imager, which generates a GRUB image for each ISO.
func (w *wanted) loaders(iso *bootimage.ISO, boot Boot) (mismatches []error, err error) {
	const name = "boot ISO"
	if iso.GRUB != nil && w.lock.SecureBoot {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: it boots with GRUB, which no image for Secure Boot does", name))
	}
	if iso.UKI == nil {
		if !w.grub {
			mismatches = append(mismatches, mismatch(Bootloader, "%s: it has only GRUB, which the schematic does not request: what UEFI would start cannot be compared", name))
		}
		return mismatches, nil
	}
	found, err := w.uefi(name, iso.ESP, boot)
	if err != nil {
		return nil, err
	}
	mismatches = append(mismatches, found...)
	odd := slices.Clone(iso.Odd)
	if !w.lock.SecureBoot {
		odd = append(odd, iso.Keys...)
	} else if iso.Certificate != w.lock.SecureBootKey {
		mismatches = append(mismatches, mismatch(OtherSigner, "%s: it brings certificate %q, locked for Secure Boot is %s",
			name, shortSum(iso.Certificate), shortSum(w.lock.SecureBootKey)))
	}
	if len(odd) > 0 {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: it has unexpected files beside its boot loader: %s", name, firstFew(odd)))
	}
	return mismatches, nil
}

// uefi compares what UEFI starts from a partition with what the installer installs.
func (w *wanted) uefi(name string, esp bootimage.ESP, boot Boot) (mismatches []error, err error) {
	loader, loaderErrs, err := loaderSum(name, esp.Loader, w.lock)
	if err != nil {
		return nil, err
	}
	mismatches = append(loaderErrs, checkSigned(name+": its UKI", esp.UKI.File, w.lock)...)
	if loader != "" && loader != boot.loader {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: another boot loader than the installer's: systemd-boot %s, the installer's is %s",
			name, shortSum(loader), shortSum(boot.loader)))
	}
	if esp.UKI.Stub != boot.stub {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: another boot loader than the installer's: systemd-stub in its UKI %s, the installer's is %s",
			name, shortSum(esp.UKI.Stub), shortSum(boot.stub)))
	}
	return mismatches, nil
}
