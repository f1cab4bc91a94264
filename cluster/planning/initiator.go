package planning

import (
	"cmp"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/strategy"
)

// noteInitiators says that servers of volumes will know the nodes by other names.
func noteInitiators(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.VM() == cluster.VMGone || n.Found.Node == nil || !strategy.DiskLeaves(n.Strategy, n.Wanted) {
			continue
		}
		for _, protocol := range []string{cluster.ISCSI, cluster.NVMeoF} {
			var volumes []string
			for _, v := range n.Found.Served {
				if v.Access == protocol {
					volumes = append(volumes, v.What)
				}
			}
			if len(volumes) > 0 {
				n.Notes = append(n.Notes, fmt.Sprintf("its name for %s (%s) changes with the system disk, as its machine-id does: where the server of %s lets in only names that it knows, add the new one, which the roll shows",
					protocol, cmp.Or(cluster.InitiatorName(protocol, n.Found.Node.MachineID), "unknown"), replica.Some(volumes)))
				n.Initiators = append(n.Initiators, protocol)
			}
		}
	}
}
