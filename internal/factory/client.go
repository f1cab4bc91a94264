// Package factory is the adapter to an Image Factory. A [Client] registers schematics, reads the factory's lists,
// downloads ISOs and disk images, and has installers built. Installers are pulled from a factory as from any
// registry.
package factory

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

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
		// A POST that became a GET asks for something else. A factory behind https redirects a POST so if the URL has
		// http.
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
	// buildTimeout is how long a build may take: the factory gives up after 20
	// minutes, including the wait for a worker (image-factory,
	// internal/asset/asset.go).
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
