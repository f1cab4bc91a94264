package talosapi

import (
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// publishNetwork publishes the machine's network: the loopback and its cards, which
// net.ifnames=0 numbers in the kernel's order, the link with its address, and what follows
// from that.
func (b *boot) publishNetwork(ctx context.Context) error {
	links, at := b.links(), b.m.attached()
	lo := netip.MustParsePrefix("127.0.0.1/8")
	specs := []resource.Resource{addressSpec("lo", lo, nethelpers.ScopeHost, network.ConfigDefault)}
	statuses := []resource.Resource{addressOn("lo", 1, lo, nethelpers.ScopeHost)}
	var operators, routes, nodes []resource.Resource
	if at.prefix.IsValid() {
		index := uint32(len(links))
		for _, l := range links {
			if l.Metadata().ID() == at.link {
				index = l.(*network.LinkStatus).TypedSpec().Index
			}
		}
		specs = append(specs, addressSpec(at.link, at.prefix, nethelpers.ScopeGlobal, at.layer))
		statuses = append(statuses, addressOn(at.link, index, at.prefix, nethelpers.ScopeGlobal))
		routes = append(routes, routeOver(at.link, index, at.prefix))
		if at.gateway.IsValid() {
			routes = append(routes, defaultRoute(at.link, index, at.gateway))
		}
		if at.layer == network.ConfigOperator {
			operators = append(operators, operatorOn(at))
		}
		for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressRoutedID} {
			addr := network.NewNodeAddress(network.NamespaceName, id)
			addr.TypedSpec().Addresses = []netip.Prefix{at.prefix}
			nodes = append(nodes, addr)
		}
	}
	for _, all := range []struct {
		kind resource.Type
		rs   []resource.Resource
	}{
		{network.LinkStatusType, links},
		{network.AddressSpecType, specs},
		{network.AddressStatusType, statuses},
		{network.OperatorSpecType, operators},
		{network.RouteStatusType, routes},
		{network.NodeAddressType, nodes},
	} {
		if err := b.store.replace(ctx, network.NamespaceName, all.kind, all.rs); err != nil {
			return err
		}
	}
	return nil
}

func (b *boot) links() []resource.Resource {
	lo := network.NewLinkStatus(network.NamespaceName, "lo")
	*lo.TypedSpec() = network.LinkStatusSpec{
		Index: 1, Type: nethelpers.LinkLoopbck, MTU: 65536, OperationalState: nethelpers.OperStateUnknown,
		Flags: nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkLoopback | nethelpers.LinkRunning), LinkState: true,
	}
	rs := []resource.Resource{lo}
	for i, mac := range b.m.hw.MACs {
		hardware, _ := net.ParseMAC(mac) // empty if invalid
		rs = append(rs, etherLink("eth"+strconv.Itoa(i), "virtio_net", "", len(rs), hardware))
	}
	if at := b.m.attached(); at.kind != "" && len(rs) > 1 {
		rs = append(rs, etherLink(at.link, "", at.kind, len(rs), net.HardwareAddr(rs[1].(*network.LinkStatus).TypedSpec().HardwareAddr)))
	}
	return rs
}

// etherLink is a card, or a link that a configuration makes of cards; after is the number
// of links before it.
func etherLink(name, driver, kind string, after int, hardware net.HardwareAddr) resource.Resource {
	r := network.NewLinkStatus(network.NamespaceName, name)
	*r.TypedSpec() = network.LinkStatusSpec{
		Index: uint32(after + 1), Type: nethelpers.LinkEther, Kind: kind, MTU: 1500, OperationalState: nethelpers.OperStateUp, LinkState: true, Driver: driver,
		Flags:        nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkBroadcast | nethelpers.LinkRunning | nethelpers.LinkMulticast | nethelpers.LinkLowerUp),
		HardwareAddr: nethelpers.HardwareAddr(hardware),
	}
	if kind == "" {
		r.TypedSpec().PermanentAddr = nethelpers.HardwareAddr(hardware)
	}
	return r
}

