package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// GuestAddrs implements cluster.TieReader. Every error of the agent, including a
// missing agent, has status 500 (API2/Qemu/Agent.pm).
func (c *Client) GuestAddrs(ctx context.Context, vm cluster.VM) ([]netip.Addr, error) {
	var answer struct {
		Result []struct {
			Name      string
			Addresses []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		}
	}
	err := c.conn.Get(ctx, fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", url.PathEscape(vm.Host), vm.ID), &answer)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusInternalServerError {
		return nil, fmt.Errorf("%w: %w", cluster.ErrNotYet, err)
	}
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, card := range answer.Result {
		for _, a := range card.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if err == nil && card.Name != "lo" && !addr.IsLinkLocalUnicast() {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs, nil
}
