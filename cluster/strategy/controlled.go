package discover

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// controllers create and delete VMs themselves, and mark the Nodes of those.
var controllers = []struct{ name, mark, instead string }{
	{"Cluster API", "cluster.x-k8s.io/machine", "its TalosControlPlane or MachineDeployment rolls it: change the template there"},
	{"Karpenter", "karpenter.sh/nodepool", "its NodePool replaces it: change the NodeClass there"},
}

// Uncontrolled refuses a node that another controller creates and deletes: it would take what recast makes for
// lost, or for one too many. n may be nil.
func Uncontrolled(n *cluster.KubeNode) error {
	if n == nil {
		return nil
	}
	for _, c := range controllers {
		if mark := n.Metadata.Annotations[c.mark] + n.Metadata.Labels[c.mark]; mark != "" {
			return fault.WithHint(fault.Refusedf("node %s is of %s (%s: %s), which creates and deletes its VM", n.Name, c.name, c.mark, mark), "%s", c.instead)
		}
	}
	return nil
}
