// Package bootimage reads the content of Talos' boot media from their bytes alone: a unified kernel image ([UKI]), an
// [ISO], an [Initrd], a system [Extension]. It needs no root, mount or other program, and its memory does not grow with
// an image.
//
// All input is untrusted. Whatever is damaged, foreign or not understood is refused with ErrFormat; nothing is skipped.
// Extended attributes are not compared, but those that grant rights are refused.
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
	"io/fs"
	"maps"
	"path"
	"strings"
)

// ErrFormat says that bytes are damaged, or not in the expected format.
var ErrFormat = errors.New("damaged or of a foreign format")

// refuse wraps the error of a part. The error becomes ErrFormat, unless the bytes are not to blame for it.
func refuse(part string, err error) error {
	if o, ok := errors.AsType[outsideError](err); ok {
		return fmt.Errorf("%s: %w", part, o.err)
	}
	return fmt.Errorf("%s: %w: %w", part, ErrFormat, err)
}

// outsideError is an error that the bytes did not cause: they could not be fetched, a temporary file could not be
// written, or the consumer stopped.
type outsideError struct{ err error }

func (e outsideError) Error() string { return e.err.Error() }
func (e outsideError) Unwrap() error { return e.err }

func outside(err error) error {
	if err == nil {
		return nil
	}
	return outsideError{err}
}

// source records the error that ended reading, whatever its readers make of the error.
type source struct {
	io.Reader
	io.ReaderAt // for random access
	err         error
}

func (s *source) Read(p []byte) (int, error) { return s.record(s.Reader.Read(p)) }

func (s *source) ReadAt(p []byte, off int64) (int, error) { return s.record(s.ReaderAt.ReadAt(p, off)) }

func (s *source) record(n int, err error) (int, error) {
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

// or returns the recorded error of reading instead of err, if there is one. A nil err stays nil.
func (s *source) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// opened returns v, or the reason why src does not hold a part.
func opened[T any](part string, src *source, v T, err error) (T, error) {
	if err != nil {
		var none T
		return none, refuse(part, src.or(err))
	}
	return v, nil
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); got < n {
		return nil, unexpected(err)
	}
	return b, nil
}

// File is a regular file or a symbolic link.
type File struct {
	Mode      fs.FileMode // permissions, set-id and sticky bits; a link's are fs.ModeSymlink | 0o777
	SizeBytes int64       // of a regular file
	SHA256    string      // hex, of a regular file's content
	Link      string      // target of a symbolic link
	// HardLink says that the archive of an image has the file as a hard link to an earlier file, whose content is
	// given here. imager makes an empty file of the link (Untar in pkg/archiver of Talos).
	HardLink bool
	LinkMode fs.FileMode // of a hard link's own entry: the empty file has these permissions
}

// Tree holds the files of a file system by absolute path on the node, without directories.
type Tree map[string]File

// Contents receives each regular file while it is read: image is the squashfs that holds the file ("0.sqsh"; "" for a
// loose file), path is the file's path. Contents need not read the file to its end.
type Contents func(image, path string, content io.Reader) error

// Bounds of one initramfs or extension. Talos' largest extensions have about 5000
// files and 1 GiB; an untrusted image could be a bomb.
const (
	maxFiles     = 100_000
	maxFileBytes = int64(8) << 30 // of all files together
	maxNameBytes = 32 << 20       // of all names and link targets together, which are kept
	maxPathBytes = 4096           // PATH_MAX of Linux
)

var (
	errTooManyFiles = errors.New("too many files")
	errTooLarge     = errors.New("too large")
)

// budget is what may still be read.
type budget struct {
	files    int
	bytes    int64
	names    int
	unpacked int64 // of all compressed members together
}

func newBudget() *budget {
	return &budget{files: maxFiles, bytes: maxFileBytes, names: maxNameBytes, unpacked: maxUnpackedBytes}
}

func (b *budget) take(sizeBytes int64) error {
	if b.files--; b.files < 0 {
		return errTooManyFiles
	}
	if sizeBytes < 0 || sizeBytes > b.bytes {
		return errTooLarge
	}
	b.bytes -= sizeBytes
	return nil
}

// keep counts texts that are kept in memory.
func (b *budget) keep(texts ...string) error {
	for _, text := range texts {
		b.names -= len(text)
	}
	if b.names < 0 {
		return fmt.Errorf("%w: names and links of more than %d bytes", errTooLarge, maxNameBytes)
	}
	return nil
}

// add adds a file. It refuses a second file with the same name: which of the two counts depends on the unpacker.
func (t Tree) add(name string, f File) error {
	if _, ok := t[name]; ok {
		return fmt.Errorf("%s occurs twice", name)
	}
	t[name] = f
	return nil
}

// absolute returns the path on the node for a name in an archive: "rootfs/usr", "./usr" and "/usr" are usual.
func absolute(name string) (string, error) {
	if len(name) > maxPathBytes || strings.ContainsRune(name, 0) {
		return "", errors.New("a file name is not a path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%q leads out of its directory", name)
		}
	}
	return path.Clean("/" + name), nil
}

// The bits of a mode in Linux, cpio and squashfs.
const (
	unixType    = 0o170000
	unixDir     = 0o040000
	unixRegular = 0o100000
	unixSymlink = 0o120000
)

// permissions converts the low bits of a Unix mode to Go's.
func permissions(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func symlink(target string) File { return File{Mode: fs.ModeSymlink | 0o777, Link: target} }

// regular reads a regular file to its end.
func regular(mode fs.FileMode, content io.Reader, visit func(io.Reader) error) (File, error) {
	sum := sha256.New()
	var n countingWriter
	tee := io.TeeReader(content, io.MultiWriter(sum, &n))
	if visit != nil {
		if err := visit(tee); err != nil {
			return File{}, err
		}
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return File{}, err
	}
	return File{Mode: mode, SizeBytes: int64(n), SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

type countingWriter int64

func (n *countingWriter) Write(p []byte) (int, error) {
	*n += countingWriter(len(p))
	return len(p), nil
}

// readAll reads a small input; more than limit is an error.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return b, err
}

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

// stubSum identifies a UKI's program, independently of what it boots: systemd-stub, with the boot picture and the TPM's
// public key that imager adds. It excludes what imager rewrites in the headers (AssembleNative in
// internal/pkg/uki/internal/pe of Talos): sizes and the time.
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
