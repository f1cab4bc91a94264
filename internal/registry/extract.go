package registry

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/schematics"
)

// Extract streams the files of an image: see images.Puller. Close also ends a stream that was not read to its end.
func (c *Client) Extract(ctx context.Context, ref, arch string) (io.ReadCloser, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	img, err := c.image(ctx, r, arch)
	if err != nil {
		cancel()
		return nil, err
	}
	return &extraction{ctx: ctx, archive: flatten(img), cancel: cancel, ref: r}, nil
}

// image returns the image for an architecture. It fetches manifests and at most the image's configuration, no layers.
func (c *Client) image(ctx context.Context, ref name.Reference, arch string) (v1.Image, error) {
	ref = c.relocate(ref)
	desc, err := c.get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if desc.MediaType.IsIndex() {
		return c.childOf(desc, ref, arch)
	}
	img, err := desc.Image()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, explain(err, ref.Context()))
	}
	// A handmade image need not name an architecture.
	if config.Architecture != "" && config.Architecture != arch {
		return nil, otherArch(ref, arch, []string{config.Architecture})
	}
	return img, nil
}

func (c *Client) childOf(desc *remote.Descriptor, ref name.Reference, arch string) (v1.Image, error) {
	index, m, err := indexOf(desc)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
	}
	digest, err := digestFor(m, ref, arch)
	if err != nil {
		return nil, err
	}
	img, err := index.Image(digest)
	if notFound(err) {
		return nil, missingError(ref.Context().Digest(digest.String()), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s for %s: %w", ref, arch, explain(err, ref.Context()))
	}
	return img, nil
}

func indexOf(desc *remote.Descriptor) (v1.ImageIndex, *v1.IndexManifest, error) {
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, nil, err
	}
	m, err := index.IndexManifest()
	return index, m, err
}

// digestFor returns the digest of the only image for an architecture. Of two images, for example for variants of the
// architecture, a node may choose another than we do.
func digestFor(m *v1.IndexManifest, ref name.Reference, arch string) (digest v1.Hash, err error) {
	for _, d := range m.Manifests {
		switch {
		case d.Platform == nil || !d.Platform.Satisfies(v1.Platform{OS: "linux", Architecture: arch}) || d.Digest == digest:
		case digest != v1.Hash{}:
			return digest, fault.WithHint(fault.ExtensionUnknown.Refusedf("%s has more than one image for %s: %s and %s", ref, arch, digest, d.Digest),
				"a node might run either: build and push one image for each architecture")
		default:
			digest = d.Digest
		}
	}
	if (digest == v1.Hash{}) {
		return digest, otherArch(ref, arch, architectures(m))
	}
	return digest, nil
}

// architectures returns an index's architectures, sorted.
func architectures(m *v1.IndexManifest) []string {
	var there []string
	for _, d := range m.Manifests {
		// Attestations of docker buildx have platform unknown/unknown.
		if d.Platform != nil && d.Platform.OS == "linux" {
			there = append(there, d.Platform.Architecture)
		}
	}
	slices.Sort(there)
	return slices.Compact(there)
}

func otherArch(ref name.Reference, arch string, there []string) error {
	if len(there) == 0 {
		there = []string{"none"}
	}
	return fault.WithHint(fault.ExtensionUnknown.Errorf("%s has no image for %s: there is %s", ref, arch, strings.Join(there, ", ")),
		"build and push the image for linux/%s too, under one index", arch)
}

func missingError(ref name.Reference, err error) error {
	return fault.WithHint(fault.ExtensionUnknown.Errorf("registry %s has no %s: %w", ref.Context().RegistryStr(), ref, foreign.Error(err)),
		"it was deleted or never pushed, or these credentials may not see it: the registry's next clean-up deletes what only a digest names")
}

// extraction is a tar stream that is produced while it is read.
type extraction struct {
	ctx     context.Context // of the requests for its layers
	cancel  context.CancelFunc
	archive io.ReadCloser
	ref     name.Reference
}

func (e *extraction) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", e.ref, foreign.Error(err))
	}
	n, err := e.archive.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read %s: %w", e.ref, explain(err, e.ref.Context()))
	}
	return n, err
}

func (e *extraction) Close() error {
	e.cancel()
	// The producer ends when the stream ends. The producer's cancellation is not an error of Close.
	_, _ = io.Copy(io.Discard, e.archive)
	return e.archive.Close()
}

// Bounds of what an image may make us keep in memory. The largest extensions have some thousand files.
const (
	maxFiles      = 200_000
	maxPathBytes  = 4096 // PATH_MAX of Linux
	maxPathDepth  = 128
	maxNamesBytes = 16 << 20 // of all paths
)

