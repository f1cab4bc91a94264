package cluster

import (
	"fmt"
	"net/netip"
	"net/url"
)

// Address returns where to reach the member's machine: its node's address, since etcd's peers may
// use a separate network; without a known node, the address in its peer URLs.
func (m EtcdMember) Address(known []Endpoint) (netip.Addr, error) {
	for _, e := range known {
		if e.Node == m.Name {
			return e.Addr, nil
		}
	}
	for _, peer := range m.Peers {
		u, err := url.Parse(peer)
		if err != nil {
			continue
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("etcd member %s: no address in its peer URLs %v", m.Label(), m.Peers)
}

// Label is the name of a member, or its ID if it has none yet.
func (m EtcdMember) Label() string {
	if m.Name != "" {
		return m.Name
	}
	return fmt.Sprintf("%x", m.ID) // added, but not started yet
}

// IsLearner is the text after the name of a learner.
const IsLearner = " is a learner: it does not vote yet"
