// Package kube talks to the Kubernetes API of a cluster: a [Client] reads nodes, pods
// and attached volumes, and drains nodes, over client-go and kubectl's drain.
package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// requestTimeout bounds one request other than a watch.
const requestTimeout = 30 * time.Second

// Options configure a client.
type Options struct {
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Wrap func(http.RoundTripper) http.RoundTripper                         // wraps the transport; nil: nothing
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
	// A program behind the API server's proxy may redirect to an address that means nothing here.
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

// newTransports makes transports of our own: client-go keeps its transports in a global cache, where they cannot be
// closed.
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

// quiet keeps client-go from writing to our stderr: when it is throttled or told to
// retry, it logs through klog, whose logger is shared by the process. What concerns
// the user is in the errors, which we translate. The zero Logger drops everything.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

// translate turns an error of client-go into ours. All changes of this client are repeatable, so the error of a
// change whose answer was lost is cluster.ErrNotNow as well.
func (c *Client) translate(err error) error {
	err = foreign.Error(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case missing(err):
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	case apierrors.IsUnauthorized(err):
		return fault.WithHint(fault.Credentials.Of(fmt.Errorf("%s does not accept the kubeconfig's credentials: %w", c.host, err)),
			"the client certificate may have expired: fetch a new kubeconfig with \"talosctl kubeconfig\"")
	case apierrors.IsForbidden(err):
		return fault.WithHint(fault.Credentials.Of(fault.As(fault.Refused, err)),
			"the kubeconfig's user needs to read nodes, pods, daemonsets, deployments, poddisruptionbudgets, persistentvolumes, "+
				"volumeattachments, certificatesigningrequests and, where installed, the resources of Longhorn, Rook, Piraeus, Mayastor (and with these "+
				"two services, and to get services/proxy of their APIs), tuppr and system-upgrade-controller, to watch nodes, pods, volumeattachments, poddisruptionbudgets and the volumes of Longhorn and Rook (without that changes are seen later), "+
				"to patch nodes and Longhorn's settings, and to evict pods (with roll.drain.onTimeout: delete, to delete them too), and to read "+
				"what roll.gates asks about; Talos' own admin kubeconfig may do all of it")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.WithHint(fault.TLS.Of(fmt.Errorf("%s is not the server that the kubeconfig names: %w", c.host, err)),
			"the kubeconfig's certificate authority is another cluster's: fetch a new one with \"talosctl kubeconfig\"")
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return fault.WithHint(fault.Unreachable.Of(&silentError{fmt.Errorf("no answer from %s: %w", c.host, err)}),
			"check that the address in the kubeconfig is reachable from here and does not depend on one node")
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && isBusy(status.ErrStatus.Code) {
		return &silentError{err}
	}
	return err
}

// isBusy reports whether the server, or a proxy in front of it, could not answer for now.
func isBusy(code int32) bool {
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// silentError is a request that got no clear answer.
type silentError struct{ error }

func (e *silentError) Unwrap() error        { return e.error }
func (e *silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// missing reports whether the API itself answered that there is no object of that
// name; a proxy's 404, or one for an unknown path, does not count.
func missing(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) || status.ErrStatus.Details == nil {
		return false
	}
	return status.ErrStatus.Details.Name != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Expires returns when the client certificate of a kubeconfig's current context expires; zero if there is no readable
// certificate.
func Expires(kubeconfig []byte) time.Time {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return time.Time{}
	}
	data := cfg.CertData
	if len(data) == 0 && cfg.CertFile != "" {
		if data, err = os.ReadFile(cfg.CertFile); err != nil {
			return time.Time{}
		}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	crt, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return crt.NotAfter
}

// direct returns the transport to API servers at addresses other than the kubeconfig's. It has the same credentials,
// and accepts a certificate for the kubeconfig's address. Each request has a new connection: an open connection
// proves nothing about a server that has taken over the port.
func direct(tc *transport.Config, base *http.Transport, host string) (http.RoundTripper, error) {
	d := base.Clone()
	d.DisableKeepAlives = true
	if u, err := url.Parse(host); err == nil && d.TLSClientConfig != nil {
		d.TLSClientConfig.ServerName = cmp.Or(d.TLSClientConfig.ServerName, u.Hostname())
	}
	rt, err := transport.HTTPWrappersForConfig(tc, d)
	if err != nil {
		return nil, fmt.Errorf("wrap transport: %w", err)
	}
	return rt, nil
}

// APIServer asks the API server at that address whether it is ready itself, and returns its version. A server reports
// its version long before it is ready.
func (c *Client) APIServer(ctx context.Context, addr netip.AddrPort) (string, error) {
	if _, err := c.askServer(ctx, addr, readyPath); err != nil {
		return "", err
	}
	body, err := c.askServer(ctx, addr, "/version")
	if err != nil {
		return "", err
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("%s: read its version: %w", addr, err)
	}
	return info.GitVersion, nil
}

// readyPath answers 500 with a line for each check (healthz.go of k8s.io/apiserver).
const readyPath = "/readyz"

func (c *Client) askServer(ctx context.Context, addr netip.AddrPort, path string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr.String()+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: c.direct}).Do(request)
	if err != nil {
		return nil, fault.WithHint(fault.Unreachable.Of(foreign.Error(err)), "recast has to reach the API server of every control plane, not only the kubeconfig's: port %d", addr.Port())
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 1<<16))
	switch code := response.StatusCode; {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", addr, err)
	case code == http.StatusInternalServerError && path == readyPath:
		return nil, fmt.Errorf("%s is not ready: %s", addr, failedChecks(body))
	case code != http.StatusOK:
		return nil, fmt.Errorf("%s answers %d %s", addr, code, http.StatusText(code))
	}
	return body, nil
}

// failedChecks returns the checks that the API server lists as failed.
func failedChecks(body []byte) string {
	var failed []string
	for line := range strings.Lines(string(body)) {
		if what, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(what, " ")
			failed = append(failed, foreign.Line(name))
		}
	}
	return cmp.Or(strings.Join(failed, ", "), "it does not say why")
}