// In layers, names with this prefix hide what lower layers have (the OCI image specification, layer.md, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq" // everything in that directory
)

// flatten streams an image's files as one tar, upper layers before lower ones. The tar ends properly only if everything
// was read and had the right digests. mutate.Extract of go-containerregistry is not used: it ends the archive properly
// before it reports an error, remembers every name without a bound and takes the first of two files with the same name
// in a layer, whereas a node takes the last.
func flatten(img v1.Image) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeFlat(img, w)) }() // ends when r is read to its end or closed
	return r
}

func writeFlat(img v1.Image, w io.Writer) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	f := flattener{out: tar.NewWriter(w), above: map[string]bool{}}
	for _, l := range slices.Backward(layers) {
		if err := f.add(l); err != nil {
			digest, errDigest := l.Digest()
			return errors.Join(fmt.Errorf("layer %s: %w", digest, err), errDigest)
		}
	}
	return f.out.Close()
}

// layerNames holds the names in one layer. The names hide entries of lower layers only.
type layerNames struct {
	files map[string]bool // true: not a directory
	gone  map[string]bool // whiteouts: always true
}

type flattener struct {
	out   *tar.Writer
	above map[string]bool // what upper layers have; true: the path hides everything below it in lower layers
	names int             // bytes of all paths so far
}

// add writes the files of a layer that no upper layer has or hides.
func (f *flattener) add(l v1.Layer) (err error) {
	content, err := openLayer(l)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = content.why(err)
		}
		err = errors.Join(err, content.Close())
	}()
	here := layerNames{files: map[string]bool{}, gone: map[string]bool{}}
	err = eachEntry(content, func(h *tar.Header, in io.Reader) error { return f.entry(here, h, in) })
	for name, hides := range here.files {
		f.above[name] = f.above[name] || hides
	}
	maps.Copy(f.above, here.gone)
	return err
}

// eachEntry reads a tar to its end. The digest covers the whole layer, so it is known only at the end.
func eachEntry(content io.Reader, do func(h *tar.Header, in io.Reader) error) error {
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, content)
			return err
		}
		if err != nil {
			return err
		}
		if err := do(h, archive); err != nil {
			return err
		}
	}
}

func (f *flattener) entry(here layerNames, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := f.name(h.Name)
	if err != nil || name == "." {
		return err
	}
	if len(f.above)+len(here.files)+len(here.gone) >= maxFiles {
		return fmt.Errorf("more than %d files", maxFiles)
	}
	dir, base := path.Split(name)
	switch taken, isWhiteout := strings.CutPrefix(base, whiteout); {
	case base == opaque:
		here.gone[path.Clean(dir)] = true
		return nil
	case isWhiteout:
		here.gone[dir+taken] = true
		return nil
	}
	isDir := h.Typeflag == tar.TypeDir
	if file, there := here.files[name]; there {
		if isDir && !file {
			return nil
		}
		return fmt.Errorf("%s occurs twice", name)
	}
	here.files[name] = !isDir
	if f.hidden(name) {
		return nil
	}
	if err := f.out.WriteHeader(flatHeader(h, name)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := io.Copy(f.out, content); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// name returns a clean path without a leading slash.
func (f *flattener) name(name string) (string, error) {
	f.names += len(name)
	clean := path.Clean(strings.TrimLeft(name, "/"))
	switch {
	case len(name) > maxPathBytes || strings.Count(clean, "/") >= maxPathDepth:
		return "", fmt.Errorf("a path of %d bytes", len(name))
	case f.names > maxNamesBytes:
		return "", fmt.Errorf("more than %d bytes of paths", maxNamesBytes)
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return "", fmt.Errorf("%q leads out of the image", name)
	}
	return clean, nil
}

// hidden reports whether an upper layer has a path, or hides it.
func (f *flattener) hidden(name string) bool {
	if _, there := f.above[name]; there {
		return true
	}
	for dir := name; dir != "."; {
		if dir = path.Dir(dir); f.above[dir] {
			return true
		}
	}
	return false
}

// flatHeader returns a header with the fields that still hold after reading: for example, sparse files are whole.
// Extended attributes stay; imager takes the SELinux label from them.
func flatHeader(h *tar.Header, name string) *tar.Header {
	to := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode,
		Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Devmajor: h.Devmajor, Devminor: h.Devminor,
		PAXRecords: map[string]string{},
	}
	if to.Typeflag == tar.TypeGNUSparse {
		to.Typeflag = tar.TypeReg
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			to.PAXRecords[key] = value
		}
	}
	return to
}

