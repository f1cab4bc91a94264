package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// picksSurge says whether the roll may use this surge node: surge nodes belong to no selection, but can be left out.
func (p Policy) picksSurge(node string) bool {
	return !slices.Contains(p.Exclude, node) && (!p.Exactly || slices.Contains(p.Only, node))
}

// considers says whether the plan has something to say about a node.
func (p Policy) considers(w cluster.Wanted, f observe.Found) bool {
	switch {
	case f.Unfinished():
		return true
	case p.SurgeEnds:
		return w.Surge && p.picksSurge(w.Name)
	case w.Surge && p.Surge != nil && p.Surge(1) > 0:
		return p.picksSurge(w.Name)
	}
	return p.picks(w.Name, f)
}

// onlyInRolls says why nothing is done to a surge node that does not exist.
const onlyInRolls = "it is there only during a roll"

// surgeNode is a surge node in a plan.
type surgeNode struct{ *NodePlan }

// decided says whether a surging decides about the node, together with all others.
func (n surgeNode) decided() bool {
	return n.Wanted.Surge && !n.Resume && !n.Found.Away && !n.Found.Unfinished() && (n.Found.Absent != nil || n.Found.Machine != nil && n.Found.Node != nil)
}

// surging decides which surge nodes of a plan are made, serve, and are removed.
type surging struct {
	*Plan
	wanted []cluster.Wanted
	o      observe.Observation
	policy Policy
}

func (p surging) decide() error {
	o, policy := p.o, p.policy
	if p.Run != "" || p.Bootstrap != "" || o.Rebuild != "" {
		return nil // planned again once the other work is done
	}
	var nodes []foundSurge
	var at []int
	for i, n := range p.Nodes {
		if (surgeNode{&n}).decided() {
			absent := n.Found.Absent
			nodes = append(nodes, foundSurge{Name: n.Node, There: absent == nil, Fits: absent != nil && len(absent.Traces)+len(absent.Against) == 0})
			at = append(at, i)
		}
	}
	need := surgeNeed{Out: min(p.MaxUnavailable, p.workersOut()), Workers: serving(p.wanted, o)}
	if policy.Surge != nil && !policy.SurgeEnds {
		need.Wanted = policy.Surge(workers(p.wanted, o))
	}
	var err error
	if p.Surge, err = chooseSurge(nodes, need); err != nil {
		return err
	}
	for _, i := range at {
		surgeNode{&p.Nodes[i]}.plan(p.Surge, o, policy)
	}
	if s := p.Surge; s != nil { // a leftover node may be left out
		s.Remove = slices.DeleteFunc(s.Remove, func(name string) bool {
			return !slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.Node == name && n.Strategy.VM() == cluster.VMGone })
		})
		if len(s.Nodes)+len(s.Remove) == 0 {
			p.Surge = nil
		}
	}
	return nil
}

// plan says what becomes of the node.
func (n surgeNode) plan(plan *SurgePlan, o observe.Observation, policy Policy) {
	n.Drift.Reasons = slices.DeleteFunc(slices.Clone(n.Drift.Reasons), func(r cluster.Reason) bool { return r.Code == observe.LeftOver && plan.Has(n.Node) })
	n.Drift.Stale = len(n.Drift.Reasons) > 0
	switch {
	case plan.Has(n.Node) && n.Found.Absent != nil:
		planCreate(n.NodePlan, o)
		n.planFile()
		if n.Role == cluster.ControlPlane {
			n.Refused = append(n.Refused, "it has surge: true, which is for workers, and its machine configuration is that of a control plane")
		}
	case plan.Has(n.Node):
		n.Why = "it serves while workers are away, and is removed after the last one is back"
		if n.Found.Node.Unschedulable {
			n.Refused = append(n.Refused, fmt.Sprintf("it is to serve while workers are away, and is cordoned: kubectl uncordon %s, or recast remove %s", n.Node, n.Node))
		}
	case n.Found.Absent == nil && policy.picks(n.Node, n.Found):
		planRemove(n.NodePlan, o, policy.Reach)
		n.AskLosses()
		if !n.Found.MadeNew() { // a worker that has surge: true by mistake
			n.Refused = append(n.Refused, fmt.Sprintf("it has surge: true, and nothing shows that a roll has made it: remove surge: true if it is to stay; recast remove %s takes it away", n.Node))
		}
	case n.Found.Absent != nil && n.freesLeft():
		n.Strategy, n.Why, n.VMID, n.Host = cluster.Remove, "remove: it is removed, and its system disk, which is still parked, is freed", n.Found.Parking.Record.VMID, n.Found.Parking.VM.Host
	default:
		return
	}
	n.Estimate(o.Took)
}

