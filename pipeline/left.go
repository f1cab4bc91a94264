package pipeline

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// explainTimeout bounds the look at what a failed roll has left: whoever pressed
// Ctrl-C twice is waiting.
const explainTimeout = 10 * time.Second

// explain says along with the error of a roll which of its nodes are still out,
// and what finishes them.
func (w *work) explain(ctx context.Context, err error) error {
	if err == nil || fault.KindOf(err) == fault.Claimed {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	out := w.out(ctx)
	if len(out) == 0 {
		return err
	}
	return fault.WithHint(err, "still out, cordoned or down: %s. recast roll goes on with that, recast status explains it", strings.Join(out, ", "))
}

// out lists the plan's nodes that have an open record or our mark, as far as can be read.
func (w *work) out(ctx context.Context) []string {
	vms, _ := w.machines.Proxmox.VMs(ctx)                  // the error that is being explained may be that Proxmox is away
	parkings, _ := cluster.Parkings(vms, w.Config.Cluster) // those that can be read
	nodes, _ := w.machines.Kube.Nodes(ctx)                 // a single control plane's API is away with it
	var out []string
	for _, n := range w.rep.Plan.Work() {
		open := slices.ContainsFunc(parkings, func(p cluster.Parking) bool { return p.Record.Node == n.Node && p.Record.Open })
		marked := slices.ContainsFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == n.Node && k.Mark != nil })
		if open || marked {
			out = append(out, n.Node)
		}
	}
	return out
}
