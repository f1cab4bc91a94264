package planning

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
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

func (p Plan) estimate(batches []Batch) (whole time.Duration) {
	room := map[string]int{}
	maps.Copy(room, p.Room)
	queues := make([][]NodePlan, len(batches))
	for i, b := range batches {
		room[lane+string(b.Phase)] = b.Limit
		queues[i] = p.Of(b)
	}
	at := &timeline{room: room, free: map[string][]time.Duration{}}
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

// spread orders the control planes, and the workers, among themselves; the node of recast's own pod goes last.
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
		nodes = spread(nodes, limit, p.PerHost)
		slices.SortStableFunc(nodes, func(a, b NodePlan) int { return cluster.TrueFirst(!a.OwnPod, !b.OwnPod) })
		for i, n := range nodes {
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

// spread orders the nodes of one batch so that as many are out at a time as its limit allows, despite the slots that
// they share. The next node is always the one that could start first if all were out for equally long; among equals,
// one on another Proxmox host than the node before it, then one on the host with the most nodes left, then the first.
func spread(nodes []NodePlan, limit, perHost int) (out []NodePlan) {
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
	at := &timeline{room: room, free: map[string][]time.Duration{}}
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

func (t *timeline) earliest(slots []string) (at time.Duration) {
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

func (t *timeline) take(slots []string, lasts time.Duration) (end time.Duration) {
	end = t.earliest(slots) + lasts
	for _, name := range slots {
		free := t.slot(name)
		free[slices.Index(free, slices.Min(free))] = end
	}
	return end
}

// heedOwnPod has the node of recast's own pod go last, and none without which no such pod could be started.
func heedOwnPod(p *Plan, o observe.Observation) {
	api := p.TakesAPIAway()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch out := n.takenOut(); {
		case n.Strategy == "" || n.Strategy.From() == cluster.Nowhere || n.staysUp() || !n.Resume && !out:
		case o.OwnPod.Err != nil && (out || o.Dark == nil): // otherwise the node is already out, and has to come back
			n.Refused = append(n.Refused, fmt.Sprintf("whether recast runs as a pod of this cluster, and on which node, is not known: %v: let the kubeconfig's user get that pod, or, where recast is not a pod of this cluster, unset %s, %s and %s",
				o.OwnPod.Err, cluster.PodNamespaceVar, cluster.PodNameVar, cluster.PodUIDVar))
		case o.OwnPod.Node == "":
		case api && n.Role == cluster.ControlPlane:
			n.Refused = append(n.Refused, fmt.Sprintf("without it the Kubernetes API is down, and recast runs as a pod of this cluster, on %s: should that pod end meanwhile, nothing could start another one. Run recast from outside of the cluster: in a management cluster, in CI or on a workstation", o.OwnPod.Node))
		case n.Node == o.OwnPod.Node:
			n.OwnPod = true
			n.Notes = append(n.Notes, "recast runs on it as a pod, so it goes last, or at its place in a saved plan. Once every other pod has left, recast evicts its own pod and ends (exit 130); the pod that replaces it continues with this node")
		}
	}
}

// holders returns the VMs that own disks of the node: the configured one, and owners of disks that its VM has or had.
func (n NodePlan) holders() []cluster.VMID {
	ids := []cluster.VMID{n.Wanted.Holder}
	if vm := n.Found.VM; vm != nil {
		disks, _ := vm.Disks() // an unreadable one is refused elsewhere
		for _, d := range disks {
			if !d.CDROM && !d.CSI() && d.Owner != vm.ID {
				ids = append(ids, d.Owner)
			}
		}
	}
	if park := n.Found.Parking; park != nil {
		ids = append(ids, cluster.Each(park.Record.Disks, func(d parking.ParkedDisk) cluster.VMID { return d.Holder })...)
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id cluster.VMID) bool { return id == 0 })
}

// slots returns what a node holds while it is out. Nodes that share a slot for one are never out together.
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
	// While the own node is out, no other is: the run ends with its own pod, and would leave the other node as it is.
	ownPodGoes := slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.OwnPod })
	beside := p.WorkersBeside && !p.TakesAPIAway() && !ownPodGoes
	if p.Bootstrap != "" && slices.Contains(both, phase) {
		b.Limit, beside = len(p.Nodes), true // nobody depends on a node that does not exist yet
	}
	if last := len(p.Batches) - 1; beside && last >= 0 {
		b.Beside = slices.Contains(both, phase) && slices.Contains(both, p.Batches[last].Phase)
	}
	return b
}

