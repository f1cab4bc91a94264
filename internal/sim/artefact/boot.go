package artefact

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/bootimage"
)

// platformArg is the kernel argument that tells Talos where it runs.
const platformArg = "talos.platform="

// labKernel is the kernel release (uname -r) of the lab's images.
const labKernel = "6.18.0-talos"

func (img Image) kernel() string { return cmp.Or(img.Kernel, labKernel) }

// linux returns a fake kernel with its release in it. Only an x86 kernel has its release in its boot header:
// Documentation/arch/x86/boot.rst of Linux.
func (img Image) linux() []byte {
	name := fmt.Appendf(nil, "%s (lab@recast) #1 SMP %s\x00", img.kernel(), img.Arch)
	if img.Arch != "amd64" {
		return name
	}
	const magic, version, setup, at = 0x202, 0x20e, 0x200, 0x100
	b := make([]byte, setup+at)
	copy(b[magic:], "HdrS")
	binary.LittleEndian.PutUint16(b[version:], at)
	return append(b, name...)
}

// UKI makes a unified kernel image: kernel, command line and initramfs with the extensions in one file. UKI caches
// results; the caller must not change the bytes.
func UKI(img Image) ([]byte, error) {
	if err := img.validate(); err != nil {
		return nil, err
	}
	return made(&madeUKIs, img, func() ([]byte, error) {
		initrd, err := initramfs(img)
		if err != nil {
			return nil, fmt.Errorf("make initramfs: %w", err)
		}
		return portableExecutable(img.Arch, []section{
			{".osrel", osRelease(img.TalosVersion)},
			{".cmdline", []byte(img.Cmdline)},
			{".uname", []byte(img.kernel())},
			{".linux", img.linux()},
			{".initrd", initrd},
		})
	})
}

// ReadUKI reads a unified kernel image; any other file, or a damaged image, is ErrNotBootable.
func ReadUKI(b []byte) (Image, error) {
	return readImage(&readImages, b, func() (Image, error) {
		u, err := bootimage.OpenUKI(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
		}
		return imageOf(u)
	})
}

// imageOf returns the image that a machine finds when it boots a UKI.
func imageOf(u *bootimage.UKI) (Image, error) {
	img := Image{TalosVersion: u.Talos, Arch: u.Arch, Cmdline: u.Cmdline}
	if u.Uname != labKernel {
		img.Kernel = u.Uname
	}
	for arg := range strings.FieldsSeq(u.Cmdline) {
		if platform, ok := strings.CutPrefix(arg, platformArg); ok {
			img.Platform = platform
		}
	}
	files := map[string]map[string][]byte{}
	initrd, err := bootimage.ReadInitrdContents(u.Initrd, os.TempDir(), func(image, path string, content io.Reader) error {
		b, err := io.ReadAll(content)
		if files[image] == nil {
			files[image] = map[string][]byte{}
		}
		files[image][path] = b
		return err
	})
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	img.Loose = files[""] // imager copies firmware, so it contains no links
	for _, e := range initrd.Extensions {
		if e.Name == schematicName {
			img.SchematicID, img.SchematicYAML = e.Version, e.ExtraInfo
			img.SchematicAuthor = e.Author
			continue
		}
		img.Extensions = append(img.Extensions, Extension{
			Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description,
			Files: files[e.Image], Links: linksOf(e.Files),
		})
	}
	if err := img.validate(); err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	return img, nil
}

func linksOf(tree bootimage.Tree) map[string]string {
	var links map[string]string
	for name, f := range tree {
		if f.Mode.Type() != fs.ModeSymlink {
			continue
		}
		if links == nil {
			links = map[string]string{}
		}
		links[name] = f.Link
	}
	return links
}

// clone returns an image whose maps and lists are the caller's own.
func (img Image) clone() Image {
	img.Loose = maps.Clone(img.Loose)
	img.Extensions = append([]Extension(nil), img.Extensions...)
	for i := range img.Extensions {
		e := &img.Extensions[i]
		e.Files, e.Links = maps.Clone(e.Files), maps.Clone(e.Links)
	}
	return img
}

const (
	fileMode       = 0o644
	extensionsFile = "extensions.yaml"
	schematicName  = "schematic" // of the factory's own extension
	schematicDir   = "/usr/local/share/schematic/"
	modulesName    = "modules.dep"
	modulesDir     = "/usr/lib/modules/"
)

type layers struct {
	Layers []extensionLayer `yaml:"layers"`
}

type extensionLayer struct {
	Image    string            `yaml:"image"`
	Metadata extensionMetadata `yaml:"metadata"`
}

