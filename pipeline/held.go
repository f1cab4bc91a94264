package pipeline

import (
	"context"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/replica"
)

// HeldBack is a setting of a storage system that recast has changed while nodes are away.
type HeldBack struct {
	What  string    `json:"what"`
	Run   string    `json:"run,omitempty"` // that changed it first; "": unknown
	Since time.Time `json:"since,omitzero"`
	Next  []Advice  `json:"next"`
}

func heldBack(holds []replica.Hold) (out []HeldBack) {
	for _, h := range holds {
		next := []Advice{{"recast roll", "gives it back once they are no longer out; so does recast undo"}, {h.Undo, "does so by hand"}}
		out = append(out, HeldBack{h.String(), h.Run, h.Since, next})
	}
	return out
}

// held adds what storage systems are told to the result. It is left over unless a run has the claim: only that could
// still give it back.
func (r *DriftResult) held(ctx context.Context, p Project, m Machines, vms []cluster.VM) error {
	holds, err := m.Kube.Holds(ctx)
	if err != nil {
		r.HeldUnread = err.Error()
	}
	if r.Held = heldBack(holds); len(holds) == 0 {
		return nil
	}
	claimed, err := claim.Exists(ctx, vms, m.Leases.Lease, p.Config.Cluster, p.ClaimID())
	r.HeldLeft = !claimed
	return err
}
