package cluster

import (
	"errors"
	"net/netip"

	"github.com/recast-sh/recast/internal/fault"
)

// Endpoint is where the Talos API of one node is.
type Endpoint struct {
	Node string
	Addr netip.Addr
}

// NoAddress is the error of a node that neither Kubernetes nor Talos' discovery
// tells an address of.
func NoAddress(node string) error {
	return fault.WithHint(errors.New("no address known"),
		"its Node in Kubernetes has none, and Talos' discovery lists no machine of that name: see whether its VM is on and what its console says; "+
			"kubectl get node %s -o wide and talosctl get members show when it has one again; then run the same command again", node)
}

func FirstAddr(addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() {
			return a
		}
	}
	if len(addrs) > 0 {
		return addrs[0]
	}
	return netip.Addr{}
}

func NodeNames(nodes []KubeNode) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}
