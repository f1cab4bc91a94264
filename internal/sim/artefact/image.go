// Package artefact makes and reads every [Image] of the lab: boot ISOs, unified kernel images, installers, extension
// images, and the disks that Talos partitions. All but the disks have the real formats, with tiny content, and are
// deterministic; readers rely only on the bytes.
package artefact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"
)

// ErrNotBootable says that there is no boot image, or that the boot image is damaged.
var ErrNotBootable = errors.New("not a bootable image")

// HaltIfInstalled is a kernel argument of boot ISOs only: Talos halts if it finds itself installed on a disk.
const HaltIfInstalled = "talos.halt_if_installed=1"

// Image is the content of a boot image, whatever its packaging.
type Image struct {
	TalosVersion string // "v1.13.9"
	Arch         string // "amd64" or "arm64"
	Platform     string // "nocloud", "metal", …
	Kernel       string `json:",omitempty"` // its release (uname -r); empty: that of the lab's images
	Cmdline      string // kernel command line, with the schematic's extra arguments
	// SchematicID, SchematicYAML and SchematicAuthor are the entry among the extensions with the image's schematic,
	// as an Image Factory adds it; empty without a schematic.
	SchematicID     string
	SchematicYAML   string
	SchematicAuthor string      // "Image Factory (<url>)"
	Extensions      []Extension // in build order, without the schematic's entry
	// Loose are files beside the extensions, by absolute path. When an image is made, firmware is
	// among its extensions' files; in a parsed image it is here, because imager moves it.
	Loose map[string][]byte
	// Signed: boot loader and UKI of the image's installer have a signature, as the installers of an Image Factory with
	// keys for Secure Boot have (siderolabs/image-factory#538). Boot loader and UKI of the image's ISO have no signature.
	Signed bool `json:"-"`
}

// Extension is a system extension: its manifest, and its files.
type Extension struct {
	Name, Version, Author, Description string
	// Digest is the index digest of the extension's image; boot images don't contain it.
	Digest string            `json:"-"`
	Files  map[string][]byte // by absolute path on the node: "/usr/local/bin/tool"
	Links  map[string]string `json:",omitempty"` // unresolved targets of symbolic links, by absolute path
}

func (img Image) validate() error {
	switch {
	case img.TalosVersion == "":
		return errors.New("image without a Talos version")
	case img.Platform == "":
		return errors.New("image without a platform")
	case !slices.Contains(strings.Fields(img.Cmdline), platformArg+img.Platform):
		return fmt.Errorf("the command line of an image for %s does not say so: %q", img.Platform, img.Cmdline)
	case img.Arch != "amd64" && img.Arch != "arm64":
		return fmt.Errorf("image for unknown architecture %q", img.Arch)
	}
	for _, e := range img.Extensions {
		if err := e.validate(); err != nil {
			return err
		}
	}
	return absolutePaths(img.Loose)
}

func (e Extension) validate() error {
	if e.Name == "" || e.Version == "" {
		return fmt.Errorf("extension without a name or version: %q %q", e.Name, e.Version)
	}
	if err := errors.Join(absolutePaths(e.Files), absolutePaths(e.Links)); err != nil {
		return fmt.Errorf("extension %s: %w", e.Name, err)
	}
	for link, target := range e.Links {
		if _, isFile := e.Files[link]; isFile || target == "" {
			return fmt.Errorf("extension %s: %s is a file too, or a link to nothing", e.Name, link)
		}
	}
	return nil
}

func absolutePaths[V any](files map[string]V) error {
	for file := range files {
		if !strings.HasPrefix(file, "/") || file == "/" || path.Clean(file) != file {
			return fmt.Errorf("%q is not an absolute path", file)
		}
	}
	return nil
}

