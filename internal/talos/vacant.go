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

// probePorts are tried to see whether an address is in use: a machine that drops
// packets to other ports may serve one of these. They are those of Talos,
// Kubernetes, Proxmox, SSH and HTTPS.
var probePorts = []string{"50000", "6443", "8006", "22", "443"}

// probeTimeout is how long an address must stay silent: longer than ARP's 3 s.
const probeTimeout = 5 * time.Second

// Taken implements cluster.Maintenance. An address counts as free only if it stays
// silent or the network reports it unreachable; a proxy's word does not count.
func (c *Client) Taken(ctx context.Context, addr netip.Addr) (by string, err error) {
	if slices.ContainsFunc(c.endpoints, func(e string) bool { return hostOf(e) == addr.String() }) {
		return "an endpoint of the talosconfig", nil
	}
	answers, errs := make([]string, len(probePorts)), make([]error, len(probePorts))
	var probes sync.WaitGroup
	for i, port := range probePorts {
		probes.Go(func() { answers[i], errs[i] = c.answers(ctx, net.JoinHostPort(addr.String(), port)) })
	}
	probes.Wait()
	if i := slices.IndexFunc(answers, func(s string) bool { return s != "" }); i >= 0 {
		return answers[i], nil
	}
	if err := errors.Join(errs...); err != nil {
		return "", fault.WithHint(fmt.Errorf("check whether %s is in use: %w", addr, err), "recast has to reach that network itself, without a proxy, to see that an address of it is free")
	}
	return "", nil
}

// answers describes what answers at host:port; "" if nothing does.
func (c *Client) answers(ctx context.Context, at string) (string, error) {
	short, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := c.dial(short, "tcp", at)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return "a host that answers at " + at, nil
	}
	failed, ok := errors.AsType[*net.OpError](err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case !ok || failed.Op != "dial" || failed.Addr == nil || failed.Addr.String() != at: // perhaps of a proxy
		return "", err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "a host that refuses connections to " + at, nil
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
