package factoryapi

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/record"
)

// Registry is an OCI registry that keeps everything in memory.
type Registry struct {
	store    http.Handler
	recorded http.Handler
}

var _ http.Handler = (*Registry)(nil)

// NewRegistry makes an empty registry. The registry owns no goroutine and needs no Close.
func NewRegistry(rec *record.Recorder) *Registry {
	store := untagging{registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))}
	return &Registry{store: store, recorded: recorded(rec, "registry", store)}
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.recorded.ServeHTTP(w, req) }

// Transport reaches the registry from inside the lab: whatever the URL's host, without a connection, and unrecorded.
// The factory and publishers of extensions, which are not under test, use it.
func (r *Registry) Transport() http.RoundTripper { return inside{r.store} }

type inside struct{ handler http.Handler }

func (t inside) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	r := req.Clone(req.Context())
	r.RequestURI = req.URL.RequestURI()
	r.Host = req.URL.Host
	if r.Body == nil {
		r.Body = http.NoBody
	}
	a := newAnswer()
	t.handler.ServeHTTP(a, r)
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	resp := a.response(req)
	if req.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp, nil
}

// installerImages is the repository prefix of the factory's installers, before image name, schematic and tag.
const installerImages = "factory"

// manifest answers a manifest request for an installer. A tag in the registry with the factory's signature is served
// unchanged for ever; a missing version is built for both architectures; all other requests are proxied to the
// registry.
func (f *Factory) manifest(w http.ResponseWriter, r *http.Request) error {
	d, err := f.design(r.PathValue("schematic"))
	if err != nil {
		return err
	}
	image := r.PathValue("image")
	o, err := parseInstaller(image)
	if err != nil {
		return err
	}
	reference := r.PathValue("reference")
	if reference == "latest" {
		if reference, err = f.latest(); err != nil {
			return err
		}
	}
	if strings.HasPrefix(reference, "sha256:") || !strings.HasPrefix(reference, "v") {
		return f.proxy(w, r, "manifests", reference)
	}
	o.design, o.version = d, reference
	repo := strings.Join([]string{installerImages, image, d.id}, "/")
	digest, err, _ := f.builds.Do("installer/"+repo+":"+reference, func() (any, error) {
		return f.installer(r.Context(), repo, o)
	})
	if err != nil {
		return err
	}
	return f.proxy(w, r, "manifests", digest.(string))
}

func (f *Factory) blob(w http.ResponseWriter, r *http.Request) error {
	if _, err := f.design(r.PathValue("schematic")); err != nil {
		return err
	}
	if _, err := parseInstaller(r.PathValue("image")); err != nil {
		return err
	}
	return f.proxy(w, r, "blobs", r.PathValue("digest"))
}

// parseInstaller parses [<platform>-]installer[-secureboot]; the default platform is metal.
func parseInstaller(image string) (order, error) {
	text, secureBoot := strings.CutSuffix(image, "-secureboot")
	if text == "installer" {
		return order{kind: installer, platform: "metal", secureBoot: secureBoot}, nil
	}
	platform, ok := strings.CutSuffix(text, "-installer")
	if !ok {
		return order{}, invalidf("invalid image: %s", image)
	}
	return order{kind: installer, platform: platform, secureBoot: secureBoot}, nil
}

// installer returns the digest of an installer in the registry, and builds a missing installer.
func (f *Factory) installer(ctx context.Context, repo string, o order) (string, error) {
	ctx, done := f.outlive(ctx)
	defer done()
	tag := f.registry.registry.Repo(repo).Tag(o.version)
	desc, err := remote.Head(tag, f.registry.options(ctx)...)
	if err == nil {
		// An installer whose signature can't be verified, for whatever reason, is rebuilt.
		if signed, err := f.signed(ctx, tag.Context().Digest(desc.Digest.String())); err == nil && signed {
			return desc.Digest.String(), nil
		}
		return f.buildInstaller(ctx, repo, o)
	}
	if e, ok := errors.AsType[*transport.Error](err); !ok || e.StatusCode != http.StatusNotFound {
		return "", fmt.Errorf("look for %s: %w", tag, err)
	}
	if _, err := versionTag(o.version); err != nil {
		return "", err
	}
	return f.buildInstaller(ctx, repo, o)
}