// Installer makes an installer image with one manifest for each img; the images differ in architecture, and built is
// their build time. As the factory makes them, the index is an OCI one and the manifests are Docker's; layer 0 is the
// bare installer, layer 1 its payload.
func Installer(built time.Time, img ...Image) (v1.ImageIndex, error) {
	if len(img) == 0 {
		return nil, errors.New("installer for no architecture")
	}
	index := v1.ImageIndex(empty.Index)
	for _, i := range img {
		one, err := installerFor(i)
		if err == nil {
			one, err = mutate.CreatedAt(one, v1.Time{Time: built})
		}
		if err != nil {
			return nil, fmt.Errorf("make %s installer: %w", i.Arch, err)
		}
		index = withPlatform(index, one, i.Arch)
	}
	return index, nil
}

func installerFor(img Image) (v1.Image, error) {
	base, err := layer(map[string][]byte{
		"bin/installer": []byte("installer " + img.TalosVersion + " " + img.Arch + "\n"),
	}, nil, types.DockerLayer)
	if err != nil {
		return nil, err
	}
	payload, err := InstallerPayload(img)
	if err != nil {
		return nil, err
	}
	return image(img.Arch, v1.Config{
		Entrypoint: []string{"/bin/installer"},
		Env:        []string{"VERSION=" + img.TalosVersion},
		Labels: map[string]string{
			"alpha.talos.dev/version":         img.TalosVersion,
			"org.opencontainers.image.source": "https://github.com/siderolabs/talos",
		},
	}, base, payload)
}

// InstallerPayload returns the layer of an installer with its payload.
func InstallerPayload(img Image) (v1.Layer, error) {
	uki, err := UKI(img)
	if err != nil {
		return nil, err
	}
	loader, err := SystemdBoot(img.Arch)
	if err != nil {
		return nil, err
	}
	if img.Signed {
		loader, uki = signed(loader), signed(uki)
	}
	return layer(map[string][]byte{
		installDir(img.Arch) + "systemd-boot.efi": loader,
		installDir(img.Arch) + "vmlinuz.efi":      uki,
	}, nil, types.DockerLayer)
}

// InstallerUKI returns the boot image that an installer image copies to the disk of a machine of arch; a missing or
// damaged boot image is ErrNotBootable.
func InstallerUKI(idx v1.ImageIndex, arch string) ([]byte, error) {
	one, err := imageFor(idx, arch)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	files, _, err := readFiles(one)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	name := installDir(arch) + "vmlinuz.efi"
	uki, ok := files[name]
	if !ok {
		return nil, fmt.Errorf("installer: %w: no %s", ErrNotBootable, name)
	}
	img, err := ReadUKI(uki)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	if img.Arch != arch {
		return nil, fmt.Errorf("installer: %w: %s holds a kernel for %s", ErrNotBootable, name, img.Arch)
	}
	return uki, nil
}

// ReadInstaller reads what an installer image would install on a machine of arch.
func ReadInstaller(idx v1.ImageIndex, arch string) (Image, error) {
	uki, err := InstallerUKI(idx, arch)
	if err != nil {
		return Image{}, err
	}
	return ReadUKI(uki)
}

func installDir(arch string) string { return "usr/install/" + arch + "/" }

// gzips pools writers, because each writer has a megabyte of tables.
var gzips = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// layer packs files and symbolic links, by path without a leading slash, into a gzipped layer.
func layer(files map[string][]byte, links map[string]string, mediaType types.MediaType) (v1.Layer, error) {
	var buf bytes.Buffer
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(&buf)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: links[name], Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end archive: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("end compression: %w", err)
	}
	return partial.CompressedToLayer(gzipped{bytes: buf.Bytes(), mediaType: mediaType})
}

type gzipped struct {
	bytes     []byte
	mediaType types.MediaType
}

var _ partial.CompressedLayer = gzipped{}

func (g gzipped) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(g.bytes))
	return h, err
}

func (g gzipped) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(g.bytes)), nil
}

func (g gzipped) Size() (int64, error)                { return int64(len(g.bytes)), nil }
func (g gzipped) MediaType() (types.MediaType, error) { return g.mediaType, nil }

