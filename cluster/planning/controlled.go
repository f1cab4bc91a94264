package planning

import (
	"fmt"

	"github.com/recast-sh/recast/cluster/strategy"
)

// refuseControlled refuses to change nodes that another controller replaces meanwhile, with the disks of the VM.
// What an earlier run has left unfinished is finished.
func refuseControlled(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if by, instead := strategy.Controlled(n.Found.Node); by != "" && n.Strategy != "" && !n.Resume {
			n.Refused = append(n.Refused, fmt.Sprintf("it is of %s: %s, and take it out of recast.yaml; --exclude %s rolls the others", by, instead, n.Node))
		}
	}
}
