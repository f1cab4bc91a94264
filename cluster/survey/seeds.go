package survey

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// addresses are all addresses that nodes are known to have.
func addresses(members []cluster.Member, nodes []cluster.KubeNode) []netip.Addr {
	var out []netip.Addr
	for _, m := range members {
		out = append(out, m.Addresses...)
	}
	for _, n := range nodes {
		out = append(out, n.Addresses...)
	}
	return out
}

// addSeeds adds the machines at further addresses, and reads a listed node there if it did not
// answer at its own address. silent are the addresses where no node answers and none is known
// to be: such an address may move between control planes.
func addSeeds(ctx context.Context, talos cluster.PartReader, nodes []Discovered, errs []error, addrs, known []netip.Addr) (_ []Discovered, _ []error, silent []netip.Addr) {
	for _, addr := range addrs {
		if slices.ContainsFunc(nodes, func(n Discovered) bool { return n.Addr == addr }) || slices.Contains(silent, addr) {
			continue
		}
		m, err := cluster.ReadMachine(ctx, talos, addr)
		if err != nil || m.Nodename == "" {
			if !slices.Contains(known, addr) {
				silent = append(silent, addr)
			}
			continue
		}
		i := slices.IndexFunc(nodes, func(n Discovered) bool { return n.Name == m.Nodename || m.UUID != "" && n.Machine.UUID == m.UUID })
		switch {
		case i < 0:
			nodes, errs = append(nodes, Discovered{Name: m.Nodename, Addr: addr, Machine: m}), append(errs, nil)
		case errs[i] != nil:
			nodes[i].Addr, nodes[i].Machine, errs[i] = addr, m, nil
		}
	}
	return nodes, errs, silent
}

// allListed refuses nodes if no source is known to list all of them: if some are found that no
// list has, there may be more.
func allListed(listed int, others []Discovered, kubernetes bool) error {
	const fetch = "talosctl kubeconfig FILE writes a kubeconfig, and KUBECONFIG names it"
	var names []string
	for _, n := range others {
		names = append(names, n.Name)
	}
	switch {
	case kubernetes && listed == 0:
		return fault.WithHint(fault.Refusedf("no node is known: Talos' discovery lists none, and neither does Kubernetes"),
			"kubectl get nodes has to list them, or talosctl get members (cluster.discovery in the machine configurations). Is KUBECONFIG of another cluster?")
	case kubernetes:
		return nil
	case listed == 0:
		return fault.WithHint(fault.Refusedf("Talos' discovery lists no machine (is cluster.discovery off?), and Kubernetes is not asked: the nodes are unknown"), "%s", fetch)
	case len(names) > 0:
		return fault.WithHint(fault.Refusedf("Talos' discovery does not list %s, and Kubernetes is not asked: the nodes are unknown", strings.Join(names, ", ")), "%s", fetch)
	}
	return nil
}