func (f *Factory) buildInstaller(ctx context.Context, repo string, o order) (string, error) {
	var images []artefact.Image
	var key string
	for _, o.arch = range []string{"amd64", "arm64"} {
		refs, err := f.resolve(ctx, o)
		if err != nil {
			return "", fmt.Errorf("error enhancing profile from schematic: %w", err)
		}
		img, err := f.image(ctx, o, refs)
		if err != nil {
			return "", err
		}
		img.Signed = f.opts.SignsInstallers
		images, key = append(images, img), cacheKey(o.platform+"-installer", o, refs)
	}
	idx, err := artefact.Installer(f.made(key), images...)
	if err != nil {
		return "", err
	}
	if err := f.build(ctx, fmt.Sprintf("installer %s %s %s", o.design.id, o.version, o.platform), installerTakes); err != nil {
		return "", err
	}
	if err := f.registry.push(ctx, repo, o.version, idx); err != nil {
		return "", err
	}
	digest, err := idx.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), f.sign(ctx, f.registry.registry.Repo(repo).Digest(digest.String()))
}

// made returns the build time of the installer with that key: imager writes the time into the image (outInstaller in
// siderolabs/talos pkg/imager/out.go), and afterwards the cached image is used under any name.
func (f *Factory) made(key string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.installers[key]; !ok {
		f.installers[key] = time.Now()
	}
	return f.installers[key]
}

// proxy fetches a manifest or blob of an installer from the registry.
func (f *Factory) proxy(w http.ResponseWriter, r *http.Request, what, reference string) error {
	u := url.URL{
		Scheme: f.registry.registry.Scheme(), Host: f.registry.registry.RegistryStr(),
		Path: "/" + strings.Join([]string{"v2", installerImages, r.PathValue("image"), r.PathValue("schematic"), what, reference}, "/"),
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header["Accept"] = r.Header["Accept"]
	resp, err := f.opts.Transport.RoundTrip(req)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return nil
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, err = io.Copy(w, resp.Body)
	return err
}

type registryClient struct {
	registry  name.Registry
	transport http.RoundTripper
}

func newRegistryClient(host string, transport http.RoundTripper) (registryClient, error) {
	reg, err := name.NewRegistry(host, name.Insecure)
	if err != nil {
		return registryClient{}, fmt.Errorf("registry %q: %w", host, err)
	}
	return registryClient{registry: reg, transport: transport}, nil
}

func (c registryClient) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(c.transport)}
}

func (c registryClient) index(ctx context.Context, repo, digest string) (v1.ImageIndex, error) {
	idx, err := remote.Index(c.registry.Repo(repo).Digest(digest), c.options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("pull %s@%s: %w", repo, digest, err)
	}
	return idx, nil
}

func (c registryClient) image(ctx context.Context, repo, tag string) (v1.Image, error) {
	img, err := remote.Image(c.registry.Repo(repo).Tag(tag), c.options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("pull %s:%s: %w", repo, tag, err)
	}
	return img, nil
}

func (c registryClient) push(ctx context.Context, repo, tag string, what remote.Taggable) error {
	if err := remote.Push(c.registry.Repo(repo).Tag(tag), what, c.options(ctx)...); err != nil {
		return fmt.Errorf("push %s:%s: %w", repo, tag, err)
	}
	return nil
}

var manifestByDigest = regexp.MustCompile(`^/v2/(.+)/manifests/(sha256:[0-9a-f]{64})$`)

// untagging deletes the tags of a deleted manifest, like distribution/distribution (registry/handlers/manifests.go,
// DeleteManifest) and others. go-containerregistry's registry would keep serving the manifest under its tags.
type untagging struct{ store http.Handler }

