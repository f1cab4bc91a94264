package factoryapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/recast-sh/recast/internal/sim/artefact"
)

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

func (f *Factory) officialExtensions(w http.ResponseWriter, r *http.Request) error {
	tag, err := versionTag(r.PathValue("version"))
	if err != nil {
		return err
	}
	refs, err := f.extensions(r.Context(), tag)
	if err != nil {
		return err
	}
	list := make([]extensionInfo, 0, len(refs))
	for _, e := range refs {
		list = append(list, extensionInfo{
			Name: e.repo, Ref: f.opts.Registry + "/" + e.repo + ":" + e.tag, Digest: e.digest,
			Author: e.author, Description: e.description,
		})
	}
	return json.NewEncoder(w).Encode(list)
}

// extensions returns the list of a Talos version: it is fetched once and then kept until a
// restart, whatever the registry has.
func (f *Factory) extensions(ctx context.Context, tag string) ([]extensionRef, error) {
	if err := f.requireVersion(tag); err != nil {
		return nil, err
	}
	f.mu.Lock()
	m := f.memory
	f.mu.Unlock()
	return remembered(ctx, f, m, m.extensions, "extensions", tag, f.fetchExtensions)
}

// remembered is the kept list, fetched first if there is none.
func remembered[T any](ctx context.Context, f *Factory, m *memory, lists map[string]T, what, tag string, fetch func(context.Context, string) (T, error)) (T, error) {
	look := func() (T, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		list, ok := lists[tag]
		return list, ok
	}
	if list, ok := look(); ok {
		return list, nil
	}
	_, err, _ := m.fetches.Do(what+"/"+tag, func() (any, error) {
		ctx, done := f.outlive(ctx)
		defer done()
		list, err := fetch(ctx, tag)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		lists[tag] = list
		return nil, nil
	})
	list, _ := look()
	return list, err
}

func (f *Factory) fetchExtensions(ctx context.Context, tag string) ([]extensionRef, error) {
	if err := f.take(ctx, listTakes); err != nil {
		return nil, err
	}
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

// findExtension finds an extension by name, or by the former name of a renamed one.
func findExtension(refs []extensionRef, wanted string) (extensionRef, bool) {
	for _, candidate := range []string{wanted, renamed(wanted)} {
		i := slices.IndexFunc(refs, func(e extensionRef) bool { return e.repo == candidate })
		if i >= 0 {
			return refs[i], true
		}
	}
	return extensionRef{}, false
}

// renamed is the present name of an extension. See siderolabs/image-factory,
// internal/profile/profile.go, ExtensionNameAlias.
func renamed(extension string) string {
	switch extension {
	case "siderolabs/v4l-uvc":
		return "siderolabs/v4l-uvc-drivers"
	case "siderolabs/usb-modem":
		return "siderolabs/usb-modem-drivers"
	case "siderolabs/gasket":
		return "siderolabs/gasket-driver"
	case "siderolabs/talos-vmtoolsd":
		return "siderolabs/vmtoolsd-guest-agent"
	case "siderolabs/xe-guest-utilities":
		return "siderolabs/xen-guest-agent"
	case "siderolabs/nvidia-container-toolkit", "siderolabs/nvidia-open-gpu-kernel-modules", "siderolabs/nonfree-kmod-nvidia":
		return extension + "-lts"
	case "siderolabs/nvidia-fabricmanager":
		return "siderolabs/nvidia-fabric-manager-lts"
	case "siderolabs/i915-ucode":
		return "siderolabs/i915"
	case "siderolabs/amdgpu-firmware":
		return "siderolabs/amdgpu"
	}
	return extension
}
