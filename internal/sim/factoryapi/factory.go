// Package factoryapi is the lab's Image [Factory] and OCI [Registry]. The factory builds
// images from the registry's extensions and caches like the real one: see
// siderolabs/image-factory, internal/artifacts and internal/frontend/http.
package factoryapi

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
	"golang.org/x/sync/singleflight"
)

// Build durations at speed 1.
const (
	listTakes      = 500 * time.Millisecond
	assetTakes     = 3 * time.Second
	installerTakes = 3 * time.Second
)

// Options are those of New. All except Broken, Delay, Store and Signing are required.
type Options struct {
	URL       string            // of the factory, for clients; images name it as their author
	Registry  string            // "host:port" of the registry for extensions and installers
	Transport http.RoundTripper // reaches the registry
	Versions  []string          // of Talos that it can build, oldest first: "v1.13.9"
	Broken    []string          // those that are marked as broken
	Recorder  *record.Recorder
	Delay     func(ctx context.Context, d time.Duration) error // waits for d of simulated time; nil: no delay
	Signing   Signing
	// SignsInstallers: it has keys for Secure Boot, and signs boot loader and UKI of ordinary installers as well.
	SignsInstallers bool
	// Store is the URL of Factory.Store: "http://127.0.0.1:8081". The factory redirects
	// requests for images to it. "": it serves them itself.
	Store string
}

// Factory is a simulated Image Factory.
type Factory struct {
	opts     Options
	registry registryClient
	signer   signer
	recorded http.Handler
	builds   singleflight.Group
	closing  chan struct{}

	mu         sync.Mutex
	closed     bool
	serving    sync.WaitGroup       // requests; added to under mu, and not after Close
	schematics map[string][]byte    // by ID
	assets     map[string][]byte    // by all inputs; they survive a restart, as in the real cache registry
	installers map[string]time.Time // build times, by the same key
	shelf      map[string][]byte    // content of the store, by name
	memory     *memory
	strikes    []strike
	history    []string      // builds, in order
	building   time.Duration // additional time of a build
}

// memory is the state that a restart loses.
type memory struct {
	fetches singleflight.Group

	mu         sync.Mutex
	extensions map[string][]extensionRef // by Talos version, without expiry
	overlays   map[string][]Overlay      // likewise
}

func newMemory() *memory {
	return &memory{extensions: map[string][]extensionRef{}, overlays: map[string][]Overlay{}}
}

var _ http.Handler = (*Factory)(nil)

// New makes a factory that has built nothing yet. The caller closes it.
func New(opts Options) (*Factory, error) {
	registry, err := newRegistryClient(opts.Registry, opts.Transport)
	if err != nil {
		return nil, err
	}
	signer, err := newSigner(opts.Signing)
	if err != nil {
		return nil, err
	}
	f := &Factory{
		opts: opts, registry: registry, signer: signer, closing: make(chan struct{}),
		schematics: map[string][]byte{}, assets: map[string][]byte{}, installers: map[string]time.Time{}, shelf: map[string][]byte{}, memory: newMemory(),
	}
	f.recorded = recorded(opts.Recorder, "factory", f.routes())
	return f, nil
}

func (f *Factory) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", handler(f.healthy))
	mux.Handle("GET /versions", handler(f.versions))
	mux.Handle("GET /version/{version}/extensions/official", handler(f.officialExtensions))
	mux.Handle("GET /version/{version}/overlays/official", handler(f.officialOverlays))
	mux.Handle("POST /schematics", handler(f.createSchematic))
	mux.Handle("GET /schematics/{schematic}", handler(f.getSchematic))
	mux.Handle("GET /image/{schematic}/{version}/{asset}", handler(f.asset))
	mux.Handle("GET /secureboot/signing-cert.pem", handler(f.secureBootCertificate))
	mux.Handle("GET /oci/cosign/signing-key.pub", handler(f.signingKey))
	mux.Handle("GET /v2", handler(f.healthy))
	mux.Handle("GET /v2/{$}", handler(f.healthy))
	mux.Handle("GET /v2/{image}/{schematic}/manifests/{reference}", handler(f.manifest))
	mux.Handle("GET /v2/{image}/{schematic}/blobs/{digest}", handler(f.blob))
	return mux
}

func (f *Factory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	f.serving.Add(1)
	f.mu.Unlock()
	defer f.serving.Done()
	f.struck(r).ServeHTTP(w, r)
}

// Slow adds a delay to every build from now on.
func (f *Factory) Slow(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.building = by
}

// Built lists the builds in order: "iso <schematic ID> v1.13.9 nocloud-amd64". It omits
// cache hits.
func (f *Factory) Built() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.history)
}

// build records a build and waits for its duration.
func (f *Factory) build(ctx context.Context, what string, takes time.Duration) error {
	f.mu.Lock()
	f.history = append(f.history, what)
	takes += f.building
	f.mu.Unlock()
	return f.take(ctx, takes)
}

// Restart drops the lists of extensions. Schematics, installers and built assets are kept.
func (f *Factory) Restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memory = newMemory()
}

// Close cancels builds and waits for every request to end.
func (f *Factory) Close() {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.closing)
	}
	f.mu.Unlock()
	f.serving.Wait()
}

// outlive is a context for work that continues when its client goes away, until the
// factory is closed. done ends it.
func (f *Factory) outlive(ctx context.Context) (work context.Context, done func()) {
	return f.untilClosed(context.WithoutCancel(ctx))
}

// untilClosed is ctx that also ends with the factory.
func (f *Factory) untilClosed(ctx context.Context) (work context.Context, done func()) {
	work, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-f.closing:
			cancel()
		case <-work.Done():
		}
	})
	return work, func() {
		cancel()
		watch.Wait()
	}
}

func (f *Factory) take(ctx context.Context, d time.Duration) error {
	if f.opts.Delay == nil {
		return ctx.Err()
	}
	return f.opts.Delay(ctx, d)
}

func (f *Factory) healthy(w http.ResponseWriter, _ *http.Request) error {
	w.WriteHeader(http.StatusOK)
	return nil
}
