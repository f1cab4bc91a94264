package strategy

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// controllers create and delete VMs themselves, and mark the Nodes of those.
var controllers = []struct{ name, mark, instead string }{
	{"Cluster API", "cluster.x-k8s.io/machine", "its TalosControlPlane or MachineDeployment rolls it: change the template there"},
	{"Karpenter", "karpenter.sh/nodepool", "its NodePool replaces it: change the NodeClass there"},
}

// Controlled says which other controller creates and deletes a node, and what to do instead; "" for none. n may
// be nil.
func Controlled(n *cluster.KubeNode) (by, instead string) {
	if n == nil {
		return "", ""
	}
	for _, c := range controllers {
		if mark := n.Metadata.Annotations[c.mark] + n.Metadata.Labels[c.mark]; mark != "" {
			return c.name + " (" + c.mark + ": " + mark + "), which creates and deletes its VM", c.instead
		}
	}
	return "", ""
}

// Uncontrolled refuses a node that another controller creates and deletes: it would take what recast makes for
// lost, or for one too many. n may be nil.
func Uncontrolled(n *cluster.KubeNode) error {
	by, instead := Controlled(n)
	if by == "" {
		return nil
	}
	return fault.WithHint(fault.Refusedf("node %s is of %s", n.Name, by), "%s", instead)
}
