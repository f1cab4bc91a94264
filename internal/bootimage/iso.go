package bootimage

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode/utf16"
)

// ISO is a boot ISO: what UEFI boots from it, what a BIOS boots, or both.
type ISO struct {
	ESP
	GRUB *GRUB // nil if the ISO does not boot with GRUB
}

// GRUB is what the default entry of /boot/grub/grub.cfg boots.
type GRUB struct {
	Cmdline string
	Kernel  *io.SectionReader // /boot/vmlinuz
	Initrd  *io.SectionReader // /boot/initramfs.xz
}

// OpenISO reads the structure of a boot ISO of sizeBytes. The ISO boots in at least one of the two ways.
//
// imager makes three forms (pkg/imager/iso of Talos): for UEFI only, with an EFI
// system partition that holds the UKI; for GRUB only, in Talos before 1.10 and for
// arm64; and both in one. GRUB's own EFI system partition is a FAT12 without a UKI.
func OpenISO(r io.ReaderAt, sizeBytes int64) (*ISO, error) {
	src := &source{ReaderAt: r}
	i, err := openISO(io.NewSectionReader(src, 0, sizeBytes))
	return opened("ISO", src, i, err)
}

func openISO(r *io.SectionReader) (*ISO, error) {
	v, err := openVolume(r)
	if err != nil {
		return nil, err
	}
	i := &ISO{}
	if v.efi != nil {
		if err := i.readESP(v.efi); err != nil {
			return nil, fmt.Errorf("EFI system partition: %w", err)
		}
	}
	if i.GRUB, err = v.grub(); err != nil {
		return nil, err
	}
	if v.bios && i.GRUB == nil {
		return nil, errors.New("a BIOS would boot something other than GRUB")
	}
	if i.UKI == nil && i.GRUB == nil {
		return nil, errors.New("it boots neither a UKI nor GRUB")
	}
	return i, nil
}

// volume is an ISO 9660 file system (ECMA-119) with Rock Ridge names.
//
// At a directory record that continues in itself, go-diskfs v1.9.4 never returns and kdomanski/iso9660 v0.4.0 ends the
// process. Both take the first piece of a file for the whole, and neither reads the boot catalogue.
type volume struct {
	r      *io.SectionReader
	root   isoEntry
	joliet bool              // a second tree of names
	bios   bool              // El Torito boots it on a BIOS
	efi    *io.SectionReader // El Torito's EFI system partition; nil for none
}

// isoEntry is a file or directory.
type isoEntry struct {
	name      string
	rockRidge bool
	dir       bool
	whole     bool // in one piece, without gaps
	at, size  int64
}

const (
	isoSector         = 2048
	isoDescriptors    = 16 // sectors before the first volume descriptor
	maxDescriptors    = 64
	maxISODirectory   = 1 << 20
	isoRecordBytes    = 33 // of a directory record without its name
	isoDirectoryFlag  = 0x02
	isoMultiExtent    = 0x80
	isoDescriptorText = "CD001"
)

func openVolume(r *io.SectionReader) (*volume, error) {
	v := &volume{r: r}
	primary := false
	var catalogue int64
	for n := range int64(maxDescriptors) {
		d, err := bytesAt(r, (isoDescriptors+n)*isoSector, isoSector)
		if err != nil {
			return nil, fmt.Errorf("volume descriptor %d: %w", n, err)
		}
		if string(d[1:6]) != isoDescriptorText {
			return nil, errors.New("not an ISO 9660 file system")
		}
		switch d[0] {
		case 0:
			if bytes.HasPrefix(d[7:], []byte("EL TORITO SPECIFICATION\x00")) {
				catalogue = int64(binary.LittleEndian.Uint32(d[0x47:])) * isoSector
			}
		case 1:
			if primary {
				return nil, errors.New("more than one primary volume")
			}
			primary = true
			if size := binary.LittleEndian.Uint16(d[128:]); size != isoSector {
				return nil, fmt.Errorf("blocks of %d bytes", size)
			}
			if space := int64(binary.LittleEndian.Uint32(d[80:])) * isoSector; space > r.Size() {
				return nil, fmt.Errorf("%w: %d bytes of %d", io.ErrUnexpectedEOF, r.Size(), space)
			}
			if v.root, err = parseRecord(d[156:190]); err != nil {
				return nil, err
			}
		case 2:
			v.joliet = true
		case 255:
			if !primary || catalogue == 0 {
				return nil, errors.New("no primary volume, or nothing to boot from it")
			}
			return v, v.readCatalogue(catalogue)
		}
	}
	return nil, errors.New("its volume descriptors do not end")
}

