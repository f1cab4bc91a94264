package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
)

// retention says which old system disks to keep; keep is the command-line option, nil: use the configuration.
func retention(p Project, keep *int) prune.Retention {
	r := prune.Retention{Cluster: p.Config.Cluster, Keep: p.Config.Roll.KeepDisks, Except: p.ClaimID(), Nodes: nodeNames(p.Config)}
	if keep != nil {
		r.Keep = *keep
	}
	for _, n := range p.Config.Nodes {
		if n.Holder != 0 {
			r.Holders = append(r.Holders, cluster.VMID(n.Holder))
		}
	}
	return r
}

func (p *pruning) retention() prune.Retention {
	r := retention(p.Project, p.o.KeepDisks)
	r.Removed = p.o.Removed
	return r
}

// judgeDisks judges every old system disk and every parking VM of this cluster.
func (p *pruning) judgeDisks(ctx context.Context, vms []cluster.VM, uses []images.Use) (prune.ParkingPruner, error) {
	pr := p.parkingPruner()
	pr.Kept, pr.VMs = prune.JudgeParked(vms, clusterUses(uses), p.retention())
	for i := range pr.Kept {
		if pr.Kept[i].Replaced.IsZero() {
			pr.Kept[i].Replaced = journal.RunBegan(pr.Kept[i].Run)
		}
	}
	if node := p.o.Removed; node != "" && !slices.ContainsFunc(pr.Kept, func(v prune.KeptVerdict) bool { return v.OfRemoved && v.Node == node }) {
		return pr, fault.WithHint(fault.NoWayBack.Refusedf("node %s: no disks of a removed node of that name are parked", node), "recast remove %s removes the node first; recast status lists what is parked", node)
	}
	return pr, pr.KeepUnnamed(ctx, vms)
}

func (p *pruning) parkingPruner() prune.ParkingPruner {
	return prune.ParkingPruner{
		Proxmox: p.px, Cluster: p.Config.Cluster,
		Uses: func(ctx context.Context) ([]cluster.Use, error) {
			uses, err := p.shelf.Uses(ctx)
			return clusterUses(uses), err
		},
		Storages: func(ctx context.Context, host string) ([]string, error) {
			return diskStorages(ctx, p.px, p.shelf, host)
		},
	}
}

func (p *pruning) scratchPruner(px cluster.Proxmox) roll.ScratchPruner {
	return roll.ScratchPruner{Proxmox: px, Cluster: p.Config.Cluster, Timing: timing(p.Config)}
}

func clusterUses(uses []images.Use) []cluster.Use {
	var out []cluster.Use
	for _, u := range uses {
		out = append(out, cluster.Use(u))
	}
	return out
}

// diskStorages lists the storages for disks that a host sees. A storage that does not
// answer is an error, since its content is unknown.
func diskStorages(ctx context.Context, px cluster.Proxmox, shelf images.Shelf, host string) ([]string, error) {
	all, err := px.Storages(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		info, err := shelf.Storage(ctx, host, s.Name)
		switch {
		case errors.Is(err, images.ErrNoStorage):
			continue
		case err != nil:
			return nil, fmt.Errorf("read storage %q on %s: %w", s.Name, host, err)
		case !slices.Contains(info.Content, "images"):
			continue
		case !info.Active:
			return nil, fmt.Errorf("storage %s is not active on %s", s.Name, host)
		}
		out = append(out, s.Name)
	}
	return out, nil
}

// parkedOn lists the storages that have old system disks of a cluster, sorted.
func parkedOn(vms []cluster.VM, name string) (out []string, parked []cluster.VM) {
	parkings, _ := parking.Parkings(vms, name) // records that can't be read do not count: their disks are not freed
	for _, park := range parkings {
		parked = append(parked, park.VM)
		for _, k := range park.Record.Kept {
			if d, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key]); err == nil && !slices.Contains(out, d.Storage()) {
				out = append(out, d.Storage())
			}
		}
	}
	slices.Sort(out)
	return out, parked
}
