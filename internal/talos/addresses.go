package talos

import (
	"context"
	"net"
	"net/netip"

	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"

	"github.com/recast-sh/recast/cluster"
)

// networkFacts are what Talos reports of a machine's network.
type networkFacts struct {
	statuses  []*network.AddressStatus
	specs     []*network.AddressSpec
	links     []*network.LinkStatus
	operators []*network.OperatorSpec
	routes    []*network.RouteStatus
}

// readAddresses reads the machine's addresses, each with its source. The layer is
// that of the address in force: a lower layer may have the same address
// (controllers/network/address_merge.go).
func readAddresses(ctx context.Context, s session, m *cluster.Machine) error {
	var f networkFacts
	err := inParallel(
		listing(ctx, s, network.NewAddressStatus(network.NamespaceName, "").Metadata(), &f.statuses),
		listing(ctx, s, network.NewAddressSpec(network.NamespaceName, "").Metadata(), &f.specs),
		listing(ctx, s, network.NewLinkStatus(network.NamespaceName, "").Metadata(), &f.links),
		listing(ctx, s, network.NewOperatorSpec(network.NamespaceName, "").Metadata(), &f.operators),
		listing(ctx, s, network.NewRouteStatus(network.NamespaceName, "").Metadata(), &f.routes),
	)
	if err == nil {
		m.Addresses = f.addresses()
	}
	return err
}

func (f networkFacts) addresses() []cluster.MachineAddress {
	var all []cluster.MachineAddress
	for _, status := range f.statuses {
		spec := status.TypedSpec()
		a := cluster.MachineAddress{Prefix: spec.Address, Link: spec.LinkName, Layer: f.layer(spec.Address)}
		f.describeLink(&a)
		if a.Layer == cluster.LayerOperator {
			a.Lease = f.lease(a)
		}
		for _, route := range f.routes {
			r := route.TypedSpec()
			if r.OutLinkName == a.Link && r.Destination.Bits() <= 0 && r.Gateway.IsValid() && r.Gateway.Is6() == a.Prefix.Addr().Is6() && r.Table == nethelpers.TableMain {
				a.Gateway = r.Gateway
			}
		}
		all = append(all, a)
	}
	return all
}

// layer is where Talos has an address from; cluster.LayerKernel if Talos did not request it.
func (f networkFacts) layer(address netip.Prefix) cluster.AddressLayer {
	for _, spec := range f.specs {
		if spec.TypedSpec().Address == address {
			return cluster.AddressLayer(spec.TypedSpec().ConfigLayer.String())
		}
	}
	return cluster.LayerKernel
}

// describeLink fills in the address's link.
func (f networkFacts) describeLink(a *cluster.MachineAddress) {
	a.Kind = "unknown"
	for _, link := range f.links {
		l := link.TypedSpec()
		if link.Metadata().ID() != a.Link {
			continue
		}
		mac := l.PermanentAddr
		if len(mac) == 0 {
			mac = l.HardwareAddr
		}
		a.MAC, a.Kind = net.HardwareAddr(mac).String(), l.Kind
		if !l.Physical() && l.Kind == "" {
			a.Kind = l.Type.String()
		}
	}
}

// lease is the operator that obtained an address of a link.
func (f networkFacts) lease(a cluster.MachineAddress) (lease cluster.AddressLease) {
	for _, operator := range f.operators {
		o := operator.TypedSpec()
		switch {
		case o.LinkName != a.Link:
		case o.Operator == network.OperatorVIP && o.VIP.IP == a.Prefix.Addr():
			return cluster.AddressLease{Operator: "vip"}
		case o.Operator == network.OperatorDHCP4 && a.Prefix.Addr().Is4():
			lease = cluster.AddressLease{Operator: "dhcp4", DUID: o.DHCP4.ClientIdentifier.ClientIdentifier == nethelpers.ClientIdentifierDUID}
		case o.Operator == network.OperatorDHCP6 && a.Prefix.Addr().Is6():
			lease = cluster.AddressLease{Operator: "dhcp6"}
		}
	}
	return lease
}