// parseRecord reads a directory record whose length is right.
func parseRecord(b []byte) (isoEntry, error) {
	n := int(b[32])
	if isoRecordBytes+n > len(b) {
		return isoEntry{}, errors.New("a directory record is too short for its name")
	}
	e := isoEntry{
		at:   int64(binary.LittleEndian.Uint32(b[2:])) * isoSector,
		size: int64(binary.LittleEndian.Uint32(b[10:])),
		dir:  b[25]&isoDirectoryFlag != 0,
		// Neither interleaved nor continued in the next record, nor behind an attribute record.
		whole: b[25]&isoMultiExtent == 0 && b[26] == 0 && b[27] == 0 && b[1] == 0,
	}
	e.name, _, _ = strings.Cut(string(b[isoRecordBytes:][:n]), ";")
	e.name = strings.TrimSuffix(e.name, ".")
	system := b[isoRecordBytes+n:]
	if n%2 == 0 && len(system) > 0 {
		system = system[1:]
	}
	name, err := rockRidgeName(system)
	if name != "" {
		e.name, e.rockRidge = name, true
	}
	return e, err
}

// rockRidgeName returns the name in the NM entry of a record's system use area (IEEE P1282, 4.1.4).
func rockRidgeName(b []byte) (string, error) {
	for len(b) >= 4 && b[2] >= 4 {
		n := int(b[2])
		if n > len(b) {
			return "", errors.New("a system use entry is too long")
		}
		if string(b[:2]) == "NM" {
			if n < 5 || b[4]&1 != 0 {
				return "", errors.New("a name that continues elsewhere")
			}
			return string(b[5:n]), nil
		}
		b = b[n:]
	}
	return "", nil
}

// list reads a directory, without "." and "..".
func (v *volume) list(d isoEntry) ([]isoEntry, error) {
	if d.size > maxISODirectory {
		return nil, fmt.Errorf("a directory of %d bytes", d.size)
	}
	b, err := bytesAt(v.r, d.at, int(d.size))
	if err != nil {
		return nil, err
	}
	var found []isoEntry
	for at := 0; at < len(b); {
		n := int(b[at])
		if n == 0 { // records do not cross sectors
			at = (at/isoSector + 1) * isoSector
			continue
		}
		if n <= isoRecordBytes || at+n > len(b) {
			return nil, errors.New("a directory record of the wrong length")
		}
		e, err := parseRecord(b[at : at+n])
		if err != nil {
			return nil, err
		}
		if e.name != "\x00" && e.name != "\x01" {
			found = append(found, e)
		}
		at += n
	}
	return found, nil
}

// find follows a path; it returns false if the path does not exist. GRUB uses Joliet names if there are no Rock Ridge
// names (set_rockridge in its fs/iso9660.c), so the two kinds of names must not differ.
func (v *volume) find(path string) (isoEntry, bool, error) {
	e := v.root
	for part := range strings.SplitSeq(path, "/") {
		entries, err := v.list(e)
		if err != nil {
			return isoEntry{}, false, err
		}
		matches := 0
		for _, entry := range entries {
			if entry.name == part || !entry.rockRidge && strings.EqualFold(entry.name, part) {
				e = entry
				matches++
			}
		}
		switch {
		case matches == 0:
			return isoEntry{}, false, nil
		case matches > 1:
			return isoEntry{}, false, fmt.Errorf("%s is there %d times", part, matches)
		case v.joliet && !e.rockRidge:
			return isoEntry{}, false, errors.New("it has Joliet names without Rock Ridge ones")
		}
	}
	return e, true, nil
}

func (v *volume) open(path string) (*io.SectionReader, error) {
	e, ok, err := v.find(path)
	switch {
	case err != nil:
	case !ok:
		err = errors.New("it is missing")
	case e.dir || !e.whole:
		err = errors.New("not a contiguous file")
	case e.at+e.size > v.r.Size():
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("/%s: %w", path, err)
	}
	return io.NewSectionReader(v.r, e.at, e.size), nil
}

