package cluster

import (
	"net/netip"

	"github.com/recast-sh/recast/cluster/reach"
)

// leased gives a node an address that DHCP has given to its second network card.
func leased(f *Found) {
	f.Addr = netip.MustParseAddr("10.0.0.31")
	f.VM.Config["net1"] = "virtio=BC:24:11:00:00:31"
	f.Machine.Addresses = []reach.Address{{
		Prefix: netip.MustParsePrefix("10.0.0.31/24"), Link: "eth0", MAC: "BC:24:11:00:00:31",
		Layer: reach.Operator, Lease: reach.Lease{Operator: "dhcp4"}, Gateway: netip.MustParseAddr("10.0.0.1"),
	}}
}
