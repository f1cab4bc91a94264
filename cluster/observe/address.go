package observe

import (
	"errors"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	// ObserveLimit bounds how many VMs or hosts a server of the cluster is asked about at once.
	ObserveLimit = 8
	// MachinesAtOnce bounds how many machines are read at once: each one is its own server.
	MachinesAtOnce = 64
)

// NoAddress is the error for a node without an address in Kubernetes and in Talos' discovery.
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

func NodeNames(nodes []cluster.KubeNode) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}