// The boot catalogue of "El Torito" Bootable CD-ROM Format Specification 1.0,
// 2.0, and the UEFI specification, 13.3.2.1.
const (
	toritoEntryBytes  = 32
	toritoEntries     = isoSector / toritoEntryBytes
	toritoBootable    = 0x88
	toritoNotBootable = 0x00
	toritoHeader      = 0x90 // toritoLastHeader for the last one
	toritoLastHeader  = 0x91
	toritoExtension   = 0x44
	platformBIOS      = 0x00
	platformEFI       = 0xef
)

func (v *volume) readCatalogue(at int64) error {
	b, err := bytesAt(v.r, at, isoSector)
	if err != nil {
		return fmt.Errorf("boot catalogue: %w", err)
	}
	var sum uint16
	for i := 0; i < toritoEntryBytes; i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	if b[0] != 1 || b[30] != 0x55 || b[31] != 0xaa || sum != 0 {
		return errors.New("boot catalogue: no validation entry")
	}
	platform, left, last := b[1], 1, false
	for n := 1; n < toritoEntries; n++ {
		e := b[n*toritoEntryBytes:][:toritoEntryBytes]
		switch {
		case e[0] == toritoExtension:
		case left > 0 && (e[0] == toritoBootable || e[0] == toritoNotBootable):
			left--
			if e[0] == toritoBootable {
				err = v.bootEntry(platform, e)
			}
		case left > 0:
			err = fmt.Errorf("an entry of unknown type %#x", e[0])
		case last || e[0] == 0:
			return nil
		case e[0] == toritoHeader, e[0] == toritoLastHeader:
			platform, left, last = e[1], int(binary.LittleEndian.Uint16(e[2:])), e[0] == toritoLastHeader
		default:
			err = fmt.Errorf("a header of unknown type %#x", e[0])
		}
		if err != nil {
			return fmt.Errorf("boot catalogue: %w", err)
		}
	}
	return nil
}

// bootEntry records an entry; e[8:] is its first sector. The size beside the sector is too small for an EFI system
// partition, and firmware ignores that size.
func (v *volume) bootEntry(platform byte, e []byte) error {
	switch platform {
	case platformBIOS:
		v.bios = true
	case platformEFI:
		if v.efi != nil {
			return errors.New("more than one EFI system partition")
		}
		at := int64(binary.LittleEndian.Uint32(e[8:])) * isoSector
		if at >= v.r.Size() {
			return errors.New("the EFI system partition lies beyond the end")
		}
		v.efi = io.NewSectionReader(v.r, at, v.r.Size()-at)
	default:
		return fmt.Errorf("platform %#x is not known", platform)
	}
	return nil
}

const (
	grubConfig    = "boot/grub/grub.cfg"
	grubKernel    = "boot/vmlinuz"
	grubInitrd    = "boot/initramfs.xz"
	maxGRUBConfig = 64 << 10
)

// grub returns what GRUB boots; nil if the ISO has no GRUB configuration.
func (v *volume) grub() (*GRUB, error) {
	_, ok, err := v.find(grubConfig)
	if err != nil || !ok {
		return nil, err
	}
	file, err := v.open(grubConfig)
	if err != nil {
		return nil, err
	}
	text, err := readAll(file, maxGRUBConfig)
	if err != nil {
		return nil, fmt.Errorf("/%s: %w", grubConfig, err)
	}
	g := &GRUB{}
	if g.Cmdline, err = defaultCmdline(string(text)); err != nil {
		return nil, fmt.Errorf("/%s: %w", grubConfig, err)
	}
	if g.Kernel, err = v.open(grubKernel); err != nil {
		return nil, err
	}
	if g.Initrd, err = v.open(grubInitrd); err != nil {
		return nil, err
	}
	return g, nil
}

// grubSyntax holds the characters that let a line be more than one command with plain words.
const grubSyntax = "\\{}&$|;<>\"'`"

// plainCommand holds the commands of Talos' grub.cfg whose words have no special meaning to GRUB.
var plainCommand = map[string]bool{"set": true, "insmod": true, "terminal_input": true, "terminal_output": true}

var menuEntry = regexp.MustCompile(`^\s*menuentry "[^"\\$` + "`" + `]*" \{\s*$`)

