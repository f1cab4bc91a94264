package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/wait"
)

// healthy is the goal of waiting: the machine runs the wanted build from its
// own disk with every volume back, and Kubernetes has seen this very boot.
func (n *nodeRoll) healthy(ctx context.Context) (string, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return "", err
	}
	return n.settled(ctx, func(ctx context.Context) (string, error) { return n.lacks(ctx, mem) })
}

func (n *nodeRoll) waitHealthy(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	return n.settle(ctx, "bring-up/wait-healthy", n.Timing.Join, func(ctx context.Context) (string, error) { return n.lacks(ctx, mem) })
}

// settled is the goal of settle: this process has seen the node settle, however
// healthy it looks, and has seen nothing missing since. A reading that fails takes
// nothing back.
func (n *nodeRoll) settled(ctx context.Context, lacks func(context.Context) (string, error)) (string, error) {
	if !n.hasSettled {
		return "", nil // not yet: settle waits and says why
	}
	if what, err := lacks(ctx); what != "" || errors.Is(err, errRolledBack) {
		return "", nil //nolint:nilerr // settle says what it is
	}
	return fmt.Sprintf("runs %s build %s and is Ready", n.want.Build.TalosVersion, short(n.want.Build.ID)), nil
}

// settle waits until the node has lacked nothing for the settling time. A
// node that came back as its old system ends it.
func (n *nodeRoll) settle(ctx context.Context, id string, within time.Duration, lacks func(context.Context) (string, error)) error {
	var since time.Time // zero while it is not healthy
	name := fmt.Sprintf("%s healthy for %s", n.plan.Node, n.Timing.Settle)
	err := n.wait(ctx, id, name, within+n.Timing.Settle, func(ctx context.Context) (bool, string, error) {
		what, err := lacks(ctx)
		switch {
		case errors.Is(err, errRolledBack):
			return false, "", wait.Stop(err)
		case err != nil || what != "":
			since = time.Time{}
			return false, what, n.stillOn(ctx, err)
		case since.IsZero():
			since = time.Now()
		}
		return time.Since(since) >= n.Timing.Settle, "healthy, settling", nil
	})
	n.hasSettled = err == nil
	return err
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
	case m.BootID == mem.BootID && n.plan.Strategy != PutBack:
		return "still the boot from before the replacement", nil
	case m.Stage != "running" || !m.Ready:
		return fmt.Sprintf("stage %s, not ready: %s", m.Stage, cmpNone(strings.Join(m.Unmet, ", "))), nil
	}
	if lacks := n.lacksSystem(m, mem); lacks != "" {
		return lacks, nil
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
	if lacks, err := n.lacksEtcd(ctx, mem); err != nil || lacks != "" {
		return lacks, err
	}
	return n.lacksNode(ctx, m.BootID)
}

// lacksSystem compares what the machine booted, and from where, with what it should.
func (n *nodeRoll) lacksSystem(m Machine, mem memory) string {
	if n.plan.Strategy == PutBack || n.plan.Strategy == Rollback {
		if n.plan.Strategy == Rollback && m.Schematic.LockHash() != n.plan.restore.Build {
			return "runs the image of lock " + cmpNone(short(m.Schematic.LockHash()))
		}
		if system, ok := m.disk(m.SystemDisk); !ok || system.Serial == mem.DiskSerial {
			return fmt.Sprintf("it runs from %s, not from its old system disk", cmpNone(m.SystemDisk))
		}
		return ""
	}
	if reasons := diffImage(n.want.Build, m, n.History); len(reasons) > 0 {
		return "runs the wrong image: " + reasons[0].Text
	}
	if system, ok := m.disk(m.SystemDisk); !ok || system.Serial != mem.DiskSerial {
		return fmt.Sprintf("it runs from %s, not from the new system disk", cmpNone(m.SystemDisk))
	}
	return ""
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
	pending, err := n.Kube.PendingCertificates(ctx, n.plan.Node)
	if err == nil && len(pending) > 0 {
		return "certificate requests of its kubelet wait for approval: " + strings.Join(pending, ", "), nil
	}
	return "", err
}
