package setup

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// addressed gives each node an address, in the order of the nodes.
func (in *newCluster) addressed(ctx context.Context) (err error) {
	need := len(in.found.Nodes)
	err = in.take(ctx, strings.Join(in.Addresses, ","), Question{
		Text: fmt.Sprintf("Which %d unused addresses may the nodes have, such as 10.0.0.11-10.0.0.%d/24? Control planes first:", need, 10+need),
		Flag: "--addresses",
		Check: func(answer string) (err error) {
			if in.prefixes, err = addressesOf(strings.Split(answer, ",")); err != nil {
				return err
			}
			return in.assignable()
		},
	})
	if err != nil {
		return err
	}
	return in.take(ctx, in.Gateway, Question{Text: fmt.Sprintf("What is the gateway of %s?", in.prefixes[0].Masked()), Flag: "--gateway", Check: in.isGateway})
}

// addressesOf reads addresses and ranges of them, each with the prefix length of its network.
func addressesOf(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		addrs, bits, _ := strings.Cut(strings.TrimSpace(text), "/")
		first, last, isRange := strings.Cut(addrs, "-")
		if !isRange {
			last = first
		}
		from, errFrom := netip.ParsePrefix(first + "/" + bits)
		to, errTo := netip.ParsePrefix(last + "/" + bits)
		switch {
		case errFrom != nil || errTo != nil || !from.Addr().Is4():
			return nil, fault.Configf("%q is no IPv4 address with its prefix length: write it like 10.0.0.11/24, and several in a row like 10.0.0.11-10.0.0.18/24", text)
		case from.Masked() != to.Masked():
			return nil, fault.Configf("%s: the two addresses are not in one network", text)
		case to.Addr().Less(from.Addr()):
			return nil, fault.Configf("%s runs backwards", text)
		case from.Addr() == from.Masked().Addr() && from.Bits() < 31 || to.Addr() == lastOf(to) && to.Bits() < 31:
			return nil, fault.Configf("%s has the first or the last address of its network, which no machine can have", text)
		}
		for addr := from.Addr(); !to.Addr().Less(addr) && len(out) < 1000; addr = addr.Next() {
			next := netip.PrefixFrom(addr, from.Bits())
			if slices.Contains(out, next) {
				return nil, fault.Configf("%s is there twice", addr)
			}
			out = append(out, next)
		}
	}
	return out, nil
}

// lastOf is the broadcast address of an IPv4 network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|uint32(1<<(32-p.Bits())-1))
	return netip.AddrFrom4(b)
}

// assignable keeps as many addresses as there are nodes, unless one is a VM's.
func (in *newCluster) assignable() error {
	need := len(in.found.Nodes)
	if len(in.prefixes) < need {
		return fault.WithHint(fault.Configf("there are %d addresses for %d nodes", len(in.prefixes), need), "--addresses: one for each control plane, then one for each worker")
	}
	in.prefixes = in.prefixes[:need]
	for _, p := range in.prefixes {
		if err := in.unused(p.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// unused refuses an address that a VM has from its cloud-init drive. Others can't be seen.
func (in *newCluster) unused(addr netip.Addr) error {
	for _, vm := range in.found.VMs {
		for key, value := range vm.Config {
			if !strings.HasPrefix(key, "ipconfig") {
				continue
			}
			for part := range strings.SplitSeq(value, ",") {
				if p, err := netip.ParsePrefix(strings.TrimPrefix(part, "ip=")); err == nil && p.Addr() == addr {
					return fault.Configf("%s is the address of %s, by its %s", addr, vm, key)
				}
			}
		}
	}
	return nil
}

// isGateway takes the gateway of the nodes.
func (in *newCluster) isGateway(text string) (err error) {
	if in.gateway, err = netip.ParseAddr(text); err != nil {
		return fault.Configf("%q is no address of a gateway: write it like 10.0.0.1", text)
	}
	for i, p := range in.prefixes {
		switch {
		case !p.Masked().Contains(in.gateway):
			return fault.Configf("the gateway %s is not in %s, the network of %s", in.gateway, p.Masked(), in.found.Nodes[i].Name)
		case p.Addr() == in.gateway:
			return fault.Configf("%s is to be the address of %s and the gateway", in.gateway, in.found.Nodes[i].Name)
		}
	}
	return nil
}

// reached decides where the Kubernetes API is.
func (in *newCluster) reached(ctx context.Context) error {
	controlPlanes := 0
	for _, n := range in.found.Nodes {
		if n.Machine.ControlPlane {
			controlPlanes++
		}
	}
	if in.VIP != "" {
		if err := in.isShared(in.VIP); err != nil {
			return err
		}
	}
	switch {
	case in.Endpoint != "":
		return in.isEndpoint(in.Endpoint)
	case in.VIP != "":
		return nil
	case controlPlanes == 1:
		in.Endpoint = endpoint(in.prefixes[0].Addr())
		return nil
	}
	return in.take(ctx, "", Question{
		Text: fmt.Sprintf("The Kubernetes API needs an address that does not go down with one of the %d control planes. Which unused address of %s may they share, or what is the https:// URL of your load balancer?", controlPlanes, in.prefixes[0].Masked()),
		Flag: "--vip or --kubernetes-endpoint",
		Check: func(answer string) error {
			if strings.Contains(answer, "://") {
				return in.isEndpoint(answer)
			}
			return in.isShared(answer)
		},
	})
}

func endpoint(addr netip.Addr) string { return "https://" + net.JoinHostPort(addr.String(), "6443") }

// isShared takes the address that the control planes share.
func (in *newCluster) isShared(text string) error {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !in.prefixes[0].Masked().Contains(addr):
		return fault.Configf("%q is no address of %s, the network of the control planes", text, in.prefixes[0].Masked())
	case addr == in.gateway || slices.ContainsFunc(in.prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }):
		return fault.Configf("%s is that of the gateway or of a node: the control planes share another one", addr)
	}
	if err := in.unused(addr); err != nil {
		return err
	}
	if in.VIP = text; in.Endpoint == "" {
		in.Endpoint = endpoint(addr)
	}
	return nil
}

// isEndpoint takes the URL of the Kubernetes API.
func (in *newCluster) isEndpoint(text string) error {
	if u, err := url.Parse(text); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return fault.Configf("that is no URL of the Kubernetes API: write it like https://k8s.example:6443")
	}
	in.Endpoint = text
	return nil
}
