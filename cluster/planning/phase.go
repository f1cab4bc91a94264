package planning

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// begun says whether an earlier run left the node cordoned. The node is already out: no other goes first.
func (n *NodePlan) begun() bool {
	return n.Strategy != "" && n.Found.Node != nil && n.Found.Node.Mark != nil
}

// Order gives every node its phase and sorts by it. Each phase keeps the order of the
// configuration, except for what spread changes.
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
	order := []Phase{Unfinished, Reset, First, Surge, Canary, ControlPlanes, Workers, SurgeEnd}
	if policy.WorkersFirst {
		order = []Phase{Unfinished, Reset, First, Surge, Canary, Workers, ControlPlanes, SurgeEnd}
	}
	slices.SortStableFunc(p.Nodes, func(a, b NodePlan) int { return slices.Index(order, a.Phase) - slices.Index(order, b.Phase) })
	p.spread()
}

// Unfinished returns the part of the plan that an earlier run left: that of one run, or else the machines that were
// reset. Nothing else can be relied upon before that part is done.
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

// Work lists the nodes that will be changed.
func (p Plan) Work() []NodePlan {
	return cluster.Where(p.Nodes, func(n NodePlan) bool { return n.Strategy != "" })
}

// pickCanary sends one node ahead if several nodes change, to a build that no node has booted, or to a
// configuration or a VM with which no node has run: the named node, or else a worker if there is one, since a
// worker is the least loss, and rather a node that recast does not run on.
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

// StepPath is the path of a node's step.
func StepPath(p Phase, node string) string { return "roll/" + string(p) + "/" + node }

// NodeOfStep finds the node in a step's path, and the steps of the path below the node's own step. Steps for hosts,
// scratch VMs or a whole phase have no node: the ID of the last kind has an underscore, which no node name has.
func NodeOfStep(path string) (phase Phase, node string, below []string) {
	parts := strings.Split(path, "/")
	if len(parts) < 3 || parts[0] != "roll" || strings.Contains(parts[2], "_") {
		return "", "", nil
	}
	switch phase := Phase(parts[1]); phase {
	case Unfinished, Reset, First, Surge, Canary, ControlPlanes, Workers, SurgeEnd:
		return phase, parts[2], parts[3:]
	default:
		return "", "", nil
	}
}

// Title names a batch of the plan.
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

// The titles of the phases of surge nodes.
const (
	SurgeTitle    = "surge nodes, made before the first worker is drained"
	SurgeEndTitle = "surge nodes, removed after the last worker is back"
)

// BeginsTitle says why the control plane that the cluster begins with is made alone.
const BeginsTitle = "the control plane with which the cluster begins"

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

// preparedOutage is the outage of a node whose new system disk was prepared: without the 63 s of a boot from the
// ISO's menu, the pull and the installation, and a second boot.
const preparedOutage = 3 * time.Minute

// longOutage is shortly before storage systems begin to rebuild replicas: Longhorn does after 10 minutes
// (replica-replenishment-wait-interval).
const longOutage = 8 * time.Minute

// Estimate expects the median of the node's latest rolls by the same strategy, or else that of other nodes of its
// role, or else the assumed value.
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

// EarlierRolls says, in words, how many rolls an estimate is based on.
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
