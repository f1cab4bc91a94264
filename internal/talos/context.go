package talos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/internal/fault"
)

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
