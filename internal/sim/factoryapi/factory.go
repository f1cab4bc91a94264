// Package factoryapi is the lab's Image Factory and OCI registry. The factory
// makes images out of the extensions that the registry holds and caches as the
// real one does: see siderolabs/image-factory, internal/artifacts and internal/frontend/http.
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

// How long the factory takes, at speed 1.
const (
	listTakes      = 500 * time.Millisecond
	assetTakes     = 3 * time.Second
	installerTakes = 3 * time.Second
)

// Options describes a factory. All of it but Broken, Delay, Store and Signing is required.
type Options struct {
	URL       string            // under which clients reach the factory; images name it as their author
	Registry  string            // "host:port" of the registry with the extensions, where installers are kept, too
	Transport http.RoundTripper // the way to the registry
	Versions  []string          // of Talos that it builds, oldest first: "v1.13.9"
	Broken    []string          // those of them that are marked as broken
	Recorder  *record.Recorder
	Delay     func(ctx context.Context, d time.Duration) error // waits for d of the lab's time; nil: takes no time
	Signing   Signing
	// Store is where clients reach Store: "http://127.0.0.1:8081". The factory sends
	// them there for images. "": it serves them itself.
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
	serving    sync.WaitGroup       // requests; added to under mu, and not once closed
	schematics map[string][]byte    // by ID
	assets     map[string][]byte    // by all that goes into them; kept over a restart, as the real ones are in their cache registry
	installers map[string]time.Time // when they were built, by the same
	shelf      map[string][]byte    // what the store has, by name
	memory     *memory
	strikes    []strike
	history    []string      // what was built, in order
	building   time.Duration // how much longer a build takes
}

// memory is what a restart of the factory loses.
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

// New makes a factory that has built nothing yet. Close it.
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

// Slow makes every build take so much longer from now on.
func (f *Factory) Slow(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.building = by
}

// Built lists what was built, in order: "iso <schematic ID> v1.13.9 nocloud-amd64".
// What comes from a cache is not built.
func (f *Factory) Built() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.history)
}

// build notes what is built, and lasts as long as that takes.
func (f *Factory) build(ctx context.Context, what string, takes time.Duration) error {
	f.mu.Lock()
	f.history = append(f.history, what)
	takes += f.building
	f.mu.Unlock()
	return f.take(ctx, takes)
}

// Restart makes the factory forget its lists of extensions. Schematics,
// installers and assets that it has built are kept.
func (f *Factory) Restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memory = newMemory()
}

// Close ends what is being built and waits for every request to end.
func (f *Factory) Close() {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.closing)
	}
	f.mu.Unlock()
	f.serving.Wait()
}

// outlive gives work that goes on when its client goes away, until the factory
// is closed. done ends it.
func (f *Factory) outlive(ctx context.Context) (work context.Context, done func()) {
	return f.untilClosed(context.WithoutCancel(ctx))
}

// untilClosed ends a context with the factory.
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