// initiatorSlot is of nodes that get another name for volume servers: the next goes once the last's volumes are back.
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

// begun says whether an earlier run left the node cordoned. The node is already out: no other goes first.
func (n *NodePlan) begun() bool {
	return n.Strategy != "" && n.Found.Node != nil && n.Found.Node.Mark != nil
}

// Order gives every node its phase and sorts by it, in the order of the configuration but for what spread changes.
func (p *Plan) Order(policy Policy) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch {
		case n.Strategy.From() == cluster.Blank:
			n.Phase = Reset
		case n.Resume, n.begun():
			n.Phase = Unfinished
		case n.Wanted.Surge && n.Strategy.From() == cluster.Nowhere:
			n.Phase = Surge
		case n.Wanted.Surge && n.Strategy.VM() == cluster.VMGone:
			n.Phase = SurgeEnd
		case n.Bootstraps:
			n.Phase = First
		case n.Role == cluster.ControlPlane:
			n.Phase = ControlPlanes
		default:
			n.Phase = Workers
		}
	}
	if policy.Canary {
		p.pickCanary(policy.CanaryNode)
	}
	p.chooseReboots(policy.Reboot, policy.CanaryNode)
	order := phases
	if policy.WorkersFirst {
		order = []Phase{Unfinished, Reset, First, Surge, Canary, Workers, ControlPlanes, SurgeEnd}
	}
	slices.SortStableFunc(p.Nodes, func(a, b NodePlan) int { return slices.Index(order, a.Phase) - slices.Index(order, b.Phase) })
	p.spread()
}

// Unfinished returns what an earlier run left, or else the reset machines: nothing can be relied upon before that.
func (p Plan) Unfinished() (Plan, bool) {
	if p.Run == "" && slices.ContainsFunc(p.Nodes, takesAway) {
		return p, true // everything is planned again after that
	}
	if p.Run == "" && !slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.Strategy.From() == cluster.Blank }) {
		return p, false
	}
	p.Nodes, p.Surge = slices.DeleteFunc(slices.Clone(p.Nodes), func(n NodePlan) bool { return !n.Resume || n.Run != p.Run }), nil
	p.Arrange()
	p.Trials = nil // those nodes are already out
	return p, true
}

func (p Plan) Work() []NodePlan {
	return cluster.Where(p.Nodes, func(n NodePlan) bool { return n.Strategy != "" })
}

// pickCanary sends one node ahead if several nodes change, to a build that no node has booted, or to a configuration or
// a VM with which no node has run: the named, or else a worker, the least loss, and rather none with recast on it.
func (p *Plan) pickCanary(named string) {
	booted := map[string]bool{} // builds that a node runs, or is about to
	changing := 0
	for _, n := range p.Nodes {
		switch {
		case n.Paused != "" || n.Wanted.Surge:
		case n.Strategy == "" && n.Found.Machine != nil, n.Resume, n.OnlyTidies():
			booted[n.Wanted.Build.ID] = true
		case n.Strategy != "" && n.Strategy.From() != cluster.Nowhere:
			changing++
		}
	}
	pick := -1
	for i, n := range p.Nodes {
		if n.Paused != "" || n.Wanted.Surge || n.Strategy == "" || n.Strategy.From() == cluster.Nowhere || n.Phase == Unfinished || booted[n.Wanted.Build.ID] && !n.Strategy.KeepsImage() {
			continue
		}
		switch {
		case pick >= 0 && p.Nodes[pick].Node == named:
		case pick < 0, n.Node == named, p.Nodes[pick].Role == cluster.ControlPlane && n.Role == cluster.Worker, p.Nodes[pick].OwnPod && n.Role == p.Nodes[pick].Role:
			pick = i
		}
	}
	if pick >= 0 && changing > 1 {
		p.Nodes[pick].Phase = Canary
	}
}

