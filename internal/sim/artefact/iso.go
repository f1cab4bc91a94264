package artefact

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
)

// ISO makes a boot ISO for UEFI. Its kernel command line gets HaltIfInstalled, as in every
// Talos ISO. Results are cached; the caller must not change the bytes.
func ISO(img Image) ([]byte, error) {
	if !slices.Contains(strings.Fields(img.Cmdline), HaltIfInstalled) {
		img.Cmdline = strings.TrimSpace(img.Cmdline + " " + HaltIfInstalled)
	}
	if err := img.validate(); err != nil {
		return nil, err
	}
	return madeISOs.get(img, func() ([]byte, error) {
		uki, err := UKI(img)
		if err != nil {
			return nil, err
		}
		boot, err := SystemdBoot(img.Arch)
		if err != nil {
			return nil, err
		}
		removable := "EFI/BOOT/BOOTX64.EFI"
		if img.Arch == "arm64" {
			removable = "EFI/BOOT/BOOTAA64.EFI"
		}
		esp, err := espImage(map[string][]byte{
			removable: boot,
			"EFI/Linux/Talos-" + img.TalosVersion + ".efi": uki,
			"loader/loader.conf":                           []byte("# systemd-boot configuration\n\ntimeout 10\n\nsecure-boot-enroll off\n"),
			"loader/random-seed":                           make([]byte, 32),
		})
		if err != nil {
			return nil, err
		}
		return burn("TALOS_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(img.TalosVersion)), esp), nil
	})
}

// SystemdBoot is the boot loader for that architecture, in ISOs and installers alike.
func SystemdBoot(arch string) ([]byte, error) {
	return portableExecutable(arch, []section{{".sdmagic", []byte("#### LoaderInfo: systemd-boot 258 ####\x00")}})
}

// ReadISO reads a boot ISO; anything else, or a damaged one, is ErrNotBootable.
func ReadISO(b []byte) (Image, error) {
	return readISOs.get(b, func() (Image, error) {
		iso, err := bootimage.OpenISO(bytes.NewReader(b), int64(len(b)))
		if err == nil && iso.UKI == nil {
			err = errors.New("ISO: nothing in it for UEFI, which every machine of the lab has")
		}
		if err != nil {
			return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
		return imageOf(iso.UKI)
	})
}
