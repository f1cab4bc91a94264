package config

import (
	"fmt"
	"net/netip"
	"slices"
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
		case prefix.Bits() > 30 || prefix.Addr() == prefix.Masked().Addr():
			k.add(path, "%s is not the address of one machine in a network of several", quote(a))
		}
		if first := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == prefix.Addr() }); first >= 0 {
			k.add(path, "%s is listed already", quote(a))
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
	case !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }):
		k.add(gateway, "%s is in the network of none of the addresses", quote(r.Gateway))
	}
}
