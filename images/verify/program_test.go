package verify

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

// program is a PE32+ file with a signature of that text at its end. program is a PE32+ file without sections.
func program(code, signature string, checksum uint32) *io.SectionReader {
	b := make([]byte, 0x40+24+240)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x40)
	copy(b[0x40:], "PE\x00\x00")
	binary.LittleEndian.PutUint16(b[0x40+20:], 240)
	optional := b[0x40+24:]
	binary.LittleEndian.PutUint16(optional, 0x20b)
	binary.LittleEndian.PutUint32(optional[64:], checksum)
	binary.LittleEndian.PutUint32(optional[108:], 16)
	b = append(b, code...)
	if signature != "" {
		b = append(b, make([]byte, -len(b)&7)...)
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8+4:], uint32(len(signature)))
		b = append(b, signature...)
	}
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// TestProgramSum: a program signed at another time, or not at all, is the same program, and every other byte counts.
func TestProgramSum(t *testing.T) {
	t.Parallel()
	base := program("code", "signed on Monday", 1)
	type row struct {
		other *io.SectionReader
		same  bool
	}
	must.Each(t, map[string]row{
		"the same":                 {program("code", "signed on Monday", 1), true},
		"signed again":             {program("code", "signed on Tuesday, at noon", 2), true},
		"not signed":               {program("code", "", 0), true},
		"not signed, other code":   {program("edoc", "", 0), false},
		"not signed, header":       {changed(program("code", "", 0), 0x40+24+16, 1), false},
		"other code":               {program("edoc", "signed on Monday", 1), false},
		"more code":                {program("code and more", "signed on Monday", 1), false},
		"more code than is signed": {program("code and more", "", 1), false},
	}, func(t *testing.T, tc row) {
		a, errA := programSum(base)
		b, errB := programSum(tc.other)
		must.Hold(t, errA == nil && errB == nil && (a == b) == tc.same,
			"%s and %s are the same: %t, want %t (%v, %v)", a, b, a == b, tc.same, errA, errB)
		if !tc.same {
			t.Attr("corruptions-caught", "1")
		}
	})
}

// changed is a program with another byte.
func changed(p *io.SectionReader, at int64, value byte) *io.SectionReader {
	b := make([]byte, p.Size())
	if _, err := p.ReadAt(b, 0); err != nil {
		panic(err)
	}
	b[at] = value
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// TestNoProgram: a certificate table hides nothing that firmware loads.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	const count, headers, optional = 0x40 + 6, 0x40 + 24 + 60, 0x40 + 24
	const table = optional + 112 + 4*8
	signed := program("code", "signed!!", 1)
	withSection := program(strings.Repeat("\x00", 40)+"evilcode", "signed!!", 1)
	section := int64(optional + 240)
	for name, tc := range map[string]struct {
		program *io.SectionReader
		want    string
	}{
		"empty":                        {io.NewSectionReader(strings.NewReader(""), 0, 0), "EOF"},
		"no PE header":                 {changed(signed, 0x40, 'X'), "its header is not where it should be"},
		"of another kind":              {changed(signed, optional, 0x07), "its optional header begins with"},
		"fewer directories":            {changed(signed, optional+108, 4), "no entry for a certificate table"},
		"a short header":               {changed(signed, 0x40+20, 100), "no entry for a certificate table"},
		"a table over the code":        {changed(signed, table, 0x48), "not behind its sections at the end"},
		"a table that is not aligned":  {changed(signed, table+4, 9), "not behind its sections at the end"},
		"a table beyond the end":       {changed(signed, table+5, 1), "not behind its sections at the end"},
		"a table before the end":       {program("code", "signed!! and more", 0), ""},
		"an empty table with a place":  {changed(signed, table+4, 0), "not behind its sections at the end"},
		"headers that reach the table": {changed(signed, headers+1, 9), "not behind its sections at the end"},
		"a section in the table":       {changed(changed(changed(withSection, count, 1), section+20, 0xff), section+16, 0xff), "not behind its sections at the end"},
		"a section before the table":   {changed(changed(changed(withSection, count, 1), section+16, 8), section+21, 1), ""},
		"sections that are not there":  {changed(signed, count, 200), "EOF"},
	} {
		_, err := programSum(tc.program)
		got := must.Text(err)
		must.Hold(t, (tc.want != "" || got == "") && strings.Contains(got, tc.want), "%s: %q, want %q", name, got, tc.want)
	}
}

// FuzzProgramSum: a program has a sum, or is refused as one of a foreign format.
func FuzzProgramSum(f *testing.F) {
	for _, p := range []*io.SectionReader{program("code", "", 1), program("code", "signed!!", 1)} {
		b := make([]byte, p.Size())
		must.Get(p.ReadAt(b, 0))(f)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
		if _, err := programSum(p); err != nil && !errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("%v", err)
		}
		_, _ = signatureOf(p)
	})
}

