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
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
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

// Get reads the resource at a path into out.
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
