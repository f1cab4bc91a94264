// Package registry is the adapter to OCI registries: a [Client] resolves references,
// reads, copies and deletes images, and lists the official extensions of a Talos version.
package registry

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/authn/github"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	bounds "github.com/recast-sh/recast/internal/transport"
	"github.com/recast-sh/recast/internal/trust"
	"github.com/recast-sh/recast/schematics"
)

// OfficialExtensions is the repository whose tags, one for each Talos version, list the official extensions.
const OfficialExtensions = "ghcr.io/siderolabs/extensions"

var (
	_ images.Registry    = (*Client)(nil)
	_ images.Copier      = (*Client)(nil)
	_ images.Puller      = (*Client)(nil)
	_ schematics.Catalog = (*Client)(nil)

	_ schematics.ExtensionImages = (*Client)(nil)
)

// Options says which lists to read, and how to reach registries.
type Options struct {
	Extensions string // repository; "": OfficialExtensions
	// Transport carries every request; nil: a new one, with the system's proxy and root certificates.
	Transport http.RoundTripper
	CAFile    string                                    // PEM file of CAs in addition to the system's; "": none
	Wrap      func(http.RoundTripper) http.RoundTripper // wraps Transport; nil: nothing
	// Keychain has the logins; nil: the login files of docker and podman with their credential helpers; otherwise,
	// for ghcr.io, GITHUB_TOKEN.
	Keychain authn.Keychain
	Insecure []string // hosts, such as "10.0.0.5:5000", that are spoken to without TLS; others are not, except on this machine
}

// Client reads registries, and writes to the mirror.
type Client struct {
	extensions name.Repository
	transport  http.RoundTripper
	keychain   authn.Keychain
}

// New returns a client without connecting. A malformed repository is an error of kind Config.
func New(o Options) (*Client, error) {
	o.Extensions = cmp.Or(o.Extensions, OfficialExtensions)
	repository, err := name.NewRepository(o.Extensions)
	if err != nil {
		return nil, fault.Configf("list of official extensions: %w", err)
	}
	c := &Client{extensions: repository, transport: o.Transport, keychain: o.Keychain}
	if c.transport == nil {
		if c.transport, err = trust.Transport(o.CAFile); err != nil {
			return nil, err
		}
	}
	c.transport = trust.Encrypted(c.transport, o.Insecure)
	if o.Wrap != nil {
		c.transport = o.Wrap(c.transport)
	}
	if c.keychain == nil {
		c.keychain = authn.NewMultiKeychain(authn.DefaultKeychain, github.Keychain)
	}
	return c, nil
}

// Close closes idle connections. Requests in flight end with their contexts.
func (c *Client) Close() error {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// Digest returns the digest of the manifest that a reference names; the manifest may be an index. Digest fetches and
// hashes the manifest, so a registry cannot claim another digest.
func (c *Client) Digest(ctx context.Context, ref string) (string, bool, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", false, fault.Configf("image reference %q: %w", ref, err)
	}
	r = c.relocate(r)
	// GET instead of HEAD: a registry that refuses explains itself only in its answer to GET.
	d, err := remote.Get(r, c.options(ctx)...)
	if notFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, explain(err, r.Context())
	}
	return d.Digest.String(), true, nil
}

func notFound(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && e.StatusCode == http.StatusNotFound
}

// denied is images.ErrDenied with the registry's own message.
type denied struct{ error }

func (d denied) Unwrap() error        { return d.error }
func (d denied) Is(target error) bool { return target == images.ErrDenied }