// damagedError says that a blob does not have the digest that was requested.
type damagedError struct{ want, got string }

func (e *damagedError) Error() string {
	return fmt.Sprintf("a blob was damaged on the way: sha256:%s came with digest sha256:%s", e.want, e.got)
}

// damaged adds a remedy to err if bytes were changed between here and a registry, in either direction.
func damaged(err error) (explained error, ok bool) {
	_, ok = errors.AsType[*damagedError](err)
	if e, answered := errors.AsType[*transport.Error](err); answered {
		ok = slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.DigestInvalidErrorCode })
		err = fmt.Errorf("a blob was damaged on the way: %w", err)
	}
	return fault.WithHint(fault.BuildFailed.Of(err), "run it again. If the blob is damaged each time, look for a proxy or a cache on the way that serves the damaged one"), ok
}

// checked compares a blob's bytes with its digest. go-containerregistry compares them, too, but the code that unpacks
// the blob fails first, and blames the format.
type checked struct {
	io.ReadCloser
	want   string
	left   int64 // bytes still to come
	sum    hash.Hash
	damage error // nil if nothing is wrong so far
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.sum.Write(p[:n])
	if c.left -= int64(n); c.left == 0 && n > 0 {
		if got := hex.EncodeToString(c.sum.Sum(nil)); got != c.want {
			c.damage = &damagedError{want: c.want, got: got}
			return n, c.damage
		}
	}
	return n, err
}

// layerReader reads a layer's content. It keeps the packed stream.
type layerReader struct {
	v1.Layer
	packed  *checked
	content io.ReadCloser
	failed  bool // unpacking failed
}

func openLayer(l v1.Layer) (*layerReader, error) {
	r := &layerReader{Layer: l}
	layer, err := partial.CompressedToLayer(r)
	if err != nil {
		return nil, err
	}
	if r.content, err = layer.Uncompressed(); err != nil {
		r.failed = true
		return nil, r.why(err)
	}
	return r, nil
}

// Compressed returns the stream that go-containerregistry unpacks.
func (r *layerReader) Compressed() (io.ReadCloser, error) {
	digest, err := r.Digest()
	if err != nil {
		return nil, err
	}
	size, err := r.Size()
	if err != nil {
		return nil, err
	}
	packed, err := r.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	r.packed = &checked{ReadCloser: packed, want: digest.Hex, left: size, sum: sha256.New()}
	return r.packed, nil
}

func (r *layerReader) Read(p []byte) (int, error) {
	n, err := r.content.Read(p)
	r.failed = r.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}

func (r *layerReader) Close() error { return r.content.Close() }

// why returns the reason for an error. If the format is wrong, why reads the rest of the packed bytes to check their
// digest.
func (r *layerReader) why(err error) error {
	if r.packed == nil || !r.failed && !errors.Is(err, tar.ErrHeader) {
		return err
	}
	// Further errors about the format, including go-containerregistry's own checks, do not matter.
	if _, _ = io.Copy(io.Discard, r.packed); r.packed.damage != nil {
		return r.packed.damage
	}
	return err
}

var _ images.Archives = (*Client)(nil)

// SaveLayout writes an image into a directory: see images.Archives.
func (c *Client) SaveLayout(ctx context.Context, ref, arch, dir string) error {
	r, err := name.NewDigest(ref)
	if err != nil {
		return fault.Configf("image reference %q: %w", ref, err)
	}
	img, err := c.image(ctx, r, arch)
	if err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", ref, explain(err, r.Context()))
	}
	return nil
}

// PushArchive pushes the image in a tarball: see images.Archives.
func (c *Client) PushArchive(ctx context.Context, p images.ArchivePush) (string, error) {
	to, errTo := name.NewRepository(p.Repository)
	upon, errUpon := name.NewDigest(p.Base)
	if err := errors.Join(errTo, errUpon); err != nil {
		return "", fault.As(fault.Config, err)
	}
	base, err := c.image(ctx, upon, p.Arch)
	if err != nil {
		return "", err
	}
	img, err := archived(p.File, p.Arch)
	if err != nil {
		return "", fmt.Errorf("read the tarball of the image: %w", err)
	}
	if err := builtUpon(img, base, p.Base); err != nil {
		return "", err
	}
	// Nodes pull through an index, whoever built the image.
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.Arch}},
	})
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("read the tarball of the image: %w", err)
	}
	return digest.String(), c.upload(ctx, to.Digest(digest.String()), index, p.Progress)
}

