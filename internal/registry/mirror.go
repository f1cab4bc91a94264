package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

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

var _ images.Records = (*Records)(nil)

// Records keeps lists of files in registries, with the logins of a client.
type Records struct {
	client *Client

	mu sync.Mutex
	// own holds the digests that this process has pushed last: of lists, by list, and of records, by list and record.
	// A digest that replaces one of them makes it garbage that no one else needs.
	own         map[string]string
	undeletable bool // the registry deletes nothing
}

// NewRecords returns Records with the logins of c. It does not connect.
func NewRecords(c *Client) *Records { return &Records{client: c, own: map[string]string{}} }

// A list of records is an OCI index under a tag. Each record is a manifest with the file as its only layer. The
// annotations in the index describe the records, so that one request reads all descriptions. Records are not referrers
// of an image: a record changes while its run goes on, and only a tag can follow the change; registries without the
// referrers API race for their list of referrers; registries with the API delete referrers with their image.
const (
	recordConfig = types.MediaType("application/vnd.recast.run.v1+json")
	recordLayer  = types.MediaType("application/vnd.recast.run.v1.tar+gzip")

	recordLabels = "sh.recast."      // begins the annotations of a record
	recordName   = "sh.recast.name"  // an annotation: the record's name
	recordSize   = "sh.recast.bytes" // an annotation: the size of the record's content

	maxRecord = 32 << 20 // bytes
	recordTry = 4        // reads of a list, including the last one, which checks what was written
)

// List reads a list: see images.Records.
func (c *Records) List(ctx context.Context, list string) ([]images.Record, error) {
	t, err := name.NewTag(list)
	if err != nil {
		return nil, fault.Configf("image tag %q: %w", list, err)
	}
	entries, err := c.entries(ctx, t)
	if err != nil {
		return nil, err
	}
	var records []images.Record
	for _, d := range entries {
		records = append(records, recordOf(d))
	}
	return records, nil
}

// entries reads the entries of a list, the newest first. A tag that names anything else is refused and not overwritten.
func (c *Records) entries(ctx context.Context, t name.Tag) ([]v1.Descriptor, error) {
	desc, err := remote.Get(t, c.client.options(ctx)...)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err, t.Context())
	}
	var m v1.IndexManifest
	if err := json.Unmarshal(desc.Manifest, &m); err != nil {
		return nil, fmt.Errorf("%s is not a list of runs: %w", t, foreign.Error(err))
	}
	entries := m.Manifests
	if desc.MediaType != types.OCIImageIndex || slices.ContainsFunc(entries, func(d v1.Descriptor) bool { return d.Annotations[recordName] == "" }) {
		return nil, fault.WithHint(fmt.Errorf("%s is not a list of runs: it is left as it is", t), "name that tag otherwise, or say history.share: never in recast.yaml")
	}
	slices.SortStableFunc(entries, func(a, b v1.Descriptor) int {
		return cmp.Compare(b.Annotations[recordWritten], a.Annotations[recordWritten])
	})
	return entries, nil
}

// recordWritten is an annotation: when the record was written, in UTC.
const recordWritten = "org.opencontainers.image.created"

func recordOf(d v1.Descriptor) images.Record {
	r := images.Record{Name: foreign.Line(d.Annotations[recordName]), Digest: d.Digest.String(), Labels: map[string]string{}}
	_, _ = fmt.Sscan(d.Annotations[recordSize], &r.SizeBytes)
	r.Written, _ = time.Parse(time.RFC3339, d.Annotations[recordWritten]) // zero if the annotation is not a time
	for key, value := range d.Annotations {
		if len(key) > len(recordLabels) && key[:len(recordLabels)] == recordLabels && key != recordName && key != recordSize {
			r.Labels[key[len(recordLabels):]] = value
		}
	}
	return r
}

// Read reads the content of a record: see images.Records.
func (c *Records) Read(ctx context.Context, list string, r images.Record) ([]byte, error) {
	t, err := name.NewTag(list)
	if err != nil {
		return nil, fault.Configf("image tag %q: %w", list, err)
	}
	img, err := remote.Image(t.Context().Digest(r.Digest), c.client.options(ctx)...)
	if err != nil {
		return nil, explain(err, t.Context())
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, explain(err, t.Context())
	}
	if m.Config.MediaType != recordConfig || len(m.Layers) != 1 || m.Layers[0].Size > maxRecord {
		return nil, fmt.Errorf("%s@%s is not the record of a run", t.Context(), r.Digest)
	}
	content, err := pushed(img, m.Layers[0].Digest)
	return content, explain(err, t.Context())
}