// image makes a single-platform image; its media type follows that of its layers.
func image(arch string, config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Config:       config,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return mutate.AppendLayers(img, layers...)
}

func ociImage(img v1.Image) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
}

func withPlatform(index v1.ImageIndex, img v1.Image, arch string) v1.ImageIndex {
	return mutate.AppendManifests(index, mutate.IndexAddendum{
		Add:        img,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{Architecture: arch, OS: "linux"}},
	})
}

func imageFor(idx v1.ImageIndex, arch string) (v1.Image, error) {
	manifest, err := idx.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	for _, desc := range manifest.Manifests {
		if desc.Platform != nil && desc.Platform.OS == "linux" && desc.Platform.Architecture == arch {
			img, err := idx.Image(desc.Digest)
			if err != nil {
				return nil, fmt.Errorf("read %s image: %w", arch, err)
			}
			return img, nil
		}
	}
	return nil, fmt.Errorf("index has no image for linux/%s", arch)
}

// readFiles reads the regular files of an image and the targets of its symbolic links; later layers override earlier
// layers.
func readFiles(img v1.Image) (files map[string][]byte, links map[string]string, err error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, nil, fmt.Errorf("read layers: %w", err)
	}
	files, links = map[string][]byte{}, map[string]string{}
	for i, l := range layers {
		if err := readLayer(l, files, links); err != nil {
			return nil, nil, fmt.Errorf("read layer %d: %w", i, err)
		}
	}
	return files, links, nil
}

func readLayer(l v1.Layer, files map[string][]byte, links map[string]string) (err error) {
	rc, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	r := tar.NewReader(rc)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			// The rest is read too, so that the layer's digest is verified.
			_, err = io.Copy(io.Discard, rc)
			return err
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			b := make([]byte, h.Size)
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			files[h.Name] = b
			delete(links, h.Name)
		case tar.TypeSymlink:
			links[h.Name] = h.Linkname
			delete(files, h.Name)
		}
	}
}

type extensionManifest struct {
	Version  string            `yaml:"version"`
	Metadata extensionMetadata `yaml:"metadata"`
}

// extensionMetadata is an extension's entry in manifest.yaml and extensions.yaml (pkg/machinery/extensions of Talos).
type extensionMetadata struct {
	Name          string `yaml:"name"`
	Version       string `yaml:"version"`
	Author        string `yaml:"author"`
	Description   string `yaml:"description"`
	Compatibility struct {
		Talos struct {
			Version string `yaml:"version"`
		} `yaml:"talos"`
	} `yaml:"compatibility"`
	ExtraInfo string `yaml:"extraInfo,omitempty"`
}

// metadata returns the extension's own metadata; only the factory's extension has a schematic.
func (e Extension) metadata(schematic string) extensionMetadata {
	m := extensionMetadata{Name: e.Name, Version: e.Version, Author: e.Author, Description: e.Description}
	switch e.Name {
	case schematicName:
		m.Compatibility.Talos.Version, m.ExtraInfo = ">= 1.0.0", schematic
	case modulesName:
	default:
		m.Compatibility.Talos.Version = ">= v1.5.0"
	}
	return m
}

const (
	manifestFile = "manifest.yaml"
	rootfsDir    = "rootfs"
)

// ExtensionIndex makes an extension image for amd64 and arm64: manifest.yaml and the files below rootfs/. The image
// does not contain e.Digest.
func ExtensionIndex(e Extension) (v1.ImageIndex, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	manifest, err := yaml.Marshal(extensionManifest{Version: "v1alpha1", Metadata: e.metadata("")})
	if err != nil {
		return nil, fmt.Errorf("extension %s: encode manifest: %w", e.Name, err)
	}
	files, links := map[string][]byte{manifestFile: manifest}, map[string]string{}
	for path, content := range e.Files {
		files[rootfsDir+path] = content
	}
	for path, target := range e.Links {
		links[rootfsDir+path] = target
	}
	content, err := layer(files, links, types.OCILayer)
	if err != nil {
		return nil, fmt.Errorf("extension %s: %w", e.Name, err)
	}
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := image(arch, v1.Config{
			Labels: map[string]string{"org.opencontainers.image.source": "https://github.com/siderolabs/extensions"},
		}, content)
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", e.Name, err)
		}
		index = withPlatform(index, ociImage(img), arch)
	}
	return index, nil
}

