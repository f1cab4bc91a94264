package verify

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/schematics"
)

// programSum identifies a UEFI program by its signed content. The program is a boot loader, or the kernel of an image
// for Secure Boot. Each build signs those again, with the time of signing (Sign in internal/pkg/secureboot/pesign of
// siderolabs/talos). An Image Factory with keys for Secure Boot signs those of an ordinary installer, too, but not of
// its ISO (siderolabs/image-factory#538).
func programSum(program *io.SectionReader) (string, error) {
	skip, err := unsigned(program)
	if err != nil {
		return "", fmt.Errorf("%w: %w", bootimage.ErrFormat, err)
	}
	sum := sha256.New()
	if err := hashWithout(sum, program, skip); err != nil {
		return "", err
	}
	end := program.Size()
	if len(skip) > 2 {
		end = skip[2].from
	}
	// Signing pads a program with zeros up to where the certificate table may begin.
	if _, err := sum.Write(make([]byte, -end&(tableAlignment-1))); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// span is a range of bytes.
type span struct{ from, to int64 }

// tableAlignment is the alignment of a certificate table, in bytes.
const tableAlignment = 8

// unsigned lists, in order, the parts of a PE file that a signature does not cover: checksum, the entry of the
// certificate table, and the table itself. See the Windows Authenticode Portable Executable Signature Format. The
// table has to be the end of the file, after everything that is loaded: bytes that the table hides from a comparison
// are then never run.
func unsigned(pe *io.SectionReader) ([]span, error) {
	const peHeader, optionalHeader, checksum, sizeOfHeaders = 0x3c, 24, 64, 60
	r := &fields{r: pe}
	at := r.number(peHeader, 4)
	if r.err != nil {
		return nil, r.err
	}
	if magic := r.number(at, 4); magic != 0x4550 || at < peHeader+4 {
		return nil, errors.Join(errors.New("not a PE file: its header is not where it should be"), r.err)
	}
	optional := at + optionalHeader
	magic := r.number(optional, 2)
	directories := map[int64]int64{0x10b: 96, 0x20b: 112}[magic] // PE32, PE32+
	if r.err == nil && directories == 0 {
		return nil, fmt.Errorf("not a PE file: its optional header begins with %#x", magic)
	}
	const certificates, entry = 4, 8
	length, count := r.number(at+20, 2), r.number(optional+directories-4, 4)
	if r.err == nil && (count <= certificates || length < directories+(certificates+1)*entry) {
		return nil, errors.New("its header has no entry for a certificate table")
	}
	table := optional + directories + certificates*entry
	from, size := r.number(table, 4), r.number(table+4, 4)
	spans := []span{{optional + checksum, optional + checksum + 4}, {table, table + entry}}
	if r.err != nil || size == 0 && from == 0 {
		return spans, r.err
	}
	loaded := r.loadedEnd(at, optional+length, max(r.number(optional+sizeOfHeaders, 4), optional+length))
	switch {
	case r.err != nil:
		return nil, r.err
	case from%tableAlignment != 0, from < loaded, size == 0, from+size > pe.Size(), pe.Size()-from-size >= tableAlignment:
		return nil, fmt.Errorf("its certificate table is from %d to %d of %d bytes, and not behind its sections at the end", from, from+size, pe.Size())
	}
	return append(spans, span{from, pe.Size()}), nil // padding after the table belongs to the table
}

// fields reads little-endian numbers. After an error, all of them are 0.
type fields struct {
	r   io.ReaderAt
	err error
}

func (f *fields) number(at int64, bytes int) int64 {
	var b [4]byte
	if f.err == nil {
		_, f.err = f.r.ReadAt(b[:bytes], at)
	}
	if f.err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint32(b[:]))
}

