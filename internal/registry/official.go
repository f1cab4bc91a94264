package registry

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/schematics"
)

// maxListBytes bounds a file of the list; the real ones have some tens of KiB.
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

// unknownVersion names the versions that exist, if the registry lets us list them.
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
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		file := strings.TrimPrefix(strings.TrimPrefix(header.Name, "./"), "/")
		if !slices.Contains(names, file) {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(archive, maxListBytes+1))
		if err != nil {
			return nil, err
		}
		if len(data) > maxListBytes {
			return nil, fmt.Errorf("%s has more than %d bytes", file, maxListBytes)
		}
		files[file] = data
	}
}

// parseOfficial reads the lines "ghcr.io/siderolabs/<name>:<version>@sha256:<index>"
// and the description of each. The result is sorted by name.
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

// nearest returns up to n released versions among tags, oldest first: those around
// the missing one; the newest ones if it is not a version.
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
