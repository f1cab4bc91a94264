package rolling

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// FreeSteps returns the steps that free the disks that the plan showed, once the record of the replacement is closed.
// path is the path of their parent step below the node's.
func (n *Node) FreeSteps(path string) []step.Step {
	var steps []step.Step
	for _, f := range n.Plan.Frees {
		ref := exchange.KeptRef{Cluster: n.Cluster, Node: n.Plan.Node, Parking: f.Parking, Key: f.Key, Run: f.Run, Volid: f.Volid}
		id := "free-" + f.Key
		steps = append(steps, step.Step{
			ID: id, Kind: "free-disk", Title: "free " + f.String(), Risk: step.Destructive,
			Skip: func(ctx context.Context) (string, error) {
				_, entry, found, err := ref.Find(ctx, n.Proxmox)
				switch {
				case err != nil:
					return "", err
				case !found:
					return "it is gone", nil
				case !entry.Going:
					return "it stays; recast prune shows it", nil
				}
				return "", nil
			},
			Do: func(ctx context.Context) error { return n.free(ctx, ref, path+"/"+id, "recast prune can free it") },
		})
	}
	return steps
}

// free frees a disk that is no longer needed. If that fails, the roll goes on, because the node is as it should be:
// the disk stays, and hint says what frees it.
func (n *Node) free(ctx context.Context, ref exchange.KeptRef, path, hint string) error {
	return n.stay(ctx, ref, ref.Free(ctx, n.Proxmox, n.uses), path, hint)
}

func (n *Node) uses(ctx context.Context) ([]cluster.Use, error) {
	vms, err := n.Proxmox.VMs(ctx)
	return parking.UsesOf(vms), fault.Prefix("read Proxmox", err)
}

// stay records that a disk stays, if err says why it was not freed, and returns an error if the roll must not go on.
func (n *Node) stay(ctx context.Context, ref exchange.KeptRef, err error, path, hint string) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Claimed {
		return err
	}
	if _, unproven := errors.AsType[*cluster.UnprovenError](err); unproven {
		return err
	}
	if errStay := ref.Stay(ctx, n.Proxmox); errStay != nil {
		return errors.Join(err, errStay)
	}
	n.Tell(path, fmt.Sprintf("not freed: %v; it stays, and %s", err, hint))
	return nil
}

// FreeRemoved frees the disks that a removal of the node has parked and recorded as going: the system disk of a node
// that was there only for a roll. If it is not known whether something uses the disk, the next roll tries again.
func (n *Node) FreeRemoved() step.Step {
	const id = "free-disk"
	return step.Step{
		ID: id, Title: "free its system disk", Risk: step.Destructive, Skip: n.RemovedFreed,
		Do: func(ctx context.Context) error {
			park, err := n.Parking(ctx)
			if err != nil {
				return err
			}
			for _, k := range going(park) {
				ref := exchange.KeptRef{Cluster: n.Cluster, Node: n.Plan.Node, Parking: park.VM.ID, Key: k.Key, Run: k.Run}
				if _, there := park.VM.Config[k.Key]; there {
					disk, err := park.KeptDisk(k)
					if err != nil {
						return fault.PruneRefused.Refusedf("%s of %s is not freed: %w", k.Key, park.VM, err)
					}
					ref.Volid = disk.Volid
				}
				err := ref.Free(ctx, n.Proxmox, n.uses)
				if err != nil && fault.KindOf(err) != fault.Refused { // perhaps in use: it is still to be freed
					return fault.WithHint(fmt.Errorf("free %s of %s: %w", k.Key, park.VM, err), "run the same command again: it frees the disk")
				}
				if err := n.stay(ctx, ref, err, id, fmt.Sprintf("recast remove %s --free %s frees it", n.Plan.Node, n.Plan.Node)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// RemovedFreed is the goal of FreeRemoved.
func (n *Node) RemovedFreed(ctx context.Context) (string, error) {
	park, err := n.Parking(ctx)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return "nothing of it is parked", nil
	case err != nil || park.Record.Open || len(going(park)) > 0:
		return "", err
	case len(park.Record.Kept) > 0:
		return fmt.Sprintf("its system disk stays on %s", park.VM), nil
	}
	return "its system disk is freed", nil
}

// going lists the disks of a removed node that are about to be freed.
func going(park parking.Parking) (out []parking.KeptDisk) {
	for _, k := range park.Record.Kept {
		if k.Removed && k.Going && !park.Record.Open {
			out = append(out, k)
		}
	}
	return out
}
