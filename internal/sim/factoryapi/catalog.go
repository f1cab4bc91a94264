package factoryapi

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// upstream is the registry named in the list of extensions, also if the extensions are mirrored elsewhere.
const upstream = "ghcr.io"

// Catalog publishes official extensions in a registry, as a Talos release does. It is
// stateless: it reads published extensions from the registry.
type Catalog struct {
	Registry  string            // "host:port"
	Transport http.RoundTripper // reaches the registry
}

// Publish pushes the extensions as siderolabs/<name>:<version> and their list as
// siderolabs/extensions:<Talos version>, in the given order.
func (c Catalog) Publish(ctx context.Context, talosVersion string, extensions []artefact.Extension) error {
	reg, err := newRegistryClient(c.Registry, c.Transport)
	if err != nil {
		return err
	}
	var list []artefact.ListedExtension
	for _, e := range extensions {
		l, err := pushExtension(ctx, reg, e)
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.Name, err)
		}
		list = append(list, l)
	}
	return pushList(ctx, reg, talosVersion, list)
}

// Patch republishes an extension ("qemu-guest-agent") with one changed file: same version,
// new digest. It returns the old and the new digest.
func (c Catalog) Patch(ctx context.Context, talosVersion, name string) (oldDigest, newDigest string, err error) {
	reg, err := newRegistryClient(c.Registry, c.Transport)
	if err != nil {
		return "", "", err
	}
	img, err := reg.image(ctx, extensionsImage, talosVersion)
	if err != nil {
		return "", "", err
	}
	list, err := artefact.ReadExtensionsList(img)
	if err != nil {
		return "", "", err
	}
	for i, listed := range list {
		ref, err := parseListed(listed)
		if err != nil {
			return "", "", err
		}
		if ref.repo != "siderolabs/"+name {
			continue
		}
		if list[i], newDigest, err = repush(ctx, reg, ref); err != nil {
			return "", "", fmt.Errorf("patch %s: %w", name, err)
		}
		return ref.digest, newDigest, pushList(ctx, reg, talosVersion, list)
	}
	return "", "", fmt.Errorf("patch %s: no such extension for Talos %s", name, talosVersion)
}

func repush(ctx context.Context, reg registryClient, ref extensionRef) (artefact.ListedExtension, string, error) {
	idx, err := reg.index(ctx, ref.repo, ref.digest)
	if err != nil {
		return artefact.ListedExtension{}, "", err
	}
	e, err := artefact.ReadExtension(idx, "amd64")
	if err != nil {
		return artefact.ListedExtension{}, "", err
	}
	if err := patch(e); err != nil {
		return artefact.ListedExtension{}, "", err
	}
	listed, err := pushExtension(ctx, reg, e)
	if err != nil {
		return artefact.ListedExtension{}, "", err
	}
	patched, err := parseListed(listed)
	return listed, patched.digest, err
}

// patch appends a numbered line to the extension's first file.
func patch(e artefact.Extension) error {
	files := slices.Sorted(maps.Keys(e.Files))
	if len(files) == 0 {
		return fmt.Errorf("extension %s has no file to change", e.Name)
	}
	const mark = "\n# patch "
	content := e.Files[files[0]]
	number := bytes.Count(content, []byte(mark)) + 1
	e.Files[files[0]] = fmt.Appendf(content, "%s%d", mark, number)
	return nil
}

func pushExtension(ctx context.Context, reg registryClient, e artefact.Extension) (artefact.ListedExtension, error) {
	idx, err := artefact.ExtensionIndex(e)
	if err != nil {
		return artefact.ListedExtension{}, err
	}
	digest, err := idx.Digest()
	if err != nil {
		return artefact.ListedExtension{}, err
	}
	repo := "siderolabs/" + e.Name
	if err := reg.push(ctx, repo, e.Version, idx); err != nil {
		return artefact.ListedExtension{}, err
	}
	return artefact.ListedExtension{
		Ref:    fmt.Sprintf("%s/%s:%s@%s", upstream, repo, e.Version, digest),
		Author: e.Author, Description: e.Description,
	}, nil
}

func pushList(ctx context.Context, reg registryClient, talosVersion string, list []artefact.ListedExtension) error {
	img, err := artefact.ExtensionsList(list)
	if err != nil {
		return err
	}
	return reg.push(ctx, extensionsImage, talosVersion, img)
}

