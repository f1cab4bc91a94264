package cluster

import (
	"fmt"
	"net/netip"
	"net/url"
)

// Address is where the member's machine is reached: at its node's address, for
// etcd may talk to its peers over a network that is not ours; else by its peer URL.
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

func (m EtcdMember) Label() string {
	if m.Name != "" {
		return m.Name
	}
	return fmt.Sprintf("%x", m.ID) // added, but not started yet
}

// IsLearner follows the name of a member that is one.
const IsLearner = " is a learner: it does not vote yet"