// freesLeft says whether a run that removed the node ended before it had freed its system disk.
func (n surgeNode) freesLeft() bool {
	p := n.Found.Parking
	return p != nil && slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return k.Removed && k.Going })
}

// remove plans what else the removal of a surge node does: it frees the system disk.
func (n surgeNode) remove(disks []cluster.Disk) {
	n.Why = "remove: it is there only during a roll; its system disk is freed, its VM and its Node are deleted"
	if n.Role == cluster.ControlPlane {
		n.Refused = append(n.Refused, "it has surge: true, and is a control plane: remove surge: true")
	}
	var other []string
	for _, d := range disks {
		made := d.Key == n.Wanted.SystemDisk || d.Key == "efidisk0" // see shape.Firmware
		if !d.CDROM && !d.CSI() && !made {
			other = append(other, d.Key)
		}
	}
	if len(other) > 0 {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM has %s beside its system disk, which a roll would not keep: remove surge: true and run recast remove %s, which parks all disks", strings.Join(other, ", "), n.Node))
	}
}

// workersOut returns how many workers that serve now the plan takes out.
func (p surging) workersOut() (out int) {
	for _, n := range p.Nodes {
		if n.Role == cluster.Worker && !n.Wanted.Surge && n.takenOut() && !n.staysUp() {
			out++
		}
	}
	return out
}

// workers counts the workers that were found, without surge nodes.
func workers(wanted []cluster.Wanted, o observe.Observation) (count int) {
	for i, f := range o.Found {
		if f.Machine != nil && !f.Machine.ControlPlane && !wanted[i].Surge {
			count++
		}
	}
	return count
}

// serving counts the workers that take pods now, without surge nodes.
func serving(wanted []cluster.Wanted, o observe.Observation) (count int) {
	for i, f := range o.Found {
		if f.Node != nil && !f.Node.ControlPlane && !wanted[i].Surge && f.Node.Ready && !f.Node.Unschedulable {
			count++
		}
	}
	return count
}

// doneBy says whether a run of the saved plan has made the surge node, or is about to remove it.
func (n surgeNode) doneBy(saved Plan, begun bool) bool {
	return begun && n.Wanted.Surge && saved.Surge.Has(n.Node) && len(n.Refused) == 0 && (n.Strategy == "" || n.Strategy.VM() == cluster.VMGone)
}

// SurgeStays says what to do about surge nodes that a roll has not removed.
func SurgeStays(nodes []string) string {
	return fmt.Sprintf("what is there of the surge nodes (%s) stays: the next recast roll goes on with it, and recast remove takes one away", strings.Join(nodes, ", "))
}

// foundSurge is a surge node of recast.yaml, as found.
type foundSurge struct {
	Name  string
	There bool // the node exists in the cluster
	Fits  bool // of a node that does not exist: nothing known prevents its creation
}

// surgeNeed is what determines the number of surge nodes.
type surgeNeed struct {
	Wanted  int // roll.surge, of all workers; 0: none
	Workers int // that serve now, without the surge nodes
	Out     int // of those, how many are taken out at a time; 0: none
}

