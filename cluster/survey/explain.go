package survey

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Explanation is all that there is to say about one node of a plan.
type Explanation struct {
	Cluster string `json:"cluster"`
	PlanID  string `json:"planId,omitempty"`
	// Turn is the node's place among the nodes that the plan changes, from 1 on; 0: the plan does not change it.
	Turn int `json:"turn,omitempty"`
	Of   int `json:"of"`
	// Batch is the batch in which the node is rolled; nil: the plan does not change the node.
	Batch      *planning.Batch   `json:"batch,omitempty"`
	Plan       planning.NodePlan `json:"plan"`                 // as recast plan has it
	Compared   []Comparison      `json:"compared,omitempty"`   // what is wanted beside what was found; none if that could not be read
	Asked      cluster.Strategy  `json:"asked"`                // the strategy that the configuration asks for
	Strategies []StrategyChoice  `json:"strategies,omitempty"` // in auto's order; none if the roll has begun or the node could not be read
	Disks      []DiskFate        `json:"disks,omitempty"`
	Steps      []StepOutline     `json:"steps,omitempty"` // what a roll does to it, in this order
}

// Comparison is one property of a node as it is wanted and as it was found.
type Comparison struct {
	What   string `json:"what"`            // for people: "Talos", "extension iscsi-tools"
	Found  string `json:"found,omitempty"` // "": nothing of the kind, or it can't be determined
	Wanted string `json:"wanted,omitempty"`
	Same   bool   `json:"same"`
}

// StrategyChoice is what speaks against bringing the node up to date in one way.
type StrategyChoice struct {
	Strategy cluster.Strategy `json:"strategy"`
	Taken    bool             `json:"taken"`
	Against  []string         `json:"against,omitempty"` // none: it is possible
	WillLose []string         `json:"willLose,omitempty"`
}

// DiskFate is one drive of the node's VM and what a roll does with it.
type DiskFate struct {
	planning.DiskPlan
	Owner cluster.VMID `json:"owner,omitempty"` // the VM whose number the volume carries; 0: none
	Fate  Fate         `json:"fate"`
	Does  string       `json:"does"` // the same for people
}

// Fate is what becomes of a drive.
type Fate string

// The fates of drives.
const (
	FateStays    Fate = "stays"    // on the VM as it is, untouched
	FateCarried  Fate = "carried"  // parked meanwhile, and attached again
	FateDetached Fate = "detached" // stays with its owner, and is attached again
	FateReplaced Fate = "replaced" // parked and kept; a blank one takes its place
	FateBack     Fate = "back"     // comes back from the parking VM
	FatePods     Fate = "pods"     // goes and comes with its pod
	FateMedium   Fate = "medium"   // a CD drive
)

// StepOutline is one step of a roll before anything was done.
type StepOutline struct {
	Path  string `json:"path"` // below the node's own: "take-down/drain"
	Title string `json:"title"`
	Risk  string `json:"risk"` // "safe", "disruptive", "destructive"
	// Seconds is the median of what the step took in earlier rolls.
	Seconds int `json:"seconds,omitempty"`
	// SecondsFrom says where Seconds comes from: "3 earlier rolls of it"; "": Seconds is not known.
	SecondsFrom string `json:"secondsFrom,omitempty"`
	// TimeoutSeconds is how long the step waits at most; 0: it does not wait, or has no limit.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
}

// Explain explains one node of a plan that was made from this observation.
func Explain(ctx context.Context, p planning.Plan, node string, o observe.Observation, past cluster.History, t cluster.Timing) (Explanation, error) {
	i := slices.IndexFunc(p.Nodes, func(n planning.NodePlan) bool { return n.Node == node })
	if i < 0 {
		return Explanation{}, fault.WithHint(fault.Configf("node %s is not in this plan", node), "recast plan lists its nodes; --only, --exclude and --selector leave some out")
	}
	n := p.Nodes[i]
	e := Explanation{
		Cluster: p.Cluster, PlanID: p.ID, Of: len(p.Work()), Plan: n,
		Compared: compareNode(n, o, past), Asked: n.Wanted.Strategy, Strategies: weigh(n, o, p.AcceptOutage), Disks: fatesOf(n), Steps: outlineOf(ctx, p, n, o, t),
	}
	if n.Strategy != "" {
		e.Turn = 1 + slices.IndexFunc(p.Work(), func(w planning.NodePlan) bool { return w.Node == node })
		if b := slices.IndexFunc(p.Batches, func(b planning.Batch) bool { return slices.Contains(b.Nodes, node) }); b >= 0 {
			e.Batch = &p.Batches[b]
		}
	}
	return e, nil
}

