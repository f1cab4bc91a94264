package roll

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/gate"
	"github.com/recast-sh/recast/cluster/rolling"
)

// node is one node in a roll (DESIGN §9): what the plan says of it, and what only this process can
// know. Each of its parts is a small type over the node itself, so that a part calls another one
// by name: n.etcd.leave, n.power.stop.
type node struct {
	*rolling.Node
	roller *Roller
	gates  []cluster.UserGate
	hooks  cluster.Hooks

	drawn     *exchange.Replace // set where the steps are only listed; nil: the record is read
	opened    *exchange.Replace // as its record was read last; nil: not yet
	pulled    bool              // it was told to fetch the installer
	rebooted  bool              // this process told it to reboot
	accepted  bool              // and it answered that it does
	answered  bool              // with the cluster's certificates, since it was replaced
	renewed   bool              // it got another blank system disk after an interrupted installation
	settledAt time.Time         // when it had been healthy for the settling time; zero: not yet
	reached   string            // why what it runs is what is wanted; "": it is not
	reachedAt time.Time         // when that was seen
	outOfEtcd bool              // etcd was seen without it during its take-down
	gaveUp    error             // why a node that was upgraded in place is to be reimaged

	order       order       // the order of the steps: recreate.go
	gate        gate.Gate   // what must hold before anything is touched
	etcd        etcdMember  // membership of a control plane in etcd
	eviction    eviction    // cordon, drain, and back
	recall      recall      // what the node must get back, read before it goes down
	power       power       // the VM, on and off
	savedConfig savedConfig // its machine configuration
	takeDown    takeDown    // whether the old VM is gone
	bringUp     bringUp     // the blank machine: checked, then configured
	renewal     renewal     // another blank disk after an interrupted installation
	health      health      // whether it runs what is wanted, and Kubernetes has seen it
	finish      finish      // what was changed for the time of the roll
	upgrade     upgrade     // the upgrade in place
	newBoot     newBoot     // whether that upgrade came up, or fell back
	fallback    fallback    // a reimage after an upgrade in place that did not come up
	reconfigure reconfigure // a machine that was reset
	putBack     putBack     // an interrupted replacement is cancelled
	hookPoints  hookPoints  // the user's hooks
	userGates   userGates   // the user's gates
	record      record      // the record on the parking VM, and the exchange that it describes
}

// node is one node of this roll, with its parts.
func (r *Roller) node(h rolling.Node) *node {
	h.Roll = r.Roll
	n := &node{Node: &h, roller: r}
	n.order = order{n}
	n.gate = gate.Of(n.Node)
	n.etcd = etcdMember{n}
	n.eviction = eviction{n}
	n.recall = recall{n}
	n.power = power{n}
	n.savedConfig = savedConfig{n}
	n.takeDown = takeDown{n}
	n.bringUp = bringUp{n}
	n.renewal = renewal{n}
	n.health = health{n}
	n.finish = finish{n}
	n.upgrade = upgrade{n}
	n.newBoot = newBoot{n}
	n.fallback = fallback{n}
	n.reconfigure = reconfigure{n}
	n.putBack = putBack{n}
	n.hookPoints = hookPoints{n}
	n.userGates = userGates{n}
	n.record = record{n}
	return n
}

type (
	order       struct{ *node }
	etcdMember  struct{ *node }
	eviction    struct{ *node }
	recall      struct{ *node }
	power       struct{ *node }
	savedConfig struct{ *node }
	takeDown    struct{ *node }
	bringUp     struct{ *node }
	renewal     struct{ *node }
	health      struct{ *node }
	finish      struct{ *node }
	upgrade     struct{ *node }
	newBoot     struct{ *node }
	fallback    struct{ *node }
	reconfigure struct{ *node }
	putBack     struct{ *node }
	hookPoints  struct{ *node }
	userGates   struct{ *node }
	record      struct{ *node }
)
