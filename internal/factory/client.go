// Package factory is the adapter to an Image Factory: a [Client] has its schematics, its
// lists, its ISOs and the builds of its installers. Installers are pulled from it as from
// any registry.
package factory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
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
	// Transport carries every request; nil: a new one, with the system's proxy and
	// root certificates.
	Transport http.RoundTripper
	CAFile    string                                    // PEM file of CAs in addition to the system's; "": none
	Wrap      func(http.RoundTripper) http.RoundTripper // wraps Transport; nil: nothing
	// Note receives each retry and its reason, except for ISOs, whose caller has a note. May be nil.
	Note func(text string)
}

// Client talks to one Image Factory.
type Client struct{ server }

// server sends the requests that a Client's methods are made of.
type server struct {
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
	c := &Client{server{base: base, note: o.Note}}
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

func (s *server) get(path ...string) request {
	return request{method: http.MethodGet, link: s.base.JoinPath(path...).String(), within: answerWithin}
}

// send sends a request once. Anything but success is an error; on success the caller closes the body.
func (s *server) send(ctx context.Context, r request) (*http.Response, error) {
	ctx, w := transport.NewWatch(ctx)
	w.Begin(r.within, &transport.Stalled{Text: fmt.Sprintf("no answer within %s", r.within)})
	resp, err := s.do(ctx, r)
	w.Pause()
	if err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, s.unreachable(err)
	}
	resp.Body = w.Answer(resp.Body, stallAfter, errStalled)
	if !r.answeredBy(resp) {
		defer resp.Body.Close()
		return nil, s.refusal(resp)
	}
	return resp, nil
}

func (r request) answeredBy(resp *http.Response) bool {
	if r.stay && resp.StatusCode/100 == 3 {
		return true
	}
	return (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated) && !isPage(resp)
}

func (s *server) do(ctx context.Context, r request) (*http.Response, error) {
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
	via := *s.http
	if r.stay {
		via.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := via.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		return nil, &url.Error{Op: e.Op, URL: withoutQuery(e.URL), Err: e.Err}
	}
	return resp, err
}

// withoutQuery shortens the URL of a store to which the factory redirects: its query
// is a signature that lets anyone download.
func withoutQuery(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return "(a malformed URL)"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}

// isPage reports whether the answer is a web page: the factory's API has none.
func isPage(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == "text/html"
}

// ask retries until the answer is complete or a retry is pointless.
func (s *server) ask(ctx context.Context, r request) ([]byte, error) {
	var answer []byte
	err := retry(ctx, api, s.note, func() error {
		resp, err := s.send(ctx, r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
		if err == nil && len(answer) > maxAnswerBytes {
			return permanent{fmt.Errorf("image factory %s: the answer has more than %d MiB", s.base, maxAnswerBytes>>20)}
		}
		if err != nil {
			return s.unreachable(fmt.Errorf("%s %s: %w", r.method, withoutQuery(r.link), err))
		}
		return nil
	})
	return answer, err
}

// askJSON asks and decodes the answer.
func (s *server) askJSON(ctx context.Context, r request, into any) error {
	answer, err := s.ask(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return s.foreign(fmt.Errorf("%s %s: the answer can't be read: %w", r.method, withoutQuery(r.link), err))
	}
	return nil
}

// maxRedirects suffices for a store behind a CDN behind a load balancer.
const maxRedirects = 5

// follow allows redirects to the factory's own store: it answers a GET of an image
// with 302 to S3 or a CDN if it has one (image-factory,
// internal/frontend/http/image.go). net/http drops credentials when the host
// changes.
func follow(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return permanent{fmt.Errorf("redirected more than %d times", maxRedirects)}
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return permanent{fmt.Errorf("redirected to %s, which is not encrypted", next.URL.Host)}
	case next.Method != last.Method:
		// A POST that became a GET asks for something else. A factory behind https
		// does this to a URL with http.
		return permanent{fmt.Errorf("redirected to %s://%s, which a %s does not follow: use that URL in images.factory",
			next.URL.Scheme, next.URL.Host, last.Method)}
	}
	return nil
}
