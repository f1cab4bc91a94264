package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

func (k checker) rehearse() {
	r := k.c.Roll.Rehearse
	const list, gateway = "roll.rehearse.addresses", "roll.rehearse.gateway"
	var prefixes []netip.Prefix
	for i, a := range r.Addresses {
		path := fmt.Sprintf("%s[%d]", list, i)
		prefix, err := netip.ParsePrefix(a)
		switch {
		case err != nil || !prefix.Addr().Is4():
			k.add(path, "%s is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24", quote(a))
			continue
		case prefix.Bits() > 30 || prefix.Addr() == prefix.Masked().Addr() || !prefix.Contains(prefix.Addr().Next()):
			k.add(path, "%s is not the address of one machine in a network of several", quote(a))
		}
		if first := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == prefix.Addr() }); first >= 0 {
			k.add(path, "%s is listed already", quote(a))
		}
		if other := k.has(prefix.Addr()); other != "" {
			k.add(path, "%s is the address of %s (line %d): choose an unused one", quote(a), other, k.line(other))
		}
		prefixes = append(prefixes, prefix)
	}
	if !k.given(gateway) {
		return
	}
	addr, err := netip.ParseAddr(r.Gateway)
	switch {
	case err != nil || !addr.Is4():
		k.add(gateway, "%s is not an IPv4 address: write it like 192.0.2.1", quote(r.Gateway))
	case slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }):
		k.add(gateway, "%s is one of the addresses: scratch VMs would take it from the gateway", quote(r.Gateway))
	case !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }):
		k.add(gateway, "%s is in no network of the addresses", quote(r.Gateway))
	}
}

// has returns the key of the configuration that has this address; "" if none. Addresses
// of nodes and endpoints of the talosconfig are checked when a scratch VM is planned.
func (k checker) has(addr netip.Addr) string {
	named := map[string]string{
		"images.factory": k.c.Images.Factory, "images.extensions": k.c.Images.Extensions, "images.mirror": k.c.Images.Mirror,
	}
	for i, e := range k.c.Proxmox.Endpoints {
		named[fmt.Sprintf("proxmox.endpoints[%d]", i)] = e
	}
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if is, err := netip.ParseAddr(hostOf(named[key])); err == nil && is == addr {
			return key
		}
	}
	return ""
}

// hostOf is the host in a URL, or in a reference to an image without one.
func hostOf(s string) string {
	if !strings.Contains(s, "://") {
		s = "//" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
