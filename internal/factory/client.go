// Package factory is the adapter to an Image Factory. A [Client] registers schematics, reads the factory's lists,
// downloads ISOs and disk images, and has installers built. Installers are pulled from a factory as from any registry.
package factory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"html"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/image-factory/pkg/client"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/transport"
	"github.com/recast-sh/recast/internal/trust"
	"github.com/recast-sh/recast/schematics"
)

var (
	_ images.Factory     = (*Client)(nil)
	_ schematics.Factory = (*Client)(nil)
)

// Options says which factory, and how to reach it.
type Options struct {
	URL string // "https://factory.talos.dev"
	// Transport carries every request; nil: a new one, with the system's proxy and root certificates.
	Transport http.RoundTripper
	CAFile    string                                    // PEM file of CAs in addition to the system's; "": none
	Wrap      func(http.RoundTripper) http.RoundTripper // wraps Transport; nil: nothing
	// Note receives each retry and its reason, except for ISOs, whose caller has a note. May be nil.
	Note func(text string)
}

// Client talks to one Image Factory.
type Client struct {
	base *url.URL
	http *http.Client
	note func(text string)
}

// New returns a client without connecting. An invalid URL is an error of kind Config.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fault.Configf("image factory: %q is not an HTTP URL", o.URL)
	}
	if base.User != nil { // it would appear in errors, and in the URLs that hosts download
		return nil, fault.Configf("image factory: the URL of %s holds a user or password", base.Host)
	}
	transport := o.Transport
	if transport == nil {
		if transport, err = newTransport(o.CAFile); err != nil {
			return nil, err
		}
	}
	if o.Wrap != nil {
		transport = o.Wrap(transport)
	}
	c := &Client{base: base, note: o.Note}
	c.http = &http.Client{Transport: transport, CheckRedirect: follow}
	if c.note == nil {
		c.note = func(string) {}
	}
	return c, nil
}

func newTransport(caFile string) (*http.Transport, error) {
	t, err := trust.Transport(caFile)
	if err != nil {
		return nil, err
	}
	t.DialContext = (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 15 * time.Second
	// A build sends nothing for minutes; pings distinguish a slow factory from a dead connection.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	return t, nil
}

// Close closes idle connections. Requests in flight end with their contexts.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

const (
	// answerWithin bounds the wait for an answer that needs no build. On the first
	// request for a list, the factory fetches it from its registry.
	answerWithin = 3 * time.Minute
	stallAfter   = time.Minute // how long a body may send nothing
	// maxAnswerBytes bounds lists and schematics; the real ones have some tens of KiB.
	maxAnswerBytes = 16 << 20
	// maxErrorText bounds how much of an error's text is read.
	maxErrorText = 8 << 10
)

// errStalled ends a body that sends nothing for stallAfter.
var errStalled = &transport.Stalled{Text: fmt.Sprintf("nothing came for %s", stallAfter)}

// request is one request to the factory.
type request struct {
	method, link string
	body         []byte
	accept       string
	within       time.Duration // until the first byte of an answer
	stay         bool          // a redirect counts as success
}

func (c *Client) get(path ...string) request {
	return request{method: http.MethodGet, link: c.base.JoinPath(path...).String(), within: answerWithin}
}

// send sends a request once. Any answer but success is an error; on success the caller closes the body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	ctx, w := transport.NewWatch(ctx)
	w.Begin(r.within, &transport.Stalled{Text: fmt.Sprintf("no answer within %s", r.within)})
	resp, err := c.do(ctx, r)
	w.Pause()
	if err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, c.unreachable(err)
	}
	resp.Body = w.Answer(resp.Body, stallAfter, errStalled)
	if !r.answeredBy(resp) {
		defer resp.Body.Close()
		return nil, c.refusal(resp)
	}
	return resp, nil
}

func (r request) answeredBy(resp *http.Response) bool {
	if r.stay && resp.StatusCode/100 == 3 {
		return true
	}
	return (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated) && !isPage(resp)
}

