package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

var _ images.MirrorShelf = (*Client)(nil)

// Tags lists the tags of a repository: see images.MirrorShelf.
func (c *Client) Tags(ctx context.Context, repository string) ([]string, error) {
	r, err := name.NewRepository(repository)
	if err != nil {
		return nil, fault.Configf("image repository %q: %w", repository, err)
	}
	tags, err := remote.List(r, c.options(ctx)...)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err, r)
	}
	return tags, nil
}

// Named returns what a tag names: see images.MirrorShelf.
func (c *Client) Named(ctx context.Context, tag string) (images.Named, bool, error) {
	t, err := name.NewTag(tag)
	if err != nil {
		return images.Named{}, false, fault.Configf("image tag %q: %w", tag, err)
	}
	desc, err := remote.Get(t, c.options(ctx)...)
	if notFound(err) {
		return images.Named{}, false, nil
	}
	if err != nil {
		return images.Named{}, false, explain(err, t.Context())
	}
	n := images.Named{Digest: desc.Digest.String()}
	if !desc.MediaType.IsIndex() {
		return n, true, nil
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return n, true, fmt.Errorf("read %s: %w", t, foreign.Error(err))
	}
	m, err := index.IndexManifest()
	if err != nil {
		return n, true, fmt.Errorf("read %s: %w", t, foreign.Error(err))
	}
	for _, d := range m.Manifests {
		n.Lists = append(n.Lists, d.Digest.String())
	}
	return n, true, nil
}

// Built is the build time in an image, or in the first image of an index: see
// images.MirrorShelf.
func (c *Client) Built(ctx context.Context, ref string) (time.Time, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return time.Time{}, fault.Configf("image reference %q: %w", ref, err)
	}
	desc, err := c.get(ctx, r)
	if err != nil {
		return time.Time{}, err
	}
	img, err := firstImage(desc)
	if err != nil || img == nil {
		return time.Time{}, err
	}
	config, err := img.ConfigFile()
	if notFound(err) { // a part of it is gone, or it is not a system image
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read %s: %w", r, explain(err, r.Context()))
	}
	if config.Created.Unix() <= 0 { // set by reproducible builds
		return time.Time{}, nil
	}
	return config.Created.Time, nil
}

// firstImage is nil if there is none.
func firstImage(desc *remote.Descriptor) (v1.Image, error) {
	if desc.MediaType.IsImage() {
		return desc.Image()
	}
	if !desc.MediaType.IsIndex() {
		return nil, nil
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(m.Manifests, func(d v1.Descriptor) bool { return d.MediaType.IsImage() })
	if at < 0 {
		return nil, nil
	}
	img, err := index.Image(m.Manifests[at].Digest)
	if notFound(err) {
		return nil, nil
	}
	return img, err
}

// Referrers lists the manifests with an image as their subject: see images.MirrorShelf.
func (c *Client) Referrers(ctx context.Context, ref string) ([]string, error) {
	d, err := name.NewDigest(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	return c.referrers(ctx, d)
}

// Delete removes a manifest: see images.MirrorShelf.
func (c *Client) Delete(ctx context.Context, ref string) error {
	d, err := name.NewDigest(ref)
	if err != nil {
		return fault.Configf("image reference %q: %w", ref, err)
	}
	err = remote.Delete(d, c.options(ctx)...)
	switch {
	case err == nil || notFound(err):
		return nil
	case undeletable(err):
		return fault.WithHint(fmt.Errorf("%w: registry %s: %w", images.ErrUndeletable, d.RegistryStr(), foreign.Error(err)),
			"%s; or delete the tag where you manage the registry", remedy(d.RegistryStr()))
	}
	return explain(err, d.Context())
}

// undeletable matches the answer of a registry that has no deletion, or has it disabled.
func undeletable(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && (e.StatusCode == http.StatusMethodNotAllowed ||
		slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.UnsupportedErrorCode }))
}

// remedy is a hint for a registry that refuses to delete.
func remedy(registry string) string {
	switch registry {
	case "ghcr.io":
		return "ghcr.io deletes only through GitHub's API for packages: gh api --method DELETE /user/packages/container/NAME/versions/ID"
	case name.DefaultRegistry:
		return "Docker Hub deletes only through its own API and web pages"
	}
	return "in a registry of your own (distribution), set REGISTRY_STORAGE_DELETE_ENABLED=true"
}