// loadedEnd returns where the last section ends in the file.
func (f *fields) loadedEnd(header, sections, end int64) int64 {
	const entry, sizeOfRawData, pointerToRawData = 40, 16, 20
	n := f.number(header+6, 2)
	end = max(end, sections+n*entry)
	for i := range n {
		at := sections + i*entry
		end = max(end, f.number(at+pointerToRawData, 4)+f.number(at+sizeOfRawData, 4))
	}
	return end
}

// hashWithout hashes everything except the parts in skip, which are in order.
func hashWithout(sum io.Writer, r *io.SectionReader, skip []span) error {
	at := int64(0)
	for _, s := range append(skip[:len(skip):len(skip)], span{r.Size(), r.Size()}) {
		if s.from < at || s.to > r.Size() {
			return fmt.Errorf("%w: parts of its header overlap", bootimage.ErrFormat)
		}
		if _, err := io.Copy(sum, io.NewSectionReader(r, at, s.from-at)); err != nil {
			return err
		}
		at = s.to
	}
	return nil
}

// rawSum returns the SHA-256 of a section.
func rawSum(r *io.SectionReader) (string, error) {
	f, err := hashed256(io.NewSectionReader(r, 0, r.Size()))
	return f.SHA256, err
}

// loaderSum identifies the boot loader that an installer installs.
func (h installerFiles) loaderSum(lock schematics.Lock) (sum string, mismatches []error, err error) {
	if h.loader == "" {
		return "", []error{mismatch(Bootloader, "installer: it has no boot loader, /%s%s/%s", installRoot, lock.Arch, bootFile)}, nil
	}
	f, err := os.Open(h.loader)
	if err != nil {
		return "", nil, fmt.Errorf("installer: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, fmt.Errorf("installer: %w", err)
	}
	return loaderSum("installer", io.NewSectionReader(f, 0, info.Size()), lock)
}

func loaderSum(name string, loader *io.SectionReader, lock schematics.Lock) (sum string, mismatches []error, err error) {
	sum, err = programSum(loader)
	if err == nil {
		return sum, checkSigned(name+": systemd-boot", loader, lock), nil
	}
	err = unreadable(name+": systemd-boot", err)
	if _, ok := errors.AsType[*Mismatch](err); ok {
		return "", []error{err}, nil
	}
	return "", nil, err
}

// checkSigned requires that a program of an image for Secure Boot is signed by the locked certificate.
func checkSigned(name string, program *io.SectionReader, lock schematics.Lock) []error {
	if !lock.SecureBoot {
		return nil
	}
	if err := notSigned(program, lock.SecureBootKey); err != nil {
		return []error{mismatch(OtherSigner, "%s is not signed by the certificate that is locked for Secure Boot, %s: %v", name, shortSum(lock.SecureBootKey), err)}
	}
	return nil
}

// loaders compares the boot loaders of a boot ISO with the installer's. GRUB cannot
// be compared: it comes with imager, which generates a GRUB image for each ISO.
func (w *wanted) loaders(iso *bootimage.ISO, boot Boot) (mismatches []error, err error) {
	const name = "boot ISO"
	if iso.GRUB != nil && w.lock.SecureBoot {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: it boots with GRUB, which no image for Secure Boot does", name))
	}
	if iso.UKI == nil {
		if !w.grub {
			mismatches = append(mismatches, mismatch(Bootloader, "%s: it has only GRUB, which the schematic does not request: what UEFI would start cannot be compared", name))
		}
		return mismatches, nil
	}
	found, err := w.uefi(name, iso.ESP, boot)
	if err != nil {
		return nil, err
	}
	mismatches = append(mismatches, found...)
	if w.lock.SecureBoot && iso.Certificate != w.lock.SecureBootKey {
		mismatches = append(mismatches, mismatch(OtherSigner, "%s: it brings certificate %q, locked for Secure Boot is %s",
			name, shortSum(iso.Certificate), shortSum(w.lock.SecureBootKey)))
	}
	return append(mismatches, w.oddFiles(name, iso.ESP)...), nil
}

// uefi compares what UEFI starts from a partition with what the installer installs.
func (w *wanted) uefi(name string, esp bootimage.ESP, boot Boot) (mismatches []error, err error) {
	loader, loaderErrs, err := loaderSum(name, esp.Loader, w.lock)
	if err != nil {
		return nil, err
	}
	mismatches = append(loaderErrs, checkSigned(name+": its UKI", esp.UKI.File, w.lock)...)
	if loader != "" && loader != boot.loader {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: another boot loader than the installer's: systemd-boot %s, the installer's is %s",
			name, shortSum(loader), shortSum(boot.loader)))
	}
	if esp.UKI.Stub != boot.stub {
		mismatches = append(mismatches, mismatch(Bootloader, "%s: another boot loader than the installer's: systemd-stub in its UKI %s, the installer's is %s",
			name, shortSum(esp.UKI.Stub), shortSum(boot.stub)))
	}
	return mismatches, nil
}

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
	var content asn1.RawValue // the tag and length of content are not signed
	_, err = asn1.Unmarshal(table, &outer)
	if err == nil {
		_, err = asn1.Unmarshal(outer.Content.Bytes, &signed)
	}
	for _, into := range []any{&is, &content} {
		if err == nil {
			_, err = asn1.Unmarshal(signed.Content.Content.Bytes, into)
		}
	}
	if err != nil {
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
	by := "no certificate"
	for _, c := range certificates {
		found := sha256.Sum256(c.Raw)
		if by = hex.EncodeToString(found[:]); by == certificate {
			return signed.Signers[0].verify(c, content.Bytes)
		}
	}
	return fmt.Errorf("it is signed by %s", shortSum(by))
}

