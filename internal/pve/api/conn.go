// Package api sends requests to the API of a Proxmox cluster over a Conn. Whichever node answers serves a request,
// and a request is repeated only where that is safe. Every answer other than success is an *Error, which wraps the
// errors that callers branch on.
//
// The package uses go-proxmox only to encode and decode the plain requests (Get, Post, Put, Delete). Errors of
// go-proxmox lose what Proxmox says, so the transport below go-proxmox turns answers into an *Error first. Its
// Task.Wait mistakes a failed task for a successful one. go-proxmox streams no upload and returns no header (see
// Conn.Send).
package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/transport"
)

// Options say where the Proxmox cluster is and how recast authenticates itself.
type Options struct {
	Endpoints   []string       // "https://pve1.example:8006", several nodes of one cluster; tried in order
	Token       cluster.Secret // "user@realm!id=uuid"
	Fingerprint string         // SHA-256 of the served certificate; several separated by commas; "": CAFile, RootCAs or the system's
	CAFile      string         // PEM file; wins over RootCAs
	RootCAs     *x509.CertPool
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Poll        time.Duration                                                     // pause between two polls of a task or a VM, shorter at the start of a task; 0: 1 s
	Wrap        func(http.RoundTripper) http.RoundTripper                         // wraps the transport of each attempt; may be nil
	Warn        func(text string)                                                 // receives the warnings of tasks that succeed; may be nil
}

// Conn is a connection to one Proxmox cluster. It is safe for concurrent use.
type Conn struct {
	TokenID string            // "user@realm!id"
	Poll    time.Duration     // as in Options, never 0
	Warn    func(text string) // as in Options, never nil

	px     *proxmox.Client
	http   *http.Client
	relay  *relay
	base   string  // the first endpoint with the API's prefix; the relay sets the real one
	auth   string  // value of the Authorization header
	memory *memory // nil: see Remember
}

var tokenForm = regexp.MustCompile(`^([^@!=\s]+@[^@!=\s]+![^@!=\s]+)=(\S+)$`)

// Connect returns a Conn and makes no connection yet. The caller closes the Conn.
func Connect(o Options) (*Conn, error) {
	m := tokenForm.FindStringSubmatch(strings.TrimSpace(string(o.Token)))
	if m == nil {
		what := "is not a Proxmox API token"
		if len(o.Token) == 0 {
			what = "is not set"
		}
		return nil, fault.WithHint(fault.Credentials.Configf("PROXMOX_VE_API_TOKEN %s", what),
			"it has the form user@realm!id=uuid; pveum user token add prints the last part once")
	}
	tokenID, secret := m[1], m[2]
	endpoints, err := parseEndpoints(o.Endpoints)
	if err != nil {
		return nil, err
	}
	t, err := newRelay(endpoints, o, secret)
	if err != nil {
		return nil, err
	}
	// The client follows no redirect: the token would be sent along.
	hc := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c := &Conn{
		http: hc, relay: t, base: endpoints[0].String() + apiPrefix,
		auth: "PVEAPIToken=" + tokenID + "=" + secret, TokenID: tokenID, Poll: o.Poll, Warn: o.Warn,
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	if c.Warn == nil {
		c.Warn = func(string) {}
	}
	c.px = proxmox.NewClient(c.base, proxmox.WithHTTPClient(hc), proxmox.WithAPIToken(tokenID, secret), proxmox.WithUserAgent(userAgent))
	return c, nil
}

const userAgent = "recast"

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Conn) Close() { c.relay.close() }

// String names the connection without its secret.
func (c *Conn) String() string { return "Proxmox at " + c.base + " as " + c.TokenID }

// GoString keeps %#v from showing the secret.
func (c *Conn) GoString() string { return c.String() }

// Redact removes the secret from a text of Proxmox.
func (c *Conn) Redact(text string) string { return c.relay.redact(text) }

// User returns the user to whom the token belongs: "user@realm".
func (c *Conn) User() string {
	user, _, _ := strings.Cut(c.TokenID, "!")
	return user
}

// Remember makes the connection keep the answers that stay valid while a command runs that changes nothing, and read
// each only once; see cacheable. Call Remember before the first request.
func (c *Conn) Remember() { c.memory = &memory{} }

