package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/schematics"
)

func hash(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func digest(text string) string { return "sha256:" + hash([]byte(text)) }

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestDiskMeta(t *testing.T) {
	t.Parallel()
	meta := []schematics.MetaValue{{Key: 0xc, Value: "first"}, {Key: 0xd, Value: "other"}, {Key: 0xc, Value: "last"}}
	for name, test := range map[string]struct {
		got  []diskimage.Value
		bios bool
		want string
	}{
		"as locked":             {[]diskimage.Value{{Key: 0xc, Value: "last"}, {Key: 0xd, Value: "other"}}, false, ""},
		"for a BIOS, too":       {[]diskimage.Value{{Key: 0xc, Value: "last"}, {Key: 0xd, Value: "other"}, {Key: 0x11, Value: "dual-boot"}}, true, ""},
		"no values":             {nil, false, "0xc is missing; 0xd is missing"},
		"another value":         {[]diskimage.Value{{Key: 0xc, Value: "first"}, {Key: 0xd, Value: "other"}}, false, "0xc has another value"},
		"for a BIOS without":    {[]diskimage.Value{{Key: 0xc, Value: "last"}, {Key: 0xd, Value: "other"}}, true, "0x11 is missing"},
		"no partition for GRUB": {[]diskimage.Value{{Key: 0xc, Value: "last"}, {Key: 0xd, Value: "other"}, {Key: 0x11, Value: "dual-boot"}}, false, "0x11 is not the schematic's"},
	} {
		w := &wanted{args: wantedArgs{meta: meta}}
		got := message(errors.Join(w.metaValues("disk image", &diskimage.Image{Meta: test.got, BIOS: test.bios})...))
		if test.want != "" {
			test.want = "disk image: other META values than locked: " + test.want
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// enrolment is a file from which systemd-boot would enrol a certificate.
func enrolment(certificate string) []byte {
	b := make([]byte, 16) // the time
	b = append(b, 24, 0, 0, 0, 0, 2, 0xf1, 0x0e)
	b = append(b, make([]byte, 16)...)
	b = append(b, "\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72"...) // a list of certificates
	b = append(b, byte(28+16+len(certificate)), 0, 0, 0, 0, 0, 0, 0, byte(16+len(certificate)), 0, 0, 0)
	return append(append(b, make([]byte, 16)...), certificate...)
}

func TestDiskKeys(t *testing.T) {
	t.Parallel()
	const key, other = "loader/keys/auto/db.auth", "EFI/BOOT/shell.efi"
	locked := hash([]byte("locked"))
	foreign := "disk image: it enrols other certificates for Secure Boot than the locked one, " + shortSum(locked) + ": "
	type row struct {
		secureBoot bool
		files      map[string][]byte
		want       string
	}
	each(t, map[string]row{
		"nothing":             {false, nil, ""},
		"for none":            {true, nil, ""},
		"the locked one":      {true, map[string][]byte{key: enrolment("locked"), "loader/keys/auto/PK.auth": enrolment("locked")}, ""},
		"another certificate": {true, map[string][]byte{key: enrolment("other")}, foreign + hash([]byte("other"))},
		"one of two":          {true, map[string][]byte{key: enrolment("locked"), "loader/keys/auto/PK.auth": enrolment("other")}, foreign},
		"damaged":             {true, map[string][]byte{key: []byte("x")}, "disk image: loader/keys/auto/db.auth: damaged or of a foreign format: no authenticated variable"},
		"keys, unasked":       {false, map[string][]byte{key: enrolment("locked")}, "disk image: it has unexpected files beside its boot loader: " + key},
		"another file":        {true, map[string][]byte{other: []byte("x")}, "disk image: it has unexpected files beside its boot loader: " + strings.ToLower(other)},
	}, func(t *testing.T, test row) {
		img := artefact.Image{TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", Cmdline: installerArgs}
		content := must(artefact.DiskImage(img, artefact.DiskForm{Files: test.files}))(t)
		disk := must(diskimage.Open(bytes.NewReader(content), int64(len(content))))(t)
		w := &wanted{lock: schematics.Lock{SecureBoot: test.secureBoot, SecureBootKey: locked}}
		mismatches, err := w.besideUKI("disk image", disk.ESP)
		if got := message(errors.Join(append(mismatches, err)...)); !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%q, want %q", got, test.want)
		}
	})
}

// must returns v, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what came with what is wanted.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// each runs a test for every case, all at once.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tc)
		})
	}
}
