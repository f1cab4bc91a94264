package roll

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/gate"
	"github.com/recast-sh/recast/cluster/healing"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/serving"
	"github.com/recast-sh/recast/cluster/usergate"
)

// node is one node in a roll (DESIGN §9): what the plan says about it, and what only this process
// knows. Each of its parts is a small type that embeds the node, so that parts call each other by
// name: n.etcd.leave, n.power.stop.
type node struct {
	*rolling.Node
	roller *Roller
	hooks  cluster.Hooks

	order       order           // the order of the steps: recreate.go
	gate        gate.Gate       // what must hold before anything is touched
	etcd        *etcdMember     // membership of a control plane in etcd
	eviction    eviction        // cordon, drain, and back
	recall      recall          // what the node must get back, read before it goes down
	power       power           // the VM, on and off
	savedConfig savedConfig     // its machine configuration
	takeDown    takeDown        // whether the old VM is gone
	bringUp     *bringUp        // the blank machine: checked, then configured
	renewal     *renewal        // another blank disk after an interrupted installation
	health      *health         // whether it runs what is wanted, and Kubernetes has seen it
	finish      finish          // restores what was changed for the roll
	upgrade     *upgrade        // the upgrade in place
	newBoot     *newBoot        // whether that upgrade came up, or fell back
	fallback    fallback        // a reimage after an upgrade in place that did not come up
	configure   configure       // another machine configuration, without a new image
	trial       trial           // of one that needs no reboot
	reset       resetMachine    // a machine that was reset
	putBack     putBack         // cancels an interrupted replacement
	hookPoints  hookPoints      // the user's hooks
	userGates   usergate.Points // the user's gates
	healing     healing.Points  // volumes of which other nodes have copies
	served      healing.Served  // volumes of servers that may know the node by name
	reshape     reshape         // the VM's shape
	serving     serving.VM      // the VM while the node serves
	create      create          // a node that is nowhere yet
	record      *record         // the record on the parking VM, and the exchange that it describes
}

// planned returns a node of p, in one of its phases.
func (r *Roller) planned(p planning.Plan, n planning.NodePlan, phase planning.Phase) *node {
	n.ControlPlanes, n.Heed = p.ControlPlanes, p.Heed
	of := r.node(rolling.Node{Plan: n, Want: n.Wanted, Path: planning.StepPath(phase, n.Node)})
	of.userGates.Gates, of.hooks = p.Gates, p.Hooks
	return of
}

// node returns a node of this roll, with its parts.
func (r *Roller) node(h rolling.Node) *node {
	h.Roll = r.Roll
	n := &node{Node: &h, roller: r}
	n.order = order{n}
	n.gate = gate.Of(n.Node)
	n.etcd = &etcdMember{node: n}
	n.eviction = eviction{n}
	n.recall = recall{n}
	n.power = power{n}
	n.savedConfig = savedConfig{n}
	n.takeDown = takeDown{n}
	n.bringUp = &bringUp{node: n}
	n.renewal = &renewal{node: n}
	n.health = &health{node: n}
	n.finish = finish{n}
	n.upgrade = &upgrade{node: n}
	n.newBoot = &newBoot{node: n}
	n.fallback = fallback{n}
	n.configure = configure{n}
	n.trial = trial{n}
	n.reset = resetMachine{n}
	n.putBack = putBack{n}
	n.hookPoints = hookPoints{n}
	n.userGates = usergate.Points{Node: n.Node, Objects: r.Objects, Commands: r.Commands, LeftOpen: n.hookPoints.batchLeftOpen}
	n.healing = healing.Points{Node: n.Node, Leaving: &r.leaving, LeftOpen: n.hookPoints.batchLeftOpen}
	n.served = healing.Served{Node: n.Node, Files: r.Files, LeftOpen: n.hookPoints.batchLeftOpen}
	n.reshape = reshape{n}
	n.serving = serving.VM{Node: n.Node, Gate: n.gate}
	n.create = create{n}
	n.record = &record{node: n}
	return n
}

type (
	order        struct{ *node }
	eviction     struct{ *node }
	recall       struct{ *node }
	power        struct{ *node }
	savedConfig  struct{ *node }
	takeDown     struct{ *node }
	finish       struct{ *node }
	fallback     struct{ *node }
	resetMachine struct{ *node }
	putBack      struct{ *node }
	hookPoints   struct{ *node }
	reshape      struct{ *node }
)
