package planning

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// takes returns how long the node holds its slots, as far as known.
func (n NodePlan) takes() time.Duration {
	return time.Duration(max(n.OutageSeconds, n.WholeSeconds)) * time.Second
}

// Estimate returns how long the plan is expected to take: nodes start in their order, each as soon as there is room.
func (p Plan) Estimate() time.Duration {
	var start, end time.Duration
	for rest := p.Batches; len(rest) > 0; start = end {
		together := 1
		for together < len(rest) && rest[together].Beside {
			together++
		}
		end = start + p.estimate(rest[:together])
		rest = rest[together:]
	}
	return end
}

// estimate returns how long batches take that are rolled at the same time.
func (p Plan) estimate(batches []Batch) (whole time.Duration) {
	room := maps.Clone(p.Room)
	if room == nil {
		room = map[string]int{}
	}
	queues := make([][]NodePlan, len(batches))
	for i, b := range batches {
		room[lane+string(b.Phase)] = b.Limit
		queues[i] = p.Of(b)
	}
	at := newTimeline(room)
	slots := func(i int) []string { return append(slices.Clone(queues[i][0].Slots), lane+string(batches[i].Phase)) }
	for {
		next := -1
		for i, q := range queues {
			if len(q) > 0 && (next < 0 || at.earliest(slots(i)) < at.earliest(slots(next))) {
				next = i
			}
		}
		if next < 0 {
			return whole
		}
		whole = max(whole, at.take(slots(next), queues[next][0].takes()))
		queues[next] = queues[next][1:]
	}
}

// spread orders the control planes, and the workers, among themselves; the node that recast runs on is
// the last of them.
func (p *Plan) spread() {
	for _, phase := range []Phase{ControlPlanes, Workers} {
		limit := 1
		if p.Bootstrap != "" {
			limit = len(p.Nodes)
		} else if phase == Workers {
			limit = max(1, p.MaxUnavailable)
		}
		var at []int
		var nodes []NodePlan
		for i, n := range p.Nodes {
			if n.Phase == phase && n.Strategy != "" {
				at, nodes = append(at, i), append(nodes, n)
			}
		}
		for i, n := range ownPodLast(spread(nodes, limit, p.PerHost)) {
			p.Nodes[at[i]] = n
		}
	}
}

// tellShared adds a note to nodes that are never out at the same time, with the reason.
func (p *Plan) tellShared() {
	by := map[cluster.VMID][]string{}
	for _, n := range p.Work() {
		for _, id := range n.holders() {
			by[id] = append(by[id], n.Node)
		}
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, id := range n.holders() {
			others := slices.DeleteFunc(slices.Clone(by[id]), func(name string) bool { return name == n.Node })
			if len(others) > 0 && n.Strategy != "" {
				n.Notes = append(n.Notes, fmt.Sprintf("VM %d owns disks of it and of %s: they are never out at the same time", id, strings.Join(others, ", ")))
			}
		}
	}
}

// lane is the slot that stands for the limit of a batch.
const lane = "lane"

func newTimeline(room map[string]int) *timeline {
	return &timeline{room: room, free: map[string][]time.Duration{}}
}