// verify checks a signature of attributes. One of the attributes is the hash of the content.
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

// The paths where imager puts what it adds to the base installer: constants.UKIAssetPath and
// constants.ImagerOverlayBasePath of siderolabs/talos, and outInstaller in pkg/imager. Since Talos 1.10 the UKI has
// the same name for Secure Boot.
const (
	installRoot   = "usr/install/"
	ukiFile       = "vmlinuz.efi"
	bootFile      = "systemd-boot.efi"
	overlayRoot   = "overlay/"
	overlayArgs   = overlayRoot + "extra-options" // the schematic's options of the overlay
	overlayBinary = overlayRoot + "installers/default"
)

// installerFiles describes what an installer holds in addition to its own programs.
type installerFiles struct {
	uki     string         // local file; "" if there is none
	loader  string         // likewise, of systemd-boot
	options string         // likewise, of the overlay's options
	overlay bootimage.Tree // by the path in the image
	odd     []string       // unexpected files among those that the installer installs
	archs   []string       // the architectures of the files in odd
}

// unpackInstaller reads an installer to its end and keeps the UKI, the boot loader and the overlay's options in dir.
func unpackInstaller(arch string, files io.Reader, dir string) (installerFiles, error) {
	held := installerFiles{overlay: bootimage.Tree{}}
	own := installRoot + arch + "/"
	err := eachEntry(files, func(kind byte, name string, r io.Reader) (err error) {
		switch {
		case kind == tar.TypeDir:
		case kind != tar.TypeReg:
			// Unpacking the image would follow such a link instead of using the file that is compared here.
			if inside := name + "/"; strings.HasPrefix(inside, installRoot) || strings.HasPrefix(inside, overlayRoot) || strings.HasPrefix(installRoot, inside) {
				held.odd = append(held.odd, "/"+name)
			}
		case name == own+ukiFile && held.uki == "":
			held.uki = filepath.Join(dir, ukiFile)
			return writeFile(held.uki, r)
		case name == own+bootFile && held.loader == "":
			held.loader = filepath.Join(dir, bootFile)
			return writeFile(held.loader, r)
		case name == overlayArgs && held.options == "":
			held.overlay[name], held.options = bootimage.File{}, filepath.Join(dir, "extra-options")
			return writeFile(held.options, r)
		case strings.HasPrefix(name, overlayRoot):
			held.overlay[name], err = hashed256(r)
			return err
		case strings.HasPrefix(name, installRoot):
			held.odd = append(held.odd, "/"+name)
			a, _, nested := strings.Cut(strings.TrimPrefix(name, installRoot), "/")
			if nested && !slices.Contains(held.archs, a) {
				held.archs = append(held.archs, a)
			}
		}
		return nil
	})
	return held, err
}