// Phase is a part of a roll that ends before the next begins.
type Phase string

// The phases of a roll. If workers go first, they change places with the control planes.
const (
	Unfinished    Phase = "unfinished" // nodes that an earlier run left
	Reset         Phase = "reset"      // machines that someone has reset
	First         Phase = "first"      // the control plane with which the cluster begins
	Surge         Phase = "surge"      // surge nodes that are made
	Canary        Phase = "canary"     // one node ahead, because none runs the new build or configuration yet
	ControlPlanes Phase = "control-planes"
	Workers       Phase = "workers"
	SurgeEnd      Phase = "surge-end" // surge nodes that are removed
)

var phases = []Phase{Unfinished, Reset, First, Surge, Canary, ControlPlanes, Workers, SurgeEnd}

func StepPath(p Phase, node string) string { return "roll/" + string(p) + "/" + node }

// NodeOfStep finds the node in a step's path, and the steps of the path below the node's own step. Steps for hosts,
// scratch VMs or a whole phase have no node: the ID of the last kind has an underscore, which no node name has.
func NodeOfStep(path string) (phase Phase, node string, below []string) {
	parts := strings.Split(path, "/")
	if len(parts) < 3 || parts[0] != "roll" || strings.Contains(parts[2], "_") || !slices.Contains(phases, Phase(parts[1])) {
		return "", "", nil
	}
	return Phase(parts[1]), parts[2], parts[3:]
}

func (p Plan) Title(b Batch) string {
	switch nodes := len(b.Nodes); {
	case b.Phase == Unfinished:
		return "finish what an earlier run left"
	case b.Phase == Reset:
		return "give machines that were reset their configuration back"
	case b.Phase == First:
		return BeginsTitle
	case b.Phase == Surge:
		return SurgeTitle
	case b.Phase == SurgeEnd:
		return SurgeEndTitle
	case b.Phase == Canary:
		return CanaryTitle(p)
	case b.Phase == ControlPlanes && nodes == 1:
		return "one control plane"
	case b.Phase == ControlPlanes && p.Bootstrap != "":
		return fmt.Sprintf("%d control planes", nodes)
	case b.Phase == ControlPlanes:
		return fmt.Sprintf("%d control planes, one at a time", nodes)
	case nodes == 1:
		return "one worker"
	case p.Bootstrap != "":
		return fmt.Sprintf("%d workers", nodes)
	default:
		return fmt.Sprintf("%d workers, at most %d at a time", nodes, b.Limit)
	}
}

// The titles of phases.
const (
	SurgeTitle    = "surge nodes, made before the first worker is drained"
	SurgeEndTitle = "surge nodes, removed after the last worker is back"
	BeginsTitle   = "the control plane with which the cluster begins" // it is made alone
)

// CanaryTitle says why one node of a plan goes first, or one of each image.
func CanaryTitle(p Plan) string {
	canaries := p.Of(Batch{Phase: Canary})
	if len(canaries) > 1 {
		return fmt.Sprintf("%d nodes first, one at a time, since none of their images has been booted yet", len(canaries))
	}
	for _, n := range canaries {
		switch {
		case n.Reboot == cluster.ByFirmware:
			return "one node first, since none has booted the new build through the firmware yet"
		case n.Phase == Canary && n.Strategy.KeepsImage():
			return "one node first, since " + n.Strategy.Words().First
		}
	}
	return "one node first, since none runs the new build yet"
}

// preparedOutage saves the 63 s of a boot from the ISO's menu, the pull and the installation, and a second boot.
const preparedOutage = 3 * time.Minute

// longOutage is shortly before Longhorn rebuilds replicas, after 10 minutes (replica-replenishment-wait-interval).
const longOutage = 8 * time.Minute