// weigh lists for each strategy what forbids it or, for a node that is up to date, what would forbid it if the node
// were stale. One that has begun has no choice: it is finished as it began.
func weigh(n planning.NodePlan, o observe.Observation, acceptOutage bool) (out []StrategyChoice) {
	if n.Resume || n.Found.VM == nil || n.Found.Machine == nil {
		return nil
	}
	system, systemErr := cluster.ProveSystemDisk(*n.Found.VM, *n.Found.Machine, n.Wanted.SystemDisk)
	against := assess(n.Wanted, n.Found, o, planning.Policy{AcceptOutage: acceptOutage}).Against
	for _, s := range cluster.Strategies {
		w := n.Wanted
		w.Strategy = s
		choice := StrategyChoice{Strategy: s, Taken: s == n.Strategy, Against: against[s], WillLose: strategy.Decide(w, n.Found, o, system, systemErr).WillLose}
		if !s.KeepsVM() {
			choice.Against = append(choice.Against, o.Hidden(*n.Found.VM)...)
		}
		out = append(out, choice)
	}
	return out
}

func fatesOf(n planning.NodePlan) (out []DiskFate) {
	vm := n.Found.VM
	if n.Resume && n.System != nil || vm == nil {
		return fatesOfRecord(n)
	}
	disks, err := vm.Disks()
	if err != nil {
		return nil // already a refusal
	}
	for _, d := range disks {
		f := DiskFate{DiskPlan: planning.DiskPlan{Key: d.Key, Serial: d.Option("serial"), Volid: d.Volid, Size: d.Option("size")}, Owner: d.Owner}
		f.Fate, f.Does = fateOf(n, d)
		if n.System != nil && n.System.Key == d.Key {
			f.NewSize = n.System.NewSize
		}
		out = append(out, f)
	}
	return out
}

func fateOf(n planning.NodePlan, d cluster.Disk) (Fate, string) {
	replaces := n.Strategy.Replaces()
	system := n.System != nil && n.System.Key == d.Key
	switch {
	case d.CSI():
		return FatePods, "a pod's: it leaves with the drain, and follows its pod"
	case d.CloudInit() && n.Strategy.VM() == cluster.VMAgain:
		return FateMedium, "Proxmox's own: generated again with the VM"
	case d.CDROM && replaces:
		return FateMedium, "a CD drive; the boot ISO may take it meanwhile"
	case d.CDROM:
		return FateMedium, "a CD drive"
	case system && replaces:
		return FateReplaced, "parked and kept; a blank disk takes its place"
	case n.Strategy.VM() != cluster.VMAgain:
		return FateStays, "stays where it is, untouched"
	case d.Owner != 0 && d.Owner != n.VMID:
		return FateDetached, fmt.Sprintf("VM %d owns it and keeps it; detached, and attached again", d.Owner)
	}
	return FateCarried, "carried over: on the parking VM meanwhile, attached again in the same place"
}

func fatesOfRecord(n planning.NodePlan) []DiskFate {
	back := func(d planning.DiskPlan) DiskFate {
		return DiskFate{DiskPlan: d, Fate: FateBack, Does: "comes back to where it was"}
	}
	var out []DiskFate
	if n.System != nil {
		f := back(*n.System)
		if n.Strategy.From() != cluster.Halfway {
			f.Fate, f.Does = FateReplaced, "parked and kept; a blank disk takes its place"
		}
		out = append(out, f)
	}
	return append(out, cluster.Each(n.Carried, back)...)
}

func compareNode(n planning.NodePlan, o observe.Observation, past cluster.History) (out []Comparison) {
	m, b := n.Found.Machine, n.Wanted.Build
	if m == nil {
		return nil
	}
	add := func(what, found, wanted string) {
		out = append(out, Comparison{What: what, Found: found, Wanted: wanted, Same: found == wanted})
	}
	add("Talos", m.TalosVersion, b.TalosVersion)
	add("build", builtAs(o, m.RunningSystem, b), b.ID)
	add("schematic", m.Schematic.ID, b.SchematicID)
	add("lock of the extensions", m.Schematic.LockHash(), b.LockHash)
	changes, _ := b.Asked(m.Schematic) // an unreadable schematic is already a reason of the drift
	for _, c := range changes {
		out = append(out, Comparison{What: c.What, Found: c.Old, Wanted: c.New})
	}
	old, known := past(m.Schematic.LockHash())
	if m.Schematic.LockHash() == b.LockHash {
		old, known = cluster.LockedContent{Extensions: b.Extensions, Overlay: b.Overlay, Rebuild: b.Rebuild}, true
	}
	out = append(out, compareExtensions(b, m.RunningSystem, old.Extensions)...)
	if known && (old.Overlay.Digest != "" || b.Overlay.Digest != "") {
		add("image of the overlay", words.Short(old.Overlay.Digest), words.Short(b.Overlay.Digest))
	}
	if known && old.Rebuild != b.Rebuild {
		add("rebuilds of the same content", fmt.Sprint(old.Rebuild), fmt.Sprint(b.Rebuild))
	}
	if m.Arch != "" {
		add("architecture", m.Arch, b.Arch)
	}
	if m.Platform != "" {
		add("platform", m.Platform, b.Platform)
	}
	if m.SecureBoot != nil {
		add("Secure Boot", cluster.OnOff(*m.SecureBoot), cluster.OnOff(b.SecureBoot))
	}
	if b.Installer != "" && m.InstallImage != "" {
		add("installer of its configuration", m.InstallImage, b.Installer)
	}
	if k := n.Found.Node; k != nil && n.Wanted.Kubernetes != "" {
		add("Kubernetes", k.KubeletVersion, n.Wanted.Kubernetes)
	}
	return out
}

