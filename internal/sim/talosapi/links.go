package talosapi

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// links are the loopback and the machine's interfaces, the first of which has the lease, with
// addresses and routes. net.ifnames=0 names them as the kernel counts them.
func (b *boot) links() []resource.Resource {
	lo := network.NewLinkStatus(network.NamespaceName, "lo")
	*lo.TypedSpec() = network.LinkStatusSpec{
		Index: 1, Type: nethelpers.LinkLoopbck, MTU: 65536, OperationalState: nethelpers.OperStateUnknown,
		Flags: nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkLoopback | nethelpers.LinkRunning), LinkState: true,
	}
	rs := []resource.Resource{lo, addressOn("lo", 1, netip.MustParsePrefix("127.0.0.1/8"), nethelpers.ScopeHost)}
	for i, mac := range b.m.hw.MACs {
		hardware, _ := net.ParseMAC(mac) // empty where it is none
		name, index := "eth"+strconv.Itoa(i), uint32(i+2)
		r := network.NewLinkStatus(network.NamespaceName, name)
		*r.TypedSpec() = network.LinkStatusSpec{
			Index: index, Type: nethelpers.LinkEther, MTU: 1500, OperationalState: nethelpers.OperStateUp, LinkState: true, Driver: "virtio_net",
			Flags:        nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkBroadcast | nethelpers.LinkRunning | nethelpers.LinkMulticast | nethelpers.LinkLowerUp),
			HardwareAddr: nethelpers.HardwareAddr(hardware), PermanentAddr: nethelpers.HardwareAddr(hardware),
		}
		rs = append(rs, r)
		if i == 0 && b.m.addr.IsValid() {
			prefix := netip.PrefixFrom(b.m.addr, b.m.fw.o.NetworkBits)
			rs = append(rs, addressOn(name, index, prefix, nethelpers.ScopeGlobal), routeOver(name, index, prefix))
		}
	}
	return rs
}

func addressOn(link string, index uint32, address netip.Prefix, scope nethelpers.Scope) resource.Resource {
	r := network.NewAddressStatus(network.NamespaceName, network.AddressID(link, address))
	*r.TypedSpec() = network.AddressStatusSpec{
		Address: address, Local: address.Addr(), LinkIndex: index, LinkName: link, Family: nethelpers.FamilyInet4, Scope: scope,
	}
	return r
}

// routeOver is the way to those of the same network.
func routeOver(link string, index uint32, address netip.Prefix) resource.Resource {
	r := network.NewRouteStatus(network.NamespaceName, network.RouteID(nethelpers.TableMain, nethelpers.FamilyInet4, address.Masked(), netip.Addr{}, 0, link))
	*r.TypedSpec() = network.RouteStatusSpec{
		Family: nethelpers.FamilyInet4, Destination: address.Masked(), Source: address.Addr(), OutLinkIndex: index, OutLinkName: link,
		Table: nethelpers.TableMain, Scope: nethelpers.ScopeLink, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolKernel,
	}
	return r
}

// nodeIP is the kubelet's.
func (b *boot) nodeIP() resource.Resource {
	r := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	if b.m.addr.IsValid() {
		r.TypedSpec().Addresses = []netip.Addr{b.m.addr}
	}
	return r
}
