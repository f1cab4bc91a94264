package cluster

import (
	"context"
	"fmt"
)

// removed asks for what the versions on the way have no more, minor version by
// minor version: the tables know of single steps. Where the way is refused
// anyway, there is nothing to ask.
func removed(ctx context.Context, talos MachineReader, kube KubeReader, seen KubernetesSeen, wanted kubeVersion) (out []string, err error) {
	lowest, _ := seen.lowest(wanted)
	if lowest.major != wanted.major || wanted.minor-lowest.minor > 1 || wanted.before(lowest) {
		return nil, nil
	}
	for _, n := range sortedNodes(seen.Nodes) {
		if n.Machine == nil || n.Unsupported != "" {
			continue
		}
		from := n.lowest(wanted)
		if from.major != wanted.major || wanted.minor-from.minor > maxKubeletSkew {
			continue // its kubelet is refused
		}
		if from.before(lowest) {
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

// lowest is the lowest version that the node runs: of its static pods, and of its
// kubelet, which may be older by some minor versions.
func (n KubernetesNodeSeen) lowest(wanted kubeVersion) kubeVersion {
	v, _ := KubernetesSeen{Nodes: []KubernetesNodeSeen{n}}.lowest(wanted)
	if kubelet, err := parseKubeVersion(n.Node.KubeletVersion); err == nil && kubelet.before(v) {
		return kubelet
	}
	return v
}

// minorStep leads to the next minor version.
type minorStep struct{ from, to kubeVersion }

// minorSteps lead from a version to the minor version of the wanted one, and end
// at that; there is none within one minor version.
func minorSteps(from, wanted kubeVersion) (steps []minorStep) {
	for from.major == wanted.major && from.minor < wanted.minor {
		to := kubeVersion{major: from.major, minor: from.minor + 1}
		if to.minor == wanted.minor {
			to = wanted
		}
		steps = append(steps, minorStep{from, to})
		from = to
	}
	return steps
}
