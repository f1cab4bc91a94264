package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/recast-sh/recast/cluster"
)

// FreeMemory implements cluster.Inventory. "used" excludes what Linux can reclaim;
// before Proxmox 9 there is no "available" (API2/Nodes.pm, status).
func (c *Client) FreeMemory(ctx context.Context, host string) (int64, error) {
	var status struct {
		Memory struct{ Total, Used, Available json.Number }
	}
	if err := c.get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &status); err != nil {
		return 0, err
	}
	m := status.Memory
	if m.Available != "" {
		return bytesOf(m.Available), nil
	}
	return bytesOf(m.Total) - bytesOf(m.Used), nil
}

// GuestAddrs implements cluster.Inventory. Every error of the agent, including a
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
	err := c.get(ctx, fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", url.PathEscape(vm.Host), vm.ID), &answer)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusInternalServerError {
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