func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.link, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // otherwise a proxy may compress, and the size is lost
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/yaml")
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	via := *c.http
	if r.stay {
		via.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := via.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		return nil, &url.Error{Op: e.Op, URL: withoutQuery(e.URL), Err: e.Err}
	}
	return resp, err
}

// withoutQuery removes the query from the URL of a store to which the factory redirects: the query is a signature
// that lets anyone download.
func withoutQuery(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return "(a malformed URL)"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}

// isPage reports whether the answer is a web page, which the factory's API never sends.
func isPage(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == "text/html"
}

// ask retries until the answer is complete or a retry is pointless.
func (c *Client) ask(ctx context.Context, r request) ([]byte, error) {
	var answer []byte
	err := retry(ctx, api, c.note, func() error {
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
		if err == nil && len(answer) > maxAnswerBytes {
			return permanent{fmt.Errorf("image factory %s: the answer has more than %d MiB", c.base, maxAnswerBytes>>20)}
		}
		if err != nil {
			return c.unreachable(fmt.Errorf("%s %s: %w", r.method, withoutQuery(r.link), err))
		}
		return nil
	})
	return answer, err
}

// askJSON asks and decodes the answer.
func (c *Client) askJSON(ctx context.Context, r request, into any) error {
	answer, err := c.ask(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return c.foreign(fmt.Errorf("%s %s: the answer can't be read: %w", r.method, withoutQuery(r.link), err))
	}
	return nil
}

// maxRedirects suffices for a store behind a CDN behind a load balancer.
const maxRedirects = 5

// follow allows redirects to the factory's own store. A factory with such a store answers a GET of an image with 302
// to S3 or a CDN (image-factory, internal/frontend/http/image.go). net/http drops credentials when the host changes.
func follow(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return permanent{fmt.Errorf("redirected more than %d times", maxRedirects)}
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return permanent{fmt.Errorf("redirected to %s, which is not encrypted", next.URL.Host)}
	case next.Method != last.Method:
		// A POST that became a GET asks for something else. A factory behind https redirects a POST so if the URL has http.
		return permanent{fmt.Errorf("redirected to %s://%s, which a %s does not follow: use that URL in images.factory",
			next.URL.Scheme, next.URL.Host, last.Method)}
	}
	return nil
}

// Error is an answer other than success.
type Error struct {
	Factory string // its URL
	Via     string // the host to which the factory redirected, if that host answered
	Status  int    // of HTTP
	Message string // the server's message; may be empty

	retryAfter time.Duration // requested by the server; 0: none
}

func (e *Error) Error() string {
	text := "image factory " + e.Factory + ": "
	if e.Via != "" {
		text += "redirected to " + e.Via + ": "
	}
	text += e.status()
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// status returns "503 Service Unavailable"; numbers that only proxies use have no name.
func (e *Error) status() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status)))
}

func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// refusal returns the error for an answer that is not a success.
func (c *Client) refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	if err != nil {
		text = nil // the status says enough
	}
	e := &Error{Factory: c.base.String(), Status: resp.StatusCode, Message: message(text), retryAfter: retryAfter(resp)}
	if host := resp.Request.URL.Host; host != c.base.Host {
		e.Via = host
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		e.Message = strings.TrimSuffix("a web page instead of an answer: "+e.Message, ": ")
		return fault.WithHint(fault.Unreachable.Of(e), "see whether images.factory in recast.yaml is an Image Factory, and what proxy is in between")
	}
	return e.hinted()
}

var remedies = map[int]string{
	http.StatusUnauthorized:        "this factory, or a proxy before it, requires a login, which recast does not have",
	http.StatusForbidden:           "the schematic belongs to someone else, or a proxy denies access from here",
	http.StatusPaymentRequired:     "this is for customers of the Enterprise edition only",
	http.StatusInternalServerError: "the reason is in the factory's own log; a malformed Talos version is one, a registry that it can't reach another",
	http.StatusTooManyRequests:     "the factory limits how often it answers: wait a while",
}

