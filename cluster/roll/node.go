package roll

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/gate"
	"github.com/recast-sh/recast/cluster/healing"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/serving"
	"github.com/recast-sh/recast/cluster/usergate"
)

// node is one node in a roll (DESIGN §9): what the plan says about it, and what only this process
// knows. What happens to it, in order, is in life.go; the other files have the bodies by topic.
type node struct {
	*rolling.Node
	roller *Roller
	hooks  cluster.Hooks

	gate      gate.Gate       // what must hold before anything is touched
	record    *record         // the record on the parking VM, and the exchange that it describes
	etcd      *etcdMember     // membership of a control plane in etcd
	config    savedConfig     // its machine configuration
	userGates usergate.Points // the user's gates
	healing   healing.Points  // volumes of which other nodes have copies
	served    healing.Served  // volumes of servers that may know the node by name
	serving   serving.VM      // the VM while the node serves

	pulled    bool      // it was told to fetch the installer
	answered  bool      // with the cluster's certificates, since it was replaced
	renewed   bool      // it got another blank system disk after an interrupted installation
	settledAt time.Time // when it had been healthy for the settling time; zero: not yet
}

// planned returns a node of p, in one of its phases.
func (r *Roller) planned(p planning.Plan, n planning.NodePlan, phase planning.Phase) *node {
	n.ControlPlanes, n.Heed = p.ControlPlanes, p.Heed
	of := r.node(rolling.Node{Plan: n, Want: n.Wanted, Path: planning.StepPath(phase, n.Node)})
	of.userGates.Gates, of.hooks = p.Gates, p.Hooks
	return of
}

// node returns a node of this roll.
func (r *Roller) node(h rolling.Node) *node {
	h.Roll = r.Roll
	n := &node{Node: &h, roller: r, gate: gate.Of(&h), config: savedConfig{Node: &h, files: r.MachineConfig}}
	n.record = newRecord(&h, r, n.gate.RequireNoLossOff, n.config.forget)
	n.etcd = newEtcdMember(&h, n.gate, n.record, r.Files, n.backOut)
	n.userGates = usergate.Points{Node: &h, Objects: r.Objects, Commands: r.Commands, LeftOpen: n.batchLeftOpen}
	n.healing = healing.Points{Node: &h, Leaving: &r.leaving, LeftOpen: n.batchLeftOpen}
	n.served = healing.Served{Node: &h, Files: r.Files, LeftOpen: n.batchLeftOpen}
	n.serving = serving.VM{Node: &h, Gate: n.gate}
	return n
}
