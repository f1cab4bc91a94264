// Package factoryapi is the lab's Image [Factory] and OCI [Registry]. The factory builds images from the registry's
// extensions and caches like the real one: see siderolabs/image-factory, internal/artifacts and internal/frontend/http.
package factoryapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/imager/imageropts"
	"github.com/siderolabs/talos/pkg/machinery/imager/quirks"
	"github.com/siderolabs/talos/pkg/machinery/kernel"
	"github.com/siderolabs/talos/pkg/machinery/meta"
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

// kind is the kind of an image.
type kind int

const (
	iso kind = iota
	uki
	cmdline
	disk
	installer // only through the registry API
)

func (k kind) String() string {
	return [...]string{iso: "iso", uki: "uki", cmdline: "cmdline", disk: "disk", installer: "installer"}[k]
}

// asset answers /image/<schematic>/<version>/<asset>. HEAD builds too; the headers say nothing about the content but
// its length, and Range is ignored.
func (f *Factory) asset(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("asset")
	if strings.HasSuffix(name, ".sha256") || strings.HasSuffix(name, ".sha512") {
		return failf(http.StatusPaymentRequired, "enterprise not enabled: checksum endpoint is not available")
	}
	d, err := f.design(r.PathValue("schematic"))
	if err != nil {
		return err
	}
	version, err := versionTag(r.PathValue("version"))
	if err != nil {
		return err
	}
	o, err := parseAsset(name)
	if err != nil {
		return fmt.Errorf("error parsing profile from path: %w", err)
	}
	o.design, o.version = d, version
	content, err := f.built(r.Context(), name, o)
	if err != nil {
		return err
	}
	filename := name
	if override := r.URL.Query().Get("filename"); override != "" {
		filename = override
	}
	if f.opts.Store != "" && r.Method != http.MethodHead {
		http.Redirect(w, r, f.storeURL(content), http.StatusFound)
		return nil
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.Header().Set("Content-Type", contentType(o.kind))
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, filename))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = w.Write(content)
	return err
}

func contentType(k kind) string {
	switch k {
	case iso:
		return "application/x-iso9660-image"
	case uki:
		return "application/efi"
	default:
		return "application/octet-stream"
	}
}

// parseAsset parses <platform>-<arch>[-secureboot].iso and the like.
func parseAsset(name string) (order, error) {
	if rest, ok := strings.CutPrefix(name, "cmdline-"); ok {
		return parsePlatform(cmdline, rest)
	}
	for k, ending := range map[kind]string{iso: ".iso", uki: "-uki.efi", disk: ".qcow2"} {
		if rest, ok := strings.CutSuffix(name, ending); ok {
			return parsePlatform(k, rest)
		}
	}
	for _, known := range []string{"kernel-", "initramfs-", ".raw", ".qcow2.", ".vhd", ".ova", ".tar"} {
		if strings.Contains(name, known) {
			return order{}, failf(http.StatusNotImplemented, "the lab builds no %s", name)
		}
	}
	return order{}, invalidf("invalid profile path: %q", name)
}

func parsePlatform(k kind, text string) (order, error) {
	text, secureBoot := strings.CutSuffix(text, "-secureboot")
	platform, arch, ok := strings.Cut(text, "-")
	if !ok {
		return order{}, invalidf("invalid platform-arch: %q", text)
	}
	if arch != "amd64" && arch != "arm64" {
		return order{}, invalidf("invalid architecture: %q", arch)
	}
	return order{kind: k, platform: platform, arch: arch, secureBoot: secureBoot}, nil
}

// cacheKey returns an asset's key in the cache. The key includes the digests of the extensions, so a factory that has
// learned a new digest builds a new ISO for an old schematic.
func cacheKey(name string, o order, refs []extensionRef) string {
	parts := []string{name, o.version, o.design.id}
	for _, ref := range refs {
		parts = append(parts, ref.digest)
	}
	return strings.Join(parts, "/")
}

// built returns an asset from the cache, or builds it.
func (f *Factory) built(ctx context.Context, name string, o order) ([]byte, error) {
	refs, err := f.resolve(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("error enhancing profile from schematic: %w", err)
	}
	key := cacheKey(name, o, refs)
	content, err, _ := f.builds.Do(key, func() (any, error) {
		f.mu.Lock()
		cached, ok := f.assets[key]
		f.mu.Unlock()
		if ok {
			return cached, nil
		}
		return f.buildAsset(ctx, key, o, refs)
	})
	if err != nil {
		return nil, err
	}
	return content.([]byte), nil
}