// ReadExtension reads an extension image; Digest is the digest of the index.
func ReadExtension(idx v1.ImageIndex, arch string) (Extension, error) {
	img, err := imageFor(idx, arch)
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	files, links, err := readFiles(img)
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	manifest, ok := files[manifestFile]
	if !ok {
		return Extension{}, errors.New("extension image: no " + manifestFile)
	}
	var m extensionManifest
	if err := yaml.Unmarshal(manifest, &m); err != nil {
		return Extension{}, fmt.Errorf("extension image: read %s: %w", manifestFile, err)
	}
	digest, err := idx.Digest()
	if err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	e := Extension{
		Name: m.Metadata.Name, Version: m.Metadata.Version,
		Author: m.Metadata.Author, Description: m.Metadata.Description,
		Digest: digest.String(), Files: map[string][]byte{},
	}
	for name, content := range files {
		if path, ok := strings.CutPrefix(name, rootfsDir); ok {
			e.Files[path] = content
		}
	}
	for name, target := range links {
		if path, ok := strings.CutPrefix(name, rootfsDir); ok {
			if e.Links == nil {
				e.Links = map[string]string{}
			}
			e.Links[path] = target
		}
	}
	if err := e.validate(); err != nil {
		return Extension{}, fmt.Errorf("extension image: %w", err)
	}
	return e, nil
}

// ListedExtension is one line of the list of official extensions of a Talos version.
type ListedExtension struct {
	Ref         string // "ghcr.io/siderolabs/iscsi-tools:v0.2.0@sha256:…", with the digest of the index
	Author      string
	Description string
}

const (
	digestsFile      = "image-digests"
	descriptionsFile = "descriptions.yaml"
)

type description struct {
	Author      string `yaml:"author"`
	Description string `yaml:"description"`
}

// ExtensionsList makes the image siderolabs/extensions:<Talos version>.
func ExtensionsList(refs []ListedExtension) (v1.Image, error) {
	var lines strings.Builder
	descriptions := map[string]description{}
	for _, r := range refs {
		lines.WriteString(r.Ref + "\n")
		descriptions[r.Ref] = description{Author: r.Author, Description: r.Description}
	}
	texts, err := yaml.Marshal(descriptions)
	if err != nil {
		return nil, fmt.Errorf("extensions list: encode descriptions: %w", err)
	}
	content, err := layer(map[string][]byte{
		digestsFile:      []byte(lines.String()),
		descriptionsFile: texts,
	}, nil, types.OCILayer)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	img, err := image("amd64", v1.Config{}, content)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	return ociImage(img), nil
}

// ReadExtensionsList reads the list in its order.
func ReadExtensionsList(img v1.Image) ([]ListedExtension, error) {
	files, _, err := readFiles(img)
	if err != nil {
		return nil, fmt.Errorf("extensions list: %w", err)
	}
	digests, ok := files[digestsFile]
	if !ok {
		return nil, errors.New("extensions list: no " + digestsFile)
	}
	var descriptions map[string]description
	if err := yaml.Unmarshal(files[descriptionsFile], &descriptions); err != nil {
		return nil, fmt.Errorf("extensions list: read %s: %w", descriptionsFile, err)
	}
	var list []ListedExtension
	for line := range strings.Lines(string(digests)) {
		ref := strings.TrimSpace(line)
		if !strings.Contains(ref, "@") {
			continue
		}
		d := descriptions[ref]
		list = append(list, ListedExtension{Ref: ref, Author: d.Author, Description: d.Description})
	}
	return list, nil
}