// addressSpec is a wanted address and its configuration layer.
func addressSpec(link string, address netip.Prefix, scope nethelpers.Scope, layer network.ConfigLayer) resource.Resource {
	r := network.NewAddressSpec(network.NamespaceName, network.AddressID(link, address))
	*r.TypedSpec() = network.AddressSpecSpec{
		Address: address, LinkName: link, Family: familyOf(address.Addr()), Scope: scope, ConfigLayer: layer,
		Flags: nethelpers.AddressFlags(nethelpers.AddressPermanent),
	}
	if layer == network.ConfigOperator {
		r.TypedSpec().Flags = 0 // the lease's
	}
	return r
}

// operatorOn is the DHCP operator of a link.
func operatorOn(at attachment) resource.Resource {
	r := network.NewOperatorSpec(network.NamespaceName, network.OperatorID(network.OperatorSpecSpec{Operator: network.OperatorDHCP4, LinkName: at.link}))
	*r.TypedSpec() = network.OperatorSpecSpec{
		Operator: network.OperatorDHCP4, LinkName: at.link, RequireUp: true, ConfigLayer: at.asked,
		DHCP4: network.DHCP4OperatorSpec{RouteMetric: network.DefaultRouteMetric},
	}
	switch {
	case at.duid:
		r.TypedSpec().DHCP4.ClientIdentifier.ClientIdentifier = nethelpers.ClientIdentifierDUID
	case at.asked == network.ConfigDefault:
		r.TypedSpec().DHCP4.ClientIdentifier.ClientIdentifier = nethelpers.ClientIdentifierMAC
	}
	return r
}

func familyOf(addr netip.Addr) nethelpers.Family {
	if addr.Is6() {
		return nethelpers.FamilyInet6
	}
	return nethelpers.FamilyInet4
}

func addressOn(link string, index uint32, address netip.Prefix, scope nethelpers.Scope) resource.Resource {
	r := network.NewAddressStatus(network.NamespaceName, network.AddressID(link, address))
	*r.TypedSpec() = network.AddressStatusSpec{
		Address: address, Local: address.Addr(), LinkIndex: index, LinkName: link, Family: familyOf(address.Addr()), Scope: scope,
	}
	return r
}

// routeOver is the route to the same network.
func routeOver(link string, index uint32, address netip.Prefix) resource.Resource {
	family := familyOf(address.Addr())
	r := network.NewRouteStatus(network.NamespaceName, network.RouteID(nethelpers.TableMain, family, address.Masked(), netip.Addr{}, 0, link))
	*r.TypedSpec() = network.RouteStatusSpec{
		Family: family, Destination: address.Masked(), Source: address.Addr(), OutLinkIndex: index, OutLinkName: link,
		Table: nethelpers.TableMain, Scope: nethelpers.ScopeLink, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolKernel,
	}
	return r
}

// defaultRoute is the route to everything else.
func defaultRoute(link string, index uint32, gateway netip.Addr) resource.Resource {
	family := familyOf(gateway)
	r := network.NewRouteStatus(network.NamespaceName, network.RouteID(nethelpers.TableMain, family, netip.Prefix{}, gateway, network.DefaultRouteMetric, link))
	*r.TypedSpec() = network.RouteStatusSpec{
		Family: family, Gateway: gateway, OutLinkIndex: index, OutLinkName: link, Priority: network.DefaultRouteMetric,
		Table: nethelpers.TableMain, Scope: nethelpers.ScopeGlobal, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolStatic,
	}
	return r
}

// nodeIP is the kubelet's address.
func (b *boot) nodeIP() resource.Resource {
	r := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	if b.m.addr().IsValid() {
		r.TypedSpec().Addresses = []netip.Addr{b.m.addr()}
	}
	return r
}
