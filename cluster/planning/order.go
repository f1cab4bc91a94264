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

// Estimate returns how long the plan is expected to take: nodes start in their order, each as soon as there is
// room.
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

// spread orders the nodes of one batch so that as many are out at a time as its limit allows, despite the slots
// that they share. The next node is always the one that could start first if all were out for equally long; among
// equals, one on another Proxmox host than the node before it, then one on the host with the most nodes left, then
// the first.
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
