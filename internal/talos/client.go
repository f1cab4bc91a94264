// Package talos is recast's way to the machines of a Talos cluster: what they
// say about themselves, their etcd, their configuration, the first one of a
// blank machine included, and upgrades in place, over Talos' own client library.
package talos

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"net"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/client/dialer"
	"google.golang.org/grpc"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// defaultTimeout bounds one call of Client, that is everything it asks of one machine.
const defaultTimeout = 15 * time.Second

// DialFunc connects as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options are what a client takes from outside.
type Options struct {
	Talosconfig []byte
	Context     string            // of the talosconfig; "": its current one
	Dial        DialFunc          // nil: the machine's network, through the talosconfig's or the environment's proxy
	Timeout     time.Duration     // of one call to one machine; 0: 15 s
	GRPC        []grpc.DialOption // for every connection, besides our own
	// Over is for connections with that TLS configuration, besides GRPC; nil: nothing.
	Over func(*tls.Config) []grpc.DialOption
}

// Client talks to the machines of one cluster. It is safe for concurrent use
// and makes a connection of its own for every call.
type Client struct {
	config    *clientconfig.Config // one context, without a proxy: dial sees to that
	endpoints []string
	dial      DialFunc
	timeout   time.Duration
	grpc      []grpc.DialOption
	over      func(*tls.Config) []grpc.DialOption
	expires   time.Time // the certificate; zero: it has none
	as        identity  // with the cluster's credentials
}

var (
	_ cluster.Talos       = (*Client)(nil)
	_ cluster.Maintenance = (*Client)(nil)
)

// New makes a client with the credentials of a talosconfig. It talks to nobody yet.
func New(o Options) (*Client, error) {
	parsed, err := clientconfig.FromBytes(o.Talosconfig)
	if err != nil {
		// The parser quotes what it trips over, which may be the key.
		return nil, fault.Credentials.Configf("the talosconfig is not valid YAML%s", linesOf(err.Error()))
	}
	name := cmp.Or(o.Context, parsed.Context)
	found, ok := parsed.Contexts[name]
	if !ok || found == nil {
		return nil, fault.WithHint(fault.Credentials.Configf("the talosconfig has no context %q", name), "talosctl config contexts lists them")
	}
	own := *found
	expires, err := checkContext(name, own)
	if err != nil {
		return nil, err
	}
	c := &Client{endpoints: own.Endpoints, dial: o.Dial, grpc: o.GRPC, over: o.Over, timeout: cmp.Or(o.Timeout, defaultTimeout), expires: expires}
	if c.dial == nil {
		dial := dialer.DynamicProxyDialer
		if own.ProxyURL != "" {
			dial = dialer.ForProxyURL(own.ProxyURL)
		}
		c.dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }
	}
	own.ProxyURL = ""
	c.config = &clientconfig.Config{Context: name, Contexts: map[string]*clientconfig.Context{name: &own}}
	if c.over == nil {
		c.over = func(*tls.Config) []grpc.DialOption { return nil }
	}
	if c.as, err = c.withCredentials(own); err != nil {
		return nil, err
	}
	return c, nil
}

// identity is who recast is on a connection.
type identity struct {
	as    client.OptionFunc
	over  []grpc.DialOption
	blank bool // nobody
}

// keptSessions is how many TLS sessions are kept; more than the machines of a cluster.
const keptSessions = 1024

// withCredentials reads those of a context once, where a certificate is all there
// is to them. A machine that was spoken to before takes up its TLS session then,
// for every call has a connection of its own; one that has booted since knows
// nothing of it, and shakes hands anew.
func (c *Client) withCredentials(own clientconfig.Context) (identity, error) {
	if own.Crt == "" || own.Cluster != "" || own.Auth.Basic != nil || own.Auth.SideroV1 != nil {
		return identity{as: client.WithConfig(c.config)}, nil
	}
	pair, err := client.CertificateFromConfigContext(&own)
	if err != nil {
		return identity{}, fault.Credentials.Configf("context %q of the talosconfig: its certificate and key can't be read or don't fit together", c.config.Context)
	}
	roots := x509.NewCertPool()
	ca, err := base64.StdEncoding.DecodeString(own.CA)
	switch {
	case own.CA == "":
		roots = nil // those of this machine
	case err != nil || !roots.AppendCertsFromPEM(ca):
		return identity{}, fault.Credentials.Configf("context %q of the talosconfig: its CA can't be read", c.config.Context)
	}
	known := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{*pair}, ClientSessionCache: tls.NewLRUClientSessionCache(keptSessions),
	}
	return identity{as: client.WithTLSConfig(known), over: c.over(known)}, nil
}

// checkContext finds what would make every call fail.
func checkContext(name string, c clientconfig.Context) (expires time.Time, err error) {
	crt, err := client.CertificateFromConfigContext(&c)
	switch {
	case err != nil:
		return expires, fault.Credentials.Configf("context %q of the talosconfig: its certificate and key can't be read or don't fit together", name)
	case len(c.Endpoints) == 0:
		return expires, fault.WithHint(fault.Credentials.Configf("context %q of the talosconfig has no endpoints", name),
			"talosctl config endpoint sets them: the control planes' addresses")
	case crt == nil:
		return expires, nil
	}
	return crt.Leaf.NotAfter, checkExpiry(name, crt.Leaf.NotAfter)
}

// checkExpiry is asked before every call, too: a roll may last longer than a certificate.
func checkExpiry(name string, expires time.Time) error {
	if expires.IsZero() || !time.Now().After(expires) {
		return nil
	}
	return fault.WithHint(fault.Credentials.Configf("context %q of the talosconfig: its certificate expired on %s", name, expires.Format(time.DateOnly)),
		"an admin of the cluster makes a new one with talosctl config new; then run the same command again")
}

// Close ends the client. Its connections have ended with the calls that made them.
func (*Client) Close() error { return nil }