// explain adds to an error which registry it comes from, and what to do; nil stays nil.
func explain(err error, r name.Repository) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("registry %s: %w", r.RegistryStr(), foreign.Error(err))
	if isStalled(err) {
		return fault.WithHint(err, "run it again: blobs that were transferred completely are not sent again")
	}
	e, ok := errors.AsType[*transport.Error](err)
	if errors.Is(err, trust.ErrClear) || !ok && errors.Is(err, http.ErrSchemeMismatch) {
		return fault.WithHint(fault.TLS.Of(err), "a registry without TLS has to be named in images.insecure: logins go to it in the clear, and who is on the way can change what it answers")
	}
	if explained, ok := trust.Explain(err); ok {
		return explained
	}
	if explained, ok := damaged(err); ok {
		return explained
	}
	_, unreachable := errors.AsType[*url.Error](err)
	switch {
	case !ok && unreachable && !errors.Is(err, context.Canceled):
		return fault.WithHint(fault.Unreachable.Of(err), "see whether %s is a registry that can be reached from here: images.extensions, images.mirror and images.factory in recast.yaml name registries", r.RegistryStr())
	case !ok:
		return err
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		return fault.WithHint(fault.Credentials.Of(denied{err}), "log in with `docker login %s`, or see whether the repository's name is right", r.RegistryStr())
	case e.StatusCode == http.StatusRequestEntityTooLarge:
		return fault.WithHint(fault.BuildFailed.Of(err), "a proxy before %s limits the size of what is uploaded (client_max_body_size of nginx): images have layers of hundreds of MiB", r.RegistryStr())
	case e.StatusCode == http.StatusMethodNotAllowed && e.Request != nil && e.Request.Method == http.MethodPost: // the start of an upload
		return fault.WithHint(fault.BuildFailed.Of(err), "%s accepts no images, like a cache of another registry: see images.mirror in recast.yaml", r.RegistryStr())
	case e.StatusCode == http.StatusTooManyRequests:
		return fault.WithHint(fault.BuildFailed.Of(err), "the registry limits how often it answers: wait, or log in with `docker login %s`", r.RegistryStr())
	}
	return err
}

// limits apply to every registry.
var limits = bounds.Limits{
	Server: "the registry", Stall: time.Minute,
	// A factory answers a request for an installer when it has built the installer, which may take 20 minutes
	// (image-factory, internal/asset/asset.go). A registry answers a request for a blob when it has assembled the blob.
	Answer:  25 * time.Minute,
	Resumes: 6, Pause: time.Second,
	// Blobs may come in pieces, because their readers check the digest. What a tag names may have changed meanwhile.
	Resumable: func(req *http.Request) bool { return !strings.Contains(req.URL.Path, "/manifests/") },
}

func limited(by http.RoundTripper) http.RoundTripper {
	return bounds.Limited{Inner: by, Limits: limits}
}

func isStalled(err error) bool {
	_, ok := errors.AsType[*bounds.Stalled](err)
	return ok
}

// relocate returns where to pull an image of Sidero Labs: from beside the list of official extensions. The list names
// ghcr.io, wherever the list was copied to.
func (c *Client) relocate(ref name.Reference) name.Reference {
	official, _ := path.Split(OfficialExtensions)
	there, _ := path.Split(c.extensions.Name())
	image, ok := strings.CutPrefix(ref.Context().Name(), official)
	if !ok || there == official {
		return ref
	}
	at, err := name.NewRepository(there + image)
	if err != nil {
		return ref
	}
	if digest, ok := ref.(name.Digest); ok {
		return at.Digest(digest.DigestStr())
	}
	return at.Tag(ref.Identifier())
}

func (c *Client) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(referrersAPI{limited(c.transport)}), remote.WithAuthFromKeychain(c.keychain)}
}

// get fetches a manifest. A missing manifest is an error with a hint.
func (c *Client) get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	desc, err := remote.Get(ref, c.options(ctx)...)
	if notFound(err) {
		return nil, missingError(ref, err)
	}
	if err != nil {
		return nil, explain(err, ref.Context())
	}
	return desc, nil
}

// head reads a manifest's headers. It reads the whole manifest if the registry cannot answer a HEAD request or omits
// what is needed: containerd issue 5124, crossplane pull request 3223. Also, only a refused GET has a message.
func (c *Client) head(ctx context.Context, ref name.Reference) (*v1.Descriptor, error) {
	d, err := remote.Head(ref, c.options(ctx)...)
	_, unreachable := errors.AsType[*url.Error](err)
	if err == nil || notFound(err) || unreachable {
		return d, err
	}
	whole, err := remote.Get(ref, c.options(ctx)...)
	if err != nil {
		return nil, err
	}
	return &whole.Descriptor, nil
}

// referrers lists the digests of the manifests whose subject is that image.
func (c *Client) referrers(ctx context.Context, of name.Digest) ([]string, error) {
	index, err := remote.Referrers(of, c.options(ctx)...)
	if err != nil {
		return nil, explain(err, of.Context())
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, explain(err, of.Context())
	}
	var digests []string
	for _, d := range m.Manifests {
		digests = append(digests, d.Digest.String())
	}
	return digests, nil
}