// defaultCmdline reads the command line of the first menu entry, which Talos' grub.cfg makes the default. GRUB runs
// grub.cfg as a program, so defaultCmdline refuses commands that Talos' own file (pkg/imager/iso/grub.cfg) does not
// have.
func defaultCmdline(config string) (string, error) {
	var cmdline string
	entries, kernels, initrds, chosen := 0, 0, 0, "0"
	for line := range strings.Lines(config) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if plainCommand[words[0]] && strings.ContainsAny(line, grubSyntax) || words[0] == "}" && len(words) > 1 {
			return "", fmt.Errorf("more than one command on a line: %.200q", line)
		}
		switch words[0] {
		case "set":
			if v, ok := strings.CutPrefix(strings.Join(words[1:], " "), "default="); ok {
				chosen = v
			}
		case "insmod", "terminal_input", "terminal_output", "}":
		case "menuentry":
			if !menuEntry.MatchString(line) {
				return "", fmt.Errorf("a menu entry with more than its title on the line: %.200q", line)
			}
			entries++
		case "linux":
			if len(words) < 2 || words[1] != "/"+grubKernel {
				return "", fmt.Errorf("it boots another kernel: %.200q", line)
			}
			if entries == 1 {
				kernels++
				text, err := unquote(strings.Join(words[2:], " "))
				if err != nil {
					return "", err
				}
				cmdline = text
			}
		case "initrd":
			if len(words) != 2 || words[1] != "/"+grubInitrd {
				return "", fmt.Errorf("it boots another initramfs: %.200q", line)
			}
			if entries == 1 {
				initrds++
			}
		default:
			return "", fmt.Errorf("the command %.40q is not one of Talos' own", words[0])
		}
	}
	if chosen != "0" || kernels != 1 || initrds != 1 {
		return "", errors.New("the default is not a first entry with one kernel and one initramfs")
	}
	return cmdline, nil
}

// unquote removes Talos' escapes of GRUB's special characters (bootloader/grub/quote.go).
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
		case strings.ContainsRune(`\{}&$|;<>"'`, rune(s[i])):
			return "", fmt.Errorf("%q in a command line is special to GRUB", s[i])
		}
		b.WriteByte(s[i])
	}
	return b.String(), nil
}

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

// ESP is what UEFI boots from an EFI system partition.
type ESP struct {
	UKI *UKI // nil if there is none

	// Beside the UKI:
	Loader      *io.SectionReader // systemd-boot
	Certificate string            // the certificate that signs the UKI: SHA-256, in hex; "" if there is none
	Keys        []string          // files for Secure Boot: the certificate, keys to enrol
	Odd         []string          // files that no image of Talos has

	enrol map[string]*io.SectionReader // the files of Keys that systemd-boot enrols
}

// OpenESP reads the EFI system partition of a disk. UKI is nil if the partition holds none: it is GRUB's own then,
// and the rest is not read.
func OpenESP(r io.ReaderAt, sizeBytes int64) (*ESP, error) {
	src, e := &source{ReaderAt: r}, &ESP{}
	return opened("EFI system partition", src, e, e.readESP(io.NewSectionReader(src, 0, sizeBytes)))
}

// readESP reads an EFI system partition. A partition without a UKI is GRUB's own and is ignored.
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

// Enrolled lists the certificates that systemd-boot would enrol for Secure Boot: the SHA-256 of each, in hex, sorted.
// It refuses anything else that systemd-boot would enrol.
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