// hinted adds a remedy to the error. See image-factory, internal/frontend/http/http.go, MatchError.
func (e *Error) hinted() error {
	if hint := remedies[e.Status]; hint != "" {
		return fault.WithHint(fault.BuildFailed.Of(e), "%s", hint)
	}
	if e.Status != http.StatusBadRequest {
		return e
	}
	err := fault.As(fault.Config, error(e))
	switch {
	case strings.Contains(e.Message, "official extension"):
		return fault.WithHint(fault.ExtensionUnknown.Of(err), "see `recast lock`: it names the extensions that there are for a Talos version")
	case strings.Contains(e.Message, "secure boot is disabled"):
		return fault.WithHint(fault.BuildFailed.Of(err), "this factory has no keys for Secure Boot: set images.secureBoot to false, or name another factory in images.factory")
	}
	return err
}

var (
	tags  = regexp.MustCompile(`<[^>]*>`)
	title = regexp.MustCompile(`(?is)<(?:title|message)[^>]*>(.*?)</`) // of HTML; of S3's XML errors
	noise = regexp.MustCompile(`(?is)<(?:style|script|head)\b.*?</(?:style|script|head)>|<!--.*?-->`)
)

// maxPage bounds the text that is shown of a page.
const maxPage = 200

// message returns the text of an answer; of a web page, its title or the beginning of its text.
func message(text []byte) string {
	s := strings.TrimSpace(string(text))
	if strings.HasPrefix(s, "<") {
		if m := title.FindStringSubmatch(s); m != nil {
			s = m[1]
		} else {
			s = noise.ReplaceAllString(s, " ")
		}
		s = strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(s, " "))), " ")
		if r := []rune(s); len(r) > maxPage {
			s = string(r[:maxPage]) + "…"
		}
	}
	return foreign.Line(s)
}

// unreachable wraps an error that occurred on the way to the factory or back.
func (c *Client) unreachable(err error) error {
	err = fmt.Errorf("image factory %s: %w", c.base, foreign.Error(err))
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if explained, ok := trust.Explain(err); ok {
		return explained
	}
	return fault.WithHint(fault.Unreachable.Of(err), "see whether images.factory in recast.yaml is right and reachable from here")
}

// foreign wraps an answer that no Image Factory gives.
func (c *Client) foreign(err error) error {
	return fault.WithHint(fmt.Errorf("image factory %s: %w", c.base, foreign.Error(err)), "see whether images.factory in recast.yaml is an Image Factory")
}

const (
	attempts    = 5 // with pauses of 1, 2, 4 and 8 s
	attempts500 = 3 // of the factory's own "internal server error", which may be permanent
	maxPause    = 2 * time.Minute
	// buildTimeout is how long a build may take: the factory gives up after 20 minutes, including the wait for a worker
	// (image-factory, internal/asset/asset.go).
	buildTimeout = 25 * time.Minute
	// unknownPause is the pause after the factory does not know a newly registered schematic: each of several
	// factories caches for 30 s that the schematic did not exist (image-factory, cmd/options.go, NegativeTTL).
	unknownPause = 10 * time.Second
	// unknownSchematic distinguishes an unknown schematic from an unknown version (image-factory,
	// internal/schematic/storage).
	unknownSchematic = "schematic ID"
)

// purpose is the purpose of a request, which decides what is worth a retry.
type purpose int

const (
	api   purpose = iota // lists and schematics
	asset                // an image, which may have to be built first
)

// permanent marks an error that a retry would not fix.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// retry calls ask again while its error may be temporary. All our requests are repeatable: requests other than GET
// register a schematic, whose ID is the hash of its content.
func retry(ctx context.Context, e purpose, note func(string), ask func() error) error {
	start := time.Now()
	counted := 0 // attempts, except those during which the factory is still building
	for {
		err := ask()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if e == asset && gaveUpWaiting(err) && time.Since(start) < buildTimeout {
			note(fmt.Sprintf("%s; the factory is still building, asking again in %s", summary(err), unknownPause))
			if err := transport.Pause(ctx, unknownPause); err != nil {
				return err
			}
			continue
		}
		counted++
		inAll, wait := retryPolicy(err, e, counted)
		if counted >= inAll || wait > maxPause {
			if counted > 1 {
				return fmt.Errorf("%w (asked %d times)", err, counted)
			}
			return err
		}
		note(fmt.Sprintf("%s, trying again in %s (%d of %d)", summary(err), wait, counted+1, inAll))
		if err := transport.Pause(ctx, wait); err != nil {
			return err
		}
	}
}

