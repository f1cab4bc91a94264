package registry

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/schematics"
)

const (
	extensionManifest        = "manifest.yaml"
	extensionManifestVersion = "v1alpha1" // siderolabs/talos, pkg/machinery/extensions
	maxManifestBytes         = 1 << 20
)

// Describe reads an extension image's description of itself: see schematics.ExtensionImages.
func (c *Client) Describe(ctx context.Context, ref, arch string) (schematics.ExtensionImage, error) {
	d, err := name.NewDigest(ref)
	if err != nil {
		return schematics.ExtensionImage{}, fault.Configf("image reference %q: %w", ref, err)
	}
	at := c.relocate(d)
	there, err := c.architectures(ctx, at, arch)
	x := schematics.ExtensionImage{Architectures: there}
	if err != nil || !slices.Contains(there, arch) {
		return x, err
	}
	img, err := c.image(ctx, at, arch)
	if err != nil {
		return x, err
	}
	data, err := topFile(img, extensionManifest)
	if fault.KindOf(err) == fault.Config {
		return x, fault.Configf("%s is not an extension image: %w", at, err)
	}
	if err != nil {
		return x, fmt.Errorf("read %s: %w", at, explain(err, at.Context()))
	}
	if x.Name, x.Version, err = parseExtensionManifest(data); err != nil {
		return x, fault.Configf("%s is not an extension image: %w", at, foreign.Error(err))
	}
	return x, nil
}

// architectures returns an image's architectures; one that names none counts for any.
func (a access) architectures(ctx context.Context, ref name.Reference, any string) ([]string, error) {
	desc, err := a.get(ctx, ref)
	if notFound(err) {
		err = fault.As(fault.Config, err)
	}
	if err != nil {
		return nil, err
	}
	if desc.MediaType.IsIndex() {
		index, err := desc.ImageIndex()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
		}
		m, err := index.IndexManifest()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", ref, foreign.Error(err))
		}
		return architectures(m), nil
	}
	img, err := desc.Image()
	if err != nil {
		return nil, fault.Configf("%s is no image: %w", ref, foreign.Error(err))
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, explain(err, ref.Context()))
	}
	if config.Architecture == "" {
		return []string{any}, nil
	}
	return []string{config.Architecture}, nil
}

func parseExtensionManifest(data []byte) (extension, version string, err error) {
	if data == nil {
		return "", "", errors.New("it has no " + extensionManifest)
	}
	var m struct {
		Version  string `yaml:"version"`
		Metadata struct {
			Name    string `yaml:"name"`
			Version string `yaml:"version"`
		} `yaml:"metadata"`
	}
	if err := yaml.Unmarshal(data, &m); err != nil {
		return "", "", fmt.Errorf("%s: %w", extensionManifest, foreign.Error(err))
	}
	if m.Version != extensionManifestVersion {
		return "", "", fmt.Errorf("%s: version is %q, not %s", extensionManifest, m.Version, extensionManifestVersion)
	}
	if m.Metadata.Name == "" {
		return "", "", fmt.Errorf("%s: metadata.name is missing", extensionManifest)
	}
	return m.Metadata.Name, m.Metadata.Version, nil
}

// topFile returns a file of the image's root directory; nil if there is none. It
// fetches only the layers down to that file: extensions are large, and have their
// manifest on top.
func topFile(img v1.Image, file string) ([]byte, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, layer := range slices.Backward(layers) {
		data, decided, err := fileOf(layer, file)
		if err != nil || decided {
			return data, err
		}
	}
	return nil, nil
}

// leavesRoot reports whether a path in an extension image leads out of the image, or
// out of the directory of the node's files.
func leavesRoot(name string) bool {
	name = strings.TrimLeft(name, "/")
	clean := path.Clean(name)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return true
	}
	const rootfs = "rootfs"
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "./"), "/")
	return first == rootfs && clean != rootfs && !strings.HasPrefix(clean, rootfs+"/")
}

// fileOf looks for a file of the root directory in one layer, and reads the layer to
// its end, where its digest is checked. decided says that the layers below do not
// matter: the file is here, or this layer hides it.
func fileOf(layer v1.Layer, file string) (data []byte, decided bool, err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return nil, false, err
	}
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		if leavesRoot(header.Name) { // nothing would unpack it when images are built
			return nil, false, fault.Configf("%q leads out of its root", header.Name)
		}
		switch path.Clean("/" + header.Name) {
		case "/" + file:
			decided = true
			if data, err = io.ReadAll(io.LimitReader(archive, maxManifestBytes+1)); err != nil {
				return nil, false, err
			}
			if len(data) > maxManifestBytes {
				return nil, false, fmt.Errorf("%s has more than %d bytes", file, maxManifestBytes)
			}
		case "/.wh." + file, "/.wh..wh..opq":
			decided = true
		}
	}
	if _, err := io.Copy(io.Discard, content); err != nil {
		return nil, false, err
	}
	return data, decided, nil
}