func hashed256(r io.Reader) (bootimage.File, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	return bootimage.File{SizeBytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// noUKI says why an image is not an installer for an architecture.
func (h installerFiles) noUKI(arch string) error {
	if len(h.archs) > 0 && !slices.Contains(h.archs, arch) {
		return mismatch(OtherArch, "installer: it is for %s, but the lock is for %s", strings.Join(h.archs, " and "), arch)
	}
	return mismatch(Damaged, "installer: it has no /%s%s/%s: it is not an installer of Talos 1.10 or later", installRoot, arch, ukiFile)
}

// compareBootFiles compares what an installer holds beside its UKI.
func (v *Verifier) compareBootFiles(ctx context.Context, lock schematics.Lock, e schematics.Locked, held installerFiles) (mismatches []error, err error) {
	if len(held.odd) > 0 {
		mismatches = append(mismatches, mismatch(OtherFiles, "installer: it holds unexpected boot files: %s", firstFew(held.odd)))
	}
	want := bootimage.Tree{}
	from := "no overlay is locked"
	if e.Overlay != nil {
		from = fmt.Sprintf("locked is %s (%s)", e.Overlay.Name, e.Overlay.Digest)
		if want, err = v.overlay(ctx, lock.Arch, *e.Overlay); err != nil {
			return nil, err
		}
		want[overlayArgs] = held.overlay[overlayArgs]
		other, err := held.otherOptions(e)
		if err != nil {
			return nil, err
		}
		mismatches = append(mismatches, other...)
	}
	if diff := treeDiff(want, held.overlay, sameContent); diff != "" {
		mismatches = append(mismatches, mismatch(OtherFiles, "installer: it has another overlay, %s: %s", from, diff))
	}
	return mismatches, nil
}

// otherOptions compares the options that the installer passes to the overlay's program with the schematic's options.
// imager rewrites the options as YAML.
func (h installerFiles) otherOptions(e schematics.Locked) ([]error, error) {
	if h.options == "" {
		return nil, nil // compareBootFiles reports the file as missing
	}
	c, err := e.Customization()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(h.options)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	defer f.Close()
	options, err := bootimage.ReadOverlayOptions(f)
	if err != nil {
		return []error{unreadable("installer", err)}, nil
	}
	if len(options)+len(c.OverlayOptions) == 0 || reflect.DeepEqual(options, c.OverlayOptions) {
		return nil, nil
	}
	return []error{mismatch(OtherFiles, "installer: /%s gives the overlay other options than the locked schematic", overlayArgs)}, nil
}

// overlay returns the files that a locked overlay adds to an installer.
func (v *Verifier) overlay(ctx context.Context, arch string, o schematics.Overlay) (bootimage.Tree, error) {
	ref := o.Ref + "@" + o.Digest
	image, err := v.images.Extract(ctx, ref, arch)
	if err != nil {
		return nil, fmt.Errorf("read the locked overlay %s: %w", ref, err)
	}
	defer image.Close()
	files := bootimage.Tree{}
	err = eachFile(image, func(name string, r io.Reader) (err error) {
		switch {
		case name == "installers/"+o.Name:
			files[overlayBinary], err = hashed256(r)
		case strings.HasPrefix(name, "artifacts/"):
			files[overlayRoot+name], err = hashed256(r)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the locked overlay %s: %w", ref, err)
	}
	return files, nil
}

// firstFew formats the first few names of a list.
func firstFew(list []string) string {
	text := strings.Join(list[:min(len(list), maxNamed)], ", ")
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