// retryPolicy returns how many attempts an error is worth, and how long to wait after this attempt.
func retryPolicy(err error, e purpose, attempt int) (attemptsInAll int, wait time.Duration) {
	wait = time.Second << (attempt - 1)
	answer, ok := errors.AsType[*Error](err)
	if !ok {
		if isConfigError(err) {
			return 1, 0
		}
		return attempts, wait
	}
	wait = max(wait, answer.retryAfter)
	switch status := answer.Status; {
	case status == http.StatusNotFound && e == asset && strings.Contains(answer.Message, unknownSchematic):
		return attempts, unknownPause
	case status == http.StatusInternalServerError && answer.Via == "":
		return attempts500, wait
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests,
		status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout,
		status == http.StatusInternalServerError, status >= 520 && status <= 524: // Cloudflare's
		return attempts, wait
	}
	return 1, 0
}

// gaveUpWaiting reports whether a proxy timed out during a build, which continues.
func gaveUpWaiting(err error) bool {
	return hasStatus(err, http.StatusGatewayTimeout) || hasStatus(err, 524)
}

// isConfigError reports whether the configuration has caused an error on the way to the factory.
func isConfigError(err error) bool {
	if _, ok := errors.AsType[permanent](err); ok {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound || errors.Is(err, http.ErrSchemeMismatch)
}

// summary summarises what went wrong.
func summary(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Via != "" {
			return e.Via + " answered " + e.status()
		}
		return "the factory answered " + e.status()
	}
	return "no complete answer from the factory (" + innermost(err) + ")"
}

func innermost(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}

// retryAfter returns how long the server asks to wait: in seconds, or until a time.
func retryAfter(resp *http.Response) time.Duration {
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at)).Round(time.Second)
	}
	return 0
}

// tellEvery is how often a long build is reported.
const tellEvery = 30 * time.Second

// made holds the name of each kind of image in messages, and the ending of its file name.
var made = map[images.Artefact]struct{ title, ending string }{
	images.BootISO: {"ISO", ".iso"}, images.DiskImage: {"disk image", ".qcow2"},
}

// ImageURL returns where the factory serves a boot ISO or a disk image. The factory builds an ISO on the first
// request. A host can download a disk image from there as content "import": nothing else would unpack it.
func (c *Client) ImageURL(of images.Artefact, req images.ISORequest) string {
	file := req.Platform + "-" + req.Arch + suffix(req) + made[of].ending
	return c.base.JoinPath("image", req.SchematicID, req.Talos, file).String()
}

// Image requests an image. No HEAD comes first: the factory would build the image for a HEAD, too.
func (c *Client) Image(
	ctx context.Context, of images.Artefact, req images.ISORequest, note func(string),
) (io.ReadCloser, int64, error) {
	note = serialize(note)
	open := func(after time.Duration) (io.ReadCloser, int64, error) {
		if err := transport.Pause(ctx, after); err != nil {
			return nil, 0, c.unreachable(err)
		}
		return c.openImage(ctx, of, req, note)
	}
	body, size, err := c.openImage(ctx, of, req, note)
	if err != nil {
		return nil, 0, err
	}
	return &download{what: made[of].title, open: open, note: note, explain: c.unreachable, body: body, size: size, sum: sha256.New()}, size, nil
}