// spread orders the nodes of one batch so that as many are out at a time as its limit allows, despite the slots that
// they share. The next node is always the one that could start first if all were out for equally long; among equals,
// one on another Proxmox host than the node before it, then one on the host with the most nodes left, then the first.
func spread(nodes []NodePlan, limit, perHost int) []NodePlan {
	room := map[string]int{lane: limit}
	like := map[string][]NodePlan{} // in their order, by the slots that they hold
	toCome := map[string]int{}
	slots := map[string][]string{} // of each kind, and the lane
	var kinds []string
	for _, n := range nodes {
		room[hostSlot(n.Host)] = max(1, perHost)
		toCome[n.Host]++
		held := n.slots()
		kind := strings.Join(held, " ")
		if like[kind] == nil {
			kinds = append(kinds, kind)
			slots[kind] = append(held, lane)
		}
		like[kind] = append(like[kind], n)
	}
	at := newTimeline(room)
	var out []NodePlan
	for len(out) < len(nodes) {
		best := ""
		better := func(kind, than string) bool {
			if started := at.earliest(slots[kind]) - at.earliest(slots[than]); started != 0 {
				return started < 0
			}
			a, b := like[kind][0], like[than][0]
			if last := len(out) - 1; last >= 0 && (a.Host == out[last].Host) != (b.Host == out[last].Host) {
				return b.Host == out[last].Host
			}
			return toCome[a.Host] > toCome[b.Host]
		}
		for _, kind := range kinds {
			if len(like[kind]) > 0 && (best == "" || better(kind, best)) {
				best = kind
			}
		}
		next := like[best][0]
		like[best] = like[best][1:]
		toCome[next.Host]--
		at.take(slots[best], time.Minute)
		out = append(out, next)
	}
	return out
}

// timeline says when the slots of a plan are free again, each as often as it has room.
type timeline struct {
	room map[string]int
	free map[string][]time.Duration
}

// earliest returns when all these slots are free.
func (t *timeline) earliest(slots []string) time.Duration {
	var at time.Duration
	for _, name := range slots {
		at = max(at, slices.Min(t.slot(name)))
	}
	return at
}

func (t *timeline) slot(name string) []time.Duration {
	if t.free[name] == nil {
		t.free[name] = make([]time.Duration, max(1, t.room[name]))
	}
	return t.free[name]
}

// take occupies the slots for a duration, as soon as all of them are free.
func (t *timeline) take(slots []string, lasts time.Duration) (end time.Duration) {
	end = t.earliest(slots) + lasts
	for _, name := range slots {
		free := t.slot(name)
		free[slices.Index(free, slices.Min(free))] = end
	}
	return end
}

// heedOwnPod takes into account that recast may be a pod of the cluster: the node that recast runs on goes last,
// and no node goes without which Kubernetes could not start another such pod.
func heedOwnPod(p *Plan, o observe.Observation) {
	api := p.TakesAPIAway()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch out := n.takenOut(); {
		case n.Strategy == "" || n.Strategy.From() == cluster.Nowhere || n.staysUp() || !n.Resume && !out:
		case o.OwnPod.Err != nil && (out || o.Dark == nil): // otherwise the node is already out, and has to come back
			n.Refused = append(n.Refused, fmt.Sprintf("whether recast runs as a pod of this cluster, and on which node, is not known: %v: let the kubeconfig's user get that pod, or, where recast is no pod of this cluster, unset %s, %s and %s",
				o.OwnPod.Err, cluster.PodNamespaceVar, cluster.PodNameVar, cluster.PodUIDVar))
		case o.OwnPod.Node == "":
		case api && n.Role == cluster.ControlPlane:
			n.Refused = append(n.Refused, fmt.Sprintf("without it the Kubernetes API is down, and recast runs as a pod of this cluster, on %s: should that pod end meanwhile, nothing could start another one. Run recast from outside of the cluster: in a management cluster, in CI or on a workstation", o.OwnPod.Node))
		case n.Node == o.OwnPod.Node:
			n.OwnPod = true
			n.Notes = append(n.Notes, "recast runs on it as a pod, so it goes last, or at its place in a saved plan. Once every other pod has left, recast evicts its own pod and ends (exit 130); the pod that replaces it goes on with this node")
		}
	}
}

// ownPodLast moves the node that recast runs on behind the others.
func ownPodLast(nodes []NodePlan) []NodePlan {
	i := slices.IndexFunc(nodes, func(n NodePlan) bool { return n.OwnPod })
	if i < 0 {
		return nodes
	}
	own := nodes[i]
	return append(slices.Delete(slices.Clone(nodes), i, i+1), own)
}

// ownPodGoes says whether the plan takes out the node that recast runs on. No other node is out then: the run ends
// with its own pod, and would leave the other node as it is.
func ownPodGoes(p *Plan) bool {
	return slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.OwnPod })
}

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