// Estimate expects the median of the node's latest rolls by this strategy, or of its role's, or the assumed value.
func (n *NodePlan) Estimate(past []cluster.Took) {
	n.OutageSeconds, n.WholeSeconds, n.OutageFrom = int(n.Strategy.Outage().Seconds()), 0, ""
	if n.Prepared != "" {
		n.OutageSeconds = int(preparedOutage.Seconds())
	}
	if n.Strategy == "" || n.Resume {
		return // how long the rest of an unfinished roll takes is unknown
	}
	n.OutageFrom = "assumed"
	if n.staysUp() {
		n.OutageSeconds, n.OutageFrom = 0, "it needs no reboot"
		return
	}
	for _, of := range n.Peers() {
		var outages, wholes []int
		for _, t := range past {
			stayedUp := t.OutageSeconds == 0 && t.Strategy.KeepsImage()
			if t.Strategy == n.Strategy && !stayedUp && of.Like(t) && len(outages) < Lately {
				outages, wholes = append(outages, t.OutageSeconds), append(wholes, t.WholeSeconds)
			}
		}
		if count := len(outages); count > 0 {
			n.OutageSeconds, n.WholeSeconds = Median(outages), Median(wholes)
			n.OutageFrom = EarlierRolls(count, of.Who)
			return
		}
	}
}

func (n NodePlan) Peers() []peers {
	return []peers{
		{"it", func(t cluster.Took) bool { return t.Node == n.Node }},
		{n.Role + "s", func(t cluster.Took) bool { return t.Role == n.Role }},
	}
}

// peers are nodes whose earlier rolls predict this node's, the best first.
type peers struct {
	Who  string
	Like func(cluster.Took) bool
}

// Lately is how many earlier rolls an estimate is made from.
const Lately = 5

// Median returns the middle value; of two the larger.
func Median(values []int) int {
	slices.Sort(values)
	return values[len(values)/2]
}

func EarlierRolls(rolls int, who string) string {
	if rolls == 1 {
		return "an earlier roll of " + who
	}
	return fmt.Sprintf("%d earlier rolls of %s", rolls, who)
}

// HookRun is how one hook fared.
type HookRun struct {
	Point       cluster.HookPoint `json:"point"`
	Batch       Phase             `json:"batch,omitempty"`
	Node        string            `json:"node,omitempty"`
	Description string            `json:"description,omitempty"`
	Command     []string          `json:"command"`
	Started     time.Time         `json:"started"`
	Seconds     float64           `json:"seconds"`
	Exit        *int              `json:"exit,omitempty"`   // nil: it could not be run, or not to its end
	Error       string            `json:"error,omitempty"`  // "": it ended with 0
	Output      string            `json:"output,omitempty"` // the end of what it printed
}

// TakePulse checks once. A server that does not answer is no error: its part stays unknown.
func (p Plan) TakePulse(ctx context.Context, kube cluster.NodeReader, talos cluster.EtcdReader) (pulse Pulse) {
	if nodes, err := kube.Nodes(ctx); err == nil {
		pulse.Kubernetes, pulse.Nodes = true, len(nodes)
		for _, k := range nodes {
			if !k.Ready {
				pulse.NotReady = append(pulse.NotReady, k.Name)
			}
		}
		slices.Sort(pulse.NotReady)
	}
	if v, err := etcd.Look(ctx, talos, p.ControlPlanes); err == nil {
		pulse.Etcd, pulse.Members = true, len(v.Members)
		for _, m := range v.Members {
			if s, known := v.Statuses[m.ID]; !known || m.Learner || s.Learner || s.Leader == 0 {
				pulse.Unwell = append(pulse.Unwell, m.Label())
			}
		}
		slices.Sort(pulse.Unwell)
	}
	return pulse
}