// certificateSum returns the SHA-256 of a certificate, in PEM or DER form.
func certificateSum(b []byte) string {
	if block, _ := pem.Decode(b); block != nil {
		b = block.Bytes
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fat32 reads an EFI system partition as mkfs.vfat -F 32 makes it (Microsoft's FAT32 File System Specification 1.03).
//
// go-diskfs v1.9.4 follows a circular chain of clusters until memory runs out, begins in cluster 2 wherever the root
// is, and takes a long name that belongs to another file.
type fat32 struct {
	r            *io.SectionReader
	clusterBytes int64
	tableAt      int64
	dataAt       int64
	clusters     uint32 // the highest number of a cluster
	root         uint32
	page         []byte // the page of the table that was read last
	pageAt       int64
}

var errNotFAT32 = errors.New("no FAT32")

const (
	fatEntryBytes   = 32
	fatLongName     = 0x0f
	fatVolumeLabel  = 0x08
	fatDirectory    = 0x10
	fatEnd          = 0x0ffffff8
	fatSelf         = ".          "
	fatParent       = "..         "
	fatPageBytes    = 4096
	maxFATDirectory = 2 << 20 // by the specification
	maxFATPieces    = 1 << 16 // of one file; mcopy writes one piece

	maxFATDirectories = 64 // an image of Talos has 8
	maxFATFiles       = 1024
)

// openFAT recognises FAT32 by the BIOS parameter block. Firmware that counts clusters would take a small FAT32 for
// FAT16; imager pads its own to be large enough.
func openFAT(r *io.SectionReader) (*fat32, error) {
	b, err := bytesAt(r, 0, 512)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if b[510] != 0x55 || b[511] != 0xaa {
		return nil, errors.New("no boot sector")
	}
	if le.Uint16(b[22:]) != 0 || le.Uint16(b[17:]) != 0 {
		return nil, errNotFAT32 // the table's size, or that of a root directory, in FAT12 and FAT16
	}
	sector, perCluster := int64(le.Uint16(b[11:])), int64(b[13])
	tables, tableSectors := int64(b[16]), int64(le.Uint32(b[36:]))
	total, reserved := int64(le.Uint32(b[32:])), int64(le.Uint16(b[14:]))
	if !powerOfTwo(sector) || sector < 512 || sector > 4096 || !powerOfTwo(perCluster) || tables < 1 || tables > 2 || reserved < 1 {
		return nil, errors.New("its parameters are out of range")
	}
	f := &fat32{
		r: r, clusterBytes: sector * perCluster, tableAt: reserved * sector,
		dataAt: (reserved + tables*tableSectors) * sector, root: le.Uint32(b[44:]), pageAt: -1,
	}
	data := total*sector - f.dataAt
	if data < f.clusterBytes || total*sector > r.Size() {
		return nil, io.ErrUnexpectedEOF
	}
	count := data / f.clusterBytes
	if count > 1<<28 || (count+2)*4 > tableSectors*sector {
		return nil, errors.New("its table is too small")
	}
	f.clusters = uint32(count) + 1
	return f, nil
}

func powerOfTwo(n int64) bool { return n > 0 && n&(n-1) == 0 }

// next returns the cluster after another.
func (f *fat32) next(cluster uint32) (uint32, error) {
	at := f.tableAt + 4*int64(cluster)
	if page := at &^ (fatPageBytes - 1); page != f.pageAt {
		b := make([]byte, fatPageBytes)
		if n, err := f.r.ReadAt(b, page); n < len(b) && !errors.Is(err, io.EOF) {
			return 0, err
		}
		f.page, f.pageAt = b, page
	}
	return binary.LittleEndian.Uint32(f.page[at-f.pageAt:]) & 0x0fffffff, nil
}

// chain returns the content from a cluster on, up to limit bytes.
func (f *fat32) chain(cluster uint32, limit int64) (extents, error) {
	var found extents
	for cluster < fatEnd {
		if cluster < 2 || cluster > f.clusters {
			return nil, fmt.Errorf("no cluster %d", cluster)
		}
		if found.size() >= limit || len(found) > maxFATPieces {
			return nil, errors.New("a chain of clusters is too long, or in too many pieces")
		}
		found = found.add(f.dataAt+int64(cluster-2)*f.clusterBytes, f.clusterBytes)
		var err error
		if cluster, err = f.next(cluster); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// extent is a piece of a file: its place in the file and in the image.
type extent struct{ from, at, size int64 }

type extents []extent

func (x extents) size() int64 {
	if len(x) == 0 {
		return 0
	}
	return x[len(x)-1].from + x[len(x)-1].size
}

func (x extents) add(at, size int64) extents {
	if n := len(x); n > 0 && x[n-1].at+x[n-1].size == at {
		x[n-1].size += size
		return x
	}
	return append(x, extent{from: x.size(), at: at, size: size})
}

// scattered reads a file from its pieces.
type scattered struct {
	r      io.ReaderAt
	pieces extents
}

func (s scattered) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		i := sort.Search(len(s.pieces), func(i int) bool { return s.pieces[i].from+s.pieces[i].size > at })
		if i == len(s.pieces) {
			return done, io.EOF
		}
		within := at - s.pieces[i].from
		n := min(int64(len(p)-done), s.pieces[i].size-within)
		got, err := s.r.ReadAt(p[done:done+int(n)], s.pieces[i].at+within)
		done += got
		if int64(got) < n {
			return done, unexpected(err)
		}
	}
	return done, nil
}

// fatEntry is a file or directory.
type fatEntry struct {
	path    string // in lower case
	name    string // the long one, if any
	short   string // "LINUX", "TALOS-~1.EFI"
	dir     bool
	cluster uint32
	size    int64
}

func (f *fat32) open(e fatEntry) (*io.SectionReader, error) {
	if e.size == 0 {
		return nil, errors.New("it is missing, or empty")
	}
	pieces, err := f.chain(e.cluster, e.size)
	if err != nil {
		return nil, err
	}
	if pieces.size() < e.size {
		return nil, io.ErrUnexpectedEOF
	}
	return io.NewSectionReader(scattered{f.r, pieces}, 0, e.size), nil
}

// files lists all files by path, in lower case. Firmware knows a file by its long
// and by its short name, so no two files of a directory may share either.
func (f *fat32) files() (map[string]fatEntry, error) {
	found := map[string]fatEntry{}
	directories := []fatEntry{{cluster: f.root}}
	for n := 0; n < len(directories); n++ {
		if n == maxFATDirectories || len(found) > maxFATFiles {
			return nil, errTooManyFiles
		}
		entries, err := f.list(directories[n].cluster)
		if err != nil {
			return nil, fmt.Errorf("/%s: %w", directories[n].path, err)
		}
		names := map[string]int{}
		for i, e := range entries {
			for _, name := range []string{e.name, e.short} {
				name = strings.ToLower(name)
				if other, ok := names[name]; ok && other != i {
					return nil, fmt.Errorf("/%s: %s occurs twice", directories[n].path, name)
				}
				names[name] = i
			}
			e.path = path.Join(directories[n].path, strings.ToLower(e.name))
			if e.dir {
				directories = append(directories, e)
			} else {
				found[e.path] = e
			}
		}
	}
	return found, nil
}

// list reads a directory, without "." and "..".
func (f *fat32) list(cluster uint32) ([]fatEntry, error) {
	pieces, err := f.chain(cluster, maxFATDirectory)
	if err != nil {
		return nil, err
	}
	b, err := bytesAt(scattered{f.r, pieces}, 0, int(pieces.size()))
	if err != nil {
		return nil, err
	}
	var found []fatEntry
	long, sum := "", byte(0)
	for ; len(b) >= fatEntryBytes && b[0] != 0; b = b[fatEntryBytes:] {
		attributes := b[11]
		switch {
		case b[0] == 0xe5: // deleted
			long = ""
			continue
		case attributes&0x3f == fatLongName:
			long, sum = longName(b[:fatEntryBytes])+long, b[13]
			continue
		case attributes&fatVolumeLabel != 0 || string(b[:11]) == fatSelf || string(b[:11]) == fatParent:
			long = ""
			continue
		}
		if long != "" && sum != shortSum(b[:11]) {
			// Firmware would use only the short name.
			return nil, fmt.Errorf("the name %.40q belongs to another file", long)
		}
		e := fatEntry{
			name: long, short: shortName(b[:11]), dir: attributes&fatDirectory != 0, size: int64(binary.LittleEndian.Uint32(b[28:])),
			cluster: uint32(binary.LittleEndian.Uint16(b[20:]))<<16 | uint32(binary.LittleEndian.Uint16(b[26:])),
		}
		e.name = cmp.Or(e.name, e.short)
		long = ""
		found = append(found, e)
	}
	return found, nil
}

// longName returns the part of a long name in one entry; the last part comes first.
func longName(b []byte) string {
	var units []uint16
	for _, span := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
		for i := span[0]; i < span[1]; i += 2 {
			u := binary.LittleEndian.Uint16(b[i:])
			if u == 0 || u == 0xffff {
				return string(utf16.Decode(units))
			}
			units = append(units, u)
		}
	}
	return string(utf16.Decode(units))
}

func shortName(b []byte) string {
	name, ext := strings.TrimRight(string(b[:8]), " "), strings.TrimRight(string(b[8:11]), " ")
	if ext == "" {
		return name
	}
	return name + "." + ext
}

// shortSum is the checksum of a short name in the parts of its long name.
func shortSum(b []byte) (sum byte) {
	for _, c := range b {
		sum = sum<<7 | sum>>1
		sum += c
	}
	return sum
}