// initramfs returns what imager makes: the CPU microcode in an uncompressed archive, Talos' own part, and an archive
// with the extensions and the firmware. Without extensions there is only Talos' own part.
func initramfs(img Image) ([]byte, error) {
	base, err := baseInitramfs(img)
	if err != nil {
		return nil, err
	}
	extensions, err := img.layers()
	if err != nil {
		return nil, err
	}
	if len(extensions) == 0 && len(img.Loose) == 0 {
		return base, nil
	}
	added, loose := map[string][]byte{}, map[string][]byte{}
	maps.Copy(loose, img.Loose)
	var config layers
	for n, e := range extensions {
		name := strconv.Itoa(n) + ".sqsh"
		if e.Name == modulesName {
			name = modulesName + ".sqsh"
		}
		if e, err = moveFirmware(e, loose); err == nil {
			added[name], err = squash(e.Files, e.Links)
		}
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", e.Name, err)
		}
		config.Layers = append(config.Layers, extensionLayer{Image: name, Metadata: e.metadata(img.SchematicYAML)})
	}
	if added[extensionsFile], err = yaml.Marshal(config); err != nil {
		return nil, fmt.Errorf("encode %s: %w", extensionsFile, err)
	}
	early := map[string][]byte{}
	for name, content := range loose {
		if strings.HasPrefix(name, "/kernel/") {
			early[name] = content
		} else {
			added[relative(name)] = content
		}
	}
	var b []byte
	if len(early) > 0 {
		b = cpioArchive(early)
	}
	packed, err := compressed(cpioArchive(added))
	return append(append(b, base...), packed...), err
}

// layers returns the extensions in imager's order: the factory's own after the others, and modules.dep last.
func (img Image) layers() ([]Extension, error) {
	var found, dependencies []Extension
	modules := map[string][]byte{}
	for _, e := range img.Extensions {
		if e.Name == modulesName {
			dependencies = append(dependencies, e)
			continue
		}
		found = append(found, e)
		for _, name := range e.paths() {
			inner, ok := strings.CutPrefix(name, modulesDir)
			if !ok {
				continue
			}
			module, ok := strings.CutPrefix(inner, img.kernel()+"/")
			if !ok {
				return nil, fmt.Errorf("copying kernel modules of %s failed: %s is for another kernel than %s", e.Name, name, img.kernel())
			}
			modules[module] = nil
		}
	}
	if img.SchematicID != "" {
		found = append(found, img.schematicExtension())
	}
	if len(dependencies) == 0 && len(modules) > 0 {
		dependencies = append(dependencies, modulesExtension(img.kernel(), slices.Sorted(maps.Keys(modules))))
	}
	return append(found, dependencies...), nil
}

// modulesExtension returns imager's extension for kernel modules (GenerateKernelModuleDependencyTreeExtension in
// internal/pkg/extensions of Talos).
func modulesExtension(kernel string, modules []string) Extension {
	dir := modulesDir + kernel + "/"
	return Extension{
		Name: modulesName, Version: kernel, Author: "Talos Machinery", Description: "Combined modules.dep for all extensions",
		Files: map[string][]byte{
			dir + "modules.dep":   []byte(strings.Join(modules, ":\n") + ":\n"),
			dir + "modules.alias": []byte("# Aliases extracted from modules themselves.\n"),
		},
	}
}

// schematicExtension returns the factory's virtual extension (internal/artifacts/schematic.go of image-factory): an
// empty file; the rest is metadata.
func (img Image) schematicExtension() Extension {
	return Extension{
		Name: schematicName, Version: img.SchematicID, Author: img.SchematicAuthor,
		Description: "Virtual extension which specifies the schematic of the image built with Image Factory.",
		Files:       map[string][]byte{schematicDir + img.SchematicID: {}},
	}
}

// baseInitramfs returns Talos' own part of the initramfs, a tiny one.
func baseInitramfs(img Image) ([]byte, error) {
	rootfs, err := squash(map[string][]byte{
		"/usr/lib/os-release": osRelease(img.TalosVersion),
		"/sbin/init":          fmt.Appendf(nil, "machined %s %s\n", img.TalosVersion, img.Arch),
	}, nil)
	if err != nil {
		return nil, err
	}
	return compressed(cpioArchive(map[string][]byte{
		"init":        fmt.Appendf(nil, "init %s %s\n", img.TalosVersion, img.Arch),
		"rootfs.sqsh": rootfs,
	}))
}

// osRelease returns /etc/os-release of Talos (pkg/machinery/version/os-release).
func osRelease(version string) []byte {
	return fmt.Appendf(nil, "NAME=\"Talos\"\nID=talos\nVERSION_ID=%s\nPRETTY_NAME=\"Talos (%s)\"\n"+
		"HOME_URL=\"https://www.talos.dev/\"\nBUG_REPORT_URL=\"https://github.com/siderolabs/talos/issues\"\n"+
		"VENDOR_NAME=\"Sidero Labs\"\nVENDOR_URL=\"https://www.siderolabs.com/\"\n", version, version)
}

