package rolling

import (
	"maps"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
)

// PlannedExchange returns the exchange of the node's VM as a roll would plan it now; nil if the strategy
// has no exchange.
func PlannedExchange(n planning.NodePlan) (*exchange.Replace, error) {
	switch {
	case n.Resume && n.Found.Parking != nil && n.Found.Parking.Record.Open:
		park := *n.Found.Parking
		mem, err := park.Record.ReadMemory(park.VM)
		return exchange.Of(nil, mem, park.Record, park.VM.ID), err
	case n.Strategy.From() == cluster.Nowhere:
		mem := parking.Memory{VM: shape.New(n.Wanted, n.VMID, ""), SystemKey: n.Wanted.SystemDisk}
		return exchange.Of(nil, mem, parking.Record{Node: n.Node, Strategy: n.Strategy}, 0), nil
	case n.Found.VM == nil:
		return nil, nil
	}
	vm := *n.Found.VM
	vm.Config = maps.Clone(vm.Config)
	vm.DropCSI()
	mem, s := parking.Memory{VM: vm}, n.Strategy
	switch {
	case n.System != nil && s.Replaces():
		mem.SystemKey = n.System.Key
	case len(n.VM.At(shape.Off)) > 0: // after whatever else the node gets
		s = cluster.Reshape
	default:
		return nil, nil
	}
	if s.DeletesVM() {
		mem.Firewall = n.Found.Ties.Firewall.Sum()
	}
	rec, err := parking.Record{Node: n.Node, Strategy: s}.Opened(mem, n.Found.Parking)
	if err != nil {
		return nil, err
	}
	var parking cluster.VMID
	if n.Found.Parking != nil {
		parking = n.Found.Parking.VM.ID
	}
	return exchange.Of(nil, mem, rec, parking), nil
}
