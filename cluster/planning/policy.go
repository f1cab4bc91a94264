package planning

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// OnlyTidies says whether the node runs the wanted build, and only leftovers are cleaned up while it stays up.
// Other differences are mended while the node runs, or not by this plan.
func (n NodePlan) OnlyTidies() bool {
	return n.Strategy.Upgrades() && n.Drift.Of(true, false, false).Tidy() && !stopsVM(n)
}

// takenOut says whether this plan takes out a node that is in service now.
func (n NodePlan) takenOut() bool {
	return !n.Resume && n.Strategy.From() == cluster.Serving && !n.OnlyTidies()
}

// AwaitOthers refuses the nodes that could not start because others are not Ready, except those that the plan
// itself brings back first.
func (p *Plan) AwaitOthers(o observe.Observation) {
	var before, left []string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy == "" {
			continue
		}
		before = append(before, n.Node)
		if !n.takenOut() {
			continue
		}
		if down := p.Heed.Down(o.Nodes, n.Role, func(name string) bool { return slices.Contains(before, name) }); len(down) > 0 {
			n.Refused = append(n.Refused, OthersDown+strings.Join(down, ", ")+": "+BringBack)
		}
	}
	for _, k := range o.Nodes {
		if why := p.Heed.Excuse(k); !k.Ready && why != "" && !slices.Contains(before, k.Name) {
			left = append(left, fmt.Sprintf("%s (%s)", k.Name, why))
		}
	}
	if len(before) > 0 && len(left) > 0 {
		p.Warn = append(p.Warn, "not Ready, which no worker waits for: "+strings.Join(left, ", "))
	}
}

// Check refuses names of nodes that do not exist: a typing error must not look like a roll with nothing to do.
func (p Policy) Check(wanted []cluster.Wanted) error {
	names := p.Heed(wanted).Known
	var problems []error
	named := slices.Concat(p.Only, p.Exclude)
	if p.Bootstrap != "" {
		named = append(named, p.Bootstrap)
	}
	for _, name := range named {
		if !slices.Contains(names, name) {
			problems = append(problems, fault.WithHint(fault.Configf("no node %q in the configuration%s", name, words.DidYouMean(name, names)),
				"the nodes are: %s", strings.Join(names, ", ")))
		}
	}
	return errors.Join(problems...)
}

func (p Policy) Heed(wanted []cluster.Wanted) Heed {
	return Heed{Ignore: p.IgnoreNodes, Known: cluster.Each(wanted, func(w cluster.Wanted) string { return w.Name })}
}

func (p Policy) Selects(node string) bool {
	return (len(p.Only) == 0 || slices.Contains(p.Only, node)) && !slices.Contains(p.Exclude, node)
}

// checkLabels is CheckLabels for the nodes of the configuration that were asked for.
func (p Policy) checkLabels(wanted []cluster.Wanted, o observe.Observation) error {
	var nodes []cluster.KubeNode
	for i, w := range wanted {
		if f := o.Found[i]; f.Node != nil && p.Selects(w.Name) {
			nodes = append(nodes, *f.Node)
		}
	}
	return p.CheckLabels(nodes)
}

// CheckLabels refuses a selector that matches none of the nodes, as Check refuses unknown names.
func (p Policy) CheckLabels(nodes []cluster.KubeNode) error {
	if p.Labels.Text == "" || slices.ContainsFunc(nodes, func(n cluster.KubeNode) bool { return p.Labels.Matches(n.Metadata.Labels) }) {
		return nil
	}
	return fault.WithHint(fault.Configf("no node of the configuration that was asked for has labels %q", p.Labels.Text),
		"kubectl get nodes -l '%s' shows which nodes do", p.Labels.Text)
}

// maxUnavailable is how many workers may be out at a time.
func (p Policy) maxUnavailable(wanted []cluster.Wanted, o observe.Observation) int {
	if p.MaxUnavailable == nil {
		return 1
	}
	return max(1, p.MaxUnavailable(workers(wanted, o)))
}

