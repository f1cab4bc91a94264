package cluster

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
)

// Address returns where to reach the member's machine: the address of its node, since etcd's peers may use a separate
// network. If the node is not known, it returns the address in the member's peer URLs.
func (m EtcdMember) Address(known []Endpoint) (netip.Addr, error) {
	if e, is := Find(known, func(e Endpoint) bool { return e.Node == m.Name }); is {
		return e.Addr, nil
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

// IsLearner follows the name of a learner in messages.
const IsLearner = " is a learner: it does not vote yet"

// EtcdBootstrapper makes a machine begin an etcd of its own. Calls that change the machine refuse
// unless it has that UUID.
type EtcdBootstrapper interface {
	// EtcdService reads what Talos says about its service etcd: its state, and its last message.
	EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error)
	// EtcdRecover uploads a snapshot; it can be repeated. ErrNotYet as for EtcdBootstrap.
	EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error
	// EtcdBootstrap starts etcd with that content, and returns when the machine has accepted the request. ErrNotYet
	// says that it is too early: retry. The request is refused if the machine has data of etcd.
	EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, content EtcdContent) error
}

// EtcdContent is what a new etcd begins with.
type EtcdContent string

// What a new etcd can begin with.
const (
	EtcdEmpty    EtcdContent = ""
	EtcdSnapshot EtcdContent = "snapshot" // that was uploaded
	EtcdCopy     EtcdContent = "copy"     // an uploaded copy of a database, which has no checksum
)
