// Package pve talks to the Proxmox VE API through a [Client]. It is the only package that
// knows what Proxmox's answers look like: it waits for tasks itself, and turns wordings,
// statuses and lost answers into errors that callers can branch on.
package pve

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// readsAtOnce bounds the concurrent requests for one list. A host serves as many at
// once as pveproxy has workers, three by default, and queues the rest: this keeps
// them busy while answers are in transit.
const readsAtOnce = 16

// Options say where the Proxmox cluster is and how to prove who we are.
type Options struct {
	Endpoints   []string       // "https://pve1.example:8006", several nodes of one cluster; tried in order
	Token       cluster.Secret // "user@realm!id=uuid"
	Fingerprint string         // SHA-256 of the served certificate; several separated by commas; "": CAFile, RootCAs or the system's
	CAFile      string         // PEM file; wins over RootCAs
	RootCAs     *x509.CertPool
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Poll        time.Duration                                                     // pause between two polls of a task or a VM, shorter at the start of a task; 0: 1 s
	Wrap        func(http.RoundTripper) http.RoundTripper                         // wraps what carries each attempt at a request; nil: nothing
	Warn        func(text string)                                                 // receives the warnings of tasks that succeed; may be nil
}

// Client talks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	px        *proxmox.Client
	http      *http.Client
	transport *transport
	base      string // the first endpoint with the API's prefix; the transport sets the real one
	auth      string // value of the Authorization header
	tokenID   string
	poll      time.Duration
	warn      func(string)
	workers   knownTasks
	durations durations
	seen      lastSeen
	slots     slots
	memory    *memory // nil: see Remember
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)
)

var tokenForm = regexp.MustCompile(`^([^@!=\s]+@[^@!=\s]+![^@!=\s]+)=(\S+)$`)

// New returns a client without connecting. The caller closes it.
func New(o Options) (*Client, error) {
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
	t, err := newTransport(endpoints, o, secret)
	if err != nil {
		return nil, err
	}
	// Redirects are not followed: the token would be sent along.
	hc := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c := &Client{
		http: hc, transport: t, base: endpoints[0].String() + apiPrefix,
		auth: "PVEAPIToken=" + tokenID + "=" + secret, tokenID: tokenID, poll: o.Poll, warn: o.Warn,
	}
	if c.poll <= 0 {
		c.poll = time.Second
	}
	if c.warn == nil {
		c.warn = func(string) {}
	}
	c.px = proxmox.NewClient(c.base, proxmox.WithHTTPClient(hc), proxmox.WithAPIToken(tokenID, secret), proxmox.WithUserAgent(userAgent))
	return c, nil
}

const userAgent = "recast"

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.transport.close() }

// String names the client without its secret.
func (c *Client) String() string { return "Proxmox at " + c.base + " as " + c.tokenID }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.String() }

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

func (c *Client) get(ctx context.Context, path string, out any) error {
	ask := func(out any) error { return c.clean(http.MethodGet, path, c.px.Get(ctx, path, out)) }
	if c.memory != nil && cacheable(path) {
		return c.memory.get(ctx, path, out, ask)
	}
	return ask(out)
}

// change sends a change. Its error wraps cluster.ErrLostAnswer if the change may
// have happened anyway.
func (c *Client) change(ctx context.Context, method, path string, params map[string]string, out any) error {
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

// clean removes the wrapping that net/http and go-proxmox put around our own errors,
// and adds hints.
func (c *Client) clean(method, path string, err error) error {
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
	return c.explain(err)
}