// picks says whether the node is selected. A node whose labels are unknown matches no label selector.
func (p Policy) picks(node string, f observe.Found) bool {
	if p.Labels.Text != "" && (f.Node == nil || !p.Labels.Matches(f.Node.Metadata.Labels)) {
		return false
	}
	return p.Selects(node)
}

// planInstallReset gives a machine that was reset its configuration back. Nothing is installed and no disk is changed:
// its system is still there, so Talos ignores the install disk of the configuration (v1alpha1_state.go, Installed).
func planInstallReset(n *NodePlan, o observe.Observation) {
	f := n.Found
	if f.Blank.Installable() || !f.ConfigKnown {
		n.Why = "it could not be read"
		return
	}
	if f.Node != nil && f.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	n.Resume, n.Strategy, n.EtcdKept = true, cluster.InstallReset, true
	n.Why = "it is in maintenance mode: it gets its configuration back, then everything is checked again"
	n.Notes = []string{fmt.Sprintf("the configuration goes to who answers at %s with the VM's UUID: its certificate's fingerprint is %s", f.Addr, f.Blank.Fingerprint)}
	n.Notes = append(n.Notes, f.FileHardlyCompared()...)
	if f.VM != nil {
		c := strategy.Candidate{Wanted: n.Wanted, VM: *f.VM, Found: f, Observation: o}
		n.Refused = append(n.Refused, cluster.Texts(c.Doubled())...)
	}
}

// planFallback decides, while the node still runs, whether its system disk may be replaced if the node does not
// come back from an in-place upgrade: Talos' own rollback can't be relied upon, another system disk can. The node
// would get the build that it runs now.
func planFallback(n *NodePlan, o observe.Observation, p Policy, system cluster.Disk, systemErr error) {
	if p.BootFailure != cluster.ReimageOnBootFailure || len(n.Refused) > 0 {
		return
	}
	n.IsWayBack = true
	w := n.Wanted
	w.Strategy = cluster.Reimage
	against := append(strategy.Decide(w, n.Found, o, system, systemErr).Refused, o.Hidden(*n.Found.VM)...)
	if n.Role == cluster.ControlPlane {
		onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
		refused, _ := strategy.EtcdRules(len(o.ControlPlanes()), onSystem, n.Found.Machine.TypeInit, cluster.Reimage, p.AcceptOutage)
		if err != nil {
			refused = append(refused, err.Error())
		}
		n.FallbackKept = !onSystem
		against = append(against, refused...)
	} else {
		n.FallbackKept = true
	}
	// The schematic is more precise than the lock's hash, which schematics with the same
	// extensions share; but it does not say what an image is for.
	m := *n.Found.Machine
	for _, b := range o.PastBuilds {
		if m.Schematic.LockHash() != "" && b.SchematicID == m.Schematic.ID && b.TalosVersion == m.TalosVersion && len(cluster.DiffTarget(b, m.RunningSystem)) == 0 && b.Installer != "" {
			n.Previous = &b
		}
	}
	if n.Previous != nil {
		_, o := cluster.BlankAddress(n.Found.Addr, *n.Found.VM, m, *n.Previous)
		if o.Text != "" && !slices.Contains(against, o.Text) {
			against = append(against, o.Text)
		}
	}
	if n.Previous == nil {
		against = append(against, "the build that it runs is in no past lock that is here")
	}
	if d := o.NewDisk(n.Wanted, n.Found.VM.Host, system); d != nil {
		for _, use := range observe.SpaceUses([]observe.NewDisk{*d}, o.Rooms) {
			against = append(against, slices.DeleteFunc(use.Lacks(1), func(lack string) bool { return lack == "" })...)
		}
	}
	if len(against) > 0 {
		n.Previous = nil
		n.Notes = append(n.Notes, "should it not come back, a reimage is not possible: "+strings.Join(against, "; "))
		return
	}
	n.Notes = append(n.Notes, fmt.Sprintf("should it not come back within the boot deadline, its system disk is parked and build %s, which it runs now, is installed on a blank one", words.Short(n.Previous.ID)))
	n.Add(system, true)
}

// Heed says which Nodes that are not Ready keep others from being taken out.
type Heed struct {
	Known  []string // the nodes of recast.yaml; empty: every Node counts
	Ignore []string // roll.ignoreNodes
}