func (f *Factory) buildAsset(ctx context.Context, key string, o order, refs []extensionRef) ([]byte, error) {
	ctx, done := f.outlive(ctx)
	defer done()
	img, err := f.image(ctx, o, refs)
	if err != nil {
		return nil, err
	}
	var content []byte
	switch o.kind {
	case iso:
		content, err = artefact.ISO(img)
	case uki:
		content, err = artefact.UKI(img)
	case cmdline:
		content = []byte(img.Cmdline)
	case disk:
		content, err = artefact.DiskImage(img, diskForm(o))
	default:
		err = fmt.Errorf("no asset of kind %d", o.kind)
	}
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s %s %s %s-%s", o.kind, o.design.id, o.version, o.platform, o.arch)
	if err := f.build(ctx, what, assetTakes); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.assets[key] = content
	return content, nil
}

// order is a requested image.
type order struct {
	kind       kind
	design     design
	version    string
	platform   string
	arch       string
	secureBoot bool
}

// resolve checks an order as the real factory does and finds its extensions in the factory's cached list.
func (f *Factory) resolve(ctx context.Context, o order) ([]extensionRef, error) {
	if o.secureBoot {
		return nil, invalidf("secure boot is disabled")
	}
	if o.kind == installer {
		if err := f.requireVersion(o.version); err != nil {
			return nil, fmt.Errorf("failed to get base installer: %w", err) // the real factory's words
		}
	}
	var refs []extensionRef
	wanted := o.design.Customization.SystemExtensions.OfficialExtensions
	if len(wanted) > 0 && o.kind != cmdline {
		available, err := f.extensions(ctx, o.version)
		if err != nil {
			return nil, fmt.Errorf("error getting official extensions: %w", err)
		}
		for _, extension := range wanted {
			ref, ok := findExtension(available, extension)
			if !ok {
				return nil, invalidf("official extension %q is not available for Talos version %s", extension, o.version)
			}
			refs = append(refs, ref)
		}
	}
	if o.design.Overlay.Name != "" && o.kind != cmdline {
		return nil, f.requireOverlay(ctx, o.version, o.design.Overlay.Name)
	}
	return refs, nil
}

// image returns the content of the ordered image.
func (f *Factory) image(ctx context.Context, o order, refs []extensionRef) (artefact.Image, error) {
	if err := f.requireVersion(o.version); err != nil {
		return artefact.Image{}, err
	}
	if o.design.Customization.EmbeddedMachineConfiguration != "" {
		return artefact.Image{}, failf(http.StatusNotImplemented, "the lab builds no image with an embedded machine configuration")
	}
	line, err := kernelArgs(o)
	if err != nil {
		return artefact.Image{}, err
	}
	img := artefact.Image{
		TalosVersion: o.version, Arch: o.arch, Platform: o.platform, Cmdline: line,
		SchematicID: o.design.id, SchematicYAML: o.design.yaml, SchematicAuthor: "Image Factory (" + f.opts.URL + ")",
	}
	for _, ref := range refs {
		idx, err := f.registry.index(ctx, ref.repo, ref.digest)
		if err != nil {
			return artefact.Image{}, err
		}
		e, err := artefact.ReadExtension(idx, o.arch)
		if err != nil {
			return artefact.Image{}, fmt.Errorf("%s: %w", ref.repo, err)
		}
		img.Extensions = append(img.Extensions, e)
	}
	return img, nil
}

// kernelArgs returns the command line of a Talos image. See siderolabs/talos, pkg/imager/imager.go, buildCmdline. An
// installer has no META; an ISO has META in an argument, a disk in a partition.
func kernelArgs(o order) (string, error) {
	var console []string
	switch o.platform {
	case "metal":
		console = []string{"console=ttyS0", "console=tty0"}
	case "nocloud":
		console = []string{"console=tty1", "console=ttyS0", "net.ifnames=0"}
	default:
		return "", fmt.Errorf("unknown platform %q", o.platform)
	}
	var line args
	line.append(constants.KernelParamPlatform, o.platform)
	line.appendAll(console)
	if o.kind == iso {
		line.append(constants.KernelParamHaltIfInstalled, "1")
	}
	line.appendAll(kernel.DefaultArgs(quirks.New(o.version)))
	var values meta.Values
	for _, v := range o.design.Customization.Meta {
		values = append(values, meta.Value{Key: v.Key, Value: v.Value})
	}
	if len(values) > 0 && o.kind != installer && o.kind != uki && o.kind != disk {
		line.append(constants.KernelParamEnvironment, constants.MetaValuesEnvVar+"="+values.Encode(true))
	}
	line.customize(o.design.Customization.ExtraKernelArgs)
	return line.String(), nil
}

// diskForm returns what a disk image has beside its UKI: see FillDefaults in pkg/imager/profile of siderolabs/talos
// for the boot loader.
func diskForm(o order) artefact.DiskForm {
	form := artefact.DiskForm{Meta: map[uint8]string{}}
	for _, v := range o.design.Customization.Meta {
		form.Meta[v.Key] = v.Value
	}
	switch o.design.Customization.Bootloader {
	case imageropts.BootLoaderKindNone, imageropts.BootLoaderKindDualBoot:
		form.BIOS = o.arch == "amd64"
	}
	return form
}

