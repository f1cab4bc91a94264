package planning

import (
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
)

// leftByHand leaves a node as it is, and says so, if a person has to mend it with one command before any strategy
// can be used. The other nodes are rolled. A node that was named is refused instead.
func (n *NodePlan) leftByHand(d strategy.Decision, o observe.Observation, p Policy, system cluster.Disk, systemErr error) bool {
	if len(d.Refused) == 0 || systemErr != nil || slices.Contains(p.Only, n.Node) {
		return false
	}
	first, command := observe.BootsBefore(*n.Found.VM, system.Key)
	if first == "" || !n.Drift.ByHand() && len(n.decideWithBoot(o, system).Refused) > 0 {
		return false
	}
	who := "no strategy can"
	if s := n.Wanted.Strategy; s != "" && s != cluster.Auto {
		who = string(s) + " can't"
	}
	n.Why = fmt.Sprintf("left as it is: it boots from %s before its system disk %s, and %s mend that now", first, system.Key, who)
	n.ByHand = command
	return true
}

// decideWithBoot decides as if the VM booted from its system disk, with no pending change of the boot order.
func (n *NodePlan) decideWithBoot(o observe.Observation, system cluster.Disk) strategy.Decision {
	vm, f := *n.Found.VM, n.Found
	vm.Config = maps.Clone(vm.Config)
	vm.Config["boot"] = "order=" + system.Key
	vm.Pending = slices.DeleteFunc(slices.Clone(vm.Pending), func(key string) bool { return key == "boot" })
	f.VM = &vm
	return strategy.Decide(n.Wanted, f, o, system, nil)
}

func (p worldOf) warnByHand() { p.Warn = append(p.Warn, p.LeftByHand()...) }

// LeftByHand says which nodes are left as they are until a person has mended them, each with the command.
func (p Plan) LeftByHand() []string {
	var out []string
	for _, n := range p.Nodes {
		if n.ByHand != "" {
			out = append(out, fmt.Sprintf("%s is %s: %s", n.Node, n.Why, n.ByHand))
		}
	}
	return out
}

// refuseControlled refuses to change nodes that another controller replaces meanwhile, with the disks of the VM. It
// lets a roll finish what an earlier run left unfinished.
func refuseControlled(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if by, instead := strategy.Controlled(n.Found.Node); by != "" && n.Strategy != "" && !n.Resume {
			n.Refused = append(n.Refused, fmt.Sprintf("it is of %s: %s, and take it out of recast.yaml; --exclude %s rolls the others", by, instead, n.Node))
		}
	}
}
