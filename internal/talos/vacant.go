package talos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// vacantPorts are tried to see whether anybody has an address: one that drops what
// it does not serve may serve one of them. They are those of Talos, Kubernetes,
// Proxmox, SSH and HTTPS.
var vacantPorts = []string{"50000", "6443", "8006", "22", "443"}

// vacantTime is how long nobody has to answer: longer than ARP looks for somebody, 3 s.
const vacantTime = 5 * time.Second

// Taken implements cluster.Maintenance. Only silence, and the word of the way that
// there is nobody, speak for a free address: what a proxy says of it does not.
func (c *Client) Taken(ctx context.Context, addr netip.Addr) (by string, err error) {
	if slices.ContainsFunc(c.endpoints, func(e string) bool { return hostOf(e) == addr.String() }) {
		return "an endpoint of the talosconfig", nil
	}
	answers, errs := make([]string, len(vacantPorts)), make([]error, len(vacantPorts))
	var knocking sync.WaitGroup
	for i, port := range vacantPorts {
		knocking.Go(func() { answers[i], errs[i] = c.answers(ctx, net.JoinHostPort(addr.String(), port)) })
	}
	knocking.Wait()
	if i := slices.IndexFunc(answers, func(s string) bool { return s != "" }); i >= 0 {
		return answers[i], nil
	}
	if err := errors.Join(errs...); err != nil {
		return "", fault.WithHint(fmt.Errorf("see whether anybody has %s: %w", addr, err), "recast has to reach that network itself, without a proxy, to see that an address of it is free")
	}
	return "", nil
}

// answers says in words what answers at host:port; "": nobody.
func (c *Client) answers(ctx context.Context, at string) (string, error) {
	short, cancel := context.WithTimeout(ctx, vacantTime)
	defer cancel()
	conn, err := c.dial(short, "tcp", at)
	if err == nil {
		_ = conn.Close() // nothing was said
		return "whoever answers at " + at, nil
	}
	failed, ok := errors.AsType[*net.OpError](err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case !ok || failed.Op != "dial" || failed.Addr == nil || failed.Addr.String() != at: // of a proxy, perhaps
		return "", err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "whoever refuses connections to " + at, nil
	case failed.Timeout(), errors.Is(err, syscall.EHOSTUNREACH):
		return "", nil
	}
	return "", err
}

// hostOf is the host of an endpoint, which may have a port.
func hostOf(endpoint string) string {
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		return host
	}
	return strings.Trim(endpoint, "[]")
}
