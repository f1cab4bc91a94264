package kubeupgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// members refuses a member of etcd that belongs to no control plane of the plan: it has an API
// server that Kubernetes does not show, because it has no Node object (deleted by hand, or
// skipNodeRegistration), and that API server would not be upgraded.
func (p *kubernetesPlanner) members(seen Seen) {
	if seen.EtcdErr != nil {
		p.refuse("", "who the members of etcd are, and so which control planes there are, is not known: %s", strings.ReplaceAll(withHints(seen.EtcdErr), "\n", "; "))
	}
	for _, m := range seen.Etcd {
		if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.images.APIServer != "" && seen.holds(n.Node, m) }) {
			p.refuse("etcd member "+m.Label(), "its machine is no control plane that Kubernetes shows, and its API server would stay behind: "+
				"see that it registers as a node (kubectl get nodes; machine.kubelet.skipNodeRegistration), and where its machine is gone for good, that talosctl etcd status shows it no more: talosctl etcd remove-member %x", m.ID)
		}
	}
}

// holds says whether a node's machine runs that member: by what its etcd says, or else by the
// member's name or address.
func (s Seen) holds(node string, m cluster.EtcdMember) bool {
	i := slices.IndexFunc(s.Nodes, func(n NodeSeen) bool { return n.Node.Name == node })
	n := s.Nodes[i]
	if n.Member != 0 {
		return n.Member == m.ID
	}
	addr, err := m.Address(nil)
	return m.Name == node || err == nil && slices.Contains(append([]netip.Addr{n.Addr}, n.Node.Addresses...), addr)
}

// readEtcd asks the control planes for the members of etcd until one answers, and asks each of
// them for its own member.
func (s *Seen) readEtcd(ctx context.Context, talos cluster.EtcdReader) {
	var errs []error
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Machine == nil || n.Machine.Images.APIServer == "" {
			continue
		}
		if status, err := talos.EtcdStatus(ctx, n.Addr); err == nil {
			n.Member = status.MemberID
		}
		if len(s.Etcd) > 0 {
			continue
		}
		var err error
		if s.Etcd, err = talos.EtcdMembers(ctx, n.Addr); err != nil {
			errs = append(errs, fmt.Errorf("ask %s: %w", n.Node.Name, err))
		}
	}
	if len(s.Etcd) == 0 {
		s.EtcdErr = errors.Join(append(errs, errors.New("no control plane says so"))...)
	}
}