// push copies one manifest and everything that it refers to, except what the target already has.
func (c *Client) push(ctx context.Context, from, to name.Reference, progress func(doneBytes, totalBytes int64)) (*remote.Descriptor, error) {
	desc, err := c.get(ctx, from)
	if err != nil {
		return nil, err
	}
	var tell func(doneBytes int64)
	if progress != nil {
		total, err := totalBytes(desc)
		if err != nil {
			return nil, explain(err, from.Context())
		}
		tell = func(doneBytes int64) { progress(doneBytes, total) }
	}
	if err := c.send(ctx, to, desc, tell); err != nil {
		return nil, explain(err, errorSource(err, from.Context(), to.Context()))
	}
	return desc, nil
}

// upload pushes an image or an index and reports progress. It does not send again what the registry already has.
func (c *Client) upload(ctx context.Context, to name.Reference, what remote.Taggable, progress func(doneBytes int64)) error {
	return explain(c.send(ctx, to, what, progress), to.Context())
}

func (c *Client) send(ctx context.Context, to name.Reference, what remote.Taggable, progress func(doneBytes int64)) error {
	opts := c.options(ctx)
	var reporting sync.WaitGroup
	if progress != nil {
		updates := make(chan v1.Update) // Push closes it
		opts = append(opts, remote.WithProgress(updates))
		reporting.Go(func() {
			for u := range updates {
				progress(u.Complete)
			}
		})
	}
	defer reporting.Wait()
	return remote.Push(to, what, opts...)
}

// referrersAPI turns the various answers of registries without OCI 1.1's referrers API into 404. go-containerregistry
// understands 404, and then keeps the list under a tag. It also understands some of the other answers when it reads
// the list, and different ones when it writes the list.
type referrersAPI struct{ inner http.RoundTripper }

func (a referrersAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.inner.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || !missing(req.URL.Path, resp) {
		return resp, err
	}
	// Nobody reads the original body.
	_ = resp.Body.Close()
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: resp.Proto, ProtoMajor: resp.ProtoMajor, ProtoMinor: resp.ProtoMinor,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}, nil
}

var (
	referrersPath = regexp.MustCompile(`^/v2/.+/referrers/(sha256:[0-9a-f]{64})$`)
	fallbackPath  = regexp.MustCompile(`^/v2/.+/manifests/sha256-([0-9a-f]{64})$`)
)

// missing reports whether an answer means that there is no list of referrers.
func missing(asked string, resp *http.Response) bool {
	if m := referrersPath.FindStringSubmatch(asked); m != nil {
		return noReferrers(m[1], resp)
	}
	// GitLab takes the tag for the digest, and answers with the subject itself: oras-project/oras-go issue 1396.
	m := fallbackPath.FindStringSubmatch(asked)
	return m != nil && resp.StatusCode == http.StatusOK && resp.Header.Get("Docker-Content-Digest") == "sha256:"+m[1]
}

func noReferrers(digest string, resp *http.Response) bool {
	// Artifactory answers 406: go-containerregistry pull request 2026.
	none := []int{http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented}
	switch {
	case slices.Contains(none, resp.StatusCode):
		return true
	case resp.StatusCode/100 == 3:
		// ghcr.io redirects to web pages of github.com, which answer 429 or anything else: artifacthub/hub issue 4785.
		to, err := resp.Location()
		return err != nil || path.Base(to.Path) != digest || !strings.HasSuffix(path.Dir(to.Path), "/referrers")
	case resp.StatusCode != http.StatusOK:
		return false
	}
	// Some registries answer 200 with other content: sigstore/sigstore-js pull request 1187.
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != string(types.OCIImageIndex) {
		return true
	}
	resp.Header.Set("Content-Type", kind) // go-containerregistry compares it verbatim
	return false
}

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
		return nil, fault.Configf("%s is not an image: %w", ref, foreign.Error(err))
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

// fileOf looks for a file of the root directory in one layer, and reads the layer to its end, where its digest is
// checked. decided says that the layers below do not matter: the file is here, or this layer hides it.
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