func compressed(b []byte) ([]byte, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	out := w.EncodeAll(b, nil)
	return out, w.Close()
}

type section struct {
	name    string
	content []byte
}

const (
	peAlignment    = 512
	peMemory       = 4096
	peOffset       = 0x80 // of the PE header, after the DOS header
	peHeaderBytes  = 4 + 20 + 240
	peSectionBytes = 40
)

// portableExecutable makes the PE32+ file of an EFI application. Its only code is a stub that does nothing.
func portableExecutable(arch string, sections []section) ([]byte, error) {
	machine := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
	if arch == "arm64" {
		machine = pe.IMAGE_FILE_MACHINE_ARM64
	}
	sections = append([]section{{".text", []byte{0xc3}}}, sections...)
	headers := roundUp(peOffset+peHeaderBytes+len(sections)*peSectionBytes, peAlignment)
	file, memory := headers, roundUp(headers, peMemory)
	var table, content bytes.Buffer
	for _, s := range sections {
		h := pe.SectionHeader32{
			VirtualSize: uint32(len(s.content)), VirtualAddress: uint32(memory),
			SizeOfRawData: uint32(roundUp(len(s.content), peAlignment)), PointerToRawData: uint32(file),
			Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
		}
		if copy(h.Name[:], s.name) < len(s.name) {
			return nil, fmt.Errorf("section %s: the name is too long", s.name)
		}
		if err := binary.Write(&table, binary.LittleEndian, h); err != nil {
			return nil, fmt.Errorf("section %s: %w", s.name, err)
		}
		content.Write(padded(bytes.Clone(s.content), peAlignment))
		file += int(h.SizeOfRawData)
		memory += roundUp(len(s.content), peMemory)
	}
	head := make([]byte, peOffset, file)
	copy(head, "MZ")
	binary.LittleEndian.PutUint32(head[0x3c:], peOffset)
	out := bytes.NewBuffer(head)
	out.WriteString("PE\x00\x00")
	err := binary.Write(out, binary.LittleEndian, struct {
		pe.FileHeader
		pe.OptionalHeader64
	}{
		pe.FileHeader{
			Machine: machine, NumberOfSections: uint16(len(sections)), SizeOfOptionalHeader: 240,
			Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE,
		},
		pe.OptionalHeader64{
			Magic: 0x20b, AddressOfEntryPoint: uint32(roundUp(headers, peMemory)), SectionAlignment: peMemory, FileAlignment: peAlignment,
			SizeOfImage: uint32(memory), SizeOfHeaders: uint32(headers), Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write headers: %w", err)
	}
	out.Write(table.Bytes())
	return append(padded(out.Bytes(), peAlignment), content.Bytes()...), nil
}

// signed returns a copy of a program of portableExecutable with a certificate table and a checksum, as signing leaves
// it. Nothing in the lab verifies the signature.
func signed(program []byte) []byte {
	const optional, checksum, table, alignment = peOffset + 4 + 20, 64, 112 + 4*8, 8
	out := padded(bytes.Clone(program), alignment)
	certificate := binary.LittleEndian.AppendUint32(nil, 8+16)
	certificate = append(certificate, 0, 2, 2, 0) // WIN_CERT_REVISION_2_0, WIN_CERT_TYPE_PKCS_SIGNED_DATA
	certificate = append(certificate, "no real signature"[:16]...)
	binary.LittleEndian.PutUint32(out[optional+checksum:], 0xc0ffee)
	binary.LittleEndian.PutUint32(out[optional+table:], uint32(len(out)))
	binary.LittleEndian.PutUint32(out[optional+table+4:], uint32(len(certificate)))
	return append(out, certificate...)
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

// A sealed value is magic, kind, length of the JSON, its SHA-256 and the JSON: any missing or changed byte is detected.
const (
	sealMagic  = "LABSEAL1"
	sealHeader = len(sealMagic) + kindBytes + 8 + sha256.Size
	kindBytes  = 4
)

func seal(kind string, value any) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // a command line must be findable in the bytes
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	sum := sha256.Sum256(body.Bytes())
	b := make([]byte, 0, sealHeader+body.Len())
	b = append(b, sealMagic...)
	b = append(b, kind...)
	b = binary.BigEndian.AppendUint64(b, uint64(body.Len()))
	b = append(b, sum[:]...)
	return append(b, body.Bytes()...), nil
}

// unseal reads a sealed value and returns the bytes after it.
func unseal(kind string, b []byte, value any) (rest []byte, err error) {
	if len(b) < sealHeader {
		return nil, fmt.Errorf("%d bytes are too few", len(b))
	}
	if string(b[:len(sealMagic)]) != sealMagic {
		return nil, errors.New("no magic number")
	}
	head := b[len(sealMagic):]
	if got := string(head[:kindBytes]); got != kind {
		return nil, fmt.Errorf("holds %q, not %q", got, kind)
	}
	size := binary.BigEndian.Uint64(head[kindBytes:])
	body := b[sealHeader:]
	if size > uint64(len(body)) {
		return nil, fmt.Errorf("truncated: %d of %d bytes", len(body), size)
	}
	body, rest = body[:size], body[size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], head[kindBytes+8:][:sha256.Size]) {
		return nil, errors.New("damaged: the checksum does not match")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(value); err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind, err)
	}
	return rest, nil
}

