// Package factory is the adapter to an Image Factory: a [Client] has its schematics, its
// lists, its ISOs and the builds of its installers. Installers are pulled from it as from
// any registry.
package factory

import (
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
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
