package factoryapi

import (
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
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

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

// registryClient is a client of the registry for the factory and for publishers.
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

// storeURL returns an asset's signed URL in the store.
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
