package factoryapi

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// upstream is the registry named in the list of extensions, wherever it is mirrored.
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