// extensionsImage is the repository of the lists of official extensions, by Talos version.
const extensionsImage = "siderolabs/extensions"

// extensionRef is an official extension of one Talos version.
type extensionRef struct {
	repo, tag, digest   string // "siderolabs/iscsi-tools", "v0.2.0", digest of the index
	author, description string
}

// extensionInfo is an extension as the API lists it.
type extensionInfo struct {
	Name        string `json:"name"`
	Ref         string `json:"ref"`
	Digest      string `json:"digest"`
	Author      string `json:"author"`
	Description string `json:"description"`
}

// official answers with a list of a Talos version.
func official[T any](list func(ctx context.Context, tag string) ([]T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		tag, err := versionTag(r.PathValue("version"))
		if err != nil {
			return err
		}
		found, err := list(r.Context(), tag)
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(found)
	}
}

func (f *Factory) officialExtensions(ctx context.Context, tag string) ([]extensionInfo, error) {
	refs, err := f.extensions(ctx, tag)
	list := make([]extensionInfo, 0, len(refs))
	for _, e := range refs {
		list = append(list, extensionInfo{
			Name: e.repo, Ref: f.opts.Registry + "/" + e.repo + ":" + e.tag, Digest: e.digest,
			Author: e.author, Description: e.description,
		})
	}
	return list, err
}

// extensions returns the list of a Talos version. The list is fetched once and then kept until a restart, whatever
// the registry has.
func (f *Factory) extensions(ctx context.Context, tag string) ([]extensionRef, error) {
	lists := func(m *memory) map[string][]extensionRef { return m.extensions }
	return remembered(ctx, f, lists, "extensions", tag, f.fetchExtensions)
}

// remembered returns the kept list of a Talos version, and fetches a list that is not kept yet.
func remembered[T any](ctx context.Context, f *Factory, of func(*memory) map[string]T, what, tag string, fetch func(context.Context, string) (T, error)) (list T, err error) {
	if err := f.requireVersion(tag); err != nil {
		return list, err
	}
	f.mu.Lock()
	m := f.memory
	f.mu.Unlock()
	lists := of(m)
	look := func() (T, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		list, ok := lists[tag]
		return list, ok
	}
	if list, ok := look(); ok {
		return list, nil
	}
	_, err, _ = m.fetches.Do(what+"/"+tag, func() (any, error) {
		ctx, done := f.outlive(ctx)
		defer done()
		if err := f.take(ctx, listTakes); err != nil {
			return nil, err
		}
		list, err := fetch(ctx, tag)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		lists[tag] = list
		return nil, nil
	})
	list, _ = look()
	return list, err
}

