package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/recast-sh/recast/internal/fault"
)

// conn is the connection to one Proxmox cluster that all roles share.
type conn struct {
	px        *proxmox.Client
	http      *http.Client
	transport *transport
	base      string // the first endpoint with the API's prefix; the transport sets the real one
	auth      string // value of the Authorization header
	tokenID   string
	poll      time.Duration
	memory    *memory // nil: see Remember
}

var tokenForm = regexp.MustCompile(`^([^@!=\s]+@[^@!=\s]+![^@!=\s]+)=(\S+)$`)

func newConn(o Options) (*conn, error) {
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
	c := &conn{
		http: hc, transport: t, base: endpoints[0].String() + apiPrefix,
		auth: "PVEAPIToken=" + tokenID + "=" + secret, tokenID: tokenID, poll: o.Poll,
	}
	if c.poll <= 0 {
		c.poll = time.Second
	}
	c.px = proxmox.NewClient(c.base, proxmox.WithHTTPClient(hc), proxmox.WithAPIToken(tokenID, secret), proxmox.WithUserAgent(userAgent))
	return c, nil
}

const userAgent = "recast"

// Close closes the connections to Proxmox. No request may be in flight.
func (c *conn) Close() { c.transport.close() }

// String names the client without its secret.
func (c *conn) String() string { return "Proxmox at " + c.base + " as " + c.tokenID }

// GoString keeps %#v from showing the secret.
func (c *conn) GoString() string { return c.String() }

func (c *conn) get(ctx context.Context, path string, out any) error {
	ask := func(out any) error { return c.clean(http.MethodGet, path, c.px.Get(ctx, path, out)) }
	if c.memory != nil && cacheable(path) {
		return c.memory.get(ctx, path, out, ask)
	}
	return ask(out)
}

// change sends a change. Its error wraps cluster.ErrLostAnswer if the change may
// have happened anyway.
func (c *conn) change(ctx context.Context, method, path string, params map[string]string, out any) error {
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
func (c *conn) clean(method, path string, err error) error {
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

// getDated is get, and returns the answer's Date header; zero if there is none.
func (c *conn) getDated(ctx context.Context, path string, out any) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return time.Time{}, c.clean(http.MethodGet, path, err)
	}
	answer := struct {
		Data any `json:"data"`
	}{out}
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err != nil {
		return time.Time{}, fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return time.Time{}, nil
	}
	return date, nil
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
