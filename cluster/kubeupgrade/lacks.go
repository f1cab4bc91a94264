package kubeupgrade

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// lacks notes what should run in the wanted version and does not, as far as Kubernetes and
// Talos show it: an earlier run may have left it so.
func (p *kubernetesPlanner) lacks(seen Seen) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		j := slices.IndexFunc(seen.Nodes, func(s NodeSeen) bool { return s.Node.Name == n.Node })
		m := seen.Nodes[j].Machine
		if m == nil {
			continue // refused
		}
		for _, c := range cluster.Components {
			if r, err := cluster.ParseImage(n.images.Of(c)); err != nil || r.Version != p.wanted {
				continue
			}
			what := ""
			switch c {
			case cluster.Kubelet:
				what = kubeletDown(seen.Nodes[j])
			case cluster.APIServer, cluster.ControllerManager, cluster.Scheduler:
				what = cluster.LacksPod(seen.Pods, n.Node, c, *m)
			}
			if c == cluster.APIServer && what == "" {
				what = p.serverLacks(seen.Nodes[j])
			}
			if what != "" {
				n.Lacks = append(n.Lacks, fmt.Sprintf("%s: %s", c, what))
			}
		}
	}
}

// serverLacks says what an API server lacks although it counts as Ready: its pod has no
// readiness probe.
func (p *kubernetesPlanner) serverLacks(seen NodeSeen) string {
	if seen.ServesErr != nil {
		return seen.ServesErr.Error()
	}
	if v, err := cluster.ParseVersion(seen.Serves); err != nil || v != p.wanted {
		return "it answers as " + words.OrNone(seen.Serves) //nolint:nilerr // it says what it is
	}
	return ""
}

// kubeletDown says why a kubelet is not available, whatever its version.
func kubeletDown(seen NodeSeen) string {
	switch {
	case !seen.Machine.KubeletHealthy:
		return "Talos' service kubelet is not healthy"
	case !seen.Node.Ready:
		return "its node is not Ready"
	}
	return ""
}
