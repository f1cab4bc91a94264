package planning

import (
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// holders returns the VMs that own disks of the node, sorted: the configured holder, and the owners of the disks
// that the node's VM has, or had when it was taken down.
func (n NodePlan) holders() []cluster.VMID {
	ids := map[cluster.VMID]bool{}
	if n.Wanted.Holder != 0 {
		ids[n.Wanted.Holder] = true
	}
	if vm := n.Found.VM; vm != nil {
		disks, _ := vm.Disks() // an unreadable one is refused elsewhere
		for _, d := range disks {
			if !d.CDROM && !d.CSI() && d.Owner != 0 && d.Owner != vm.ID {
				ids[d.Owner] = true
			}
		}
	}
	if park := n.Found.Parking; park != nil {
		for _, d := range park.Record.Disks {
			if d.Holder != 0 {
				ids[d.Holder] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// slots returns what a node holds while it is out. Nodes that share a slot with room for one are never out at the
// same time.
func (n NodePlan) slots() []string {
	slots := []string{hostSlot(n.Host)}
	if n.Role == cluster.ControlPlane {
		slots = append(slots, cluster.ControlPlane)
	}
	if len(n.Initiators) > 0 {
		slots = append(slots, initiatorSlot)
	}
	for _, id := range n.holders() {
		slots = append(slots, fmt.Sprintf("holder/%d", id))
	}
	slices.Sort(slots)
	return slots
}

// Arrange puts the nodes that change into batches, and gives each node the slots that it holds while it is out.
func (p *Plan) Arrange() {
	p.Batches, p.Room = nil, map[string]int{cluster.ControlPlane: 1}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Slots = nil; n.Strategy == "" {
			continue
		}
		n.Slots = n.slots()
		for _, slot := range n.Slots {
			p.Room[slot] = 1
		}
		p.Room[hostSlot(n.Host)] = max(1, p.PerHost)
		if p.Bootstrap != "" && n.Phase != Unfinished {
			p.Room[cluster.ControlPlane] = len(p.Nodes) // etcd itself takes them in one after the other
		}
		if last := len(p.Batches) - 1; last < 0 || p.Batches[last].Phase != n.Phase {
			p.Batches = append(p.Batches, p.batch(n.Phase))
		}
		b := &p.Batches[len(p.Batches)-1]
		b.Nodes = append(b.Nodes, n.Node)
	}
	p.TotalSeconds = int(p.Estimate().Seconds())
	if p.Surge != nil {
		p.TotalSeconds += len(p.Surge.Nodes) * int(cluster.Remove.Outage().Seconds())
	}
}

// Of returns the nodes of a batch.
func (p Plan) Of(b Batch) []NodePlan {
	return slices.DeleteFunc(slices.Clone(p.Nodes), func(n NodePlan) bool { return n.Phase != b.Phase || n.Strategy == "" })
}

// Slots says how many steps may hold a slot of this plan at the same time, for step.Runner.
func (p Plan) Slots() map[string]int { return p.Room }

func (p *Plan) batch(phase Phase) Batch {
	b := Batch{Phase: phase, Limit: 1}
	if phase == Workers {
		b.Limit = max(1, p.MaxUnavailable)
	}
	if phase == Surge { // nothing depends yet on a node that does not exist
		b.Limit = max(1, len(p.Nodes))
	}
	both := []Phase{ControlPlanes, Workers}
	beside := p.WorkersBeside && !p.TakesAPIAway() && !ownPodGoes(p)
	if p.Bootstrap != "" && slices.Contains(both, phase) {
		b.Limit, beside = len(p.Nodes), true // nobody depends on a node that does not exist yet
	}
	if last := len(p.Batches) - 1; beside && last >= 0 {
		b.Beside = slices.Contains(both, phase) && slices.Contains(both, p.Batches[last].Phase)
	}
	return b
}

// initiatorSlot is held by nodes that get another name for servers of volumes: the next node goes once the volumes
// of the last one are back.
const initiatorSlot = "initiator"

func hostSlot(host string) string { return "host/" + host }

// Batch is a part of a plan that ends before the next begins: its nodes in their order, each as soon as the limit
// and its slots allow.
type Batch struct {
	Phase  Phase    `json:"phase"`
	Nodes  []string `json:"nodes"`
	Limit  int      `json:"limit"`            // how many of the nodes are out at a time
	Beside bool     `json:"beside,omitempty"` // rolled at the same time as the batch before it
}