// BuiltUpon compares layers: see images.Archives.
func (c *Client) BuiltUpon(ctx context.Context, ref, base, arch string) error {
	r, errRef := name.NewDigest(ref)
	upon, errUpon := name.NewDigest(base)
	if err := errors.Join(errRef, errUpon); err != nil {
		return fault.As(fault.Config, err)
	}
	img, err := c.image(ctx, r, arch)
	if err != nil {
		return err
	}
	from, err := c.image(ctx, upon, arch)
	if err != nil {
		return err
	}
	return builtUpon(img, from, base)
}

// archived returns the only image in a tarball.
func archived(file, arch string) (v1.Image, error) {
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.Architecture != arch {
		return nil, fault.Refusedf("the image is for %q, not for %s", config.Architecture, arch)
	}
	return img, nil
}

// builtUpon returns an error unless the image begins with the base's layers: all of them, or, as the imager builds it,
// the first of two (siderolabs/talos pkg/imager/out.go, outInstaller). Layers are compared unpacked.
func builtUpon(img, base v1.Image, baseRef string) error {
	other := func(format string, args ...any) error {
		return fault.Refusedf("the image is not based on %s: %s", baseRef, fmt.Sprintf(format, args...))
	}
	config, err := base.ConfigFile()
	if err != nil {
		return err
	}
	want := config.RootFS.DiffIDs
	if len(want) == 2 {
		want = want[:1]
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	if len(layers) <= len(want) {
		return other("it has only %d layers", len(layers))
	}
	for i, w := range want {
		got, err := unpacked(layers[i])
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if got != w {
			return other("layer %d is %s, not %s", i, got, w)
		}
	}
	for i, layer := range layers[len(want):] {
		odd, err := unexpectedPath(layer)
		if err != nil {
			return fmt.Errorf("layer %d: %w", len(want)+i, err)
		}
		if odd != "" {
			return other("layer %d changes %s", len(want)+i, odd)
		}
	}
	return nil
}

// unexpectedPath returns a path in a layer that the imager would not put upon a base; "" if there is none. Such a
// path could hide the base's own programs. The imager writes only regular files (pkg/imager/filemap).
func unexpectedPath(layer v1.Layer) (odd string, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	err = eachEntry(content, func(h *tar.Header, _ io.Reader) error {
		name := path.Clean("/" + h.Name)
		within := strings.HasPrefix(name, "/usr/install/") || strings.HasPrefix(name, "/overlay/")
		switch {
		case h.Typeflag == tar.TypeDir: // leaves an existing directory as it is
		case h.Typeflag != tar.TypeReg || !within || strings.HasPrefix(path.Base(name), whiteout):
			odd = name
		}
		return nil
	})
	return odd, err
}

func unpacked(layer v1.Layer) (sum v1.Hash, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	sum, _, err = v1.SHA256(content)
	return sum, err
}

// A file beside an installer is a manifest whose subject is the installer (OCI 1.1), with the file as its only layer.
const titleOfALayer = "org.opencontainers.image.title"

// attachment holds the media types of a manifest beside an installer: of its configuration, by which the manifest is
// known, and of its layer.
type attachment struct{ config, layer types.MediaType }

var attachments = map[images.Artefact]attachment{
	images.BootISO:   {"application/vnd.recast.boot-iso.v1+json", "application/x-iso9660-image"},
	images.DiskImage: {"application/vnd.recast.disk-image.v1+json", "application/x-qemu-disk"},
}

// Attach puts a file beside an installer: see images.Archives.
func (c *Client) Attach(ctx context.Context, installer, file string, of images.Artefact, as schematics.BootFile, progress func(doneBytes int64)) error {
	to, err := name.NewDigest(installer)
	if err != nil {
		return fault.Configf("image reference %q: %w", installer, err)
	}
	subject, err := c.head(ctx, to)
	if err != nil {
		return explain(err, to.Context())
	}
	img, err := attachedImage(file, attachments[of], as, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size})
	if err != nil {
		return fmt.Errorf("attach %s: %w", as.Name, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("attach %s: %w", as.Name, err)
	}
	return c.upload(ctx, to.Context().Digest(digest.String()), img, progress)
}

func attachedImage(file string, kind attachment, as schematics.BootFile, subject v1.Descriptor) (v1.Image, error) {
	digest, err := v1.NewHash("sha256:" + as.SHA256)
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), kind.config),
		mutate.Addendum{
			Layer: fileLayer{file: file, digest: digest, size: as.SizeBytes, kind: kind.layer}, MediaType: kind.layer,
			Annotations: map[string]string{titleOfALayer: as.Name},
		})
	if err != nil {
		return nil, err
	}
	attached, ok := mutate.Subject(img, subject).(v1.Image)
	if !ok {
		return nil, errors.New("go-containerregistry gives an image with a subject another type")
	}
	return attached, nil
}

