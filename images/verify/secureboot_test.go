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
	"io"
	"math/big"
	"strings"
	"testing"
)

// signer signs for Secure Boot.
type signer struct {
	key  *rsa.PrivateKey
	cert *x509.Certificate
}

func newSigner(t *testing.T) signer {
	t.Helper()
	key := must(rsa.GenerateKey(rand.Reader, 2048))(t)
	about := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}}
	der := must(x509.CreateCertificate(rand.Reader, &about, &about, &key.PublicKey, key))(t)
	cert := must(x509.ParseCertificate(der))(t)
	return signer{key, cert}
}

func (s signer) fingerprint() string { return hash(s.cert.Raw) }

// sign makes the certificate table of a program with that hash, whose signed
// attributes claim that content.
func (s signer) sign(t *testing.T, sum string, content func([]byte) []byte) string {
	t.Helper()
	coded := func(v any, params string) []byte { return must(asn1.MarshalWithParams(v, params))(t) }
	inner := func(b []byte) asn1.RawValue { return asn1.RawValue{Class: 2, Tag: 0, IsCompound: true, Bytes: b} }
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}}
	is := indirectData{Data: asn1.RawValue{FullBytes: coded([]int{1}, "")}}
	is.Digest.Algorithm = algorithm
	is.Digest.Digest, _ = hex.DecodeString(sum)
	body := coded(is, "")
	var raw asn1.RawValue
	must(asn1.Unmarshal(body, &raw))(t)
	digest := sha256.Sum256(content(raw.Bytes))
	attributes := coded([]attribute{{messageDigest, asn1.RawValue{FullBytes: coded([][]byte{digest[:]}, "set")}}}, "set")
	hashed := sha256.Sum256(attributes)
	signature := must(s.key.Sign(rand.Reader, hashed[:], crypto.SHA256))(t)
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
	sum := must(programSum(program("code", "", 0)))(t)
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
	each(t, map[string]row{
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