// Keep puts a record on a list: see images.Records. A list has no lock: of two processes that write at once, one may
// take the other's record off. So Keep looks at the list again after it has written.
func (c *Records) Keep(ctx context.Context, list string, r images.Record, content []byte, most int) error {
	t, err := name.NewTag(list)
	if err != nil {
		return fault.Configf("image tag %q: %w", list, err)
	}
	if len(content) > maxRecord {
		return fmt.Errorf("%s has %d bytes: records of up to %d are kept", r.Name, len(content), maxRecord)
	}
	entry, err := c.push(ctx, t.Context(), r, content)
	if err != nil {
		return err
	}
	for range recordTry {
		entries, err := c.entries(ctx, t)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(entries, func(d v1.Descriptor) bool { return d.Digest == entry.Digest && d.Annotations[recordName] == r.Name }) {
			c.replace(ctx, t.Context(), list+" "+r.Name, entry.Digest.String())
			return nil
		}
		entries = slices.DeleteFunc(entries, func(d v1.Descriptor) bool { return d.Annotations[recordName] == r.Name })
		entries = append([]v1.Descriptor{entry}, entries...)
		if err := c.put(ctx, t, entries[:min(most, len(entries))]); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: others change it all the time", t)
}

// push pushes the manifest of a record, and returns its entry for a list.
func (c *Records) push(ctx context.Context, to name.Repository, r images.Record, content []byte) (v1.Descriptor, error) {
	img, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), recordConfig),
		mutate.Addendum{Layer: static.NewLayer(content, recordLayer), MediaType: recordLayer})
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("record %s: %w", r.Name, err)
	}
	raw, errRaw := img.RawManifest()
	digest, errDigest := img.Digest()
	if err := errors.Join(errRaw, errDigest); err != nil {
		return v1.Descriptor{}, fmt.Errorf("record %s: %w", r.Name, err)
	}
	if err := remote.Write(to.Digest(digest.String()), img, c.client.options(ctx)...); err != nil {
		return v1.Descriptor{}, explain(err, to)
	}
	about := map[string]string{recordName: r.Name, recordSize: fmt.Sprint(len(content)), recordWritten: r.Written.UTC().Format(time.RFC3339Nano)}
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		about[recordLabels+key] = r.Labels[key]
	}
	return v1.Descriptor{
		MediaType: types.OCIManifestSchema1, ArtifactType: string(recordConfig), Digest: digest, Size: int64(len(raw)), Annotations: about,
	}, nil
}

// index is an OCI index that is pushed as it is. The manifests that it lists have been pushed before.
type index []byte

func (i index) RawManifest() ([]byte, error)        { return i, nil }
func (i index) MediaType() (types.MediaType, error) { return types.OCIImageIndex, nil }

// put writes a list. A registry that knows its content refuses a list of which a record is missing. Then put leaves
// out the records that someone has deleted.
func (c *Records) put(ctx context.Context, t name.Tag, entries []v1.Descriptor) error {
	put := func() error {
		raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries})
		if err != nil {
			return fmt.Errorf("list %s: %w", t, err)
		}
		if err := remote.Put(t, index(raw), c.client.options(ctx)...); err != nil {
			return err
		}
		digest, _, err := v1.SHA256(bytes.NewReader(raw))
		if err == nil {
			c.replace(ctx, t.Context(), t.String(), digest.String())
		}
		return err
	}
	err := put()
	if e, ok := errors.AsType[*transport.Error](err); ok && (e.StatusCode == http.StatusBadRequest || e.StatusCode == http.StatusNotFound) {
		entries = slices.DeleteFunc(entries, func(d v1.Descriptor) bool {
			_, err := c.client.head(ctx, t.Context().Digest(d.Digest.String()))
			return notFound(err)
		})
		err = put()
	}
	return explain(err, t.Context())
}

// replace deletes the digest that this process has pushed before under a key, and that the new digest replaces. A
// digest that can't be deleted is left to the registry: nothing names it any more.
func (c *Records) replace(ctx context.Context, in name.Repository, key, digest string) {
	c.mu.Lock()
	before := c.own[key]
	c.own[key] = digest
	tries := before != "" && before != digest && !c.undeletable
	c.mu.Unlock()
	if !tries {
		return
	}
	if err := remote.Delete(in.Digest(before), c.client.options(ctx)...); err != nil && !notFound(err) {
		c.mu.Lock()
		c.undeletable = true
		c.mu.Unlock()
	}
}

// ForAnyone reports whether anyone could read what is in a repository: see images.Records.
func (c *Records) ForAnyone(ctx context.Context, list string) (bool, error) {
	t, err := name.NewTag(list)
	if err != nil {
		return false, fault.Configf("image tag %q: %w", list, err)
	}
	if private(ctx, t.RegistryStr()) {
		return false, nil
	}
	tags, err := remote.List(t.Context(), c.client.options(ctx)...)
	if err != nil {
		return false, explain(err, t.Context()) // also if there is no such repository yet: who may read it is unknown
	}
	if len(tags) == 0 {
		return false, fmt.Errorf("registry %s: %s is empty: whether anyone can read it can't be seen yet", t.RegistryStr(), t.Context())
	}
	stranger := *c.client
	stranger.keychain = authn.NewMultiKeychain() // has no login
	_, err = remote.Get(t.Context().Tag(tags[0]), stranger.options(ctx)...)
	if e, ok := errors.AsType[*transport.Error](err); ok && e.StatusCode/100 == 4 && e.StatusCode != http.StatusTooManyRequests {
		return false, nil
	}
	if err != nil {
		return false, explain(err, t.Context())
	}
	return true, nil
}

// private reports whether every address of a registry is private, loopback or link-local.
func private(ctx context.Context, registry string) bool {
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = registry
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return err == nil && len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		a = a.Unmap()
		return !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast()
	})
}
