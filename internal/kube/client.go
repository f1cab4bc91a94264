// Package kube talks to the Kubernetes API of a cluster: a [Client] reads nodes, pods
// and attached volumes, and drains nodes, over client-go and kubectl's drain.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/recast-sh/recast/cluster"

	"github.com/recast-sh/recast/internal/fault"
)

// requestTimeout bounds one request other than a watch.
const requestTimeout = 30 * time.Second

// Options configure a client.
type Options struct {
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Wrap func(http.RoundTripper) http.RoundTripper                         // wraps what carries each request; nil: nothing
	Poll time.Duration                                                     // pause between polls; 0: 5 s
	Skip []string                                                          // storage systems that are not looked at, in lower case
	Own  cluster.OwnPod                                                    // the pod in which recast runs, perhaps of another cluster; zero: none
}

// Client talks to one cluster's API. It is safe for concurrent use; the caller closes it.
type Client struct {
	api kubernetes.Interface
	// streams is for watches, which have no timeout.
	streams kubernetes.Interface

	host string
	poll time.Duration
	own  cluster.OwnPod
	skip []string // as of Options
	base *http.Transport
	rt   http.RoundTripper // base with the credentials of the kubeconfig
	// direct reaches API servers at their own addresses.
	direct http.RoundTripper
}

var _ cluster.Kube = (*Client)(nil)

// New returns a client for a kubeconfig's current context, without connecting.
func New(kubeconfig []byte, o Options) (*Client, error) {
	quiet()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fault.WithHint(fault.Credentials.Configf("read kubeconfig: %w", err),
			"fetch a fresh one with \"talosctl kubeconfig\"")
	}
	cfg.Dial = o.Dial
	if o.Wrap != nil {
		cfg.Wrap(o.Wrap)
	}
	cfg.UserAgent = "recast"
	cfg.QPS, cfg.Burst = 100, 200 // a drain asks for many pods at once
	cfg.WarningHandler = rest.NoWarnings{}
	c := &Client{host: cfg.Host, poll: cmp.Or(o.Poll, 5*time.Second), own: o.Own, skip: o.Skip}
	if c.base, c.rt, c.direct, err = newTransports(cfg); err != nil {
		return nil, fault.Credentials.Configf("credentials of the kubeconfig: %w", err)
	}
	// A program behind the API server's proxy may redirect to an address that is none here.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.api, err = kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: c.rt, Timeout: requestTimeout, CheckRedirect: stay})
	if err != nil {
		return nil, fault.Credentials.Configf("kubeconfig: %w", err)
	}
	c.streams, err = kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: c.rt})
	if err != nil {
		return nil, fault.Credentials.Configf("kubeconfig: %w", err)
	}
	return c, nil
}

// newTransports makes transports of our own. client-go keeps its transports in a
// global cache, where they cannot be closed.
func newTransports(cfg *rest.Config) (base *http.Transport, rt, toServer http.RoundTripper, err error) {
	tc, err := cfg.TransportConfig()
	if err != nil {
		return nil, nil, nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, nil, nil, err
	}
	base = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2:   true,
		// A node that vanished must not leave us on its dead connection.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if tc.Proxy != nil {
		base.Proxy = tc.Proxy
	}
	if tc.DialHolder != nil {
		base.DialContext = tc.DialHolder.Dial
	}
	if rt, err = transport.HTTPWrappersForConfig(tc, base); err != nil {
		return nil, nil, nil, fmt.Errorf("wrap transport: %w", err)
	}
	toServer, err = direct(tc, base, cfg.Host)
	return base, rt, toServer, err
}

// Close closes idle connections.
func (c *Client) Close() error {
	c.base.CloseIdleConnections()
	return nil
}
