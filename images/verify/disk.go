package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/schematics"
)

// An image that a BIOS boots, too, says so in META: see buildImage in pkg/imager of
// siderolabs/talos. Talos removes the value on the first boot.
const (
	bootloaderMeta = 0x11
	dualBoot       = "dual-boot"
)

// Disk verifies the disk image of e, a qcow2 file, and that it is of the same build as
// the installer that boot describes. It returns the size of the disk in it, by which a
// copy of the disk is recognised.
//
// Only what UEFI boots is compared, and META. An image may have GRUB for a BIOS beside
// it, on a file system that nothing here reads: no machine may boot it by BIOS.
func (v *Verifier) Disk(ctx context.Context, lock schematics.Lock, e schematics.Locked, r io.ReaderAt, fileBytes int64, boot Boot, note func(text string)) (diskBytes int64, err error) {
	const name = "disk image"
	dir, err := v.temp()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	disk, err := diskimage.Open(r, fileBytes)
	if err != nil {
		return 0, unreadable(name, err)
	}
	want, err := v.wanted(ctx, lock, e, note)
	if err != nil {
		return 0, err
	}
	note("verifying what the disk image holds")
	got, errs, err := want.check(ukiPart(name, disk.ESP.UKI, false), dir)
	if err != nil {
		return 0, err
	}
	if got.Boot != (Boot{}) { // it could be read to its end
		errs = append(errs, sameBuild(name, name, got.Boot, boot)...)
	}
	loaders, err := want.uefi(name, *disk.ESP, boot)
	if err != nil {
		return 0, err
	}
	others, err := want.besideUKI(name, disk.ESP)
	if err != nil {
		return 0, err
	}
	errs = slices.Concat(errs, loaders, others, want.metaValues(name, disk))
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return disk.SizeBytes, nil
}

// besideUKI compares the other files of the EFI system partition. A disk image for
// Secure Boot brings keys that systemd-boot enrols: those of the locked certificate.
func (w *wanted) besideUKI(name string, esp *bootimage.ESP) (mismatches []error, err error) {
	odd := slices.Clone(esp.Odd)
	if !w.lock.SecureBoot {
		odd = append(odd, esp.Keys...)
	} else if len(esp.Keys) > 0 {
		enrolled, err := esp.Enrolled()
		if err != nil {
			return nil, unreadable(name, err)
		}
		if !slices.Equal(enrolled, []string{w.lock.SecureBootKey}) {
			mismatches = append(mismatches, mismatch(OtherSigner, "%s: it enrols other certificates for Secure Boot than the locked one, %s: %s",
				name, shortSum(w.lock.SecureBootKey), firstFew(enrolled)))
		}
	}
	if len(odd) > 0 {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: it has unexpected files beside its boot loader: %s", name, firstFew(odd)))
	}
	return mismatches, nil
}

// metaValues compares META with the schematic's values, of which the last one of a key
// counts. Values may be secrets: only keys are named.
func (w *wanted) metaValues(name string, disk *diskimage.Image) []error {
	want, got := map[uint8]string{}, map[uint8]string{}
	for _, m := range w.args.meta {
		want[m.Key] = m.Value
	}
	if disk.BIOS {
		want[bootloaderMeta] = dualBoot
	}
	for _, m := range disk.Meta {
		got[m.Key] = m.Value
	}
	if maps.Equal(got, want) {
		return nil
	}
	var differ []string
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, key := range slices.SortedFunc(maps.Keys(all), cmp.Compare[uint8]) {
		value, wanted := want[key]
		is, there := got[key]
		switch {
		case !there:
			differ = append(differ, fmt.Sprintf("%#x is missing", key))
		case !wanted:
			differ = append(differ, fmt.Sprintf("%#x is not the schematic's", key))
		case value != is:
			differ = append(differ, fmt.Sprintf("%#x has another value", key))
		}
	}
	return []error{mismatch(OtherConfig, "%s: other META values than locked: %s", name, strings.Join(differ, "; "))}
}