func sumOf(t *testing.T, code string) string {
	t.Helper()
	return must.Get(programSum(program(code, "", 1)))(t)
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
	must.Each(t, map[string]row{
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
		mismatches := must.Get(w.loaders(&tc.iso, boot))(t)
		got := must.Text(errors.Join(mismatches...))
		must.Hold(t, (tc.want != "" || got == "") && strings.HasPrefix(got, tc.want),
			"(-want +got):\n%s", cmp.Diff(tc.want, got))
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
		if got := must.Text(errors.Join(mismatches...)); err != nil || tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	}
}

// signer signs for Secure Boot.
type signer struct {
	key  *rsa.PrivateKey
	cert *x509.Certificate
}

func newSigner(t *testing.T) signer {
	t.Helper()
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	about := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}}
	der := must.Get(x509.CreateCertificate(rand.Reader, &about, &about, &key.PublicKey, key))(t)
	cert := must.Get(x509.ParseCertificate(der))(t)
	return signer{key, cert}
}

func (s signer) fingerprint() string { return hash(s.cert.Raw) }

// sign makes the certificate table of a program with that hash, whose signed attributes claim that content.
func (s signer) sign(t *testing.T, sum string, content func([]byte) []byte) string {
	t.Helper()
	coded := func(v any, params string) []byte { return must.Get(asn1.MarshalWithParams(v, params))(t) }
	inner := func(b []byte) asn1.RawValue { return asn1.RawValue{Class: 2, Tag: 0, IsCompound: true, Bytes: b} }
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}}
	is := indirectData{Data: asn1.RawValue{FullBytes: coded([]int{1}, "")}}
	is.Digest.Algorithm = algorithm
	is.Digest.Digest, _ = hex.DecodeString(sum)
	body := coded(is, "")
	var raw asn1.RawValue
	must.Get(asn1.Unmarshal(body, &raw))(t)
	digest := sha256.Sum256(content(raw.Bytes))
	attributes := coded([]attribute{{messageDigest, asn1.RawValue{FullBytes: coded([][]byte{digest[:]}, "set")}}}, "set")
	hashed := sha256.Sum256(attributes)
	signature := must.Get(s.key.Sign(rand.Reader, hashed[:], crypto.SHA256))(t)
	attributes[0] = 0xa0
	empty := asn1.RawValue{FullBytes: coded([]int{}, "set")}
	signed := coded(signedData{
		Version: 1, Digests: empty, Content: contentInfo{Type: messageDigest, Content: inner(body)}, Certificates: inner(s.cert.Raw),
		Signers: []signerInfo{{
			Version: 1, Issuer: asn1.RawValue{FullBytes: coded([]int{1}, "")}, DigestAlgorithm: algorithm,
			Attributes: asn1.RawValue{FullBytes: attributes}, Algorithm: algorithm, Signature: signature,
		}},
	}, "")
	b := coded(contentInfo{Type: messageDigest, Content: inner(signed)}, "")
	head := binary.LittleEndian.AppendUint32(nil, uint32(8+len(b)))
	return string(append(append(head, 0, 2, 2, 0), b...))
}

func TestNotSigned(t *testing.T) {
	t.Parallel()
	ours, theirs := newSigner(t), newSigner(t)
	sum := must.Get(programSum(program("code", "", 0)))(t)
	as := func(b []byte) []byte { return b }
	forged := ours
	forged.key = theirs.key
	good := ours.sign(t, sum, as)
	cut := bytes.Clone([]byte(good))
	binary.LittleEndian.PutUint32(cut, 1<<20)
	type row struct {
		program *io.SectionReader
		want    string
	}
	must.Each(t, map[string]row{
		"signed":                     {program("code", good, 0), ""},
		"not signed":                 {program("code", "", 0), "it is not signed"},
		"other content":              {program("edoc", good, 0), "its signature is for other content"},
		"by another certificate":     {program("code", theirs.sign(t, sum, as), 0), "it is signed by " + shortSum(theirs.fingerprint())},
		"by another key":             {program("code", forged.sign(t, sum, as), 0), "its signature: crypto/rsa: verification error"},
		"attributes of another":      {program("code", ours.sign(t, sum, func([]byte) []byte { return nil }), 0), "its signature is for something else"},
		"no signature of the format": {program("code", strings.Repeat("x", 100), 0), "its signature is cut off"},
		"cut off":                    {program("code", string(cut), 0), "its signature is cut off"},
		"no ASN.1":                   {program("code", "\x10\x00\x00\x00\x00\x02\x02\x00garbage!", 0), "its signature: asn1: "},
		"too large":                  {program("code", strings.Repeat("x", 65<<10), 0), "a signature of 66560 bytes"},
	}, func(t *testing.T, tc row) {
		got := must.Text(notSigned(tc.program, ours.fingerprint()))
		must.Hold(t, (tc.want != "" || got == "") && strings.HasPrefix(got, tc.want), "got %q, want %q", got, tc.want)
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	})
}

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
		got := must.Text(errors.Join(mismatches...))
		must.Hold(t, strings.HasPrefix(got, tc.want) && (tc.want != "" || got == ""),
			"(-want +got):\n%s", cmp.Diff(tc.want, got))
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
		must.Hold(t, rest.read <= mib+slack, "%d bytes were read", rest.read)
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
		got := must.Text(errors.Join(w.metaValues("disk image", &diskimage.Image{Meta: test.got, BIOS: test.bios})...))
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
		got := must.Text(errors.Join(append(mismatches, err)...))
		must.Hold(t, strings.HasPrefix(got, test.want) && (got == "") == (test.want == ""), "%q, want %q", got, test.want)
	})
}
