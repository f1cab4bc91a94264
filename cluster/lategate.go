package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// awaitLate waits, before the node is taken out, until no request that an earlier
// process had sent can come any more that would meet it while it is out: a start
// of its own VM, or the shutdown of another control plane.
func (n *nodeRoll) awaitLate(ctx context.Context) error {
	if n.plan.Strategy == Configure || n.plan.Strategy == InPlace && n.plan.Drift.tidy() {
		return nil // nothing is taken out
	}
	say := func(text string) { n.say("gate", text) }
	own, err := n.lateOwn(ctx)
	if err != nil {
		return err
	}
	goesOn := n.plan.Resume && n.plan.Strategy != PutBack
	which := switchesOn
	if goesOn { // it may itself have been about to start the VM
		which = []string{sentAddHA}
	}
	if err := n.late.await(ctx, own, which, say); err != nil {
		return err
	}
	if n.plan.Strategy != PutBack && !goesOn { // a put-back protects the VM, and who goes on waits before the delete
		if err := n.late.await(ctx, own, []string{sentDelete}, say); err != nil {
			return err
		}
	}
	if n.plan.Role != ControlPlane {
		return nil
	}
	others, err := n.lateOthers(ctx)
	if err != nil {
		return err
	}
	if err := n.late.await(ctx, others, takesDown, say); err != nil {
		return err
	}
	return n.forgetLate(ctx, others)
}

// lateOwn is the node's own parking VM, whose record has what must be waited for.
func (n *nodeRoll) lateOwn(ctx context.Context) ([]Parking, error) {
	if n.plan.Strategy == InPlace {
		return nil, nil
	}
	park, err := n.parking(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return []Parking{park}, err
}

// lateOthers are the parking VMs of the cluster's other control planes whose
// records have requests. On a host that is away nothing is carried out any more.
func (n *nodeRoll) lateOthers(ctx context.Context) ([]Parking, error) {
	if n.late.none() {
		return nil, nil
	}
	vms, err := n.Proxmox.VMs(ctx)
	_, away := errors.AsType[*HostsAway](err)
	if err != nil && !away {
		return nil, fmt.Errorf("look for requests without an answer: %w", err)
	}
	all, err := Parkings(vms, n.Cluster)
	if err != nil {
		return nil, err
	}
	if !away {
		n.late.sawAll(all)
	}
	var out []Parking
	for _, p := range all {
		if p.Record.Node != n.plan.Node && p.Record.ControlPlane && len(p.Record.Sent) > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

// forgetLate takes what can't come any more out of records that are closed. No
// other control plane is at work, so that nobody else writes them.
func (n *nodeRoll) forgetLate(ctx context.Context, parkings []Parking) error {
	for _, p := range parkings {
		before := len(p.Record.Sent)
		n.late.forgetting(p.VM.ID, func(*Record) {})(&p.Record)
		if p.Record.Open || len(p.Record.Sent) == before {
			continue
		}
		if err := writeRecord(ctx, n.Proxmox, p.VM, p.Record); err != nil && (!errors.Is(err, ErrChanged) || fault.KindOf(err) == fault.Claimed) {
			return err
		}
	}
	return nil
}
