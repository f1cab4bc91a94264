// Package factoryapi is the lab's Image [Factory] and OCI [Registry]. The factory builds images from the registry's
// extensions and caches like the real one: see siderolabs/image-factory, internal/artifacts and internal/frontend/http.
package factoryapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/record"
)

// Build durations at speed 1.
const (
	listTakes      = 500 * time.Millisecond
	assetTakes     = 3 * time.Second
	installerTakes = 3 * time.Second
)

// Options are the options of New. All except Broken, Delay, Store and Signing are required.
type Options struct {
	URL       string            // of the factory, for clients; images name it as their author
	Registry  string            // "host:port" of the registry for extensions and installers
	Transport http.RoundTripper // reaches the registry
	Versions  []string          // of Talos that it can build, oldest first: "v1.13.9"
	Broken    []string          // those that are marked as broken
	Recorder  *record.Recorder
	Delay     func(ctx context.Context, d time.Duration) error // waits for d of simulated time; nil: no delay
	Signing   Signing
	// SignsInstallers: the factory has keys for Secure Boot, and signs boot loader and UKI of ordinary installers too.
	SignsInstallers bool
	// Store is the URL of Factory.Store: "http://127.0.0.1:8081". The factory redirects requests for images to the
	// store. "": the factory serves images itself.
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
	overlays   map[string][]Overlay      // by Talos version, without expiry
}

func newMemory() *memory {
	return &memory{extensions: map[string][]extensionRef{}, overlays: map[string][]Overlay{}}
}

var _ http.Handler = (*Factory)(nil)

// New makes a factory that has built nothing yet. The caller closes the factory.
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
	mux.Handle("GET /version/{version}/extensions/official", official(f.officialExtensions))
	mux.Handle("GET /version/{version}/overlays/official", official(f.officialOverlays))
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

// Built lists the builds in order: "iso <schematic ID> v1.13.9 nocloud-amd64". It omits cache hits.
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

// outlive returns a context for work that continues when its client goes away, until the factory is closed. done ends
// the context.
func (f *Factory) outlive(ctx context.Context) (work context.Context, done func()) {
	return f.untilClosed(context.WithoutCancel(ctx))
}

// untilClosed returns a context that ends with ctx or with the factory.
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

// answer buffers a response until the server has finished acting.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newAnswer() *answer { return &answer{header: http.Header{}} }

var _ http.ResponseWriter = (*answer)(nil)

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

func (a *answer) send(w http.ResponseWriter) {
	a.WriteHeader(http.StatusOK)
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // fails only if the client is gone
}

// response returns the answer as a client gets it.
func (a *answer) response(req *http.Request) *http.Response {
	a.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body.Bytes())),
		ContentLength: int64(a.body.Len()), Request: req,
	}
}

// recorded calls the recorder's hooks around next. If the recorder refuses a request, recorded breaks the connection.
func recorded(rec *record.Recorder, proto string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, err := rec.Begin(record.Call{
			Proto: proto, Target: r.Host, Method: r.Method, Path: r.URL.RequestURI(),
			Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
		})
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		a := newAnswer()
		next.ServeHTTP(a, r)
		rec.End(call)
		a.send(w)
	})
}

// failure is an error whose text the factory shows, with the error's HTTP status.
type failure struct {
	status int
	error
}

func failf(status int, format string, args ...any) error {
	return &failure{status: status, error: fmt.Errorf(format, args...)}
}

func invalidf(format string, args ...any) error { return failf(http.StatusBadRequest, format, args...) }

func missingf(format string, args ...any) error { return failf(http.StatusNotFound, format, args...) }

// handler is an endpoint; fail answers its errors.
type handler func(w http.ResponseWriter, r *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		fail(w, err)
	}
}

// fail answers like the real factory: the whole error chain for user errors, and "internal
// server error" for all others.
func fail(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*failure](err); ok {
		http.Error(w, err.Error(), f.status)
		return
	}
	http.Error(w, "internal server error", http.StatusInternalServerError)
}

// Trouble is a fault of a request, as its client sees it.
type Trouble func(w http.ResponseWriter, r *http.Request, factory http.Handler)

// strike is a Trouble for future requests.
type strike struct {
	times   int
	prefix  string
	trouble Trouble
}

// Strike applies a Trouble to the next requests, times in number, whose path begins with prefix: "/image/".
func (f *Factory) Strike(times int, prefix string, t Trouble) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strikes = append(f.strikes, strike{times: times, prefix: prefix, trouble: t})
}

// struck returns the handler of a request: the factory's, or a Trouble's.
func (f *Factory) struck(r *http.Request) http.Handler {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.strikes {
		if s.times > 0 && strings.HasPrefix(r.URL.Path, s.prefix) {
			f.strikes[i].times--
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, done := f.untilClosed(r.Context())
				defer done()
				s.trouble(w, r.WithContext(ctx), f.recorded)
			})
		}
	}
	return f.recorded
}

