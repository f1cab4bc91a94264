package claim

import (
	"context"
	"io"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
)

// GuardRestorer returns an EtcdRestorer that changes machines only while the claim is still ours.
func (h *Held) GuardRestorer(r cluster.EtcdRestorer) cluster.EtcdRestorer {
	return guardedRestorer{r, h}
}

type guardedRestorer struct {
	restorer cluster.EtcdRestorer
	held     *Held
}

func (g guardedRestorer) EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error) {
	return g.restorer.EtcdService(ctx, addr)
}

func (g guardedRestorer) EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error {
	return g.held.whileOurs(ctx, func() error { return g.restorer.EtcdRecover(ctx, addr, uuid, snapshot) })
}

func (g guardedRestorer) EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, copied bool) error {
	return g.held.whileOurs(ctx, func() error { return g.restorer.EtcdBootstrap(ctx, addr, uuid, copied) })
}
