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
// annotations in the index describe the records, so that one request reads all descriptions. Records are not
// referrers of an image: a record changes while its run goes on, and only a tag can follow the change; registries
// without the referrers API race for their list of referrers; registries with the API delete referrers with their
// image.
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

// entries reads the entries of a list, the newest first. A tag that names anything else is refused and not
// overwritten.
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
