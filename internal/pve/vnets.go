package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/recast-sh/recast/cluster"
)

// vnets returns the VM's networks other than the hosts' own bridges. A host lists
// the SDN VNets that the token may see or use (pve-network, PVE/Network/SDN.pm,
// get_local_vnets).
func (l *look) vnets(ctx context.Context, vm cluster.VM) ([]cluster.VNet, error) {
	names := cluster.ForeignBridges(vm)
	if len(names) == 0 {
		return nil, nil
	}
	ipam, err := once(ctx, l, "VNets of "+vm.Host, func() (map[string]bool, error) {
		var rows []struct {
			Iface string
			IPAM  json.RawMessage
		}
		if err := l.Get(ctx, "/nodes/"+url.PathEscape(vm.Host)+"/network?type=any_bridge", &rows); err != nil {
			return nil, fmt.Errorf("read the bridges of %s: %w", vm.Host, err)
		}
		ipam := map[string]bool{}
		for _, r := range rows {
			ipam[r.Iface] = len(r.IPAM) > 0 && toBool(r.IPAM)
		}
		return ipam, nil
	})
	if err != nil {
		return nil, err
	}
	var out []cluster.VNet
	for _, name := range names {
		keeps, shown := ipam[name]
		out = append(out, cluster.VNet{Name: name, IPAM: keeps, Hidden: !shown})
	}
	return out, nil
}
