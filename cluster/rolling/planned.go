package rolling

import (
	"maps"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
)

// PlannedExchange returns the exchange of the node's VM as a roll would plan it now; nil if the strategy
// has no exchange.
func PlannedExchange(n planning.NodePlan) (*exchange.Replace, error) {
	switch {
	case n.Resume && n.Found.Parking != nil && n.Found.Parking.Record.Open:
		park := *n.Found.Parking
		mem, err := park.Record.ReadMemory(park.VM)
		return exchange.Of(nil, mem, park.Record, park.VM.ID), err
	case n.Found.VM == nil || n.System == nil || n.Strategy != cluster.Recreate && n.Strategy != cluster.Reimage:
		return nil, nil
	}
	vm := *n.Found.VM
	vm.Config = maps.Clone(vm.Config)
	vm.DropCSI()
	mem := parking.Memory{VM: vm, SystemKey: n.System.Key}
	if n.Strategy == cluster.Recreate {
		mem.Firewall = n.Found.Ties.Firewall.Sum()
	}
	rec, err := parking.Record{Node: n.Node, Strategy: n.Strategy}.Opened(mem, n.Found.Parking)
	if err != nil {
		return nil, err
	}
	var parking cluster.VMID
	if n.Found.Parking != nil {
		parking = n.Found.Parking.VM.ID
	}
	return exchange.Of(nil, mem, rec, parking), nil
}
