package configs

import (
	"context"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
)

// Begin returns the machine configuration of the control plane with which a cluster is to begin, and
// the addresses that all its control planes will have, that one's first.
func Begin(ctx context.Context, p pipeline.Project, read func(context.Context, string) (cluster.Secret, bool, error), first string) (text cluster.Secret, endpoints []netip.Addr, err error) {
	if _, err := wantedOf(p, []string{first}); err != nil {
		return nil, nil, err
	}
	all, err := Wanted(ctx, p, read)
	if err != nil {
		return nil, nil, err
	}
	wanted, err := wantedOf(p, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range all {
		docs, err := config.Parse(c.Text)
		if err != nil {
			return nil, nil, fault.MachineConfig.Configf("the configuration of %s in talos.machineConfigs: %w", c.Node, err)
		}
		if docs.Role() != cluster.ControlPlane {
			continue
		}
		i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == c.Node })
		switch addr := wanted[i].Addr; {
		case !addr.IsValid():
		case c.Node == first:
			text, endpoints = c.Text, slices.Insert(endpoints, 0, addr)
		default:
			endpoints = append(endpoints, addr)
		}
	}
	if text == nil {
		return nil, nil, fault.WithHint(fault.MachineConfig.Configf("a cluster can't begin with %s", first),
			"it has to be a control plane, with a configuration in talos.machineConfigs, and an address: nodes[].address, or ipconfig")
	}
	return text, endpoints, nil
}
