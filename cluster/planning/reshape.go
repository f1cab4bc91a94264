package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
)

// planReshape gives a node whose system is right another VM around it.
func planReshape(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.Reshape, true, "reshape: only its VM is not as wanted"
	switch {
	case len(n.Found.Shape.At(shape.Off)) == 0:
		n.Why += "; it stays up"
		return
	default:
		n.Why += "; it takes a VM that is off"
	}
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.Reshape, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

// planShape shows what of the VM is changed with the node, and refuses what recast does not do.
func planShape(n *NodePlan, o observe.Observation, p Policy) {
	if n.Strategy.From() != cluster.Serving || !n.Strategy.BringsShape() || n.Resume || !p.does(VM) {
		return
	}
	n.VM = n.Found.Shape
	planMove(n)
	for _, d := range n.VM.At(shape.Never) {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s", d, d.Why))
	}
	if n.Strategy.Replaces() || len(n.Found.Shape) == 0 {
		return // what keeps a VM from being changed keeps it from that, too
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
	if len(n.VM.At(shape.Off)) == 0 {
		if lock := n.Found.VM.Lock; lock != "" {
			n.Refused = append(n.Refused, fmt.Sprintf("the VM is locked (%s): wait until that task has ended", lock))
		}
		return
	}
	for _, reason := range slices.Concat(cluster.Texts(c.AgainstReshape()), o.Hidden(*n.Found.VM)) {
		if !slices.ContainsFunc(n.Refused, func(said string) bool { return strings.HasSuffix(said, reason) }) { // auto names strategies before it
			n.Refused = append(n.Refused, reason)
		}
	}
}

// planMove plans a node whose VM is migrated while it runs, before anything else, on its new host. Old
// system disks of it stay parked on the old one.
func planMove(n *NodePlan) {
	for _, d := range n.VM.At(shape.Off) { // disks can be handed over on one host only
		if d.Why != "" && n.Strategy.Replaces() {
			n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s. Disks can be handed over on one host only: recast roll --what vm first, then roll again", d, d.Why))
		}
	}
	to := n.VM.Moves(shape.Live)
	if to == "" {
		return
	}
	n.Host = to
	if strings.HasPrefix(strings.TrimPrefix(n.Found.VM.Config["cpu"], "cputype="), "host") {
		n.Notes = append(n.Notes, fmt.Sprintf("its CPU type is host: whether the processors of %s are like those of %s enough for a guest that runs, recast can't see", to, n.Found.VM.Host))
	}
	if n.Space != nil {
		n.Space.Host = to
	}
	n.Found.Parking, n.Found.Elsewhere = observe.TakeParking(n.Found.Parkings(), func(p parking.Parking) bool { return p.VM.Host == to })
}

// stopsVM says whether the VM is switched off to give it its shape, by whatever strategy.
func stopsVM(n NodePlan) bool { return len(n.VM.At(shape.Off)) > 0 }