// Pulse is how Kubernetes and etcd stood at one moment of a run.
type Pulse struct {
	Kubernetes bool     // its API answered; otherwise nothing is known about Nodes
	Nodes      int      // Node objects
	NotReady   []string // names of Nodes, sorted
	Etcd       bool     // a control plane listed the members; otherwise nothing is known about them
	Members    int
	Unwell     []string // members that do not answer, do not vote or know no leader, by name, sorted
}

func (p Pulse) Ready() int { return p.Nodes - len(p.NotReady) }
func (p Pulse) Well() int  { return p.Members - len(p.Unwell) }

// The time between two checks of the cluster, as a multiple of roll.poll, and longer for many Nodes.
const (
	pulseEvery   = 5
	nodesPerPoll = 10
)

// lastLook is how long the end of a run waits for the last check.
const lastLook = 3 * time.Second

// WatchPulse checks Kubernetes and etcd now and then, and calls pulsed, if any. It delays only the end of the run.
func WatchPulse(ctx context.Context, p Plan, poll time.Duration, kube cluster.NodeReader, talos cluster.EtcdReader, pulsed func(Pulse)) (unwatch func()) {
	if pulsed == nil {
		return func() {}
	}
	every := max(pulseEvery*poll, time.Duration(len(p.Nodes))*poll/nodesPerPoll)
	look := func(ctx context.Context, timeout time.Duration) {
		within, done := context.WithTimeout(ctx, timeout)
		defer done()
		if seen := p.TakePulse(within, kube, talos); ctx.Err() == nil {
			pulsed(seen)
		}
	}
	meanwhile, cancel := context.WithCancel(ctx)
	var under sync.WaitGroup
	under.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			look(meanwhile, every)
			select {
			case <-meanwhile.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		under.Wait()
		look(ctx, lastLook)
	}
}

// picksSurge says whether the roll may use this surge node: surge nodes belong to no selection, but can be left out.
func (p Policy) picksSurge(node string) bool {
	return !slices.Contains(p.Exclude, node) && (!p.Exactly || slices.Contains(p.Only, node))
}

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

func (p surging) decide() (err error) {
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

func (p surging) workersOut() int {
	return len(cluster.Where(p.Nodes, func(n NodePlan) bool {
		return n.Role == cluster.Worker && !n.Wanted.Surge && n.takenOut() && !n.staysUp()
	}))
}

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
	return fmt.Sprintf("what is there of the surge nodes (%s) stays: the next recast roll continues with it, and recast remove takes one away", strings.Join(nodes, ", "))
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

// SurgePlan is what becomes of the surge nodes in a roll. Surge nodes are workers with surge: true that exist only
// during a roll, from before the first worker is drained to after the last is back.
type SurgePlan struct {
	Nodes   []string `json:"nodes"`             // serve until the last worker is back, and are removed then
	Make    []string `json:"make,omitempty"`    // of these, those made before the first worker is drained
	Remove  []string `json:"remove,omitempty"`  // left over by an earlier roll, and removed at the end of this one
	Workers int      `json:"workers,omitempty"` // how many serve before the first is drained, without the surge nodes
	Least   int      `json:"least,omitempty"`   // how many serve at any time, with the surge nodes
}

// chooseSurge decides which of the nodes serve: those that exist already, then those that can be made, in the order of
// recast.yaml. Others that exist are removed. The error: roll.surge asks for too many; nil without one: nothing to do.
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
		return nil, fault.WithHint(fault.Configf("roll.surge asks for %d surge nodes, and this roll has %d", need.Wanted, len(p.Nodes)),
			"add a worker with surge: true to nodes in recast.yaml, or lower roll.surge")
	}
	p.Workers = need.Workers
	p.Least = min(need.Workers, need.Workers+len(p.Nodes)-need.Out)
	return p, nil
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
	return fmt.Sprintf("at least %d of %d workers serve: roll.maxUnavailable takes out more than there are surge nodes", p.Least, p.Workers)
}

func (p *SurgePlan) Lines() (out []string) {
	if p == nil {
		return nil
	}
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

func (p *SurgePlan) Has(node string) bool { return p != nil && slices.Contains(p.Nodes, node) }
