package bootimage

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
)

// UKI is a unified kernel image: what its main profile boots.
type UKI struct {
	Arch    string // "amd64" or "arm64", of the PE machine type
	Talos   string // "v1.13.9", VERSION_ID of .osrel
	Uname   string // kernel release; empty if the UKI has no .uname
	Cmdline string // kernel command line
	Stub    string // identifies systemd-stub, the program that boots all this: SHA-256, in hex
	Kernel  *io.SectionReader
	Initrd  *io.SectionReader
	File    *io.SectionReader // all of it
}

const (
	maxTextBytes   = 64 << 10 // of .osrel, .cmdline and .uname; x86 accepts a command line of 2 KiB
	maxUKISections = 128
)

// OpenUKI reads the headers of a UKI of sizeBytes; kernel and initrd are read from r on demand.
func OpenUKI(r io.ReaderAt, sizeBytes int64) (*UKI, error) {
	src := &source{ReaderAt: r}
	u, err := openUKI(io.NewSectionReader(src, 0, sizeBytes), sizeBytes)
	return opened("UKI", src, u, err)
}

func openUKI(r io.ReaderAt, sizeBytes int64) (*UKI, error) {
	if err := checkHeader(r); err != nil {
		return nil, err
	}
	file, err := pe.NewFile(r)
	if err != nil {
		return nil, err
	}
	if len(file.Sections) > maxUKISections {
		return nil, fmt.Errorf("%d sections", len(file.Sections))
	}
	u := &UKI{File: io.NewSectionReader(r, 0, sizeBytes)}
	switch file.Machine {
	case pe.IMAGE_FILE_MACHINE_AMD64:
		u.Arch = "amd64"
	case pe.IMAGE_FILE_MACHINE_ARM64:
		u.Arch = "arm64"
	default:
		return nil, fmt.Errorf("machine type %#x is neither amd64 nor arm64", file.Machine)
	}
	main, err := mainProfile(file.Sections)
	if err != nil {
		return nil, err
	}
	if u.Kernel, err = sectionOf(r, main, ".linux", sizeBytes); err != nil {
		return nil, err
	}
	if u.Initrd, err = sectionOf(r, main, ".initrd", sizeBytes); err != nil {
		return nil, err
	}
	if err := u.readTexts(r, main, sizeBytes); err != nil {
		return nil, err
	}
	if u.Stub, err = stubSum(r, file, sizeBytes); err != nil {
		return nil, err
	}
	return u, nil
}

// checkHeader refuses headers that debug/pe accepts: debug/pe reads object files as well as programs, and loads a
// whole symbol table into memory. imager's UKIs have no symbol table (AssembleNative in internal/pkg/uki/internal/pe
// of Talos).
func checkHeader(r io.ReaderAt) error {
	const at, symbols = 0x3c, 4 + 8 // of the PE header, and of PointerToSymbolTable in it
	b, err := bytesAt(r, 0, at+4)
	if err != nil {
		return err
	}
	if string(b[:2]) != "MZ" {
		return errors.New("no PE file")
	}
	b, err = bytesAt(r, int64(binary.LittleEndian.Uint32(b[at:]))+symbols, 4)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b) != 0 {
		return errors.New("it has a table of symbols")
	}
	return nil
}

func (u *UKI) readTexts(r io.ReaderAt, main map[string]*pe.Section, sizeBytes int64) error {
	texts := map[string]string{}
	for _, name := range []string{".osrel", ".cmdline", ".uname"} {
		if name == ".uname" && main[name] == nil {
			continue // imager omits it if the kernel does not state its release
		}
		s, err := sectionOf(r, main, name, sizeBytes)
		if err != nil {
			return err
		}
		b, err := readAll(s, maxTextBytes)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		texts[name] = string(bytes.TrimRight(b, "\x00"))
		if strings.ContainsRune(texts[name], 0) {
			return fmt.Errorf("%s: a zero byte within the text", name)
		}
	}
	u.Cmdline, u.Uname = strings.TrimSpace(texts[".cmdline"]), strings.TrimSpace(texts[".uname"])
	var err error
	u.Talos, err = versionOf(texts[".osrel"])
	return err
}