func builtAs(o observe.Observation, m cluster.RunningSystem, wanted cluster.Build) string {
	runs := func(b cluster.Build) bool {
		return m.Schematic.LockHash() != "" && b.SchematicID == m.Schematic.ID && b.TalosVersion == m.TalosVersion && len(cluster.DiffTarget(b, m)) == 0
	}
	if runs(wanted) {
		return wanted.ID
	}
	for id, b := range o.PastBuilds {
		if runs(b) {
			return id
		}
	}
	return ""
}

// compareExtensions compares the wanted extensions with the found ones. old has the digests of the found ones.
func compareExtensions(b cluster.Build, m cluster.RunningSystem, old []cluster.LockedExtension) []Comparison {
	have, want := map[string]string{}, map[string]string{}
	var names []string
	for _, e := range b.Extensions {
		version := e.Version
		if i := slices.IndexFunc(m.Extensions, func(f cluster.ExtensionEntry) bool { return f.Name == e.Name }); i >= 0 && version == "" {
			version = m.Extensions[i].Version // any version is accepted
		}
		want[e.Name] = strings.TrimSpace(version + " " + words.Short(e.Digest))
		names = append(names, e.Name)
	}
	for _, e := range m.Extensions {
		if e.Name == cluster.ConfigEntry && b.EmbedsConfig {
			continue
		}
		have[e.Name] = e.Version
		if i := slices.IndexFunc(old, func(o cluster.LockedExtension) bool { return o.Name == e.Name }); i >= 0 {
			have[e.Name] = strings.TrimSpace(e.Version + " " + words.Short(old[i].Digest))
		}
		if !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	return cluster.Each(names, func(name string) Comparison {
		is, wanted := have[name], want[name]
		return Comparison{What: "extension " + name, Found: is, Wanted: wanted, Same: is == wanted}
	})
}

// outlineOf lists the steps that a roll of the plan has for the node. It does not ask which of them are already done.
func outlineOf(ctx context.Context, p planning.Plan, n planning.NodePlan, o observe.Observation, t cluster.Timing) []StepOutline {
	if n.Strategy == "" || len(n.Refused) > 0 {
		return nil
	}
	steps, err := roll.DrawnSteps(p, n, t)
	if err != nil {
		return nil // reported when the record is opened, before anything is changed
	}
	waits := map[string]time.Duration{"drain": t.Drain, "stop": t.Stop, "configure": t.Boot, "reboot": t.Boot, "wait-healthy": t.Join}
	var out []StepOutline
	walk(ctx, steps, "", func(at string, s step.Step) bool {
		if s.ID == "fallback" {
			if n.Previous != nil {
				out = append(out, StepOutline{Path: at, Title: "only where it does not come back: " + s.Title, Risk: s.Risk.String()})
			}
			return false
		}
		if s.Steps == nil {
			line := StepOutline{Path: at, Title: s.Title, Risk: s.Risk.String(), TimeoutSeconds: int(waits[s.ID].Seconds())}
			line.Seconds, line.SecondsFrom = tookAt(n, o.Took, at)
			out = append(out, line)
		}
		return true
	})
	return out
}

// walk visits a tree of steps in order, without asking for work; see says whether to visit a branch's children.
func walk(ctx context.Context, steps []step.Step, below string, see func(at string, s step.Step) bool) {
	for _, s := range steps {
		at := path.Join(below, s.ID)
		if !see(at, s) || s.Steps == nil {
			continue
		}
		// Only the exchange reads the cluster to find its children, and here the exchange is drawn without reading.
		children, err := s.Steps(ctx)
		if err == nil {
			walk(ctx, children, at, see)
		}
	}
}

// tookAt returns a step's median time in the node's latest rolls by this strategy, or those of its role.
func tookAt(n planning.NodePlan, past []cluster.Took, at string) (seconds int, from string) {
	for _, of := range n.Peers() {
		var each []int
		for _, t := range past {
			if t.Strategy == n.Strategy && of.Like(t) && len(each) < planning.Lately {
				each = append(each, t.Steps[at])
			}
		}
		if count := len(each); count > 0 {
			return planning.Median(each), planning.EarlierRolls(count, of.Who)
		}
	}
	return 0, ""
}
