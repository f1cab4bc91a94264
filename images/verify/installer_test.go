package verify

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

// oneImage is a registry of one image.
type oneImage struct {
	ref   string
	files map[string][]byte
}

func (o oneImage) Extract(_ context.Context, ref, _ string) (io.ReadCloser, error) {
	if ref != o.ref {
		return nil, errors.New("no such image: " + ref)
	}
	return tarOf(o.files), nil
}

func TestOverlay(t *testing.T) {
	t.Parallel()
	overlay := schematics.Overlay{Name: "board", Ref: "ghcr.io/siderolabs/sbc", Digest: digest("overlay")}
	registry := oneImage{overlay.Ref + "@" + overlay.Digest, map[string][]byte{
		"artifacts/arm64/u-boot.bin": []byte("u-boot"), "installers/board": []byte("installer"), "installers/other": []byte("other"),
		"profiles/board.yaml": []byte("{}"),
	}}
	whole := map[string][]byte{
		"bin/installer": nil, "usr/install/amd64/vmlinuz.efi": []byte("uki"), "usr/install/amd64/systemd-boot.efi": nil,
		"overlay/artifacts/arm64/u-boot.bin": []byte("u-boot"), "overlay/installers/default": []byte("installer"),
		"overlay/extra-options": []byte("configTxt: |\n    gpu_mem=128\n    dtparam=spi=on\n"),
	}
	const schematic = "overlay:\n  image: siderolabs/sbc\n  name: board\n  options: {configTxt: \"gpu_mem=128\\ndtparam=spi=on\\n\"}\ncustomization: {}\n"
	another := "installer: it has another overlay, locked is board (" + overlay.Digest + "): 1 file differs: "
	type row struct {
		spoil func(files map[string][]byte)
		want  string
	}
	must.Each(t, map[string]row{
		"the locked one": {func(map[string][]byte) {}, ""},
		"another program": {
			func(f map[string][]byte) { f["overlay/installers/default"] = []byte("backdoor") }, another + "overlay/installers/default has 8 bytes",
		},
		"an artefact missing": {
			func(f map[string][]byte) { delete(f, "overlay/artifacts/arm64/u-boot.bin") }, another + "overlay/artifacts/arm64/u-boot.bin is missing",
		},
		"an artefact added": {
			func(f map[string][]byte) { f["overlay/artifacts/x"] = nil }, another + "overlay/artifacts/x is not in the locked one",
		},
		"no options": {
			func(f map[string][]byte) { delete(f, "overlay/extra-options") }, another + "overlay/extra-options is missing",
		},
		"other options": {
			func(f map[string][]byte) { f["overlay/extra-options"] = []byte("configTxt: gpu_mem=128\n") },
			"installer: /overlay/extra-options gives the overlay other options than the locked schematic",
		},
		"options that are none": {
			func(f map[string][]byte) { f["overlay/extra-options"] = []byte("- a\n") }, "installer: overlay options: ",
		},
	}, func(t *testing.T, tc row) {
		files := map[string][]byte{}
		maps.Copy(files, whole)
		tc.spoil(files)
		held := must.Get(unpackInstaller("amd64", tarOf(files), t.TempDir()))(t)
		v := New(registry, t.TempDir())
		e := schematics.Locked{Overlay: &overlay, Schematic: schematic}
		mismatches := must.Get(v.compareBootFiles(t.Context(), schematics.Lock{Arch: "amd64"}, e, held))(t)
		got := message(errors.Join(mismatches...))
		if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
		}
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	})
}

// TestInstallerLinks: unpacking an installer follows its links, so that what is
// compared would not be what is installed.
func TestInstallerLinks(t *testing.T) {
	t.Parallel()
	type row struct {
		link tar.Header
		odd  []string
	}
	must.Each(t, map[string]row{
		"of another kind of file":    {tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/sh", Linkname: "busybox"}, nil},
		"a directory":                {tar.Header{Typeflag: tar.TypeDir, Name: "usr/install/"}, nil},
		"in place of the directory":  {tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/install", Linkname: "/opt"}, []string{"/usr/install"}},
		"in place of the one above":  {tar.Header{Typeflag: tar.TypeSymlink, Name: "./usr", Linkname: "/opt"}, []string{"/usr"}},
		"in place of the UKI":        {tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/install/amd64/vmlinuz.efi", Linkname: "/x"}, []string{"/usr/install/amd64/vmlinuz.efi"}},
		"in place of the overlay":    {tar.Header{Typeflag: tar.TypeSymlink, Name: "overlay", Linkname: "/opt"}, []string{"/overlay"}},
		"in the overlay":             {tar.Header{Typeflag: tar.TypeLink, Name: "overlay/artifacts/x", Linkname: "bin/sh"}, []string{"/overlay/artifacts/x"}},
		"a directory of like a name": {tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/installed", Linkname: "/opt"}, nil},
	}, func(t *testing.T, tc row) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		uki := tar.Header{Typeflag: tar.TypeReg, Name: "usr/install/amd64/vmlinuz.efi", Size: 3}
		err := w.WriteHeader(&uki)
		_, errWrite := w.Write([]byte("uki"))
		must.Do(t, errors.Join(err, errWrite, w.WriteHeader(&tc.link), w.Close()))
		held := must.Get(unpackInstaller("amd64", &b, t.TempDir()))(t)
		must.Equal(t, "odd files", tc.odd, held.odd)
	})
}

func tarOf(files map[string][]byte) io.ReadCloser {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))})
		if _, err2 := w.Write(files[name]); errors.Join(err, err2) != nil {
			panic(errors.Join(err, err2))
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return io.NopCloser(&b)
}

// endless is a stream that never ends.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += int64(len(p))
	return len(p), nil
}

// slack is how much may be read beyond a bound at once.
const slack = 1 << 16

const mib = 1 << 20

// TestInstallerIsBounded: an endless installer does not make its reader endless.
func TestInstallerIsBounded(t *testing.T) {
	t.Parallel()
	header := func(name string) []byte {
		var b bytes.Buffer
		must.Do(t, tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1 << 40}))
		return b.Bytes()
	}
	must.Each(t, map[string][]byte{
		"in its UKI":        header("usr/install/amd64/vmlinuz.efi"),
		"in the overlay":    header("overlay/x"),
		"in another file":   header("bin/installer"),
		"after its archive": {},
	}, func(t *testing.T, begin []byte) {
		dir := t.TempDir()
		v := New(nil, dir)
		v.largest = mib
		var rest endless
		_, err := v.Installer(t.Context(), schematics.Lock{Arch: "amd64"}, schematics.Locked{}, io.MultiReader(bytes.NewReader(begin), &rest), func(string) {})
		must.Contain(t, "error", fmt.Sprint(err), "installer: more than 1 MiB, which no image of Talos has")
		must.Equal(t, "kind of the error", fault.Refused, fault.KindOf(err))
		if rest.read > mib+slack {
			t.Errorf("%d bytes were read", rest.read)
		}
		must.Do(t, v.Close())
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
}

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
		must.Equal(t, name, test.want, got)
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
	must.Each(t, map[string]row{
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
		content := must.Get(artefact.DiskImage(img, artefact.DiskForm{Files: test.files}))(t)
		disk := must.Get(diskimage.Open(bytes.NewReader(content), int64(len(content))))(t)
		w := &wanted{lock: schematics.Lock{SecureBoot: test.secureBoot, SecureBootKey: locked}}
		mismatches, err := w.besideUKI("disk image", disk.ESP)
		if got := message(errors.Join(append(mismatches, err)...)); !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%q, want %q", got, test.want)
		}
	})
}