// SurgePlan is what becomes of the surge nodes in a roll. Surge nodes are workers that recast.yaml marks with
// surge: true, and that exist only during a roll: made before the first worker is drained, and removed after the
// last one is back.
type SurgePlan struct {
	Nodes   []string `json:"nodes"`             // serve until the last worker is back, and are removed then
	Make    []string `json:"make,omitempty"`    // of these, those made before the first worker is drained
	Remove  []string `json:"remove,omitempty"`  // left over by an earlier roll, and removed at the end of this one
	Workers int      `json:"workers,omitempty"` // how many serve before the first is drained, without the surge nodes
	Least   int      `json:"least,omitempty"`   // how many serve at any time, with the surge nodes
}

// chooseSurge decides which of the nodes serve: those that exist already, then those that can be made, in the order
// of recast.yaml. Existing nodes that are not needed are removed. The error is for a roll.surge that asks for more
// nodes than there are; nil and no error: there is nothing to do.
func chooseSurge(nodes []foundSurge, need surgeNeed) (*SurgePlan, error) {
	p := &SurgePlan{Nodes: []string{}}
	if need.Wanted == 0 || need.Out == 0 {
		for _, n := range nodes {
			if n.There {
				p.Remove = append(p.Remove, n.Name)
			}
		}
		if len(p.Remove) == 0 {
			return nil, nil
		}
		return p, nil
	}
	for _, n := range nodes {
		if n.There {
			p.Nodes = append(p.Nodes, n.Name)
		}
	}
	for _, fits := range []bool{true, false} { // a node that does not fit shows in the plan, with the reason
		for _, n := range nodes {
			if !n.There && n.Fits == fits && len(p.Nodes) < need.Wanted {
				p.Nodes, p.Make = append(p.Nodes, n.Name), append(p.Make, n.Name)
			}
		}
	}
	if len(p.Nodes) < need.Wanted {
		return nil, tooFewSurge(need.Wanted, len(p.Nodes))
	}
	p.Workers = need.Workers
	p.Least = min(need.Workers, need.Workers+len(p.Nodes)-need.Out)
	return p, nil
}

// tooFewSurge is the error of a roll.surge that asks for more nodes than there are.
func tooFewSurge(wanted, nodes int) error {
	return fault.WithHint(fault.Configf("roll.surge asks for %d surge nodes, and this roll has %d", wanted, nodes),
		"add a worker with surge: true to nodes in recast.yaml, or lower roll.surge")
}

// Capacity says how many workers serve while others are away; "" if no surge node serves.
func (p *SurgePlan) Capacity() string {
	switch {
	case p == nil || len(p.Nodes) == 0:
		return ""
	case p.Least >= p.Workers && p.Workers == 1:
		return "never fewer than 1 worker serves"
	case p.Least >= p.Workers:
		return fmt.Sprintf("never fewer than %d workers serve", p.Workers)
	}
	return fmt.Sprintf("%d of %d workers serve at the least: roll.maxUnavailable takes out more than there are surge nodes", p.Least, p.Workers)
}

// Lines say in words what becomes of the surge nodes, in order of time.
func (p *SurgePlan) Lines() []string {
	if p == nil {
		return nil
	}
	var out []string
	if len(p.Make) > 0 {
		out = append(out, fmt.Sprintf("%s: made before the first worker is drained", strings.Join(p.Make, ", ")))
	}
	if len(p.Nodes) > 0 {
		out = append(out, p.Capacity())
		out = append(out, fmt.Sprintf("%s: removed, and the system disk freed, after the last worker is back", strings.Join(p.Nodes, ", ")))
	}
	if len(p.Remove) > 0 {
		out = append(out, fmt.Sprintf("%s: left over by an earlier roll; removed at the end, and the system disk freed", strings.Join(p.Remove, ", ")))
	}
	return out
}

// Has says whether the node serves during the roll.
func (p *SurgePlan) Has(node string) bool {
	return p != nil && slices.Contains(p.Nodes, node)
}