// createSchematic stores a schematic. Like the real factory, it does not check that the schematic's extensions exist.
func (f *Factory) createSchematic(w http.ResponseWriter, r *http.Request) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	s, err := schematic.Unmarshal(data)
	if err != nil {
		return invalidf("%w", err)
	}
	if err := s.Validate(false); err != nil {
		return invalidf("%w", err)
	}
	id, err := s.ID()
	if err != nil {
		return err
	}
	canonical, err := s.Marshal()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.schematics[id] = canonical
	f.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}{id, string(canonical)})
}

func (f *Factory) getSchematic(w http.ResponseWriter, r *http.Request) error {
	canonical, ok := f.stored(r.PathValue("schematic"))
	if !ok {
		return missingf("schematic not found")
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(canonical)
	return err
}

func (f *Factory) stored(id string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	canonical, ok := f.schematics[id]
	return canonical, ok
}

// design is a stored schematic.
type design struct {
	schematic.Schematic
	id, yaml string
}

func (f *Factory) design(id string) (design, error) {
	canonical, ok := f.stored(id)
	if !ok {
		return design{}, missingf("schematic ID %q not found", id)
	}
	s, err := schematic.Unmarshal(canonical)
	if err != nil {
		return design{}, err
	}
	return design{Schematic: *s, id: id, yaml: string(canonical)}, nil
}

// args is a kernel command line as the imager assembles it: all values of a key are at its
// first position. See siderolabs/go-procfs.
type args []parameter

type parameter struct {
	key    string
	values []string // "" for a key without a value
}

// parseArgs parses "key=value" and "key".
func parseArgs(list []string) args {
	var c args
	for arg := range strings.FieldsSeq(strings.Join(list, " ")) {
		key, value, _ := strings.Cut(arg, "=")
		c.append(key, value)
	}
	return c
}

func (c args) index(key string) int {
	return slices.IndexFunc(c, func(p parameter) bool { return p.key == key })
}

func (c *args) append(key string, values ...string) {
	if i := c.index(key); i >= 0 {
		(*c)[i].values = append((*c)[i].values, values...)
		return
	}
	*c = append(*c, parameter{key: key, values: values})
}

func (c *args) set(p parameter) {
	if i := c.index(p.key); i >= 0 {
		(*c)[i] = p
		return
	}
	*c = append(*c, p)
}

// appendAll adds the arguments common to all images.
func (c *args) appendAll(list []string) {
	for _, p := range parseArgs(list) {
		c.append(p.key, p.values...)
	}
}

// customize adds a schematic's arguments: for some keys, they replace the values, and a "-" removes the values.
func (c *args) customize(list []string) {
	for _, p := range parseArgs(list) {
		switch {
		case len(p.key) > 1 && p.key[0] == '-':
			c.remove(p.key[1:], p.values)
		case p.key == "console" || p.key == "talos.platform":
			c.set(p)
		default:
			c.append(p.key, p.values...)
		}
	}
}

// remove removes values of a key; without values it removes the key.
func (c *args) remove(key string, values []string) {
	i := c.index(key)
	switch {
	case i < 0:
	case values[0] == "":
		*c = slices.Delete(*c, i, i+1)
	default:
		(*c)[i].values = slices.DeleteFunc((*c)[i].values, func(v string) bool { return slices.Contains(values, v) })
	}
}

func (c args) String() string {
	var words []string
	for _, p := range c {
		for _, v := range p.values {
			if v == "" {
				words = append(words, p.key)
			} else {
				words = append(words, p.key+"="+v)
			}
		}
	}
	return strings.Join(words, " ")
}

func (f *Factory) versions(w http.ResponseWriter, r *http.Request) error {
	list := f.buildable()
	if r.URL.Query().Get("broken") == "true" {
		list = append([]string{}, f.opts.Broken...)
	}
	return json.NewEncoder(w).Encode(list)
}

// buildable returns the versions that are not marked as broken. For broken versions the factory has no lists: see
// siderolabs/image-factory, internal/artifacts, validateTalosVersion.
func (f *Factory) buildable() []string {
	return slices.DeleteFunc(append([]string{}, f.opts.Versions...), func(v string) bool { return slices.Contains(f.opts.Broken, v) })
}

// versionTag parses a version in a path, with or without its "v".
func versionTag(text string) (string, error) {
	number := strings.TrimPrefix(text, "v")
	if ok, err := regexp.MatchString(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`, number); err != nil || !ok {
		return "", fmt.Errorf("error parsing version: %q", text)
	}
	return "v" + number, nil
}

func (f *Factory) requireVersion(tag string) error {
	if !slices.Contains(f.buildable(), tag) {
		return missingf("version %s is not available", strings.TrimPrefix(tag, "v"))
	}
	return nil
}

// latest returns the newest stable version.
func (f *Factory) latest() (string, error) {
	for _, v := range slices.Backward(f.buildable()) {
		if !strings.Contains(v, "-") {
			return v, nil
		}
	}
	return "", errors.New("no stable version of Talos")
}
