package verify

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/recast-sh/recast/internal/bootimage"
)

// The signature of a UEFI program: PKCS #7 (RFC 2315) of the hash of the signed
// content. See the Windows Authenticode Portable Executable Signature Format.
type (
	contentInfo struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue `asn1:"explicit,tag:0"`
	}
	signedData struct {
		Version      int
		Digests      asn1.RawValue
		Content      contentInfo
		Certificates asn1.RawValue `asn1:"optional,tag:0"`
		Signers      []signerInfo  `asn1:"set"`
	}
	signerInfo struct {
		Version         int
		Issuer          asn1.RawValue
		DigestAlgorithm pkix.AlgorithmIdentifier
		Attributes      asn1.RawValue `asn1:"tag:0"`
		Algorithm       pkix.AlgorithmIdentifier
		Signature       []byte
	}
	attribute struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	indirectData struct {
		Data   asn1.RawValue
		Digest struct {
			Algorithm pkix.AlgorithmIdentifier
			Digest    []byte
		}
	}
)

var messageDigest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}

const maxSignatureBytes = 64 << 10

// notSigned says why a program is not signed by the certificate with that SHA-256;
// nil if it is. Firmware that has enrolled only that certificate would not start it.
func notSigned(program *io.SectionReader, certificate string) error {
	table, err := signatureOf(program)
	if err != nil {
		return err
	}
	sum, err := programSum(program)
	if err != nil {
		return err
	}
	var outer contentInfo
	var signed signedData
	var is indirectData
	if _, err := asn1.Unmarshal(table, &outer); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	if _, err := asn1.Unmarshal(outer.Content.Bytes, &signed); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	if _, err := asn1.Unmarshal(signed.Content.Content.Bytes, &is); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	if hex.EncodeToString(is.Digest.Digest) != sum {
		return errors.New("its signature is for other content")
	}
	if len(signed.Signers) != 1 {
		return fmt.Errorf("its signature is of %d signers", len(signed.Signers))
	}
	certificates, err := x509.ParseCertificates(signed.Certificates.Bytes)
	if err != nil {
		return fmt.Errorf("its certificate: %w", err)
	}
	var content asn1.RawValue // whose tag and length are not signed
	if _, err := asn1.Unmarshal(signed.Content.Content.Bytes, &content); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	by := "no certificate"
	for _, c := range certificates {
		found := sha256.Sum256(c.Raw)
		if by = hex.EncodeToString(found[:]); by == certificate {
			return signed.Signers[0].verify(c, content.Bytes)
		}
	}
	return fmt.Errorf("it is signed by %s", shortSum(by))
}

// verify checks a signature of attributes, one of which is the hash of the content.
func (s signerInfo) verify(by *x509.Certificate, content []byte) error {
	var list []attribute
	if _, err := asn1.UnmarshalWithParams(s.Attributes.FullBytes, &list, "set,tag:0"); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	sum := sha256.Sum256(content)
	same := false
	for _, a := range list {
		var digest []byte
		if a.Type.Equal(messageDigest) {
			_, err := asn1.Unmarshal(a.Value.Bytes, &digest)
			same = err == nil && bytes.Equal(digest, sum[:])
		}
	}
	if !same {
		return errors.New("its signature is for something else")
	}
	const set = 0x31 // the tag with which the attributes are signed
	if err := by.CheckSignature(x509.SHA256WithRSA, append([]byte{set}, s.Attributes.FullBytes[1:]...), s.Signature); err != nil {
		return fmt.Errorf("its signature: %w", err)
	}
	return nil
}

// signatureOf returns the first signature in a program's certificate table.
func signatureOf(program *io.SectionReader) ([]byte, error) {
	const header, spans = 8, 3
	skip, err := unsigned(program)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", bootimage.ErrFormat, err)
	}
	if len(skip) < spans {
		return nil, errors.New("it is not signed")
	}
	table := skip[spans-1]
	if size := table.to - table.from; size <= header || size > maxSignatureBytes {
		return nil, fmt.Errorf("a signature of %d bytes", size)
	}
	b := make([]byte, table.to-table.from)
	if _, err := program.ReadAt(b, table.from); err != nil {
		return nil, fmt.Errorf("its signature: %w", err)
	}
	if size := binary.LittleEndian.Uint32(b); size < header || int64(size) > int64(len(b)) {
		return nil, errors.New("its signature is cut off")
	}
	return b[header:binary.LittleEndian.Uint32(b)], nil
}
