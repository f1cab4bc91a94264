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

// Head returns the digest of what a tag names, from the registry's headers.
func (c *Client) Head(ctx context.Context, tag string) (string, bool, error) {
	t, err := name.NewTag(tag)
	if err != nil {
		return "", false, fault.Configf("image tag %q: %w", tag, err)
	}
	d, err := c.head(ctx, t)
	if notFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, explain(err, t.Context())
	}
	return d.Digest.String(), true, nil
}

// Copy copies an image or an index, manifests last, so that what exists under its digest is complete: see
// images.Copier.
func (c *Client) Copy(ctx context.Context, source, repository string, progress func(doneBytes, totalBytes int64)) error {
	from, err := name.NewDigest(source)
	if err != nil {
		return fault.Configf("image reference %q: %w", source, err)
	}
	to, err := name.NewRepository(repository)
	if err != nil {
		return fault.Configf("image repository %q: %w", repository, err)
	}
	if _, err := c.push(ctx, from, to.Digest(from.DigestStr()), progress); err != nil {
		return err
	}
	if err := c.copySignature(ctx, from, to); err != nil {
		return err
	}
	return c.copyReferrers(ctx, from, to)
}

// Tag puts the manifest of ref under a tag of the same repository.
func (c *Client) Tag(ctx context.Context, ref, tag string) error {
	d, errRef := name.NewDigest(ref)
	t, errTag := name.NewTag(tag)
	if err := errors.Join(errRef, errTag); err != nil {
		return fault.As(fault.Config, err)
	}
	desc, err := c.get(ctx, d)
	if err != nil {
		return err
	}
	return explain(remote.Tag(t, desc, c.options(ctx)...), t.Context())
}

// copySignature copies the signature that cosign keeps under a tag beside the image: sigstore/cosign,
// specs/SIGNATURE_SPEC.md.
func (c *Client) copySignature(ctx context.Context, of name.Digest, to name.Repository) error {
	tag := signatureTag(of)
	sig, err := c.head(ctx, of.Context().Tag(tag))
	switch {
	// Artifactory answers 403 if the tag of a signature does not exist: sigstore/cosign issue 2973.
	case notFound(err) || err != nil && errors.Is(explain(err, of.Context()), images.ErrDenied):
		return nil
	case err != nil:
		return explain(err, of.Context())
	}
	have, err := c.head(ctx, to.Tag(tag))
	switch {
	case err == nil && have.Digest == sig.Digest:
		return nil
	case err == nil:
		return fault.WithHint(fault.ImageDiffers.Refusedf("%s is %s, but the signature to be copied is %s: it is never overwritten", to.Tag(tag), have.Digest, sig.Digest),
			"someone has signed the copy again. Copy the signature by hand, or delete the tag from the registry")
	case !notFound(err) && !errors.Is(explain(err, to), images.ErrDenied):
		return explain(err, to)
	}
	_, err = c.push(ctx, of.Context().Tag(tag), to.Tag(tag), nil)
	return err
}

// copyReferrers copies the manifests that name the image as their subject (OCI 1.1), such as provenance or an SBOM.
// Each registry lists these manifests by the API or by the fallback tag, whichever it has.
func (c *Client) copyReferrers(ctx context.Context, of name.Digest, to name.Repository) error {
	list, err := c.referrers(ctx, of)
	if err != nil || len(list) == 0 {
		return err
	}
	have, err := c.referrers(ctx, to.Digest(of.DigestStr()))
	if err != nil {
		return err
	}
	for _, digest := range list {
		if slices.Contains(have, digest) {
			continue
		}
		at := to.Digest(digest)
		desc, err := c.push(ctx, of.Context().Digest(digest), at, nil)
		if err != nil {
			return err
		}
		// Push skips an existing manifest, and with it the fallback tag, which an interrupted copy may lack.
		if err := remote.Put(at, desc, c.options(ctx)...); err != nil {
			return explain(err, to)
		}
	}
	return nil
}

// errorSource returns the repository that a copy's error comes from.
func errorSource(err error, from, to name.Repository) name.Repository {
	if e, ok := errors.AsType[*transport.Error](err); ok && e.Request != nil && e.Request.URL.Host == from.RegistryStr() {
		return from
	}
	return to
}

// totalBytes returns the most that a copy may have to send: the manifests, and each blob once. It fetches only
// manifests.
func totalBytes(desc *remote.Descriptor) (total int64, err error) {
	sizes := map[v1.Hash]int64{}
	index := func(v1.Hash) (v1.ImageIndex, error) { return desc.ImageIndex() }
	image := func(v1.Hash) (v1.Image, error) { return desc.Image() }
	err = addSizes(desc.Descriptor, sizes, index, image)
	for _, size := range sizes {
		total += size
	}
	return total, err
}

// addSizes adds the sizes of what a descriptor describes; index and image read its manifest.
func addSizes(
	d v1.Descriptor, sizes map[v1.Hash]int64, index func(v1.Hash) (v1.ImageIndex, error), image func(v1.Hash) (v1.Image, error),
) error {
	sizes[d.Digest] = d.Size
	switch {
	case d.MediaType.IsIndex():
		below, err := index(d.Digest)
		if err != nil {
			return err
		}
		m, err := below.IndexManifest()
		if err != nil {
			return err
		}
		for _, d := range m.Manifests {
			if err := addSizes(d, sizes, below.ImageIndex, below.Image); err != nil {
				return err
			}
		}
	case d.MediaType.IsImage():
		img, err := image(d.Digest)
		if err != nil {
			return err
		}
		m, err := img.Manifest()
		if err != nil {
			return err
		}
		for _, d := range append(m.Layers, m.Config) {
			sizes[d.Digest] = d.Size
		}
	}
	return nil
}

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
	_, m, err := indexOf(desc)
	if err != nil {
		return n, true, fmt.Errorf("read %s: %w", t, foreign.Error(err))
	}
	for _, d := range m.Manifests {
		n.Lists = append(n.Lists, d.Digest.String())
	}
	return n, true, nil
}

// Built returns the build time of an image, or of the first image of an index: see images.MirrorShelf.
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
	if notFound(err) { // a part of the image is gone, or it is not a system image
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read %s: %w", r, explain(err, r.Context()))
	}
	if config.Created.Unix() <= 0 { // reproducible builds set such a time
		return time.Time{}, nil
	}
	return config.Created.Time, nil
}

// firstImage returns the image that a descriptor names, or the first one of an index; nil if there is none.
func firstImage(desc *remote.Descriptor) (v1.Image, error) {
	if desc.MediaType.IsImage() {
		return desc.Image()
	}
	if !desc.MediaType.IsIndex() {
		return nil, nil
	}
	index, m, err := indexOf(desc)
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

// undeletable reports whether a registry answered that it has no deletion, or has deletion disabled.
func undeletable(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && (e.StatusCode == http.StatusMethodNotAllowed ||
		slices.ContainsFunc(e.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.UnsupportedErrorCode }))
}

// remedy returns a hint for a registry that refuses to delete.
func remedy(registry string) string {
	switch registry {
	case "ghcr.io":
		return "ghcr.io deletes only through GitHub's API for packages: gh api --method DELETE /user/packages/container/NAME/versions/ID"
	case name.DefaultRegistry:
		return "Docker Hub deletes only through its own API and web pages"
	}
	return "in a registry of your own (distribution), set REGISTRY_STORAGE_DELETE_ENABLED=true"
}
