package talos

import "net/netip"

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