// Attached lists the boot ISOs and disk images beside an installer: see images.Archives.
func (c *Client) Attached(ctx context.Context, installer string) ([]schematics.BootFile, error) {
	of, err := name.NewDigest(installer)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", installer, err)
	}
	list, err := c.referrers(ctx, of)
	if err != nil {
		return nil, err
	}
	var found []schematics.BootFile
	for _, digest := range list {
		img, err := remote.Image(of.Context().Digest(digest), c.options(ctx)...)
		if err != nil {
			return nil, explain(err, of.Context())
		}
		m, err := img.Manifest()
		if err != nil {
			return nil, explain(err, of.Context())
		}
		ours := slices.ContainsFunc(slices.Collect(maps.Values(attachments)), func(a attachment) bool { return a.config == m.Config.MediaType })
		if ours && len(m.Layers) == 1 {
			file := m.Layers[0]
			found = append(found, schematics.BootFile{Name: file.Annotations[titleOfALayer], SHA256: file.Digest.Hex, SizeBytes: file.Size})
		}
	}
	return found, nil
}

// AttachedFile streams a file from beside an installer: see images.Archives.
func (c *Client) AttachedFile(ctx context.Context, installer string, f schematics.BootFile) (io.ReadCloser, error) {
	of, err := name.NewDigest(installer)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", installer, err)
	}
	layer, err := remote.Layer(of.Context().Digest("sha256:"+f.SHA256), c.options(ctx)...)
	if err != nil {
		return nil, explain(err, of.Context())
	}
	body, err := layer.Compressed() // as it was pushed; its digest is checked
	return body, explain(err, of.Context())
}

// fileLayer is a file as an uncompressed layer.
type fileLayer struct {
	file   string
	digest v1.Hash
	size   int64
	kind   types.MediaType
}

var _ v1.Layer = fileLayer{}

func (l fileLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.file) }
func (l fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.file) }
func (l fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l fileLayer) MediaType() (types.MediaType, error)  { return l.kind, nil }

// sigstore/cosign, specs/SIGNATURE_SPEC.md: a signature is a layer, with the signature itself in an annotation.
const (
	signatureType       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"

	maxSignatures   = 64
	maxPayloadBytes = 1 << 20 // usual payloads have some hundred bytes
)

// Signatures returns the cosign signatures of an image: see images.Puller.
func (c *Client) Signatures(ctx context.Context, ref string) ([]images.Signature, error) {
	of, err := name.NewDigest(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	tag := of.Context().Tag(signatureTag(of))
	img, err := remote.Image(tag, c.options(ctx)...)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err, of.Context())
	}
	signatures, err := signaturesIn(img)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tag, explain(err, of.Context()))
	}
	return signatures, nil
}

// signatureTag returns the tag under which cosign keeps the signatures of a digest.
func signatureTag(of name.Digest) string {
	return strings.Replace(of.DigestStr(), ":", "-", 1) + ".sig"
}

func signaturesIn(img v1.Image) ([]images.Signature, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if len(m.Layers) > maxSignatures {
		return nil, fmt.Errorf("it has %d layers; no more than %d signatures are read", len(m.Layers), maxSignatures)
	}
	var signatures []images.Signature
	for _, d := range m.Layers {
		if d.MediaType != signatureType {
			continue
		}
		signature, err := base64.StdEncoding.DecodeString(d.Annotations[signatureAnnotation])
		if err != nil || len(signature) == 0 {
			return nil, fmt.Errorf("layer %s: annotation %s is missing or damaged", d.Digest, signatureAnnotation)
		}
		payload, err := payloadOf(img, d)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", d.Digest, foreign.Error(err))
		}
		signatures = append(signatures, images.Signature{Payload: payload, Signature: signature})
	}
	return signatures, nil
}

func payloadOf(img v1.Image, d v1.Descriptor) ([]byte, error) {
	if d.Size > maxPayloadBytes {
		return nil, fmt.Errorf("it has %d bytes; no more than %d are read", d.Size, maxPayloadBytes)
	}
	return pushed(img, d.Digest)
}

// pushed reads a layer as it was pushed: as many bytes as the manifest says, with their digest, or an error.
func pushed(img v1.Image, digest v1.Hash) ([]byte, error) {
	layer, err := img.LayerByDigest(digest)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content)
}