func (c *Conn) Get(ctx context.Context, path string, out any) error {
	ask := func(out any) error { return c.clean(http.MethodGet, path, c.px.Get(ctx, path, out)) }
	if c.memory != nil && cacheable(path) {
		return c.memory.get(ctx, path, out, ask)
	}
	return ask(out)
}

// Change sends a change. Its error wraps cluster.ErrLostAnswer if the change may have happened anyway.
func (c *Conn) Change(ctx context.Context, method, path string, params map[string]string, out any) error {
	var err error
	switch method {
	case http.MethodPost:
		err = c.px.Post(ctx, path, params, out)
	case http.MethodPut:
		err = c.px.Put(ctx, path, params, out)
	case http.MethodDelete:
		err = c.px.Delete(ctx, path, out)
	default:
		return fmt.Errorf("%s changes nothing", method)
	}
	if e, ok := errors.AsType[*Error](err); ok && params["cipassword"] != "" {
		e.redact(func(s string) string { return strings.ReplaceAll(s, params["cipassword"], "[redacted]") })
	}
	return c.clean(method, path, err)
}

// clean removes the wrapping that net/http and go-proxmox put around our own errors, and adds hints.
func (c *Conn) clean(method, path string, err error) error {
	if err == nil {
		return nil
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if _, ok := errors.AsType[*Error](err); !ok {
		path, _, _ = strings.Cut(path, "?")
		err = fmt.Errorf("%s %s: %w", method, path, err)
	}
	return c.Explain(err)
}

// GetDated does the same as Get, and also returns the answer's Date header; zero if there is none.
func (c *Conn) GetDated(ctx context.Context, path string, out any) (time.Time, error) {
	header, err := c.Send(ctx, http.MethodGet, path, nil, out)
	date, errDate := http.ParseTime(header.Get("Date"))
	if err != nil || errDate != nil {
		return time.Time{}, err
	}
	return date, nil
}

// Send sends a request, after prepare has given the request a body. Send does what go-proxmox cannot do. An error
// wraps cluster.ErrLostAnswer if a change may have happened anyway.
func (c *Conn) Send(ctx context.Context, method, path string, prepare func(*http.Request), out any) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)
	if prepare != nil {
		prepare(req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.clean(method, path, err)
	}
	answer := struct {
		Data any `json:"data"`
	}{out}
	if err = errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err == nil {
		return resp.Header, nil
	}
	if err = fmt.Errorf("read the answer: %w", err); method != http.MethodGet {
		err = fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return nil, c.clean(method, path, err)
}

func parseEndpoints(list []string) ([]*url.URL, error) {
	if len(list) == 0 {
		return nil, fault.Configf("no Proxmox endpoint is given")
	}
	var endpoints []*url.URL
	for _, s := range list {
		if strings.ContainsAny(s, "@?") { // checked first: an invalid URL must not echo a secret
			return nil, fault.WithHint(fault.Credentials.Configf("a Proxmox endpoint holds a user, a password or a query"),
				"write it as https://pve1.example:8006; who we are is in PROXMOX_VE_API_TOKEN")
		}
		u, err := url.Parse(strings.TrimSuffix(s, "/"))
		if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			return nil, fault.WithHint(fault.Configf("Proxmox endpoint %q is not an HTTPS address of a node", s), "write it as https://pve1.example:8006")
		}
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), "8006")
		}
		endpoints = append(endpoints, &url.URL{Scheme: u.Scheme, Host: u.Host})
	}
	return endpoints, nil
}

// cacheable reports whether an answer stays valid while a command runs that changes nothing.
func cacheable(path string) bool {
	switch path {
	case "/cluster/status", "/nodes", "/storage":
		return true
	}
	if strings.HasPrefix(path, "/access/") {
		return true
	}
	host, ok := strings.CutPrefix(path, "/nodes/")
	_, what, below := strings.Cut(host, "/")
	return ok && below && (strings.HasPrefix(what, "storage") || strings.HasPrefix(what, "disks/"))
}

// answer is an answer of memory; other callers may wait until it is done.
type answer struct {
	done chan struct{} // closed when the rest is known
	data json.RawMessage
	err  error
}

// memory holds answers by path. Errors are not shared; each waiter retries.
type memory struct{ answers sync.Map }

