package verify

import (
	"bytes"
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
	"io"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/bootimage"
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
		if errA != nil || errB != nil || (a == b) != tc.same {
			t.Errorf("%s and %s are the same: %t, want %t (%v, %v)", a, b, a == b, tc.same, errA, errB)
		}
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
		if got := message(err); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
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
		got := message(notSigned(tc.program, ours.fingerprint()))
		if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		if tc.want != "" {
			t.Attr("corruptions-caught", "1")
		}
	})
}
