package bootimage

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// What imager puts into an EFI system partition with a UKI (CreateUEFI in
// pkg/imager/iso of Talos), in lower case, as FAT compares names.
const (
	espUKIs         = "efi/linux/"
	espConfig       = "loader/loader.conf"
	espSeed         = "loader/random-seed" // since Talos 1.14
	espCertificate  = "efi/keys/uki-signing-cert.der"
	espEnrolled     = "loader/keys/auto/"
	maxLoaderConfig = 4 << 10
	maxCertificate  = 64 << 10
)

// espLoader is what firmware starts from an unknown medium.
var espLoader = map[string]string{"amd64": "efi/boot/bootx64.efi", "arm64": "efi/boot/bootaa64.efi"}

// ESP is an EFI system partition: what UEFI boots from it.
type ESP struct {
	UKI *UKI // nil if there is none

	// Beside the UKI:
	Loader      *io.SectionReader // systemd-boot
	Certificate string            // by which it is signed: SHA-256, in hex; "" if there is none
	Keys        []string          // files for Secure Boot: the certificate, keys to enrol
	Odd         []string          // files that no image of Talos has

	enrol map[string]*io.SectionReader // those of Keys that systemd-boot enrols
}

const espPart = "EFI system partition"

// OpenESP reads the EFI system partition of a disk. UKI is nil if it holds none: it is
// GRUB's own then, and the rest is not read.
func OpenESP(r io.ReaderAt, sizeBytes int64) (*ESP, error) {
	src, e := &sourceAt{r: r}, &ESP{}
	if err := e.readESP(io.NewSectionReader(src, 0, sizeBytes)); err != nil {
		return nil, refuse(espPart, src.or(err))
	}
	return e, nil
}

// readESP reads an EFI system partition. One without a UKI is GRUB's own and is ignored.
func (e *ESP) readESP(r *io.SectionReader) error {
	fat, err := openFAT(r)
	if errors.Is(err, errNotFAT32) {
		return nil
	}
	if err != nil {
		return err
	}
	files, err := fat.files()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	ukis := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !strings.HasPrefix(name, espUKIs) || !strings.HasSuffix(name, ".efi")
	})
	switch len(ukis) {
	case 0:
		return nil
	case 1:
	default:
		return fmt.Errorf("EFI/Linux holds %d images", len(ukis))
	}
	file, err := fat.open(files[ukis[0]])
	if err != nil {
		return fmt.Errorf("%s: %w", ukis[0], err)
	}
	if e.UKI, err = openUKI(file, file.Size()); err != nil {
		return fmt.Errorf("%s: %w", ukis[0], err)
	}
	loader := espLoader[e.UKI.Arch]
	if e.Loader, err = fat.open(files[loader]); err != nil {
		return fmt.Errorf("%s: %w", loader, err)
	}
	for _, name := range names {
		switch name {
		case ukis[0], loader, espSeed:
		case espConfig:
			err = fat.checkLoaderConfig(files[name])
		case espCertificate:
			e.Keys = append(e.Keys, name)
			e.Certificate, err = fat.sum(files[name])
		case espEnrolled + "pk.auth", espEnrolled + "kek.auth", espEnrolled + "db.auth":
			e.Keys = append(e.Keys, name)
			err = e.keep(fat, name, files[name])
		default:
			e.Odd = append(e.Odd, name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// keep remembers where a file with keys is, to be read on demand.
func (e *ESP) keep(fat *fat32, name string, file fatEntry) error {
	content, err := fat.open(file)
	if err != nil {
		return err
	}
	if e.enrol == nil {
		e.enrol = map[string]*io.SectionReader{}
	}
	e.enrol[name] = content
	return nil
}

// checkLoaderConfig refuses settings that Talos' loader.conf does not have, such as another default entry.
func (f *fat32) checkLoaderConfig(e fatEntry) error {
	text, err := f.read(e, maxLoaderConfig)
	if err != nil {
		return err
	}
	for line := range strings.FieldsFuncSeq(string(text), func(c rune) bool { return c == '\n' || c == '\r' }) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") || len(words) == 2 && (words[0] == "timeout" || words[0] == "secure-boot-enroll") {
			continue
		}
		return fmt.Errorf("%.200q is not one of Talos' own", line)
	}
	return nil
}

func (f *fat32) read(e fatEntry, limit int64) ([]byte, error) {
	file, err := f.open(e)
	if err != nil {
		return nil, err
	}
	return readAll(file, limit)
}

func (f *fat32) sum(e fatEntry) (string, error) {
	b, err := f.read(e, maxCertificate)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}

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
