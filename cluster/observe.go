package cluster

import (
	"errors"
	"net/netip"

	"github.com/recast-sh/recast/internal/fault"
)

// Sources is where Observe reads.
type Sources struct {
	Proxmox Inventory
	Talos   Talos
	// Maintenance reads machines that were reset; nil: they are as unreadable as others.
	Maintenance Maintenance
	Kube        Kube
	Cluster     string // name of the cluster; records of other clusters are not ours
	// ParkingIDs are the VMIDs that a parking VM may have, in order.
	ParkingIDs []VMID
	// ConfigKnown says where a node's machine configuration is at hand: in the journal
	// of the run that the record is of (the zero Record: of none), or in the
	// user's files. Its error is ErrConfigDamaged where the journal's is. nil: nowhere.
	ConfigKnown func(node string, rec Record) (ConfigPlace, error)
	// MachineConfig is Roller.MachineConfig; nil: there are no such files.
	MachineConfig func(node string) (config Secret, found bool, err error)
}

// Parking is a parking VM with what its description says.
type Parking struct {
	VM     VM
	Record Record
}

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
