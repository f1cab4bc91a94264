package bootimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
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
// At a directory record that continues in itself, go-diskfs v1.9.4 never returns and
// kdomanski/iso9660 v0.4.0 ends the process. Both take the first piece of a file for the
// whole, and neither reads the boot catalogue.
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
			return nil, errors.New("no ISO 9660 file system")
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
