package kubeupgrade

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// removed asks what the versions on the way have removed, one minor version at a time, because
// the tables list single steps. If the way is refused anyway, it asks nothing.
func removed(ctx context.Context, talos cluster.KubernetesReader, kube cluster.ComponentReader, seen Seen, wanted cluster.Version) (out []string, err error) {
	lowest, _ := seen.lowest(wanted)
	if lowest.Major != wanted.Major || wanted.Minor-lowest.Minor > 1 || wanted.Before(lowest) {
		return nil, nil
	}
	for _, n := range sortedNodes(seen.Nodes) {
		if n.Machine == nil || n.Unsupported != "" {
			continue
		}
		from := n.lowest(wanted)
		if from.Major != wanted.Major || wanted.Minor-from.Minor > maxKubeletSkew {
			continue // its kubelet is refused
		}
		if from.Before(lowest) {
			lowest = from
		}
		for _, s := range minorSteps(from, wanted) {
			flags, err := talos.RemovedFlags(ctx, n.Addr, n.Node.ControlPlane, s.from.String(), s.to.String())
			if err != nil {
				return nil, fmt.Errorf("look for what %s has removed on %s: %w", s.to, n.Node.Name, err)
			}
			for _, f := range flags {
				out = append(out, n.Node.Name+": "+f)
			}
		}
	}
	for _, s := range minorSteps(lowest, wanted) {
		objects, err := kube.RemovedObjects(ctx, s.from.String(), s.to.String())
		if err != nil {
			return nil, fmt.Errorf("look for what %s has removed: %w", s.to, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

// lowest is the lowest version that the node runs: of its static pods, and of its kubelet,
// which may be some minor versions older.
func (n NodeSeen) lowest(wanted cluster.Version) cluster.Version {
	v, _ := Seen{Nodes: []NodeSeen{n}}.lowest(wanted)
	if kubelet, err := cluster.ParseVersion(n.Node.KubeletVersion); err == nil && kubelet.Before(v) {
		return kubelet
	}
	return v
}

// minorStep is a step to the next minor version.
type minorStep struct{ from, to cluster.Version }

// minorSteps are the steps from a version to the wanted one; there are none within one minor
// version.
func minorSteps(from, wanted cluster.Version) (steps []minorStep) {
	for from.Major == wanted.Major && from.Minor < wanted.Minor {
		to := cluster.Version{Major: from.Major, Minor: from.Minor + 1}
		if to.Minor == wanted.Minor {
			to = wanted
		}
		steps = append(steps, minorStep{from, to})
		from = to
	}
	return steps
}