func (u untagging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := manifestByDigest.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodDelete || m == nil {
		u.store.ServeHTTP(w, r)
		return
	}
	repository, digest := m[1], m[2]
	var list struct {
		Tags []string `json:"tags"`
	}
	if a := u.ask(r, http.MethodGet, "/v2/"+repository+"/tags/list"); a.status == http.StatusOK {
		if err := json.Unmarshal(a.body.Bytes(), &list); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	for _, tag := range list.Tags {
		path := "/v2/" + repository + "/manifests/" + tag
		if u.ask(r, http.MethodHead, path).header.Get("Docker-Content-Digest") == digest {
			u.ask(r, http.MethodDelete, path)
		}
	}
	u.store.ServeHTTP(w, r)
}

// ask sends a request to the store while untagging handles another.
func (u untagging) ask(r *http.Request, method, path string) *answer {
	inner := r.Clone(r.Context())
	inner.Method, inner.Body, inner.ContentLength = method, http.NoBody, 0
	inner.URL.Path, inner.URL.RawPath, inner.URL.RawQuery = path, "", ""
	a := newAnswer()
	u.store.ServeHTTP(a, inner)
	return a
}

// signature is the query parameter that authorizes a download from the store.
const signature = "X-Amz-Signature"

// Store serves the factory's built images if Options.Store is set: to clients with a signed
// URL, without other credentials.
func (f *Factory) Store() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		switch {
		case r.Header.Get("Authorization") != "":
			storeError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
			return
		case r.URL.Query().Get(signature) != sign(name):
			storeError(w, http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.")
			return
		}
		f.mu.Lock()
		content := f.shelf[name] // a signed image exists
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", `"`+name+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

func (f *Factory) storeURL(content []byte) string {
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shelf[name] = content
	return f.opts.Store + "/" + name + "?" + signature + "=" + sign(name)
}

func sign(name string) string {
	sum := sha256.Sum256([]byte("signed " + name))
	return hex.EncodeToString(sum[:])
}

// storeError answers with an error as S3 sends it.
func storeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
		"<Error><Code>" + code + "</Code><Message>" + message + "</Message></Error>")) // the client may be gone
}

// Signing says how a factory signs installers. Zero: with its own random key, like a factory that runs with a key.
type Signing struct {
	Key       *ecdsa.PrivateKey // P-256; nil: random
	Published *ecdsa.PublicKey  // key that clients see; nil: that of Key
	// Keyless signs with a Google identity. A keyless signature puts a bundle beside the image, which the lab omits:
	// there is no signature tag, and no public key.
	Keyless bool
}

// signer signs with a key, like siderolabs/image-factory, internal/image/signer.
type signer struct {
	key       *ecdsa.PrivateKey // nil: keyless
	published []byte            // PEM
}

const (
	simpleSigning       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

func newSigner(s Signing) (signer, error) {
	if s.Keyless {
		return signer{}, nil
	}
	if s.Key == nil {
		var err error
		if s.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return signer{}, err
		}
	}
	if s.Published == nil {
		s.Published = &s.Key.PublicKey
	}
	der, err := x509.MarshalPKIXPublicKey(s.Published)
	if err != nil {
		return signer{}, fmt.Errorf("published signing key: %w", err)
	}
	return signer{key: s.Key, published: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}, nil
}

// signingKey answers /oci/cosign/signing-key.pub, with an empty body if there is no key.
func (f *Factory) signingKey(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(f.signer.published)
	return err
}

// signaturePayload is the signed content: containers/image, docs/containers-signature.5.md.
type signaturePayload struct {
	Critical struct {
		Identity struct {
			DockerReference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			DockerManifestDigest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

func signatureTagOf(image name.Digest) name.Tag {
	return image.Context().Tag(strings.Replace(image.DigestStr(), ":", "-", 1) + ".sig")
}

// sign stores a signature under the image's signature tag, replacing an old signature.
func (f *Factory) sign(ctx context.Context, image name.Digest) error {
	if f.signer.key == nil {
		return nil
	}
	var p signaturePayload
	p.Critical.Identity.DockerReference = image.Context().Name()
	p.Critical.Image.DockerManifestDigest = image.DigestStr()
	p.Critical.Type = "cosign container image signature"
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(payload)
	signature, err := ecdsa.SignASN1(rand.Reader, f.signer.key, hash[:])
	if err != nil {
		return err
	}
	signed, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{
			Layer:       static.NewLayer(payload, simpleSigning),
			Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(signature)},
		})
	if err != nil {
		return err
	}
	tag := signatureTagOf(image)
	if err := remote.Push(tag, signed, f.registry.options(ctx)...); err != nil {
		return fmt.Errorf("error pushing signature: %w", err)
	}
	return nil
}

// signed reports whether an image has a signature by the factory's key. Other images are rebuilt, as in
// internal/frontend/http/registry.go.
func (f *Factory) signed(ctx context.Context, image name.Digest) (bool, error) {
	if f.signer.key == nil {
		return true, nil
	}
	img, err := remote.Image(signatureTagOf(image), f.registry.options(ctx)...)
	if e, ok := errors.AsType[*transport.Error](err); ok && e.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, err := img.Manifest()
	if err != nil {
		return false, err
	}
	for _, layer := range m.Layers {
		payload, err := payloadIn(img, layer)
		if err != nil {
			return false, err
		}
		if f.signer.made(payload, layer.Annotations[signatureAnnotation], image.DigestStr()) {
			return true, nil
		}
	}
	return false, nil
}

func payloadIn(img v1.Image, d v1.Descriptor) ([]byte, error) {
	layer, err := img.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content)
}

func (s signer) made(payload []byte, annotation, digest string) bool {
	signature, err := base64.StdEncoding.DecodeString(annotation)
	if err != nil {
		return false
	}
	hash := sha256.Sum256(payload)
	return bytes.Contains(payload, []byte(digest)) && ecdsa.VerifyASN1(&s.key.PublicKey, hash[:], signature)
}

// upstream is the registry named in the list of extensions, also if the extensions are mirrored elsewhere.
const upstream = "ghcr.io"

// Catalog publishes official extensions in a registry, as a Talos release does. It is
// stateless: it reads published extensions from the registry.
type Catalog struct {
	Registry  string            // "host:port"
	Transport http.RoundTripper // reaches the registry
}

// Publish pushes the extensions as siderolabs/<name>:<version> and their list as
// siderolabs/extensions:<Talos version>, in the given order. Imager and base installer have tags, too, but no content.
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
	for _, repo := range []string{"siderolabs/imager", "siderolabs/installer-base"} {
		if err := reg.push(ctx, repo, talosVersion, empty.Index); err != nil {
			return fmt.Errorf("publish %s: %w", repo, err)
		}
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

// extensionsImage is the repository of the lists of official extensions, by Talos version.
const extensionsImage = "siderolabs/extensions"

type extensionRef struct {
	repo, tag, digest   string // "siderolabs/iscsi-tools", "v0.2.0", digest of the index
	author, description string
}

type extensionInfo struct {
	Name        string `json:"name"`
	Ref         string `json:"ref"`
	Digest      string `json:"digest"`
	Author      string `json:"author"`
	Description string `json:"description"`
}

// official answers with a list of a Talos version.
func official[T any](list func(ctx context.Context, tag string) ([]T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		tag, err := versionTag(r.PathValue("version"))
		if err != nil {
			return err
		}
		found, err := list(r.Context(), tag)
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(found)
	}
}

func (f *Factory) officialExtensions(ctx context.Context, tag string) ([]extensionInfo, error) {
	refs, err := f.extensions(ctx, tag)
	list := make([]extensionInfo, 0, len(refs))
	for _, e := range refs {
		list = append(list, extensionInfo{
			Name: e.repo, Ref: f.opts.Registry + "/" + e.repo + ":" + e.tag, Digest: e.digest,
			Author: e.author, Description: e.description,
		})
	}
	return list, err
}

// extensions returns the list of a Talos version. The list is fetched once and then kept until a restart, whatever
// the registry has.
func (f *Factory) extensions(ctx context.Context, tag string) ([]extensionRef, error) {
	lists := func(m *memory) map[string][]extensionRef { return m.extensions }
	return remembered(ctx, f, lists, "extensions", tag, f.fetchExtensions)
}

// remembered returns the kept list of a Talos version, and fetches a list that is not kept yet.
func remembered[T any](ctx context.Context, f *Factory, of func(*memory) map[string]T, what, tag string, fetch func(context.Context, string) (T, error)) (list T, err error) {
	if err := f.requireVersion(tag); err != nil {
		return list, err
	}
	f.mu.Lock()
	m := f.memory
	f.mu.Unlock()
	lists := of(m)
	look := func() (T, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		list, ok := lists[tag]
		return list, ok
	}
	if list, ok := look(); ok {
		return list, nil
	}
	_, err, _ = m.fetches.Do(what+"/"+tag, func() (any, error) {
		ctx, done := f.outlive(ctx)
		defer done()
		if err := f.take(ctx, listTakes); err != nil {
			return nil, err
		}
		list, err := fetch(ctx, tag)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		lists[tag] = list
		return nil, nil
	})
	list, _ = look()
	return list, err
}

func (f *Factory) fetchExtensions(ctx context.Context, tag string) ([]extensionRef, error) {
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

// findExtension finds an extension by name, or by the former name of a renamed extension.
func findExtension(refs []extensionRef, wanted string) (extensionRef, bool) {
	for _, candidate := range []string{wanted, renamed(wanted)} {
		i := slices.IndexFunc(refs, func(e extensionRef) bool { return e.repo == candidate })
		if i >= 0 {
			return refs[i], true
		}
	}
	return extensionRef{}, false
}

// renamed returns the present name of an extension. See siderolabs/image-factory, internal/profile/profile.go,
// ExtensionNameAlias.
func renamed(extension string) string {
	name := strings.TrimPrefix(extension, "siderolabs/")
	now := map[string]string{
		"v4l-uvc": "v4l-uvc-drivers", "usb-modem": "usb-modem-drivers", "gasket": "gasket-driver", "talos-vmtoolsd": "vmtoolsd-guest-agent",
		"xe-guest-utilities": "xen-guest-agent", "nvidia-container-toolkit": "nvidia-container-toolkit-lts",
		"nvidia-open-gpu-kernel-modules": "nvidia-open-gpu-kernel-modules-lts", "nonfree-kmod-nvidia": "nonfree-kmod-nvidia-lts",
		"nvidia-fabricmanager": "nvidia-fabric-manager-lts", "i915-ucode": "i915", "amdgpu-firmware": "amdgpu",
	}[name]
	if now == "" || name == extension {
		return extension
	}
	return "siderolabs/" + now
}

// overlaysImage is the repository of the lists of official overlays, by Talos version.
const overlaysImage = "siderolabs/overlays"

// Overlay is an official overlay in the list of overlays.
type Overlay struct {
	Name   string `yaml:"name"`   // "rpi_generic"
	Image  string `yaml:"image"`  // "ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0"
	Digest string `yaml:"digest"` // of the index
}

type overlays struct {
	Overlays []Overlay `yaml:"overlays"`
}

// PublishOverlays pushes the list of overlays as siderolabs/overlays:<Talos version>, without the overlays: the lab
// builds no image with an overlay.
func (c Catalog) PublishOverlays(ctx context.Context, talosVersion string, list []Overlay) error {
	reg, err := newRegistryClient(c.Registry, c.Transport)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(overlays{list})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	img, err := crane.Image(map[string][]byte{"overlays.yaml": text})
	if err != nil {
		return fmt.Errorf("overlays list: %w", err)
	}
	return reg.push(ctx, overlaysImage, talosVersion, img)
}

type overlayInfo struct {
	Name   string `json:"name"`
	Image  string `json:"image"`
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

func (f *Factory) officialOverlays(ctx context.Context, tag string) ([]overlayInfo, error) {
	listed, err := f.overlays(ctx, tag)
	list := make([]overlayInfo, 0, len(listed))
	for _, o := range listed {
		image, err := name.NewTag(o.Image)
		if err != nil {
			return nil, fmt.Errorf("failed to parse tagged reference %s: %w", o.Image, err)
		}
		list = append(list, overlayInfo{Name: o.Name, Image: image.RepositoryStr(), Ref: image.String(), Digest: o.Digest})
	}
	return list, err
}

// overlays returns the list of a Talos version, kept like the list of extensions.
func (f *Factory) overlays(ctx context.Context, tag string) ([]Overlay, error) {
	lists := func(m *memory) map[string][]Overlay { return m.overlays }
	return remembered(ctx, f, lists, "overlays", tag, f.fetchOverlays)
}

// fetchOverlays fetches the list of overlays. It fails for an empty list too, like the real factory: see
// siderolabs/image-factory, internal/artifacts/versions.go, extractOverlayList.
func (f *Factory) fetchOverlays(ctx context.Context, tag string) ([]Overlay, error) {
	img, err := f.registry.image(ctx, overlaysImage, tag)
	if err != nil {
		return nil, err
	}
	content := mutate.Extract(img)
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		if err != nil {
			return nil, fmt.Errorf("error reading tar header: %w", err)
		}
		if header.Name != "overlays.yaml" {
			continue
		}
		var list overlays
		if err := yaml.NewDecoder(archive).Decode(&list); err != nil {
			return nil, fmt.Errorf("error reading overlays.yaml file: %w", err)
		}
		if len(list.Overlays) == 0 {
			return nil, errors.New("failed to find overlays.yaml file")
		}
		return list.Overlays, nil
	}
}

// requireOverlay refuses overlays that the real factory can't find or the lab can't build.
func (f *Factory) requireOverlay(ctx context.Context, tag, overlay string) error {
	list, err := f.overlays(ctx, tag)
	if err != nil {
		return fmt.Errorf("error getting official overlays: %w", err)
	}
	if !slices.ContainsFunc(list, func(o Overlay) bool { return o.Name == overlay }) {
		// The real factory prints an empty reference in place of the name.
		return invalidf("official overlay %q is not available for Talos version %s", struct{ Name, TaggedReference, Digest string }{}, tag)
	}
	return failf(http.StatusNotImplemented, "the lab builds no image with an overlay")
}

// secureBootCertificate fails like the real factory without Secure Boot.
func (f *Factory) secureBootCertificate(http.ResponseWriter, *http.Request) error {
	return errors.New("secure boot is disabled")
}
