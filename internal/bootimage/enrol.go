package bootimage

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// The form of a file with keys to enrol: an authenticated variable, whose descriptor is
// followed by lists of signatures. See the UEFI specification, 8.2.2 and 32.4.1.
const (
	authTimeBytes  = 16
	authMinBytes   = 4 + 2 + 2 + 16 // length, revision, type and GUID
	authType       = 0x0ef1
	listHeader     = 16 + 4 + 4 + 4
	ownerBytes     = 16
	maxEnrolled    = 64 << 10
	certificateKey = "\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72" // EFI_CERT_X509_GUID
)

// Enrolled lists the certificates that systemd-boot would enrol for Secure Boot: the
// SHA-256 of each, in hex, sorted. Anything else that it would enrol is refused.
func (e *ESP) Enrolled() ([]string, error) {
	var all []string
	for name, file := range e.enrol {
		if file.Size() > maxEnrolled {
			return nil, fmt.Errorf("%s: %w: it has %d bytes", name, ErrFormat, file.Size())
		}
		b, err := readAll(file, maxEnrolled)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found, err := certificatesOf(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", name, ErrFormat, err)
		}
		all = append(all, found...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// certificatesOf reads the lists of an authenticated variable.
func certificatesOf(b []byte) (sums []string, err error) {
	le := binary.LittleEndian
	if len(b) < authTimeBytes+authMinBytes || le.Uint16(b[authTimeBytes+6:]) != authType {
		return nil, errors.New("no authenticated variable")
	}
	size := int64(le.Uint32(b[authTimeBytes:]))
	if size < authMinBytes || size > int64(len(b)-authTimeBytes) {
		return nil, errors.New("its signature is cut off")
	}
	for b = b[authTimeBytes+size:]; len(b) > 0; {
		if len(b) < listHeader || string(b[:16]) != certificateKey {
			return nil, errors.New("a list of something other than certificates")
		}
		list, header, each := int64(le.Uint32(b[16:])), int64(le.Uint32(b[20:])), int64(le.Uint32(b[24:]))
		if list > int64(len(b)) || header != 0 || each <= ownerBytes || list <= listHeader || (list-listHeader)%each != 0 {
			return nil, errors.New("a list of certificates is cut off")
		}
		for one := b[listHeader:list]; len(one) > 0; one = one[each:] {
			sums = append(sums, certificateSum(one[ownerBytes:each]))
		}
		b = b[list:]
	}
	if len(sums) == 0 {
		return nil, errors.New("no certificate")
	}
	return sums, nil
}

// certificateSum is the SHA-256 of a certificate, in either form.
func certificateSum(b []byte) string {
	if block, _ := pem.Decode(b); block != nil {
		b = block.Bytes
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
