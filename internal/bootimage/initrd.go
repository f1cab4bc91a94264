package bootimage

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Initrd is an initramfs as imager builds it: Talos' own part and the additions.
type Initrd struct {
	BaseSHA256 string      // hex, of the raw bytes of Talos' own part
	Extensions []Extension // in the order of extensions.yaml, including `schematic` and `modules.dep`
	Loose      Tree        // files of the additions outside the extensions: firmware, CPU microcode
}

const (
	extensionsFile = "/extensions.yaml"
	imageSuffix    = ".sqsh"
	maxConfigBytes = 4 << 20
)

// ReadInitrd reads an initramfs to its end. Its temporary files are in the directory
// scratch, and are removed when it returns.
//
// Talos' own part is the first compressed archive. Before it, imager puts an uncompressed archive with the CPU
// microcode, which the kernel has to find before it unpacks anything. After it, imager puts an archive with the
// extensions (pkg/imager/extensions/rebuild.go of Talos).
func ReadInitrd(r io.Reader, scratch string) (Initrd, error) {
	return ReadInitrdContents(r, scratch, nil)
}

// ReadInitrdContents does the same as ReadInitrd. It also passes on the content of each added file, and unpacks
// Talos' own part as a kernel does: it finds damage anywhere in that part.
func ReadInitrdContents(r io.Reader, scratch string, contents Contents) (Initrd, error) {
	i := &initrdReader{
		scratch: scratch, contents: contents, budget: newBudget(),
		out: Initrd{Loose: Tree{}}, images: map[string]Tree{},
	}
	src := &source{Reader: r}
	err := eachMember(src, i.archive, func(kind string, member io.Reader) (err error) {
		if i.out.BaseSHA256 == "" {
			i.out.BaseSHA256, err = rawSum(member, func(member io.Reader) error {
				if contents == nil { // the digest covers the packed bytes, and the part is large
					return nil
				}
				return i.budget.unpack(kind, member, bootable)
			})
			return err
		}
		return i.budget.unpack(kind, member, func(content *bufio.Reader) error { return eachArchive(content, i.archive) })
	})
	if err == nil && i.out.BaseSHA256 == "" {
		err = errors.New("not a compressed archive: Talos' own part is missing")
	}
	if err == nil {
		err = i.layers()
	}
	return opened("initramfs", src, i.out, err)
}

// bootable reads the archives of Talos' own part and keeps nothing.
func bootable(content *bufio.Reader) error {
	starts := false
	err := eachArchive(content, func(r *bufio.Reader) error {
		c := newc{r: r}
		for {
			e, _, err := c.next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			starts = starts || path.Clean("/"+e.name) == "/init"
		}
	})
	if err == nil && !starts {
		err = errors.New("no init for the kernel to start")
	}
	return err
}

type initrdReader struct {
	scratch  string
	contents Contents
	budget   *budget
	out      Initrd
	images   map[string]Tree // squashfs by name
	config   []byte          // extensions.yaml
}

// archive reads one cpio archive of the added parts.
func (i *initrdReader) archive(r *bufio.Reader) error {
	c := newc{r: r}
	links := map[inode][]string{} // names of a file whose content has not come yet
	for {
		e, content, err := c.next()
		if errors.Is(err, io.EOF) {
			return i.empty(links)
		}
		if err != nil {
			return err
		}
		if err := i.entry(e, content, links); err != nil {
			return err
		}
	}
}

