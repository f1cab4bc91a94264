package verify

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

func sumOf(t *testing.T, code string) string {
	t.Helper()
	sum := must(programSum(program(code, "", 1)))(t)
	return sum
}

func TestLoaders(t *testing.T) {
	t.Parallel()
	factory := newSigner(t)
	by := func(s signer, code string) *io.SectionReader {
		return program(code, s.sign(t, sumOf(t, code), func(b []byte) []byte { return b }), 1)
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
	type row struct {
		secureBoot, grub bool
		iso              bootimage.ISO
		want             string
	}
	each(t, map[string]row{
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
			"boot ISO: another boot loader than the installer's: systemd-boot " + shortSum(sumOf(t, "rootkit")),
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
	}, func(t *testing.T, tc row) {
		w := wanted{lock: schematics.Lock{SecureBoot: tc.secureBoot, SecureBootKey: key}, grub: tc.grub}
		boot := Boot{loader: sumOf(t, "sd-boot"), stub: "stub"}
		mismatches := must(w.loaders(&tc.iso, boot))(t)
		got := message(errors.Join(mismatches...))
		if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
		}
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	})
}

// TestOrdinaryLoaders: an Image Factory with keys for Secure Boot signs the boot loader of an installer, and not that of its ISO.
func TestOrdinaryLoaders(t *testing.T) {
	t.Parallel()
	signed := func(code string) *io.SectionReader {
		return program(code, newSigner(t).sign(t, sumOf(t, code), func(b []byte) []byte { return b }), 1)
	}
	for name, tc := range map[string]struct {
		installer, iso *io.SectionReader
		want           string
	}{
		"signed, and not signed": {signed("sd-boot"), program("sd-boot", "", 7), ""},
		"not signed, and signed": {program("sd-boot", "", 7), signed("sd-boot"), ""},
		"by two keys":            {signed("sd-boot"), signed("sd-boot"), ""},
		"other code, signed": {
			signed("sd-boot"), signed("rootkit"),
			"boot ISO: another boot loader than the installer's: systemd-boot " + shortSum(sumOf(t, "rootkit")),
		},
		"no program": {signed("sd-boot"), io.NewSectionReader(strings.NewReader("MZ"), 0, 2), "boot ISO: systemd-boot: damaged or of a foreign format: EOF"},
	} {
		loader, errs, err := loaderSum("installer", tc.installer, schematics.Lock{})
		if err != nil || len(errs) > 0 {
			t.Fatal(err, errs)
		}
		iso := bootimage.ISO{ESP: bootimage.ESP{UKI: &bootimage.UKI{Stub: "stub"}, Loader: tc.iso}}
		mismatches, err := (&wanted{}).loaders(&iso, Boot{loader: loader, stub: "stub"})
		if got := message(errors.Join(mismatches...)); err != nil || tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	}
}
