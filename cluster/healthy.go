package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// healthy is the goal of waiting: the machine runs the wanted build from its
// own disk with every volume back, and Kubernetes has seen this very boot.
func (n *nodeRoll) healthy(ctx context.Context) (string, error) {
	mem, err := n.memory()
	if err != nil {
		return "", err
	}
	lacks, err := n.lacks(ctx, mem)
	if err != nil || lacks != "" {
		return "", nil //nolint:nilerr // not yet: waitHealthy waits and says why
	}
	return fmt.Sprintf("runs %s build %s and is Ready", n.want.Build.TalosVersion, short(n.want.Build.ID)), nil
}

func (n *nodeRoll) waitHealthy(ctx context.Context) error {
	mem, err := n.memory()
	if err != nil {
		return err
	}
	var since time.Time // zero while it is not healthy
	name := fmt.Sprintf("%s healthy for %s", n.plan.Node, n.Timing.Settle)
	return n.wait(ctx, "bring-up/wait-healthy", name, n.Timing.Join+n.Timing.Settle, func(ctx context.Context) (bool, string, error) {
		lacks, err := n.lacks(ctx, mem)
		if err != nil || lacks != "" {
			since = time.Time{}
			return false, lacks, err
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= n.Timing.Settle, "healthy, settling", nil
	})
}

// lacks names the first thing that the node still lacks; "" when it is healthy.
func (n *nodeRoll) lacks(ctx context.Context, mem memory) (string, error) {
	m, err := n.Talos.Machine(ctx, n.plan.Addr)
	if err != nil {
		return "", err
	}
	switch {
	case m.UUID != n.plan.UUID:
		return fmt.Sprintf("%s answers with UUID %s", n.plan.Addr, m.UUID), nil
	case m.BootID == mem.BootID:
		return "still the boot from before the replacement", nil
	case m.Stage != "running" || !m.Ready:
		return fmt.Sprintf("stage %s, not ready: %s", m.Stage, cmpNone(strings.Join(m.Unmet, ", "))), nil
	}
	if reasons := diffImage(n.want.Build, m, n.History); len(reasons) > 0 {
		return "runs the wrong image: " + reasons[0].Text, nil
	}
	system, ok := m.disk(m.SystemDisk)
	if !ok || system.Serial != mem.DiskSerial {
		return fmt.Sprintf("it runs from %s, not from the new system disk", cmpNone(m.SystemDisk)), nil
	}
	for _, want := range mem.Volumes {
		i := slices.IndexFunc(m.Volumes, want.sameContent)
		switch {
		case i < 0:
			return fmt.Sprintf("persistent volume %s (partition UUID %s) is missing", cmpNone(want.Label), want.PartitionUUID), nil
		case want.Phase == "ready" && m.Volumes[i].Phase != "ready":
			return fmt.Sprintf("persistent volume %s is %s", want.Label, cmpNone(m.Volumes[i].Phase)), nil
		}
	}
	return n.lacksNode(ctx, m.BootID)
}

func (n *nodeRoll) lacksNode(ctx context.Context, bootID string) (string, error) {
	nodes, err := n.Kube.Nodes(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(nodes, func(k KubeNode) bool { return k.Name == n.plan.Node })
	switch {
	case i < 0:
		return "Kubernetes does not know it yet", nil
	case nodes[i].BootID != bootID:
		return "Kubernetes has not seen this boot yet", nil
	case !nodes[i].Ready:
		return "its Node is not Ready", nil
	}
	return "", nil
}