func (i *initrdReader) entry(e cpioEntry, content io.Reader, links map[inode][]string) error {
	name, err := absolute(e.name)
	if err != nil {
		return err
	}
	switch e.mode & unixType {
	case unixDir:
		if e.sizeBytes != 0 {
			return fmt.Errorf("%s: a directory with content", name)
		}
		return i.budget.take(0)
	case unixSymlink:
		target, err := readAll(content, maxPathBytes)
		if err == nil {
			err = errors.Join(i.budget.take(0), i.budget.keep(name, string(target)))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return i.out.Loose.add(name, symlink(string(target)))
	case unixRegular:
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a symbolic link", name)
	}
	if err := errors.Join(i.budget.take(e.sizeBytes), i.budget.keep(name)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if e.links > 1 && e.sizeBytes == 0 {
		links[e.id] = append(links[e.id], name)
		return i.out.Loose.add(name, File{})
	}
	if err := i.file(name, e, content); err != nil {
		return err
	}
	if e.links > 1 {
		for _, other := range links[e.id] {
			i.out.Loose[other] = i.out.Loose[name]
		}
		delete(links, e.id)
	}
	return nil
}

// empty adds the linked files that turned out to have no content.
func (i *initrdReader) empty(links map[inode][]string) error {
	for _, names := range links {
		for _, name := range names {
			f, err := regular(0o644, bytes.NewReader(nil), nil)
			if err != nil {
				return err
			}
			i.out.Loose[name] = f
		}
	}
	return nil
}

func (i *initrdReader) file(name string, e cpioEntry, content io.Reader) error {
	base := path.Base(name)
	switch {
	case name == extensionsFile:
		if i.config != nil {
			return fmt.Errorf("%s occurs twice", name)
		}
		b, err := readAll(content, maxConfigBytes)
		if err == nil && int64(len(b)) < e.sizeBytes {
			err = io.ErrUnexpectedEOF
		}
		i.config = b
		return err
	case path.Dir(name) == "/" && strings.HasSuffix(base, imageSuffix):
		return i.image(base, content, e.sizeBytes)
	}
	f, err := regular(permissions(e.mode), content, i.visit("", name))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if f.SizeBytes != e.sizeBytes {
		return fmt.Errorf("%s: %w", name, io.ErrUnexpectedEOF)
	}
	return i.out.Loose.add(name, f)
}

func (i *initrdReader) visit(image, name string) func(io.Reader) error {
	if i.contents == nil {
		return nil
	}
	return func(content io.Reader) error { return outside(i.contents(image, name, content)) }
}

// image reads the squashfs of an extension.
func (i *initrdReader) image(name string, content io.Reader, sizeBytes int64) (err error) {
	if _, ok := i.images[name]; ok {
		return fmt.Errorf("%s occurs twice", name)
	}
	s, err := newSpool(content, sizeBytes, i.scratch)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	tree, err := readSquashfs(s, sizeBytes, i.budget, func(path string, content io.Reader) error {
		if i.contents == nil {
			return nil
		}
		return outside(i.contents(name, path, content))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	i.images[name] = tree
	return nil
}

// metadata describes an extension in extensions.yaml and in its own manifest.yaml (pkg/machinery/extensions of Talos).
type metadata struct {
	Name        string `yaml:"name"`
	Version     string `yaml:"version"`
	Author      string `yaml:"author"`
	Description string `yaml:"description"`
	ExtraInfo   string `yaml:"extraInfo"`
}

// extension is one extension with its files; image is the squashfs that holds them.
func (m metadata) extension(image string, files Tree) Extension {
	return Extension{
		Image: image, Name: m.Name, Version: m.Version, Author: m.Author,
		Description: m.Description, ExtraInfo: m.ExtraInfo, Files: files,
	}
}

// layers matches extensions.yaml with the squashfs files. Talos mounts what extensions.yaml lists, so each of these
// files has to exist, once, and no other file.
func (i *initrdReader) layers() error {
	var config struct {
		Layers []struct {
			Image    string   `yaml:"image"`
			Metadata metadata `yaml:"metadata"`
		} `yaml:"layers"`
	}
	if i.config != nil {
		if err := yaml.Unmarshal(i.config, &config); err != nil {
			return fmt.Errorf("%s: %w", extensionsFile, err)
		}
	}
	for _, l := range config.Layers {
		tree, ok := i.images[l.Image]
		if !ok {
			return fmt.Errorf("%s: no image %q for extension %q, or more than one extension for it", extensionsFile, l.Image, l.Metadata.Name)
		}
		delete(i.images, l.Image)
		i.out.Extensions = append(i.out.Extensions, l.Metadata.extension(l.Image, tree))
	}
	for name := range i.images {
		return fmt.Errorf("%s belongs to no extension of %s", name, extensionsFile)
	}
	return nil
}

// spooledInMemory is the size up to which a squashfs needs no temporary file.
const spooledInMemory = 1 << 20

// spool holds input that has to be read in another order than it arrives.
type spool struct {
	io.ReaderAt
	file *os.File // nil if the input is in memory
}

// newSpool reads all of r, which has sizeBytes; the caller closes it.
func newSpool(r io.Reader, sizeBytes int64, dir string) (spool, error) {
	if sizeBytes <= spooledInMemory {
		b := make([]byte, sizeBytes)
		_, err := io.ReadFull(r, b)
		return spool{ReaderAt: bytes.NewReader(b)}, unexpected(err)
	}
	f, err := os.CreateTemp(dir, "squashfs-*")
	if err != nil {
		return spool{}, outside(err)
	}
	s := spool{ReaderAt: f, file: f}
	n, err := io.Copy(writer{f}, r)
	if err == nil && n != sizeBytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return spool{}, errors.Join(err, s.close())
	}
	return s, nil
}

func (s spool) close() error {
	if s.file == nil {
		return nil
	}
	return outside(errors.Join(s.file.Close(), os.Remove(s.file.Name())))
}

// writer distinguishes an error of the temporary file, such as a full disk, from an error of the source.
type writer struct{ f *os.File }

func (w writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	return n, outside(err)
}

// newc reads a cpio archive in the only format that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
//
// u-root v0.16.0 and cavaliergopher/cpio v1.0.1 take an archive that is cut between two files for a whole one. For a
// header of 110 bytes the former allocates 1 GiB; the latter reads "0000 1a4" as 0.
type newc struct {
	r    *bufio.Reader
	body *io.LimitedReader // of the entry read last
	pad  int64             // after the body
}

const (
	newcMagic       = "070701"
	newcHeaderBytes = 110
	newcTrailer     = "TRAILER!!!"
)

// cpioEntry is one file of a cpio archive.
type cpioEntry struct {
	name      string
	mode      uint32
	sizeBytes int64
	links     uint32
	id        inode
}

// inode identifies the entries of one file. All but one of these entries lack the content.
type inode struct{ number, major, minor uint32 }

// next moves to the next entry and returns its content. At the archive's own end it returns io.EOF.
func (c *newc) next() (cpioEntry, io.Reader, error) {
	if c.body != nil {
		if _, err := io.Copy(io.Discard, c.body); err != nil {
			return cpioEntry{}, nil, err
		}
		if c.body.N > 0 {
			return cpioEntry{}, nil, io.ErrUnexpectedEOF
		}
		if err := c.skipPadding(c.pad); err != nil {
			return cpioEntry{}, nil, err
		}
	}
	var h [newcHeaderBytes]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return cpioEntry{}, nil, unexpected(err)
	}
	e, nameBytes, err := parseNewc(h)
	if err != nil {
		return cpioEntry{}, nil, err
	}
	name := make([]byte, nameBytes)
	if _, err := io.ReadFull(c.r, name); err != nil {
		return cpioEntry{}, nil, unexpected(err)
	}
	if i := bytes.IndexByte(name, 0); i != len(name)-1 {
		return cpioEntry{}, nil, errors.New("a file name of the wrong length")
	}
	e.name = string(name[:len(name)-1])
	if err := c.skipPadding(-(newcHeaderBytes + nameBytes) & 3); err != nil {
		return cpioEntry{}, nil, err
	}
	if e.name == newcTrailer {
		if e.sizeBytes != 0 {
			return cpioEntry{}, nil, errors.New("a trailer with content")
		}
		return cpioEntry{}, nil, io.EOF
	}
	c.body, c.pad = &io.LimitedReader{R: c.r, N: e.sizeBytes}, -e.sizeBytes&3
	return e, c.body, nil
}

func (c *newc) skipPadding(n int64) error {
	for range n {
		if _, err := c.r.ReadByte(); err != nil {
			return unexpected(err)
		}
	}
	return nil
}

func parseNewc(h [newcHeaderBytes]byte) (e cpioEntry, nameBytes int64, err error) {
	if string(h[:len(newcMagic)]) != newcMagic {
		return cpioEntry{}, 0, fmt.Errorf("not a cpio header: %q", h[:len(newcMagic)])
	}
	var fields [13]uint32
	for i := range fields {
		text := string(h[len(newcMagic)+8*i:][:8])
		n, err := strconv.ParseUint(text, 16, 32)
		if err != nil {
			return cpioEntry{}, 0, fmt.Errorf("%q in a cpio header is not a number", text)
		}
		fields[i] = uint32(n)
	}
	e = cpioEntry{
		mode: fields[1], links: fields[4], sizeBytes: int64(fields[6]),
		id: inode{number: fields[0], major: fields[7], minor: fields[8]},
	}
	nameBytes = int64(fields[11])
	if nameBytes < 1 || nameBytes > maxPathBytes {
		return cpioEntry{}, 0, fmt.Errorf("a file name of %d bytes", nameBytes)
	}
	return e, nameBytes, nil
}

// unexpected turns an end of input where more has to come into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Extension is a system extension: its metadata and its files.
type Extension struct {
	Image                              string // "0.sqsh", its squashfs in an initramfs; empty for an extension image
	Name, Version, Author, Description string
	ExtraInfo                          string // of the factory's `schematic` extension: the schematic
	Files                              Tree
}

const (
	manifestFile = "/manifest.yaml"
	rootfsDir    = "/rootfs"
)

// ReadExtension reads the flattened tar of an extension image: manifest.yaml and rootfs/.
func ReadExtension(tarOfImage io.Reader) (Extension, error) {
	src := &source{Reader: tarOfImage}
	e, err := readExtension(src)
	return opened("extension", src, e, err)
}

func readExtension(r io.Reader) (Extension, error) {
	files, manifest, budget := Tree{}, []byte(nil), newBudget()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Extension{}, err
		}
		name, err := absolute(h.Name)
		if err != nil {
			return Extension{}, err
		}
		if name == manifestFile {
			if manifest != nil || h.Typeflag != tar.TypeReg {
				return Extension{}, errors.New(manifestFile + " has to be one file")
			}
			if manifest, err = readAll(t, maxConfigBytes); err != nil {
				return Extension{}, fmt.Errorf("%s: %w", manifestFile, err)
			}
			continue
		}
		if err := addTarred(files, name, h, t, budget); err != nil {
			return Extension{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	// Also read what follows the archive's end: the bytes' checksum is verified when they end.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return Extension{}, err
	}
	if manifest == nil {
		return Extension{}, errors.New("no " + manifestFile)
	}
	var m struct {
		Metadata metadata `yaml:"metadata"`
	}
	if err := yaml.Unmarshal(manifest, &m); err != nil {
		return Extension{}, fmt.Errorf("%s: %w", manifestFile, err)
	}
	if m.Metadata.Name == "" {
		return Extension{}, errors.New(manifestFile + " does not name the extension")
	}
	return m.Metadata.extension("", files), nil
}

// addTarred adds the files below rootfs/. Apart from rootfs/ and the manifest, Talos allows only directories (Load in
// internal/pkg/extensions/extensions.go).
func addTarred(files Tree, name string, h *tar.Header, content io.Reader, b *budget) error {
	if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	inner, ok := strings.CutPrefix(name, rootfsDir+"/")
	if !ok {
		return errors.New("neither the manifest nor below rootfs/")
	}
	if err := errors.Join(b.take(h.Size), b.keep(inner, h.Linkname)); err != nil {
		return err
	}
	inner = "/" + inner
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := regular(permissions(uint32(h.Mode)), content, nil)
		if err != nil {
			return err
		}
		return files.add(inner, f)
	case tar.TypeSymlink:
		return files.add(inner, symlink(h.Linkname))
	case tar.TypeLink:
		target, err := absolute(h.Linkname)
		if err != nil {
			return err
		}
		f, ok := files[strings.TrimPrefix(target, rootfsDir)]
		if !ok {
			return fmt.Errorf("a hard link to %s, which does not come before it", target)
		}
		if f.HardLink = f.Mode.IsRegular(); f.HardLink {
			f.LinkMode = permissions(uint32(h.Mode))
		}
		return files.add(inner, f)
	}
	return errors.New("neither a file, a directory nor a link")
}

// ReadOverlayOptions reads /overlay/extra-options of an installer, which is YAML:
// the options that the overlay's program gets in addition to the machine's disk.
func ReadOverlayOptions(r io.Reader) (map[string]any, error) {
	src := &source{Reader: r}
	b, err := readAll(src, maxConfigBytes)
	var options map[string]any
	if err == nil {
		err = yaml.Unmarshal(b, &options)
	}
	return opened("overlay options", src, options, err)
}