// mainProfile finds the sections of a UKI's first profile as systemd-stub does. Of sections with one name the first
// counts, and sections after the first .profile override those before it (pe_locate_profile_sections in systemd's
// pe.c). Later profiles may only change the command line, as Talos' own do.
func mainProfile(sections []*pe.Section) (map[string]*pe.Section, error) {
	common, first := map[string]*pe.Section{}, map[string]*pe.Section{}
	profiles := 0
	for _, s := range sections {
		switch s.Name {
		case ".profile":
			profiles++
			continue
		case ".ucode", ".dtb", ".dtbauto", ".hwids", ".efifw":
			// systemd-stub would pass these to the kernel or the firmware; Talos' images have none.
			return nil, fmt.Errorf("section %s does not belong in an image of Talos", s.Name)
		case ".linux", ".initrd":
			if profiles > 1 {
				return nil, fmt.Errorf("profile %d has a %s of its own", profiles-1, s.Name)
			}
		}
		into := common
		if profiles == 1 {
			into = first
		}
		if profiles <= 1 && into[s.Name] == nil {
			into[s.Name] = s
		}
	}
	maps.Copy(common, first)
	return common, nil
}

// sectionOf returns the content of a section as the loader would put it into memory, without the file's padding.
func sectionOf(r io.ReaderAt, sections map[string]*pe.Section, name string, sizeBytes int64) (*io.SectionReader, error) {
	s := sections[name]
	if s == nil {
		return nil, errors.New("no section " + name)
	}
	if s.VirtualSize > s.Size || int64(s.Offset)+int64(s.Size) > sizeBytes {
		return nil, fmt.Errorf("section %s ends after the file", name)
	}
	return io.NewSectionReader(r, int64(s.Offset), int64(s.VirtualSize)), nil
}

// versionOf returns VERSION_ID of a Talos os-release file.
func versionOf(osRelease string) (string, error) {
	var version string
	lines := bufio.NewScanner(strings.NewReader(osRelease))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "VERSION_ID="); ok {
			version = strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf(".osrel: %w", err)
	}
	if version == "" {
		return "", errors.New(".osrel has no VERSION_ID")
	}
	return version, nil
}

// buildSections are the sections of a UKI that may differ between builds: those that
// recast reads itself, later profiles, and their signature for a TPM.
var buildSections = map[string]bool{
	".osrel": true, ".cmdline": true, ".uname": true, ".linux": true, ".initrd": true, ".profile": true, ".pcrsig": true,
}

// stubSum identifies a UKI's program, independently of what it boots: systemd-stub,
// with the boot picture and the TPM's public key that imager adds. It excludes what
// imager rewrites in the headers (AssembleNative in internal/pkg/uki/internal/pe of
// Talos): sizes and the time.
func stubSum(r io.ReaderAt, file *pe.File, sizeBytes int64) (string, error) {
	header, ok := file.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return "", errors.New("no PE32+ program")
	}
	h := *header
	h.SizeOfCode, h.SizeOfInitializedData, h.SizeOfImage, h.SizeOfHeaders, h.CheckSum = 0, 0, 0, 0, 0
	h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY] = pe.DataDirectory{}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %d\n", file.Machine, file.Characteristics)
	if err := binary.Write(sum, binary.LittleEndian, h); err != nil {
		return "", err
	}
	own, end := true, int64(0)
	for _, s := range file.Sections {
		if int64(s.VirtualAddress) < end { // the section would replace what is compared
			return "", fmt.Errorf("section %s overlaps another one in memory", s.Name)
		}
		end = int64(s.VirtualAddress) + int64(max(s.VirtualSize, s.Size))
		if buildSections[s.Name] {
			own = false
			continue
		}
		place := s.VirtualAddress
		if !own { // the section follows sections of any length
			place = 0
		}
		fmt.Fprintf(sum, "%q %t %d %d %d %d\n", s.Name, own, place, s.VirtualSize, s.Size, s.Characteristics)
		if int64(s.Offset)+int64(s.Size) > sizeBytes {
			return "", fmt.Errorf("section %s ends after the file", s.Name)
		}
		if _, err := io.Copy(sum, io.NewSectionReader(r, int64(s.Offset), int64(s.Size))); err != nil {
			return "", fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// KernelRelease returns the release (uname -r) recorded in a kernel; "" if there is none. An x86 kernel has the
// release in its boot header (Documentation/arch/x86/boot.rst of Linux, fields header and kernel_version). The header
// of an arm64 kernel has no such field.
func KernelRelease(kernel io.ReaderAt) string {
	const magic, version, setup, longest = 0x202, 0x20e, 0x200, 256
	var header [version + 2 - magic]byte
	if _, err := kernel.ReadAt(header[:], magic); err != nil || !bytes.HasPrefix(header[:], []byte("HdrS")) {
		return ""
	}
	at := int64(binary.LittleEndian.Uint16(header[version-magic:]))
	if at == 0 {
		return ""
	}
	var text [longest]byte
	n, _ := kernel.ReadAt(text[:], setup+at) // a small kernel ends before
	line, _, found := bytes.Cut(text[:n], []byte{0})
	if !found {
		return ""
	}
	release, _, _ := strings.Cut(string(line), " ")
	return release
}