func (m *memory) get(ctx context.Context, path string, out any, ask func(out any) error) error {
	for {
		kept, begun := m.answers.LoadOrStore(path, &answer{done: make(chan struct{})})
		a := kept.(*answer)
		if !begun {
			return m.ask(path, a, out, ask)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if a.err == nil {
			return json.Unmarshal(a.data, out)
		}
	}
}

func (m *memory) ask(path string, a *answer, out any, ask func(out any) error) error {
	defer close(a.done)
	var raw json.RawMessage
	if a.err = ask(&raw); a.err != nil {
		m.answers.Delete(path)
		return a.err
	}
	a.data = raw
	return json.Unmarshal(raw, out)
}

const (
	dialTimeout  = 10 * time.Second
	stallTimeout = 60 * time.Second // how long a peer may accept no data
	// headerTimeout bounds the wait for the answer to a change once it is sent. It is well above the 30 s after which the
	// entry node gives up on the node that it forwarded the request to, and reports that (AnyEvent.pm, proxy_request).
	headerTimeout = 90 * time.Second
	// readTimeout bounds one attempt at a read. It is a little above 30 s for the same reason.
	readTimeout = 40 * time.Second
	// retryBudget is how long after the first attempt another may start. Each endpoint answers a read about a node
	// that is down with 595 after 30 s: two endpoints must suffice.
	retryBudget = 45 * time.Second
	// idleTimeout is below the 5 s after which pveproxy closes an idle connection, so that no request meets a closing
	// connection.
	idleTimeout = 3 * time.Second
	maxAnswer   = 64 << 20

	apiPrefix = "/api2/json"
)

// A pause follows each round over all endpoints without an answer; each pause doubles the one before.
const (
	pauses     = 3
	firstPause = 500 * time.Millisecond
)

var (
	errSlowRead   = fmt.Errorf("no complete answer within %s", readTimeout)
	errSlowAnswer = fmt.Errorf("the answer did not end within %s", headerTimeout)
)

// relay sends each request to the endpoint that answered last, and to the others if no connection can be made. It
// turns every answer except success into an *Error, which go-proxmox would lose. It retries reads that got no answer.
// It sends a change again only if nothing was sent the first time, or if Proxmox lost the request's user (see
// Error.noUser). An attempt bounds how long a body may stall, not how long the whole body may take.
type relay struct {
	endpoints []*url.URL
	reads     *http.Transport
	// writes makes a connection for each request: on a reused connection that the server has just closed, recast
	// would not know whether the change arrived.
	writes  *http.Transport
	current atomic.Int64 // index into endpoints
	redact  func(string) string
	wrap    func(http.RoundTripper) http.RoundTripper // wraps the transports of reads and of writes
}

func newRelay(endpoints []*url.URL, o Options, secret string) (*relay, error) {
	cfg, err := tlsConfig(o)
	if err != nil {
		return nil, err
	}
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	dial = transport.BoundedDial(dial, dialTimeout, stallTimeout)
	redact := func(s string) string { return strings.ReplaceAll(s, secret, "[redacted]") }
	t := &relay{endpoints: endpoints, redact: redact, reads: oneTransport(dial, cfg), writes: oneTransport(dial, cfg.Clone())}
	t.writes.DisableKeepAlives = true
	t.writes.WriteBufferSize = 64 << 10 // of uploads
	if t.wrap = o.Wrap; t.wrap == nil {
		t.wrap = func(inner http.RoundTripper) http.RoundTripper { return inner }
	}
	return t, nil
}

func oneTransport(dial func(context.Context, string, string) (net.Conn, error), cfg *tls.Config) *http.Transport {
	// HTTP/2 has no reason phrase, where Proxmox before 9 puts its message.
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Transport{
		Protocols:             &http1,
		DialContext:           dial,
		TLSClientConfig:       cfg,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       idleTimeout,
		// net/http dials whenever no connection is idle, uses what comes first, and closes the others above this
		// number: with ReadsAtOnce, a plan of 500 nodes dialed 590 times for 3,000 requests.
		MaxIdleConnsPerHost: 4 * ReadsAtOnce,
	}
}

func (t *relay) close() {
	t.reads.CloseIdleConnections()
	t.writes.CloseIdleConnections()
}

// unreachableError says that recast could not connect to any endpoint.
type unreachableError struct{ errs []error }

func (e *unreachableError) Unwrap() []error { return e.errs }

// Is matches cluster.ErrNotNow, because nothing was sent, not even of a change; except if an endpoint is not the
// intended server.
func (e *unreachableError) Is(target error) bool {
	return target == cluster.ErrNotNow && !slices.ContainsFunc(e.errs, isIdentity)
}

// silentError is a read that got no complete answer.
type silentError struct{ error }

func (e *silentError) Unwrap() error        { return e.error }
func (e *silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// isIdentity reports whether the error means that another server than the intended one answered.
func isIdentity(err error) bool {
	_, other := errors.AsType[*FingerprintError](err)
	return other || isCertificate(err)
}

func (e *unreachableError) Error() string {
	return "reach Proxmox: " + strings.Join(cluster.Each(e.errs, error.Error), "; ")
}

// RoundTrip implements http.RoundTripper. The answer's body is held in memory.
func (t *relay) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.GetBody != nil {
		defer func() { _ = req.Body.Close() }() // every attempt has its own body
	}
	start := time.Now()
	for round := 0; ; round++ {
		resp, again, err := t.round(req, start)
		if err == nil || !again || round == pauses {
			return resp, err
		}
		if transport.Pause(req.Context(), firstPause<<round) != nil {
			return nil, err
		}
	}
}

// round tries every endpoint once, starting with the one that answered last, while
// the budget lasts. again says that another round is safe.
func (t *relay) round(req *http.Request, start time.Time) (resp *http.Response, again bool, err error) {
	first := int(t.current.Load())
	unreachable := &unreachableError{}
	tried := 0
	for ; tried < len(t.endpoints) && (tried == 0 || time.Since(start) < retryBudget); tried++ {
		n := (first + tried) % len(t.endpoints)
		var sent bool
		resp, sent, err = t.try(req, t.endpoints[n])
		if err == nil {
			t.current.Store(int64(n))
			return resp, false, nil
		}
		if !sent {
			unreachable.errs = append(unreachable.errs, err)
		}
		if !mayRepeat(req, sent, err) {
			return nil, false, err
		}
	}
	if len(unreachable.errs) == tried {
		err = unreachable
	}
	return nil, time.Since(start) < retryBudget, err
}

// mayRepeat reports whether a request that got no answer may be sent again.
func mayRepeat(req *http.Request, sent bool, err error) bool {
	if req.Context().Err() != nil || isIdentity(err) {
		return false
	}
	e, answered := errors.AsType[*Error](err)
	undone := !sent || answered && e.noUser()
	if req.Method != http.MethodGet {
		return undone && (req.Body == nil || req.GetBody != nil)
	}
	return !answered || isGateway(e.Status) || e.noUser()
}

// try sends req to one endpoint. sent is true once a connection existed: the request may then have arrived.
func (t *relay) try(req *http.Request, to *url.URL) (resp *http.Response, sent bool, err error) {
	var connected atomic.Bool
	ctx, cancel := context.WithCancelCause(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	defer cancel(nil)
	out := req.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, to.Host
	if req.GetBody != nil {
		if out.Body, err = req.GetBody(); err != nil {
			return nil, false, fmt.Errorf("read what is to be sent: %w", err)
		}
	}
	via := t.writes
	if req.Method == http.MethodGet {
		via = t.reads
		defer time.AfterFunc(readTimeout, func() { cancel(errSlowRead) }).Stop()
	}
	resp, err = t.wrap(via).RoundTrip(out)
	if err == nil {
		defer time.AfterFunc(headerTimeout, func() { cancel(errSlowAnswer) }).Stop()
		resp, err = t.answer(resp)
	}
	sent = connected.Load()
	if _, answered := errors.AsType[*Error](err); err == nil || answered {
		return resp, sent, err
	}
	if e, ok := errors.AsType[*FingerprintError](err); ok {
		e.Addr = to.Host
	}
	err = fmt.Errorf("%s: %w", to.Host, foreign.Error(err))
	switch {
	case req.Method == http.MethodGet && !isIdentity(err):
		err = &silentError{err}
	case sent && req.Method != http.MethodGet:
		err = fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return nil, sent, err
}

// answer reads the whole answer and turns everything except Proxmox's own form of success into an *Error. A truncated
// answer counts as no answer.
func (t *relay) answer(resp *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	path := strings.TrimPrefix(resp.Request.URL.Path, apiPrefix)
	if !isSuccess(resp.StatusCode) {
		e := parseError(resp.Request.Method, path, resp.StatusCode, resp.Status, body)
		e.redact(t.redact)
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	var envelope map[string]json.RawMessage
	if json.Unmarshal(body, &envelope) != nil || envelope["data"] == nil {
		return nil, &Error{
			Method: resp.Request.Method, Path: path, Status: resp.StatusCode,
			Message: "the answer is not that of a Proxmox API",
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// ReadsAtOnce bounds the concurrent requests for one list. A host serves as many requests at once as pveproxy has
// workers, three by default, and queues the rest: the queue keeps the workers busy while answers are in transit.
const ReadsAtOnce = 16

// keptSessions bounds the kept TLS sessions: one per host is needed.
const keptSessions = 64

// FingerprintError says that a server's certificate is not the pinned one.
type FingerprintError struct {
	Addr string   // "host:port" of the endpoint
	Got  string   // SHA-256 of the served certificate, "AA:BB:…"
	Want []string // the pinned ones
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("certificate of %s has fingerprint %s, not the pinned %s", e.Addr, e.Got, strings.Join(e.Want, " or "))
}

// tlsConfig decides what to trust: the pinned certificates if there are any, else
// the given authorities, else the system's.
func tlsConfig(o Options) (*tls.Config, error) {
	// Changes use new connections, which resume the TLS session of an earlier one. The verification below runs for a
	// resumed session, too.
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs, ClientSessionCache: tls.NewLRUClientSessionCache(keptSessions)}
	if o.Fingerprint != "" {
		pins, err := parseFingerprints(o.Fingerprint)
		if err != nil {
			return nil, err
		}
		// A pin replaces the checks of the chain and the host name.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(cs tls.ConnectionState) error { return verifyPin(cs, pins) }
		return cfg, nil
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fault.TLS.Configf("read the CA of Proxmox: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.WithHint(fault.TLS.Configf("%s holds no PEM certificate", o.CAFile), "copy /etc/pve/pve-root-ca.pem from a Proxmox node")
		}
	}
	return cfg, nil
}

func verifyPin(cs tls.ConnectionState, pins [][sha256.Size]byte) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	got := sha256.Sum256(cs.PeerCertificates[0].Raw)
	e := &FingerprintError{Got: formatFingerprint(got)}
	for _, pin := range pins {
		if bytes.Equal(pin[:], got[:]) {
			return nil
		}
		e.Want = append(e.Want, formatFingerprint(pin))
	}
	return e
}

// parseFingerprints reads one or more SHA-256 fingerprints, with or without colons, separated by commas or spaces:
// every node of a Proxmox cluster has a certificate of its own.
func parseFingerprints(s string) ([][sha256.Size]byte, error) {
	var pins [][sha256.Size]byte
	for _, field := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		b, err := hex.DecodeString(strings.ReplaceAll(field, ":", ""))
		if err != nil || len(b) != sha256.Size {
			return nil, fault.WithHint(fault.TLS.Configf("%q is not a SHA-256 fingerprint", field),
				"openssl x509 -noout -fingerprint -sha256 prints 32 hex pairs: AA:BB:…")
		}
		pins = append(pins, [sha256.Size]byte(b))
	}
	if len(pins) == 0 {
		return nil, fault.TLS.Configf("the fingerprint is blank")
	}
	return pins, nil
}

func formatFingerprint(sum [sha256.Size]byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}

// Untrusted returns why the server's certificate is not trusted; "" if err is something else. wrongName says that the
// certificate has other names: to pin it would mean to pin any server at that address.
func Untrusted(err error) (why string, wrongName bool) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its issuer is not trusted by this machine", false
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return e.Error(), true
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return e.Error(), false
	}
	return "", false
}

// Fingerprint reads the SHA-256 fingerprint of the certificate that a server presents. It sends no request. The
// result proves nothing: a person has to compare the fingerprint. A nil dial uses the machine's network.
func Fingerprint(ctx context.Context, endpoint string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (string, error) {
	urls, err := parseEndpoints([]string{endpoint})
	if err != nil {
		return "", err
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", urls[0].Host)
	if err != nil {
		return "", fmt.Errorf("read the certificate of %s: %w", urls[0].Host, err)
	}
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // see above
	defer conn.Close()
	err = conn.SetDeadline(time.Now().Add(dialTimeout))
	if err == nil {
		err = conn.HandshakeContext(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("read the certificate of %s: %w", urls[0].Host, err)
	}
	return formatFingerprint(sha256.Sum256(conn.ConnectionState().PeerCertificates[0].Raw)), nil
}
