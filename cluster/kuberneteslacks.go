package cluster

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/words"
)

// lacks notes what is set to run in the wanted version and does not, as far as
// Kubernetes and Talos show it: an earlier run may have left it so.
func (p *kubernetesPlanner) lacks(seen KubernetesSeen) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		j := slices.IndexFunc(seen.Nodes, func(s KubernetesNodeSeen) bool { return s.Node.Name == n.Node })
		m := seen.Nodes[j].Machine
		if m == nil {
			continue // refused
		}
		for _, c := range Components {
			if r, err := parseImage(n.images.Of(c)); err != nil || r.version != p.wanted {
				continue
			}
			what := ""
			switch c {
			case Kubelet:
				what = kubeletDown(seen.Nodes[j])
			case APIServer, ControllerManager, Scheduler:
				what = podLacks(seen.Pods, n.Node, c, *m)
			}
			if c == APIServer && what == "" {
				what = p.serverLacks(seen.Nodes[j])
			}
			if what != "" {
				n.Lacks = append(n.Lacks, fmt.Sprintf("%s: %s", c, what))
			}
		}
	}
}

// podLacks says what a static pod lacks to be the one that its machine is to run.
func podLacks(pods []StaticPod, node string, c Component, m MachineKubernetes) string {
	i := slices.IndexFunc(pods, func(p StaticPod) bool { return p.Node == node && p.Component == c })
	if i < 0 {
		return "Kubernetes does not show its pod"
	}
	switch p := pods[i]; {
	case !SameVersion(p.Image, m.Images.Of(c)) || p.Revision < m.Revisions[c]:
		return fmt.Sprintf("its pod still is the old one: %s, of revision %d", p.Image, p.Revision)
	case !p.Ready:
		return "its pod is not Ready: " + words.OrNone(p.Why)
	}
	return ""
}

// serverLacks says what an API server lacks that counts as Ready: its pod has no
// readiness probe.
func (p *kubernetesPlanner) serverLacks(seen KubernetesNodeSeen) string {
	if seen.ServesErr != nil {
		return seen.ServesErr.Error()
	}
	if v, err := parseKubeVersion(seen.Serves); err != nil || v != p.wanted {
		return "it answers as " + words.OrNone(seen.Serves) //nolint:nilerr // it says what it is
	}
	return ""
}

// kubeletDown says why a kubelet does not serve, whatever its version.
func kubeletDown(seen KubernetesNodeSeen) string {
	switch {
	case !seen.Machine.KubeletHealthy:
		return "Talos' service kubelet is not healthy"
	case !seen.Node.Ready:
		return "its node is not Ready"
	}
	return ""
}
