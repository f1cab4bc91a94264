// Package talos talks to the machines of a Talos cluster through Talos' own client
// library: a [Client] has their state, their etcd, their configuration, including the
// first one of a blank machine, and upgrades in place.
package talos

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/client/dialer"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// defaultTimeout bounds one call of Client, with all its requests to one machine.
const defaultTimeout = 15 * time.Second

// DialFunc connects as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options configure a client.
type Options struct {
	Talosconfig []byte
	Context     string            // of the talosconfig; "": its current one
	Dial        DialFunc          // nil: the machine's network, through the proxy of the talosconfig or the environment
	Timeout     time.Duration     // of one call to one machine; 0: 15 s
	GRPC        []grpc.DialOption // for every connection, in addition to our own
	// Over returns options for connections with that TLS configuration, added to GRPC; nil: none.
	Over func(*tls.Config) []grpc.DialOption
}

// Client talks to the machines of one cluster. It is safe for concurrent use and
// opens a new connection for every call.
type Client struct {
	config    *clientconfig.Config // one context, without a proxy: dial handles that
	endpoints []string
	dial      DialFunc
	timeout   time.Duration
	grpc      []grpc.DialOption
	over      func(*tls.Config) []grpc.DialOption
	expires   time.Time // of the certificate; zero: there is none
	as        identity  // with the cluster's credentials
}

var (
	_ cluster.Talos       = (*Client)(nil)
	_ cluster.Maintenance = (*Client)(nil)
)

// New returns a client with the credentials of a talosconfig, without connecting.
func New(o Options) (*Client, error) {
	parsed, err := clientconfig.FromBytes(o.Talosconfig)
	if err != nil {
		// The parser quotes the offending text, which may be the key.
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
	blank bool // no credentials
}

// keptSessions bounds the kept TLS sessions; it exceeds the machines of a cluster.
const keptSessions = 1024

// withCredentials reads a context's credentials once, if they are only a
// certificate. Every call opens a new connection, which resumes the machine's TLS
// session; a machine that has rebooted does not know the session and makes a full
// handshake.
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
		roots = nil // those of this machine's system
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

// checkExpiry also runs before every call: a roll may outlast a certificate.
func checkExpiry(name string, expires time.Time) error {
	if expires.IsZero() || !time.Now().After(expires) {
		return nil
	}
	return fault.WithHint(fault.Credentials.Configf("context %q of the talosconfig: its certificate expired on %s", name, expires.Format(time.DateOnly)),
		"an admin of the cluster makes a new one with talosctl config new; then run the same command again")
}

// Close does nothing: every call closes its own connection.
func (*Client) Close() error { return nil }

// Context is the name of the talosconfig's context.
func (c *Client) Context() string { return c.config.Context }

// Addrs returns the endpoints and nodes of the talosconfig that are addresses.
func (c *Client) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, s := range append(c.endpoints, c.config.Contexts[c.config.Context].Nodes...) {
		if addr, err := netip.ParseAddr(s); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// Endpoints returns the addresses of the talosconfig's endpoints, in its order: the
// control planes, if it names each of them.
func (c *Client) Endpoints(ctx context.Context) ([]netip.Addr, error) {
	var out []netip.Addr
	var problems []error
	for _, e := range c.endpoints {
		addr, err := resolve(ctx, e)
		if err != nil {
			problems = append(problems, fmt.Errorf("endpoint %s of the talosconfig: %w", e, err))
			continue
		}
		out = append(out, addr)
	}
	if len(out) == 0 {
		return nil, errors.Join(problems...)
	}
	return out, nil
}

// resolve accepts all forms of an endpoint that talosctl does, if it is a machine's own apid.
func resolve(ctx context.Context, endpoint string) (netip.Addr, error) {
	host := strings.TrimSuffix(strings.TrimPrefix(endpoint, "["), "]")
	if h, port, err := net.SplitHostPort(endpoint); err == nil {
		if port != strconv.Itoa(constants.ApidPort) {
			return netip.Addr{}, fault.WithHint(fault.Configf("port %s is not Talos' own", port),
				"recast asks each machine directly, at port %d: name the control planes' own addresses", constants.ApidPort)
		}
		host = h
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// Expires is when the certificate of a talosconfig's current context expires; zero
// if it has none that can be read.
func Expires(talosconfig []byte) time.Time {
	parsed, err := clientconfig.FromBytes(talosconfig)
	if err != nil || parsed.Contexts[parsed.Context] == nil {
		return time.Time{}
	}
	crt, err := client.CertificateFromConfigContext(parsed.Contexts[parsed.Context])
	if err != nil || crt == nil || crt.Leaf == nil {
		return time.Time{}
	}
	return crt.Leaf.NotAfter
}