func (c *Client) openImage(ctx context.Context, of images.Artefact, req images.ISORequest, note func(string)) (io.ReadCloser, int64, error) {
	defer reportEvery(note, "the factory is building the "+made[of].title)()
	var resp *http.Response
	err := retry(ctx, asset, note, func() (err error) {
		resp, err = c.send(ctx, request{method: http.MethodGet, link: c.ImageURL(of, req), within: buildTimeout})
		return err
	})
	if err != nil {
		return nil, 0, c.explainMissing(err, req)
	}
	return resp.Body, resp.ContentLength, nil
}

func (c *Client) explainMissing(err error, req images.ISORequest) error {
	if !hasStatus(err, http.StatusNotFound) {
		return err
	}
	if e, ok := errors.AsType[*Error](err); ok && strings.Contains(e.Message, unknownSchematic) {
		return fault.WithHint(err, "the factory no longer knows the schematic: `recast publish --only build` registers it again")
	}
	return fault.WithHint(err, "the factory does not know Talos %s: %s/versions lists what it builds", req.Talos, c.base)
}

// serialize makes note safe for several goroutines; nil becomes a no-op.
func serialize(note func(string)) func(string) {
	if note == nil {
		return func(string) {}
	}
	var telling sync.Mutex
	return func(text string) {
		telling.Lock()
		defer telling.Unlock()
		note(text)
	}
}

// reportEvery reports, every tellEvery, how long something takes, until stop is called.
func reportEvery(note func(string), what string) (stop func()) {
	begun, over := time.Now(), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		ticker := time.NewTicker(tellEvery)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				note(fmt.Sprintf("%s, %s", what, time.Since(begun).Round(time.Second)))
			}
		}
	})
	return func() { close(over); telling.Wait() }
}

// manifests are the accepted types of an installer's manifest: the factory makes an index.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"

// InstallerRepository returns the repository of a schematic's installers in the factory, which is also a registry.
func (c *Client) InstallerRepository(req images.ISORequest) string {
	return c.base.Host + "/" + installerImage(req) + "/" + req.SchematicID
}

func installerImage(req images.ISORequest) string { return req.Platform + "-installer" + suffix(req) }

func suffix(req images.ISORequest) string {
	if req.SecureBoot {
		return "-secureboot"
	}
	return ""
}