// Down lists the Nodes that keep a node of that role from being taken out. A control plane that is not Ready keeps
// the other control planes in, even if it has an excuse.
func (h Heed) Down(nodes []cluster.KubeNode, role string, not func(name string) bool) []string {
	var down []string
	for _, k := range nodes {
		counts := h.Excuse(k) == "" || role == cluster.ControlPlane && k.ControlPlane
		if !k.Ready && counts && !not(k.Name) {
			down = append(down, k.Name)
		}
	}
	slices.Sort(down)
	return down
}

// Excuse says why a Node that is not Ready does not count; "" if it does count. A node that a person cordoned is
// excused; a node that recast has taken out is not.
func (h Heed) Excuse(k cluster.KubeNode) string {
	switch {
	case slices.Contains(h.Ignore, k.Name):
		return "in roll.ignoreNodes"
	case len(h.Known) > 0 && !slices.Contains(h.Known, k.Name):
		return "not in recast.yaml"
	case k.Unschedulable && k.Mark == nil:
		return "cordoned"
	}
	return ""
}

const (
	OthersDown = "other nodes are not Ready: "
	BringBack  = "bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes"
)

// Policy says how a roll proceeds.
type Policy struct {
	WorkersFirst   bool
	Canary         bool
	CanaryNode     string                // which node; "", or a node that does not change: a worker if there is one
	MaxUnavailable func(workers int) int // how many of so many workers may be out at a time; nil: 1
	WorkersBeside  bool                  // control planes and workers at the same time
	PerHost        int                   // nodes at a time on one Proxmox host; 0: 1
	AcceptOutage   bool                  // accepts an outage of etcd if there are only two control planes
	Surge          func(workers int) int // how many surge nodes serve while some of so many workers are out; nil: none
	SurgeEnds      bool                  // the workers are done: surge nodes are removed, and nothing else
	Reach          []netip.Addr          // the talosconfig's endpoints, for a removal
	Only           []string              // nodes to look at; empty: all
	Exactly        bool                  // Only names the surge nodes, too
	Exclude        []string
	Labels         cluster.Selector // of their Nodes
	BootFailure    cluster.BootFailure
	Reboot         cluster.Reboot // after upgrades in place; "": by kexec
	DrainDeletes   bool           // delete pods whose eviction is still refused at the end of a drain
	IgnoreNodes    []string       // nodes whose Nodes may be not Ready
	KeepDisks      int            // old system disks of a node that stay parked; 0: 1
	Rehearse       *Rehearsal     // nil: what the nodes will boot is not tried out before the first node goes
	What           []What         // the parts that are rolled; empty: all
	// Bootstrap is the control plane with which a cluster begins: only nodes that do not exist yet are created,
	// side by side. "": a roll.
	Bootstrap string
	// Rebuild is the SHA-256 of the snapshot with which a broken cluster begins again; "": it begins empty.
	Rebuild string
}

// What is a part of a node that a roll brings to its wanted state.
type What string

// The parts. A node that gets another image by recreate or reimage also gets its configuration.
const (
	Image  What = "image"
	Config What = "config"
	VM     What = "vm"
)

func (p Policy) does(w What) bool { return len(p.What) == 0 || slices.Contains(p.What, w) }

// of returns the part of a node's drift that is rolled.
func (p Policy) of(d observe.Drift) observe.Drift {
	return d.Of(p.does(Image), p.does(Config), p.does(VM))
}

// leaves says why a node stays as it is if it differs only in what is not rolled.
func (p Policy) leaves(d observe.Drift) string {
	only := cluster.Each(p.What, func(w What) string { return string(w) })
	asked := "which --what " + strings.Join(only, ",") + " leaves as it is"
	config, vm := !p.does(Config) && d.ConfigReason() != "", !p.does(VM) && d.IsShape()
	switch {
	case !p.does(Image) && d.Of(true, false, false).Rollable():
		return "its image is not as wanted, " + asked
	case config && vm:
		return "only its machine configuration and its VM differ, " + asked
	case vm:
		return "only its VM differs, " + asked
	}
	return "only its machine configuration differs, " + asked
}
