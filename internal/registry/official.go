package registry

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/schematics"
	"go.yaml.in/yaml/v4"
)

// maxListBytes bounds a file of the list; real files have some tens of KiB.
const maxListBytes = 8 << 20

// Official reads the list of official extensions that was released with a Talos
// version. See siderolabs/extensions, Makefile, target extensions.
func (c *Client) Official(ctx context.Context, talos string) ([]schematics.OfficialExtension, error) {
	if _, err := name.NewTag(c.extensions.Name() + ":" + talos); err != nil || talos == "" {
		return nil, fault.ExtensionUnknown.Configf("%q is not a Talos version", talos)
	}
	tag := c.extensions.Tag(talos)
	img, err := remote.Image(tag, c.options(ctx)...)
	if notFound(err) {
		return nil, c.unknownVersion(ctx, talos)
	}
	if err != nil {
		return nil, explain(err, c.extensions)
	}
	files, err := read(img, "image-digests", "descriptions.yaml")
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tag, foreign.Error(err))
	}
	list, err := parseOfficial(files["image-digests"], files["descriptions.yaml"])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tag, foreign.Error(err))
	}
	return list, nil
}

// unknownVersion returns an error that names the existing versions, if the registry lets us list them.
func (c *Client) unknownVersion(ctx context.Context, talos string) error {
	err := fault.ExtensionUnknown.Configf("Talos %s is not known to %s", talos, c.extensions)
	tags, listErr := remote.List(c.extensions, c.options(ctx)...)
	if listErr != nil {
		if ctx.Err() != nil {
			return explain(listErr, c.extensions)
		}
		return err
	}
	if near := nearest(talos, tags, 3); len(near) > 0 {
		return fault.WithHint(err, "the nearest versions are %s", strings.Join(near, ", "))
	}
	return err
}

// read returns files of an image's root directory.
func read(img v1.Image, names ...string) (map[string][]byte, error) {
	content := flatten(img)
	defer content.Close()
	files := map[string][]byte{}
	err := eachEntry(content, func(h *tar.Header, in io.Reader) (err error) {
		file := strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "/")
		if slices.Contains(names, file) {
			files[file], err = readAtMost(in, file, maxListBytes)
		}
		return err
	})
	return files, err
}

func readAtMost(r io.Reader, file string, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes", file, most)
	}
	return data, err
}

// parseOfficial reads the lines "ghcr.io/siderolabs/<name>:<version>@sha256:<index>" and the description of each
// extension. The result is sorted by name.
func parseOfficial(digests, descriptions []byte) ([]schematics.OfficialExtension, error) {
	var about map[string]struct {
		Author      string `yaml:"author"`
		Description string `yaml:"description"`
	}
	if err := yaml.Unmarshal(descriptions, &about); err != nil {
		return nil, fmt.Errorf("descriptions.yaml: %w", err)
	}
	var list []schematics.OfficialExtension
	seen := map[string]bool{}
	for line := range strings.Lines(string(digests)) {
		line = strings.TrimSpace(line)
		tagged, digest, ok := strings.Cut(line, "@")
		if !ok {
			continue
		}
		tag, err := name.NewTag(tagged, name.StrictValidation)
		if err != nil || !schematics.IsDigest(digest) {
			return nil, fmt.Errorf("image-digests: %q is not a tagged reference with a digest", line)
		}
		if seen[tag.RepositoryStr()] { // factories build the first one
			continue
		}
		seen[tag.RepositoryStr()] = true
		list = append(list, schematics.OfficialExtension{
			Name: tag.RepositoryStr(), Version: tag.TagStr(), Ref: tag.Repository.Name(), Digest: digest,
			Author: about[line].Author, Description: about[line].Description,
		})
	}
	if len(list) == 0 {
		return nil, errors.New("image-digests: the list is missing or empty")
	}
	slices.SortFunc(list, func(a, b schematics.OfficialExtension) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// version is a Talos version: "v1.13.9".
type version struct{ major, minor, patch int }

func parseVersion(s string) (version, bool) {
	var v version
	n, err := fmt.Sscanf(s, "v%d.%d.%d", &v.major, &v.minor, &v.patch)
	return v, err == nil && n == 3 && v.String() == s
}

func (v version) String() string { return fmt.Sprintf("v%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch))
}

// nearest returns up to n released versions among tags, oldest first: those around the missing version, or the newest
// ones if unknown is not a version.
func nearest(unknown string, tags []string, n int) []string {
	var versions []version
	for _, tag := range tags {
		if v, ok := parseVersion(tag); ok {
			versions = append(versions, v)
		}
	}
	slices.SortFunc(versions, version.compare)
	versions = slices.Compact(versions)
	at := len(versions)
	if want, ok := parseVersion(unknown); ok {
		at, _ = slices.BinarySearchFunc(versions, want, version.compare)
	}
	first := max(0, min(at-n+1, len(versions)-n))
	versions = versions[first:min(first+n, len(versions))]
	names := make([]string, 0, len(versions))
	for _, v := range versions {
		names = append(names, v.String())
	}
	return names
}

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

// architectures returns an image's architectures. An image that names no architecture counts as one for any.
func (c *Client) architectures(ctx context.Context, ref name.Reference, any string) ([]string, error) {
	desc, err := c.get(ctx, ref)
	if notFound(err) {
		err = fault.As(fault.Config, err)
	}
	if err != nil {
		return nil, err
	}
	if desc.MediaType.IsIndex() {
		_, m, err := indexOf(desc)
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

// topFile returns a file of the image's root directory; nil if there is none. It fetches only the layers down to that
// file: extensions are large, and have their manifest in the top layer.
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
	err = eachEntry(content, func(h *tar.Header, in io.Reader) (err error) {
		if leavesRoot(h.Name) { // no image build would unpack such a file
			return fault.Configf("%q leads out of its root", h.Name)
		}
		switch path.Clean("/" + h.Name) {
		case "/" + file:
			decided = true
			data, err = readAtMost(in, file, maxManifestBytes)
		case "/" + whiteout + file, "/" + opaque:
			decided = true
		}
		return err
	})
	return data, decided, err
}
