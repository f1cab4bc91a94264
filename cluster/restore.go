package cluster

import (
	"context"
	"io"
	"net/netip"
)

// EtcdRestorer makes a machine begin an etcd of its own with a snapshot. What
// changes the machine refuses unless it has that UUID.
type EtcdRestorer interface {
	// EtcdService is what Talos says of its service etcd: its state, and the last thing that it told.
	EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error)
	// EtcdRecover uploads a snapshot, as often as it is asked to. ErrNotYet as for EtcdBootstrap.
	EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error
	// EtcdBootstrap begins with what was uploaded, and returns when the machine has
	// accepted that. ErrNotYet where it may be asked again; refused where it has data of etcd.
	EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, copied bool) error
}
