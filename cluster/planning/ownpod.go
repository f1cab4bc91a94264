package planning

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// heedOwnPod plans for recast being a pod of the cluster: the node that it runs on goes last, and none
// goes without which Kubernetes could not start another such pod.
func heedOwnPod(p *Plan, o observe.Observation) {
	api := p.TakesAPIAway()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch out := n.takenOut(); {
		case n.Strategy == "" || n.Strategy.From() == cluster.Nowhere || n.staysUp() || !n.Resume && !out:
		case o.OwnPod.Err != nil && (out || o.Dark == nil): // otherwise it is out already, and has to come back
			n.Refused = append(n.Refused, fmt.Sprintf("whether recast runs as a pod of this cluster, and on which node, is not known: %v: let the kubeconfig's user get that pod, or, where recast is no pod of this cluster, unset %s, %s and %s",
				o.OwnPod.Err, cluster.PodNamespaceVar, cluster.PodNameVar, cluster.PodUIDVar))
		case o.OwnPod.Node == "":
		case api && n.Role == cluster.ControlPlane:
			n.Refused = append(n.Refused, fmt.Sprintf("without it the Kubernetes API is down, and recast runs as a pod of this cluster, on %s: should that pod end meanwhile, nothing could start another one. Run recast from outside of the cluster: in a management cluster, in CI or on a workstation", o.OwnPod.Node))
		case n.Node == o.OwnPod.Node:
			n.OwnPod = true
			n.Notes = append(n.Notes, "recast runs on it as a pod, so it goes last, or at its place in a saved plan. Once every other pod has left, recast evicts its own pod and ends (exit 130); the pod that replaces it goes on with this node")
		}
	}
}

// ownPodLast puts the node that recast runs on behind the others.
func ownPodLast(nodes []NodePlan) []NodePlan {
	i := slices.IndexFunc(nodes, func(n NodePlan) bool { return n.OwnPod })
	if i < 0 {
		return nodes
	}
	own := nodes[i]
	return append(slices.Delete(slices.Clone(nodes), i, i+1), own)
}

// ownPodGoes says whether the plan takes out the node that recast runs on. No other is out then: the
// run ends with its own pod, and would leave that one as it is.
func ownPodGoes(p *Plan) bool {
	return slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.OwnPod })
}
