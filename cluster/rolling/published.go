package rolling

import (
	"context"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Published finds what recast publish has put on the storages of Proxmox for a node's wanted build, as one host sees it.
type Published struct {
	Proxmox cluster.StorageReader
	Wanted  cluster.Wanted
	Host    string
}

// ISO returns the volid of the boot ISO on the first of the node's storages for it that has it.
func (i Published) ISO(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "boot ISO", "iso/"+i.Wanted.Build.ISOName, i.Wanted.ISOStorages)
}

// Disk returns the volid of the disk image, as ISO does for the boot ISO.
func (i Published) Disk(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "disk image", "import/"+i.Wanted.Build.DiskName, i.Wanted.DiskStorages)
}

func (i Published) find(ctx context.Context, what, name string, storages []string) (string, error) {
	for _, storage := range storages {
		volid := storage + ":" + name
		found, err := i.Proxmox.HasVolume(ctx, i.Host, volid)
		if err != nil {
			return "", fmt.Errorf("look for %s on %s: %w", volid, i.Host, err)
		}
		if found {
			return volid, nil
		}
	}
	return "", fault.WithHint(fault.ISODiffers.Refusedf("%s %s is on none of %s as host %s sees them", what, path.Base(name), strings.Join(storages, ", "), i.Host), "recast publish")
}

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