// Down makes a proxy answer that can't reach the factory. It answers with its own page, and with Retry-After unless
// retryAfter is 0.
func Down(status int, retryAfter time.Duration) Trouble {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		}
		page(w, status)
	}
}

// Failing makes the factory answer as after a failure of its registry or tools.
func Failing() Trouble {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "internal server error", http.StatusInternalServerError)
	}
}

// Unaware answers as one of several factories that does not know a schematic yet that another factory has just stored
// (siderolabs/image-factory, internal/schematic/storage/cache).
func Unaware() Trouble {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		id := path.Base(path.Dir(path.Dir(r.URL.Path))) // of /image/<id>/<version>/<asset>, /v2/<image>/<id>/manifests/<tag>
		http.Error(w, fmt.Sprintf("schematic ID %q not found", id), http.StatusNotFound)
	}
}

// Refused ends the connection without an answer.
func Refused() Trouble {
	return func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
}

// Impatient puts a proxy with a timeout before the factory; the factory continues with the request.
func (f *Factory) Impatient(patience time.Duration) Trouble {
	return func(w http.ResponseWriter, r *http.Request, factory http.Handler) {
		a, aborted := newAnswer(), false
		answered := make(chan struct{})
		f.serving.Go(func() {
			defer close(answered)
			defer func() { aborted = recover() != nil }()
			factory.ServeHTTP(a, r)
		})
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-timer.C:
			page(w, http.StatusGatewayTimeout)
		case <-answered:
			if aborted {
				panic(http.ErrAbortHandler)
			}
			a.send(w)
		}
	}
}

// Cut breaks the connection after that many bytes of a body.
func Cut(afterBytes int) Trouble {
	return short(afterBytes, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// CutByStore answers as a factory whose own store breaks after that many bytes. The factory's error goes into the
// body, because the body has begun.
func CutByStore(afterBytes int) Trouble {
	return short(afterBytes, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "internal server error\n") // the client may be gone
	})
}

// Stall stalls the connection after that many bytes of a body.
func Stall(afterBytes int) Trouble {
	return short(afterBytes, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
}

// short sends the first bytes of an answer and then calls end.
func short(bytes int, end func(http.ResponseWriter, *http.Request)) Trouble {
	return func(w http.ResponseWriter, r *http.Request, factory http.Handler) {
		a := newAnswer()
		factory.ServeHTTP(a, r)
		if a.body.Len() <= bytes {
			a.send(w)
			return
		}
		a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
		a.body.Truncate(bytes)
		a.send(w)
		_ = http.NewResponseController(w).Flush() // the bytes must be sent
		end(w, r)
	}
}

// page answers with nginx's error page.
func page(w http.ResponseWriter, status int) {
	text := fmt.Sprintf("%d %s", status, nginx(status))
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<html>\r\n<head><title>%s</title></head>\r\n<body>\r\n<center><h1>%s</h1></center>\r\n"+
		"<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n", text, text) // the client may be gone
}

// nginx returns nginx's name of a status, if that name is unusual.
func nginx(status int) string {
	switch status {
	case http.StatusServiceUnavailable:
		return "Service Temporarily Unavailable"
	case http.StatusGatewayTimeout:
		return "Gateway Time-out"
	}
	return http.StatusText(status)
}

// Official returns a small set of official extensions, with fake content.
func Official() []artefact.Extension {
	const sidero = "Sidero Labs"
	return []artefact.Extension{
		service("iscsi-tools", "v0.2.0", sidero, "iscsid", "This system extension provides iscsi-tools."),
		service("qemu-guest-agent", "11.0.2", "Markus Reiter", "qemu-ga", "This system extension provides the QEMU Guest Agent service."),
		service("tailscale", "1.94.2", "Tailscale, Inc.", "tailscaled", "This system extension provides the Tailscale VPN service."),
		program("util-linux-tools", "2.41.2", sidero, "/usr/local/sbin/fstrim", "This system extension provides util-linux tools."),
		program("intel-ucode", "20260210", sidero, "/usr/lib/firmware/intel-ucode/06-55-04", "This system extension provides Intel microcode binaries."),
	}
}

// service returns an extension that runs a container.
func service(name, version, author, binary, description string) artefact.Extension {
	return artefact.Extension{
		Name: name, Version: version, Author: author, Description: description,
		Files: map[string][]byte{
			"/usr/local/etc/containers/" + name + ".yaml": fmt.Appendf(nil,
				"name: %s\ncontainer:\n  entrypoint: ./%s\nrestart: always\n", name, binary),
			"/usr/local/lib/containers/" + name + "/" + binary: fmt.Appendf(nil, "\x7fELF %s %s\n", binary, version),
		},
	}
}

// program returns an extension of one file.
func program(name, version, author, path, description string) artefact.Extension {
	return artefact.Extension{
		Name: name, Version: version, Author: author, Description: description,
		Files: map[string][]byte{path: fmt.Appendf(nil, "\x7fELF %s %s\n", path, version)},
	}
}
