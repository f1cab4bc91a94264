package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/transport"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// direct is the transport to API servers at addresses other than the kubeconfig's.
// It has the same credentials, and accepts a certificate for the kubeconfig's
// address. Each request has a new connection: an open one proves nothing about a
// server that has taken over the port.
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

// APIServer asks the API server at that address itself whether it is ready, and
// returns its version. A server reports its version long before it is ready.
func (c *Client) APIServer(ctx context.Context, addr netip.AddrPort) (string, error) {
	code, body, err := c.askServer(ctx, addr, "/readyz")
	switch {
	case err != nil:
		return "", err
	case code == http.StatusInternalServerError: // with a line for each check (healthz.go of k8s.io/apiserver)
		return "", fmt.Errorf("%s is not ready: %s", addr, failedChecks(body))
	case code != http.StatusOK:
		return "", unexpectedStatus(addr, code)
	}
	code, body, err = c.askServer(ctx, addr, "/version")
	switch {
	case err != nil:
		return "", err
	case code != http.StatusOK:
		return "", unexpectedStatus(addr, code)
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("%s: read its version: %w", addr, err)
	}
	return info.GitVersion, nil
}

func (c *Client) askServer(ctx context.Context, addr netip.AddrPort, path string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr.String()+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := (&http.Client{Transport: c.direct}).Do(request)
	if err != nil {
		return 0, nil, fault.WithHint(fault.Unreachable.Of(foreign.Error(err)), "recast has to reach the API server of every control plane, not only the kubeconfig's: port %d", addr.Port())
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(response.Body, 1<<16)); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", addr, err)
	}
	return response.StatusCode, body, nil
}

func unexpectedStatus(addr netip.AddrPort, code int) error {
	return fmt.Errorf("%s answers %d %s", addr, code, http.StatusText(code))
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