// BuildInstaller makes the factory build a schematic's installer, for every architecture, and returns when the
// installer can be pulled. The factory builds it on a request for the manifest of its tag. Registry clients send this
// request, too, but with less patience.
func (c *Client) BuildInstaller(ctx context.Context, req images.ISORequest, note func(string)) error {
	note = serialize(note)
	defer reportEvery(note, "the factory is building the installer")()
	// The manifest is in the factory's registry, to which it may redirect.
	r := c.get("v2", installerImage(req), req.SchematicID, "manifests", req.Talos)
	r.accept, r.within, r.stay = manifests, buildTimeout, true
	err := retry(ctx, asset, note, func() error {
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if hasStatus(err, http.StatusUnauthorized) {
		return nil // the registry's client logs in
	}
	return c.explainMissing(err, req)
}

// heldBack is the number of received bytes that are not yet passed on. If the factory's own store breaks, "internal
// server error" ends up in the body: the factory answers by http.Error after sending half the image (image-factory,
// internal/frontend/http/image.go). The held bytes are dropped when a connection breaks.
const heldBack = 64

// download is an ISO or a disk image in transit. The factory ignores Range, so an interrupted download is read again
// from its beginning. The bytes up to the break must be the same: the factory does not build the same bytes twice.
type download struct {
	what    string // "ISO"
	open    func(after time.Duration) (io.ReadCloser, int64, error)
	note    func(string)
	explain func(error) error

	body     io.ReadCloser // nil between two connections
	size     int64         // announced; -1: unknown
	received int64         // received on this connection
	passed   int64         // passed to the reader
	sum      hash.Hash     // of what was passed on
	buffer   [heldBack + 32<<10]byte
	held     []byte // in buffer: received, not passed on
	whole    bool
	breaks   int
	failed   error
}

// Read returns all received bytes but the last heldBack. It returns those once the download is complete.
func (d *download) Read(p []byte) (int, error) {
	for d.failed == nil {
		if give := d.readable(); give > 0 {
			n := copy(p, d.held[:give])
			d.held = d.held[n:]
			d.sum.Write(p[:n]) // never fails
			d.passed += int64(n)
			return n, nil
		}
		if d.whole {
			return 0, io.EOF
		}
		d.failed = d.fill()
	}
	return 0, d.failed
}

func (d *download) readable() int {
	if d.whole {
		return len(d.held)
	}
	return len(d.held) - heldBack
}

// fill reads more from the connection, or opens a new one.
func (d *download) fill() error {
	kept := copy(d.buffer[:], d.held)
	n, err := d.body.Read(d.buffer[kept:])
	d.held = d.buffer[:kept+n]
	d.received += int64(n)
	switch {
	case errors.Is(err, io.EOF) && (d.size < 0 || d.received == d.size):
		d.whole = true
		return nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	case err == nil:
		return nil
	}
	return d.again(err)
}

// again reopens the download and skips to where it broke.
func (d *download) again(cause error) error {
	d.held = nil
	for {
		_ = d.body.Close() // it broke already
		d.body = nil
		d.breaks++
		switch {
		case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
			return d.explain(cause)
		case d.breaks == attempts:
			return d.explain(fmt.Errorf("the download broke off %d times, at last after %d MiB: %w", attempts, d.passed>>20, cause))
		}
		wait := time.Second << (d.breaks - 1)
		d.note(fmt.Sprintf("the download broke off after %d MiB (%s), beginning again in %s (%d of %d)",
			d.passed>>20, innermost(cause), wait, d.breaks+1, attempts))
		body, size, err := d.open(wait)
		if err != nil {
			return err
		}
		d.body = body
		if size != d.size {
			return d.differs()
		}
		same := sha256.New()
		if d.received, cause = io.CopyN(same, body, d.passed); cause != nil {
			continue
		}
		if !bytes.Equal(same.Sum(nil), d.sum.Sum(nil)) {
			return d.differs()
		}
		return nil
	}
}

func (d *download) differs() error {
	return fault.WithHint(d.explain(fmt.Errorf("after the download broke off, the factory sends another %s than before", d.what)),
		"it has rebuilt the %s, and a rebuild never has the same bytes: run it again", d.what)
}

// Close ends the download.
func (d *download) Close() error {
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}

// Versions lists the Talos versions that the factory builds.
func (c *Client) Versions(ctx context.Context) ([]string, error) {
	var versions []string
	err := c.askJSON(ctx, c.get("versions"), &versions)
	return versions, err
}

// Broken lists the Talos versions that the factory has marked as broken and does not build.
func (c *Client) Broken(ctx context.Context) ([]string, error) {
	var broken []string
	r := c.get("versions")
	r.link += "?broken=true"
	if err := c.askJSON(ctx, r, &broken); err != nil || len(broken) == 0 {
		return nil, err
	}
	versions, err := c.Versions(ctx)
	if err != nil {
		return nil, err
	}
	// A factory that does not know the parameter lists the versions that it builds.
	if slices.ContainsFunc(broken, func(v string) bool { return slices.Contains(versions, v) }) {
		return nil, nil
	}
	return broken, nil
}

// Extensions lists the official extensions as the factory would build them now.
func (c *Client) Extensions(ctx context.Context, talos string) ([]schematics.OfficialExtension, error) {
	var list []client.ExtensionInfo
	if err := c.askJSON(ctx, c.get("version", talos, "extensions", "official"), &list); err != nil {
		return nil, c.unknownVersion(err)
	}
	official := make([]schematics.OfficialExtension, 0, len(list))
	for _, x := range list {
		ref, version := splitTag(x.Ref)
		official = append(official, schematics.OfficialExtension{
			Name: x.Name, Version: version, Ref: ref, Digest: x.Digest, Author: x.Author, Description: x.Description,
		})
	}
	return official, nil
}

// Overlays lists the official overlays as the factory would build them now.
func (c *Client) Overlays(ctx context.Context, talos string) ([]schematics.OfficialOverlay, error) {
	var list []client.OverlayInfo
	if err := c.askJSON(ctx, c.get("version", talos, "overlays", "official"), &list); err != nil {
		if hasStatus(err, http.StatusInternalServerError) {
			// The real factory gives this answer, too: its list of overlays must not be empty.
			err = fault.WithHint(err, "a factory without overlays for Talos %s gives this answer, too", talos)
		}
		return nil, c.unknownVersion(err)
	}
	overlays := make([]schematics.OfficialOverlay, 0, len(list))
	for _, x := range list {
		ref, _ := splitTag(x.Ref)
		overlays = append(overlays, schematics.OfficialOverlay{Name: x.Name, Image: x.Image, Ref: ref, Digest: x.Digest})
	}
	return overlays, nil
}

func (c *Client) unknownVersion(err error) error {
	if hasStatus(err, http.StatusNotFound) {
		return fault.WithHint(fault.As(fault.Config, err), "%s/versions lists the Talos versions that it builds", c.base)
	}
	return err
}

// splitTag cuts a reference at its tag; a port is not a tag.
func splitTag(ref string) (repository, tag string) {
	i := strings.LastIndex(ref, ":")
	if i < strings.LastIndex(ref, "/") {
		return ref, ""
	}
	return ref[:max(i, 0)], ref[i+1:]
}

// Knows reports whether the factory has registered a schematic.
func (c *Client) Knows(ctx context.Context, id string) (bool, error) {
	_, err := c.ask(ctx, c.get("schematics", id))
	if hasStatus(err, http.StatusNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Register registers a schematic. If the factory rejects the schematic, the error is of kind Config and has the
// factory's message.
func (c *Client) Register(ctx context.Context, canonical string) (id, stored string, err error) {
	r := c.get("schematics")
	r.method, r.body = http.MethodPost, []byte(canonical)
	var answer struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}
	if err := c.askJSON(ctx, r, &answer); err != nil {
		return "", "", err
	}
	if answer.ID == "" {
		return "", "", c.foreign(errors.New("the answer has no ID for the schematic"))
	}
	if answer.Schematic != "" {
		return answer.ID, answer.Schematic, nil
	}
	text, err := c.ask(ctx, c.get("schematics", answer.ID)) // older factories return only the ID
	if err != nil {
		return "", "", fmt.Errorf("read the schematic back: %w", err)
	}
	return answer.ID, string(text), nil
}

// SigningKey returns the public key (PEM) with which the factory says it signs installers. It returns nil if the
// factory has none: an older factory, or a factory that signs without a key of its own and returns nothing.
func (c *Client) SigningKey(ctx context.Context) ([]byte, error) {
	key, err := c.ask(ctx, c.get("oci", "cosign", "signing-key.pub"))
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(key)) == 0 {
		return nil, nil
	}
	return c.requirePEM(key, "signing key")
}

// SecureBootCertificate returns the certificate (PEM) with which the factory signs images for Secure Boot. A factory
// that signs none is an error of kind Config.
func (c *Client) SecureBootCertificate(ctx context.Context) ([]byte, error) {
	cert, err := c.ask(ctx, c.get("secureboot", "signing-cert.pem"))
	switch {
	case hasStatus(err, http.StatusInternalServerError), hasStatus(err, http.StatusNotFound):
		// The factory answers 500 if Secure Boot is disabled (image-factory, internal/secureboot/secureboot.go).
		return nil, fault.WithHint(fault.As(fault.Config, fmt.Errorf("certificate for Secure Boot: %w", err)),
			"a factory without images for Secure Boot gives this answer: set images.secureBoot to false, or name another factory in images.factory")
	case err != nil:
		return nil, fmt.Errorf("certificate for Secure Boot: %w", err)
	}
	return c.requirePEM(cert, "certificate for Secure Boot")
}

func (c *Client) requirePEM(text []byte, what string) ([]byte, error) {
	if block, _ := pem.Decode(text); block == nil {
		return nil, c.foreign(fmt.Errorf("the %s is not PEM", what))
	}
	return text, nil
}
