package planning

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
)

// PlanEtcd applies the rules of etcd to a decision. With auto, a node whose system disk must
// not be replaced because of etcd is upgraded in place.
func PlanEtcd(n *NodePlan, o observe.Observation, p Policy, d strategy.Decision, system cluster.Disk, systemErr error) strategy.Decision {
	onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
	if err != nil {
		d.Refused = append(d.Refused, err.Error())
		return d
	}
	n.EtcdKept = !onSystem && !n.etcdMoves(d.Strategy) || d.Strategy.KeepsVM()
	refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), !n.EtcdKept, n.Found.Machine.TypeInit, d.Strategy, p.AcceptOutage)
	against, outage := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.InPlace, p.AcceptOutage)
	if len(refused) > 0 && len(against) == 0 && n.Wanted.Strategy == cluster.Auto && !d.Strategy.KeepsVM() {
		because := refused[0]
		n.EtcdKept = true
		w := n.Wanted
		w.Strategy = cluster.InPlace
		lifted := append(d.ToRecreate, cluster.Obstacle{Text: because})
		d = strategy.Decide(w, n.Found, o, system, systemErr)
		d.ToRecreate = lifted
		d.Why = "in-place: a new system disk is impossible (" + because + ")"
		refused, warn = nil, outage
	}
	d.Refused = append(d.Refused, refused...)
	d.Notes = append(d.Notes, warn...)
	return d
}
