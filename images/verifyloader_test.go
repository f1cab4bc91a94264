package images

import (
	"bytes"
	"debug/pe"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// spoiltLoaders are images with the locked content and another boot loader.
func spoiltLoaders() map[string]spoiltImage {
	const uki, loader = "usr/install/amd64/vmlinuz.efi", "usr/install/amd64/systemd-boot.efi"
	packed := func(change func(files map[string][]byte)) func(*factory) {
		return func(f *factory) { f.packed = change }
	}
	sent := func(change func([]byte) []byte) func(*factory) { return func(f *factory) { f.sent = change } }
	return map[string]spoiltImage{
		"another boot loader in the ISO": {
			sent(func(b []byte) []byte {
				return bytes.Replace(b, []byte("LoaderInfo: systemd-boot"), []byte("LoaderInfo: rootkit-boot"), 1)
			}),
			Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"another boot loader in the installer": {
			packed(func(files map[string][]byte) { files[loader] = append(bytes.Clone(files[loader]), 0) }),
			Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"no boot loader in the installer": {
			packed(func(files map[string][]byte) { delete(files, loader) }),
			Bootloader,
			[]string{"verify-installer: installer: it has no boot loader, /usr/install/amd64/systemd-boot.efi"},
		},
		"another stub in the installer's UKI": {
			packed(func(files map[string][]byte) { files[uki] = flip(files[uki], codeOf(files[uki])) }),
			Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-stub in its UKI "},
		},
		"another loader beside the ISO's": {
			sent(func(b []byte) []byte { return renamed(b, "random-seed", "driver1.efi") }),
			Bootloader,
			[]string{"boot ISO: it has unexpected files beside its boot loader: loader/driver1.efi"},
		},
		"another default in the ISO's menu": {
			sent(func(b []byte) []byte { return bytes.Replace(b, []byte("timeout 10"), []byte("default *w"), 1) }),
			Damaged,
			[]string{`loader/loader.conf: "default *w" is not one of Talos' own`},
		},
	}
}

// codeOf is where a UKI's program begins.
func codeOf(uki []byte) int {
	f, err := pe.NewFile(bytes.NewReader(uki))
	if err != nil {
		panic(err)
	}
	return int(f.Section(".text").Offset)
}

// renamed changes the long name of a file in an ISO's FAT32, both of 11 characters.
func renamed(b []byte, from, to string) []byte {
	wide := func(name string) []byte { return []byte(strings.Join(strings.Split(name, ""), "\x00")) }
	b = bytes.Replace(b, wide(from[:5]), wide(to[:5]), 1) // a directory entry has 5 and then 6 of them
	return bytes.Replace(b, wide(from[5:]), wide(to[5:]), 1)
}

func sumOf(t *testing.T, code string, secureBoot bool) string {
	t.Helper()
	sum, err := programSum(program(code, "", 1), secureBoot)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestLoaders(t *testing.T) {
	t.Parallel()
	factory := newSigner(t)
	by := func(s signer, code string) *io.SectionReader {
		return program(code, s.sign(t, sumOf(t, code, true), func(b []byte) []byte { return b }), 1)
	}
	key, keys := factory.fingerprint(), []string{"efi/keys/uki-signing-cert.der", "loader/keys/auto/db.auth"}
	plain := func(change func(*bootimage.ISO)) bootimage.ISO {
		iso := bootimage.ISO{ESP: bootimage.ESP{UKI: &bootimage.UKI{Stub: "stub"}, Loader: program("sd-boot", "", 1)}}
		change(&iso)
		return iso
	}
	signed := func(change func(*bootimage.ISO)) bootimage.ISO {
		return plain(func(iso *bootimage.ISO) {
			iso.Loader, iso.Certificate, iso.Keys = by(factory, "sd-boot"), key, keys
			iso.UKI.File = by(factory, "uki")
			change(iso)
		})
	}
	as := func(*bootimage.ISO) {}
	for name, tc := range map[string]struct {
		secureBoot, grub bool
		iso              bootimage.ISO
		want             string
	}{
		"the installer's":      {false, false, plain(as), ""},
		"with GRUB for a BIOS": {false, false, plain(func(iso *bootimage.ISO) { iso.GRUB = &bootimage.GRUB{} }), ""},
		"GRUB, as ordered":     {false, true, bootimage.ISO{GRUB: &bootimage.GRUB{}}, ""},
		"GRUB, unasked": {
			false, false,
			bootimage.ISO{GRUB: &bootimage.GRUB{}},
			"boot ISO: it has only GRUB, which the schematic does not request: what UEFI would start cannot be compared",
		},
		"unexpected keys": {
			false, false, plain(func(iso *bootimage.ISO) { iso.Keys = keys }),
			"boot ISO: it has unexpected files beside its boot loader: " + strings.Join(keys, ", "),
		},
		"signed": {true, false, signed(as), ""},
		"no program": {
			true, false, signed(func(iso *bootimage.ISO) { iso.Loader = io.NewSectionReader(strings.NewReader("MZ"), 0, 2) }),
			"boot ISO: systemd-boot: damaged or of a foreign format: EOF",
		},
		"signed, other code": {
			true, false, signed(func(iso *bootimage.ISO) { iso.Loader = by(factory, "rootkit") }),
			"boot ISO: another boot loader than the installer's: systemd-boot " + shortSum(sumOf(t, "rootkit", true)),
		},
		"a loader by another key": {
			true, false, signed(func(iso *bootimage.ISO) { iso.Loader = by(newSigner(t), "sd-boot") }),
			"boot ISO: systemd-boot is not signed by the certificate that is locked for Secure Boot, " + shortSum(key) + ": it is signed by ",
		},
		"a UKI that is not signed": {
			true, false, signed(func(iso *bootimage.ISO) { iso.UKI.File = program("uki", "", 1) }),
			"boot ISO: its UKI is not signed by the certificate that is locked for Secure Boot, " + shortSum(key) + ": it is not signed",
		},
		"Secure Boot and GRUB": {true, false, signed(func(iso *bootimage.ISO) { iso.GRUB = &bootimage.GRUB{} }), "boot ISO: it boots with GRUB, which no image for Secure Boot does"},
		"another certificate": {
			true, false, signed(func(iso *bootimage.ISO) { iso.Certificate = hash([]byte("other")) }),
			`boot ISO: it brings certificate "` + shortSum(hash([]byte("other"))) + `", locked for Secure Boot is ` + shortSum(key),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := wanted{lock: schematics.Lock{SecureBoot: tc.secureBoot, SecureBootKey: key}, grub: tc.grub}
			boot := Boot{loader: sumOf(t, "sd-boot", tc.secureBoot), stub: "stub"}
			mismatches, err := w.loaders(&tc.iso, boot)
			if err != nil {
				t.Fatal(err)
			}
			got := message(errors.Join(mismatches...))
			if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
			}
			if tc.want != "" {
				t.Attr("corruptions-caught", "1")
			}
		})
	}
}