const firmwareDir = "/usr/lib/firmware/"

// microcode lists the files that imager concatenates for the kernel's early loader (earlyCPUUcode in
// internal/pkg/extensions/compress.go of Talos).
var microcode = []struct{ pattern, target string }{
	{firmwareDir + "intel-ucode/*", "/kernel/x86/microcode/GenuineIntel.bin"},
	{firmwareDir + "amd-ucode/microcode_amd*.bin", "/kernel/x86/microcode/AuthenticAMD.bin"},
}

// moveFirmware returns the extension without its firmware, which it moves to loose: the kernel requests firmware
// before it mounts extensions. A link moves as its target's content, and dangles once the target has moved
// (handleFilesOp and appendBlob, ibid.).
func moveFirmware(e Extension, loose map[string][]byte) (Extension, error) {
	e.Files, e.Links = maps.Clone(e.Files), maps.Clone(e.Links)
	move := func(name string) ([]byte, error) {
		content, err := e.open(name)
		delete(e.Files, name)
		delete(e.Links, name)
		return content, err
	}
	for _, m := range microcode {
		for _, name := range e.paths() {
			// The pattern is a valid constant.
			if ok, _ := path.Match(m.pattern, name); !ok {
				continue
			}
			content, err := move(name)
			if err != nil {
				return e, err
			}
			loose[m.target] = slices.Concat(loose[m.target], content)
		}
	}
	for _, name := range e.paths() {
		if !strings.HasPrefix(name, firmwareDir) {
			continue
		}
		content, err := move(name)
		if err != nil {
			return e, err
		}
		loose[name] = content
	}
	return e, nil
}

// paths returns the paths of all files and links, in the order of a walk.
func (e Extension) paths() []string {
	names := slices.Concat(slices.Collect(maps.Keys(e.Files)), slices.Collect(maps.Keys(e.Links)))
	slices.SortFunc(names, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return names
}

// open reads the file at a path, following links.
func (e Extension) open(name string) ([]byte, error) {
	const tooMany = 40 // Linux' limit
	at := name
	for range tooMany {
		if content, ok := e.Files[at]; ok {
			return content, nil
		}
		target, ok := e.Links[at]
		if !ok {
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, at)
		}
		if path.IsAbs(target) { // on imager's machine
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, target)
		}
		at = path.Join(path.Dir(at), target)
	}
	return nil, fmt.Errorf("open %s: too many levels of symbolic links", name)
}

// A process boots the same few images and disks thousands of times, so results of building and parsing are cached. An
// evicted result is computed again.
var (
	madeUKIs, madeISOs   memo[[]byte]
	readImages, readISOs memo[Image]
	readDisks            memo[Disk]
)

// keptImages limits each cache: at some 10 KiB for a UKI and 100 KiB for an ISO, 30 MiB in all.
const keptImages = 256

type memo[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
	order [][sha256.Size]byte
}

func (m *memo[V]) of(key [sha256.Size]byte, compute func() (V, error)) (V, error) {
	m.mu.Lock()
	v, ok := m.found[key]
	m.mu.Unlock()
	if ok {
		return v, nil
	}
	v, err := compute()
	if err == nil {
		m.put(key, v)
	}
	return v, err
}

func (m *memo[V]) put(key [sha256.Size]byte, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.found[key]; ok {
		return
	}
	if m.found == nil {
		m.found = map[[sha256.Size]byte]V{}
	}
	if len(m.order) >= keptImages {
		delete(m.found, m.order[0])
		m.order = m.order[1:]
	}
	m.found[key] = v
	m.order = append(m.order, key)
}

// made returns the packed form of an image: the cached one, or the result of build.
func made(cache *memo[[]byte], img Image, build func() ([]byte, error)) ([]byte, error) {
	input, err := json.Marshal(img)
	if err != nil {
		return nil, fmt.Errorf("encode image: %w", err)
	}
	return cache.of(sha256.Sum256(input), build)
}

// readImage returns the caller's own copy of the image in b.
func readImage(cache *memo[Image], b []byte, read func() (Image, error)) (Image, error) {
	img, err := cache.of(sha256.Sum256(b), read)
	return img.clone(), err
}
