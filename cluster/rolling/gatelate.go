package rolling

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// awaitLate waits, before the node is taken out, until Proxmox can no longer carry out an earlier process's requests
// that would harm the node while it is out: a start of its own VM, or the shutdown of another control plane.
func (n *Node) awaitLate(ctx context.Context) error {
	if n.Plan.Strategy.From() == cluster.Blank || n.Plan.OnlyTidies() {
		return nil // nothing is taken out
	}
	say := func(text string) { n.Tell("gate", text) }
	own, err := n.ownParkings(ctx)
	if err != nil {
		return err
	}
	goesOn := n.Plan.Resume && n.Plan.Strategy.From() != cluster.Halfway
	which := exchange.SwitchesOn
	if goesOn { // the roll that resumes may itself have been starting the VM
		which = []string{cluster.SentAddHA}
	}
	if err := n.Late.Await(ctx, own, which, say); err != nil {
		return err
	}
	if n.Plan.Strategy.From() != cluster.Halfway && !goesOn { // a put-back protects the VM, and a resumed roll waits before the delete
		if err := n.Late.Await(ctx, own, []string{exchange.SentDelete}, say); err != nil {
			return err
		}
	}
	if err := n.forgetLate(ctx, n.Plan.Found.Elsewhere); err != nil || n.Plan.Role != cluster.ControlPlane {
		return err
	}
	others, err := n.otherParkings(ctx)
	if err != nil {
		return err
	}
	if err := n.Late.Await(ctx, others, cluster.TakesDown, say); err != nil {
		return err
	}
	return n.forgetLate(ctx, others)
}

// ownParkings returns the node's own parking VMs, also those on other hosts; their records list the requests to
// wait for.
func (n *Node) ownParkings(ctx context.Context) ([]parking.Parking, error) {
	if n.Plan.Strategy.KeepsVM() {
		return nil, nil
	}
	park, err := n.Parking(ctx)
	if errors.Is(err, cluster.ErrNotFound) {
		return n.Plan.Found.Elsewhere, nil
	}
	return append([]parking.Parking{park}, n.Plan.Found.Elsewhere...), err
}

// otherParkings returns the parking VMs of the cluster's other control planes whose records have requests.
// An offline host does not carry out any request.
func (n *Node) otherParkings(ctx context.Context) ([]parking.Parking, error) {
	if n.Late.None() {
		return nil, nil
	}
	vms, err := n.Proxmox.VMs(ctx)
	_, away := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !away {
		return nil, fmt.Errorf("look for requests without an answer: %w", err)
	}
	all, err := parking.Readable(vms, n.Cluster)
	if err != nil {
		return nil, err
	}
	if !away {
		n.Late.SawAll(all)
	}
	var out []parking.Parking
	for _, p := range all {
		if p.Record.Node != n.Plan.Node && p.Record.ControlPlane && len(p.Record.Sent) > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

// forgetLate removes requests that can no longer come from closed records. No other control plane is
// being rolled, so nothing else writes these records.
func (n *Node) forgetLate(ctx context.Context, parkings []parking.Parking) error {
	for _, p := range parkings {
		before := len(p.Record.Sent)
		n.Late.Forgetting(p.VM.ID, func(*parking.Record) {})(&p.Record)
		if p.Record.Open || len(p.Record.Sent) == before {
			continue
		}
		if err := exchange.WriteRecord(ctx, n.Proxmox, p.VM, p.Record); err != nil && (!errors.Is(err, cluster.ErrChanged) || fault.KindOf(err) == fault.Claimed) {
			return err
		}
	}
	return nil
}