func (f *Factory) fetchExtensions(ctx context.Context, tag string) ([]extensionRef, error) {
	img, err := f.registry.image(ctx, extensionsImage, tag)
	if err != nil {
		return nil, err
	}
	listed, err := artefact.ReadExtensionsList(img)
	if err != nil {
		return nil, err
	}
	refs := make([]extensionRef, 0, len(listed))
	for _, l := range listed {
		ref, err := parseListed(l)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

func parseListed(l artefact.ListedExtension) (extensionRef, error) {
	tagged, digest, _ := strings.Cut(l.Ref, "@")
	tag, err := name.NewTag(tagged)
	if err != nil {
		return extensionRef{}, fmt.Errorf("listed extension %q: %w", l.Ref, err)
	}
	return extensionRef{
		repo: tag.RepositoryStr(), tag: tag.TagStr(), digest: digest,
		author: l.Author, description: l.Description,
	}, nil
}

// findExtension finds an extension by name, or by the former name of a renamed extension.
func findExtension(refs []extensionRef, wanted string) (extensionRef, bool) {
	for _, candidate := range []string{wanted, renamed(wanted)} {
		i := slices.IndexFunc(refs, func(e extensionRef) bool { return e.repo == candidate })
		if i >= 0 {
			return refs[i], true
		}
	}
	return extensionRef{}, false
}

// renamed returns the present name of an extension. See siderolabs/image-factory, internal/profile/profile.go,
// ExtensionNameAlias.
func renamed(extension string) string {
	name := strings.TrimPrefix(extension, "siderolabs/")
	now := map[string]string{
		"v4l-uvc": "v4l-uvc-drivers", "usb-modem": "usb-modem-drivers", "gasket": "gasket-driver", "talos-vmtoolsd": "vmtoolsd-guest-agent",
		"xe-guest-utilities": "xen-guest-agent", "nvidia-container-toolkit": "nvidia-container-toolkit-lts",
		"nvidia-open-gpu-kernel-modules": "nvidia-open-gpu-kernel-modules-lts", "nonfree-kmod-nvidia": "nonfree-kmod-nvidia-lts",
		"nvidia-fabricmanager": "nvidia-fabric-manager-lts", "i915-ucode": "i915", "amdgpu-firmware": "amdgpu",
	}[name]
	if now == "" || name == extension {
		return extension
	}
	return "siderolabs/" + now
}

// overlaysImage is the repository of the lists of official overlays, by Talos version.
const overlaysImage = "siderolabs/overlays"

// Overlay is an official overlay in the list of overlays.
type Overlay struct {
	Name   string `yaml:"name"`   // "rpi_generic"
	Image  string `yaml:"image"`  // "ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0"
	Digest string `yaml:"digest"` // of the index
}

type overlays struct {
	Overlays []Overlay `yaml:"overlays"`
}

// PublishOverlays pushes the list of overlays as siderolabs/overlays:<Talos version>, without the overlays: the lab
// builds no image with an overlay.
func (c Catalog) PublishOverlays(ctx context.Context, talosVersion string, list []Overlay) error {
	reg, err := newRegistryClient(c.Registry, c.Transport)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(overlays{list})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	img, err := crane.Image(map[string][]byte{"overlays.yaml": text})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	return reg.push(ctx, overlaysImage, talosVersion, img)
}

// overlayInfo is an overlay in the API's list.
type overlayInfo struct {
	Name   string `json:"name"`
	Image  string `json:"image"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

func (f *Factory) officialOverlays(ctx context.Context, tag string) ([]overlayInfo, error) {
	listed, err := f.overlays(ctx, tag)
	list := make([]overlayInfo, 0, len(listed))
	for _, o := range listed {
		image, err := name.NewTag(o.Image)
		if err != nil {
			return nil, fmt.Errorf("failed to parse tagged reference %s: %w", o.Image, err)
		}
		list = append(list, overlayInfo{Name: o.Name, Image: image.RepositoryStr(), Ref: image.String(), Digest: o.Digest})
	}
	return list, err
}

// overlays returns the list of a Talos version, kept like the list of extensions.
func (f *Factory) overlays(ctx context.Context, tag string) ([]Overlay, error) {
	lists := func(m *memory) map[string][]Overlay { return m.overlays }
	return remembered(ctx, f, lists, "overlays", tag, f.fetchOverlays)
}

// fetchOverlays fetches the list of overlays. It fails for an empty list too, like the real factory: see
// siderolabs/image-factory, internal/artifacts/versions.go, extractOverlayList.
func (f *Factory) fetchOverlays(ctx context.Context, tag string) ([]Overlay, error) {
	img, err := f.registry.image(ctx, overlaysImage, tag)
	if err != nil {
		return nil, err
	}
	content := mutate.Extract(img)
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		if err != nil {
			return nil, fmt.Errorf("error reading tar header: %w", err)
		}
		if header.Name != "overlays.yaml" {
			continue
		}
		var list overlays
		if err := yaml.NewDecoder(archive).Decode(&list); err != nil {
			return nil, fmt.Errorf("error reading overlays.yaml file: %w", err)
		}
		if len(list.Overlays) == 0 {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		return list.Overlays, nil
	}
}

// requireOverlay refuses overlays that the real factory can't find or the lab can't build.
func (f *Factory) requireOverlay(ctx context.Context, tag, overlay string) error {
	list, err := f.overlays(ctx, tag)
	if err != nil {
		return fmt.Errorf("error getting official overlays: %w", err)
	}
	if !slices.ContainsFunc(list, func(o Overlay) bool { return o.Name == overlay }) {
		// The real factory prints an empty reference in place of the name.
		return invalidf("official overlay %q is not available for Talos version %s", struct{ Name, TaggedReference, Digest string }{}, tag)
	}
	return failf(http.StatusNotImplemented, "the lab builds no image with an overlay")
}

// secureBootCertificate fails like the real factory without Secure Boot.
func (f *Factory) secureBootCertificate(http.ResponseWriter, *http.Request) error {
	return errors.New("secure boot is disabled")
}
