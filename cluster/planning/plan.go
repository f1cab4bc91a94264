// Package planning decides what happens to each node, how and in which order, before anything is touched. [New]
// makes a [Plan] of what is wanted and what was observed; a plan can be sealed in a file, read again and compared
// with the world of that day.
package planning

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
	"github.com/recast-sh/recast/internal/words"
)

// New decides what to do about every wanted node, from what was observed and nothing else. It fails for an unknown node
// name, or an unread node; unless something is unfinished, as all is planned again after that. If it is not known which
// VM is a node's, that node is refused, and the plan of the others is returned with the error.
func New(cluster string, wanted []cluster.Wanted, o observe.Observation, past cluster.History, p Policy) (Plan, error) {
	plan := Plan{Cluster: cluster, MaxUnavailable: p.maxUnavailable(wanted, o), PerHost: max(1, p.PerHost), WorkersBeside: p.WorkersBeside, AcceptOutage: p.AcceptOutage, Fingerprints: p.Fingerprints, What: p.What, Bootstrap: p.Bootstrap, ControlPlanes: o.ControlPlanes(), Heed: p.Heed(wanted)}
	if err := errors.Join(p.Check(wanted), p.checkLabels(wanted, o), p.againstRebuild(o)); err != nil {
		return Plan{}, err
	}
	var unread, unmatched []error
	for i, w := range wanted {
		if !p.considers(w, o.Found[i]) {
			continue
		}
		n := ForNode(w, o.Found[i], o, past, p)
		if f := o.Found[i]; f.Unmatched {
			unmatched = append(unmatched, f.Errs...)
			for _, err := range f.Errs {
				n.Refused = append(n.Refused, err.Error())
			}
		}
		if o.Found[i].Open() {
			n.AskLosses()
		}
		n.planFrees(o, p.KeepDisks)
		if n.Resume {
			plan.Run = cmp.Or(plan.Run, n.Run)
		}
		if f := o.Found[i]; f.Machine == nil && !n.Resume && !f.Away && f.Absent == nil && !f.Unmatched && o.Rebuild == "" {
			unread = append(unread, o.Unread(w, o.Found[i]))
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	if err := errors.Join(unread...); err != nil && plan.Run == "" {
		return Plan{}, fmt.Errorf("a plan needs every node's answer: %w", err)
	}
	onlyTaking(&plan)
	if err := (surging{&plan, wanted, o, p}).decide(); err != nil { // perhaps for lack of a node that matches no VM
		return Plan{}, errors.Join(append(unmatched, err)...)
	}
	refuseControlled(&plan)
	heedOwnPod(&plan, o)
	heedKubeSpan(&plan, o)
	noteInitiators(&plan)
	plan.Order(p)
	plan.Arrange()
	plan.tellShared()
	plan.AwaitOthers(o)
	heedStorage(&plan, o)
	against := worldOf{&plan, o}
	against.space()
	against.ceph()
	against.numbers()
	against.newNumbers()
	against.warn()
	if p.DrainDeletes && len(plan.Work()) > 0 {
		plan.Warn = append(plan.Warn, "pods whose eviction is refused until roll.drain.timeout are deleted then, whatever their PodDisruptionBudgets say (roll.drain.onTimeout: delete)")
	}
	plan.Kubernetes = o.KubernetesOrder()
	against.rehearse(p.Rehearse)
	return plan, errors.Join(unmatched...)
}

// NodePlan is what happens to one node.
type NodePlan struct {
	Node     string           `json:"node"`
	Role     string           `json:"role"` // "worker" or "control-plane"
	Phase    Phase            `json:"phase,omitempty"`
	Drift    observe.Drift    `json:"drift"`
	Strategy cluster.Strategy `json:"strategy,omitempty"` // "" when nothing is to be done
	Why      string           `json:"why"`                // of the strategy, or of doing nothing
	Refused  []string         `json:"refused,omitempty"`  // why it can't be done; a plan with a refusal is not run
	// Reboot is how an upgrade in place boots the new system; "": by kexec.
	Reboot   cluster.Reboot `json:"reboot,omitempty"`
	WillLose []string       `json:"willLose,omitempty"` // data that goes with the system disk, as acceptLoss allows
	Notes    []string       `json:"notes,omitempty"`
	// ToRecreate is what has to be lifted before a roll would recreate the node; none if a roll would, or if
	// recast.yaml asks for another way.
	ToRecreate []cluster.Obstacle `json:"toRecreate,omitempty"`
	Paused     string             `json:"paused,omitempty"`     // why a person wants the stale node left alone
	Slots      []string           `json:"slots,omitempty"`      // what the node holds while it is out: see Plan.Room
	Bootstraps bool               `json:"bootstraps,omitempty"` // etcd begins on this node
	Rebuild    string             `json:"rebuild,omitempty"`    // SHA-256 of the snapshot with which a broken cluster begins again
	Resume     bool               `json:"resume,omitempty"`     // first: finish an earlier run, or restore a reset machine
	VMID       cluster.VMID       `json:"vmid"`
	Host       string             `json:"host"`
	UUID       string             `json:"uuid"`
	Addr       netip.Addr         `json:"address"`
	Digest     string             `json:"digest,omitempty"` // of the VM's configuration when planned
	// ConfigFile is the node's file of talos.machineConfigs; nil: there is none, or none that this strategy would
	// apply and none that differs.
	ConfigFile *cluster.ConfigFile `json:"configFile,omitempty"`
	// VM is what changes in the node's VM.
	VM      shape.Differences `json:"vm,omitempty"`
	Carried []DiskPlan        `json:"carried,omitempty"`
	ByHand  string            `json:"byHand,omitempty"`     // command that mends what no strategy can, on a node left as is
	System  *DiskPlan         `json:"systemDisk,omitempty"` // parked and replaced by a new one
	// Prepared is the disk image from which the new system disk is made before the node is drained; "": the VM
	// boots the ISO and installs Talos on a blank disk.
	Prepared string             `json:"prepared,omitempty"`
	Frees    []parking.FreePlan `json:"frees,omitempty"`   // old system disks, freed once the node's roll has succeeded
	Renewed  []string           `json:"renewed,omitempty"` // by Proxmox in a new VM: "vmgenid", "meta", "volid of scsi1"

	KubeSpan bool `json:"kubespan,omitempty"` // the node becomes another peer of KubeSpan, beside its old one
	// Initiators are the protocols in which the node's name changes.
	Initiators []string `json:"initiators,omitempty"`
	// OutageSeconds is how long the node is expected to be away.
	OutageSeconds int `json:"outageSeconds,omitempty"`
	// OutageFrom is the source of OutageSeconds: "assumed", "3 earlier rolls of it".
	OutageFrom string `json:"outageFrom,omitempty"`
	// WholeSeconds is how long the node is expected to hold its slots; 0: as long as it is away.
	WholeSeconds int `json:"wholeSeconds,omitempty"`

	Wanted        cluster.Wanted     `json:"-"`
	Found         observe.Found      `json:"-"`
	ControlPlanes []cluster.Endpoint `json:"-"` // of the whole cluster
	Heed          Heed               `json:"-"`
	EtcdKept      bool               `json:"-"` // the node's etcd data outlives the system disk
	Restore       *parking.KeptDisk  `json:"-"` // of a rollback
	Space         *observe.NewDisk   `json:"-"` // the blank system disk
	OnCeph        []string           `json:"-"` // storages with disks of its VM that are on the Proxmox hosts' own Ceph
	Previous      *cluster.Build     `json:"-"` // reimaged to after a failed in-place upgrade; nil: it is not
	FallbackKept  bool               `json:"-"` // etcd's data outlives that reimage
	// FallbackKubeSpan says that the reimage makes the node another peer of KubeSpan.
	FallbackKubeSpan bool     `json:"-"`
	WithConfig       bool     `json:"-"` // an upgrade in place also gives the node its file
	leavesConfig     bool     // the plan was asked to leave configurations as they are
	IsWayBack        bool     `json:"-"` // a later upgrade's failure reimages the node to the build it gets
	Run              string   `json:"-"` // whose unfinished work this is
	OwnPod           bool     `json:"-"` // recast runs on the node, as a pod that has to leave it
	Unproven         string   `json:"-"` // fingerprint of its machine's certificate, which a person could confirm
	Stored           []string `json:"-"` // the storage systems whose volumes are checked
}

func (n *NodePlan) Add(d cluster.Disk, system bool) {
	p := DiskPlan{Key: d.Key, Serial: d.Option("serial"), Volid: d.Volid, Size: d.Option("size")}
	if system {
		n.System = &p
		return
	}
	n.Carried = append(n.Carried, p)
}

// Plan says what a roll will do, in order. A plan is data: steps are derived from it and from nothing else.
type Plan struct {
	Version int    `json:"version,omitempty"` // of this format
	ID      string `json:"id,omitempty"`      // hash of the content
	Lock    string `json:"lock,omitempty"`    // hash of what recast.lock pins
	Config  string `json:"config,omitempty"`  // hash of recast.yaml
	// AcceptOutage says that the outage of etcd with two control planes was accepted.
	AcceptOutage bool `json:"acceptOutage,omitempty"`
	// Fingerprints are those of certificates in maintenance mode that a person has confirmed.
	Fingerprints []string `json:"maintenanceFingerprints,omitempty"`
	// What names the parts that are rolled; empty: all that is not as wanted.
	What []What `json:"what,omitempty"`

	Cluster string `json:"cluster"`
	// Bootstrap is the control plane with which the cluster begins, or has begun, whose missing nodes are created.
	Bootstrap string `json:"bootstrap,omitempty"`

	Run            string     `json:"run,omitempty"`  // the unfinished run that this one continues
	Nodes          []NodePlan `json:"nodes"`          // every node that was checked, in the order of the roll
	MaxUnavailable int        `json:"maxUnavailable"` // workers at a time; control planes go one at a time
	PerHost        int        `json:"perHost"`
	// WorkersBeside says that control planes and workers are rolled at the same time.
	WorkersBeside bool               `json:"workersBeside,omitempty"`
	TotalSeconds  int                `json:"totalSeconds,omitempty"` // expected for the whole plan
	Surge         *SurgePlan         `json:"surge,omitempty"`        // if any is created, serves or is removed
	Batches       []Batch            `json:"batches,omitempty"`      // the nodes that change, in the order of the roll
	Room          map[string]int     `json:"room,omitempty"`         // how many nodes may hold a slot at a time
	Warn          []string           `json:"warnings,omitempty"`
	Gates         []cluster.UserGate `json:"gates,omitempty"`      // asked before each node is taken out, and after it is back
	Storage       []StorageSystem    `json:"storage,omitempty"`    // volumes checked before each node goes, and after
	Hooks         cluster.Hooks      `json:"hooks,omitzero"`       // programs that run on the way
	Kubernetes    []string           `json:"kubernetes,omitempty"` // which goes first: the roll, or its upgrade

	// Scratch are VMs that killed runs have left. The roll deletes them before anything else.
	Scratch []LeftScratch `json:"scratch,omitempty"`
	// Trials are the images that are then tried out, before any node goes.
	Trials []Trial `json:"trials,omitempty"`

	ControlPlanes []cluster.Endpoint `json:"-"`
	Heed          Heed               `json:"-"`
}

// ISOHosts lists by schematic the Proxmox nodes whose VMs boot its ISO, or would if the upgrade after this failed.
func (p Plan) ISOHosts() map[string][]string {
	hosts := map[string][]string{}
	for _, n := range p.Work() {
		boots := n.Strategy.Installs() || n.IsWayBack
		if takesAway(n) { // the VM is made again there
			n.Host, boots = n.Wanted.Shape.Host, true
		}
		if list := hosts[n.Wanted.Schematic]; boots && !slices.Contains(list, n.Host) {
			hosts[n.Wanted.Schematic] = slices.Sorted(slices.Values(append(list, n.Host)))
		}
	}
	return hosts
}

func (p Plan) NeedsImages() bool { return slices.ContainsFunc(p.Work(), NodePlan.NeedsImage) }

// NeedsImage says whether the node gets an image, or another installer in its configuration.
func (n NodePlan) NeedsImage() bool {
	switch s := n.Strategy; {
	case takesAway(n): // its VM is made again
		return true
	case s.KeepsVM() && s.KeepsImage():
		return n.Drift.NamesOther()
	default:
		return s.BringsImage() || s == cluster.Auto
	}
}

func (p Plan) Refused() (out []string) {
	for _, n := range p.Nodes {
		out = append(out, cluster.Each(n.Refused, func(r string) string { return n.Node + ": " + r })...)
	}
	return out
}

// TakesAPIAway: the Kubernetes API is away while a node is out: of fewer than three, etcd needs each control plane.
func (p Plan) TakesAPIAway() bool {
	return len(p.ControlPlanes) < 3 && slices.ContainsFunc(p.Work(), func(n NodePlan) bool {
		return n.Role == cluster.ControlPlane && !n.OnlyTidies() && !n.staysUp() && n.Strategy.From() != cluster.Nowhere
	})
}

// worldOf is a plan with the observation for which it is made.
type worldOf struct {
	*Plan
	o observe.Observation
}

func (p worldOf) warn() {
	if !p.o.Quorate {
		p.Warn = append(p.Warn, "the Proxmox cluster has no quorum: a roll will refuse to start")
	}
	p.Warn = append(p.Warn, p.LeftByHand()...)
	if p.o.Away != nil {
		p.Warn = append(p.Warn, p.o.Away.Error())
	}
	if len(p.Work()) > 0 {
		p.Warn = append(p.Warn, p.o.QuorumOnOneHost()...)
	}
	p.warnOfIssues()
	patient := slices.ContainsFunc(p.Storage, func(s StorageSystem) bool { return s.WaitSeconds > 0 })
	for _, n := range p.Work() {
		if outage := time.Duration(n.OutageSeconds) * time.Second; outage > longOutage && !patient {
			p.Warn = append(p.Warn, fmt.Sprintf("%s is expected to be away for %s: storage systems rebuild replicas after 10 minutes", n.Node, outage))
		}
	}
}

func planOf(w cluster.Wanted, f observe.Found) NodePlan {
	n := NodePlan{Node: w.Name, Addr: f.Addr, Wanted: w, Found: f}
	n.Role = cluster.RoleOf(f.Machine != nil && f.Machine.ControlPlane)
	if f.VM != nil {
		n.VMID, n.Host, n.UUID, n.Digest = f.VM.ID, f.VM.Host, f.VM.UUID(), f.VM.Digest
	}
	return n
}

func ForNode(w cluster.Wanted, f observe.Found, o observe.Observation, past cluster.History, p Policy) NodePlan {
	n := planOf(w, f)
	n.Drift, n.leavesConfig = observe.Diff(w, f, past), !p.does(Config)
	switch {
	case f.Away:
		PlanAway(&n, o.Away)
	case f.Open():
		planResume(&n, o)
	case p.Bootstrap != "" && f.Absent == nil:
		n.Why = "it is there: recast roll keeps it as recast.yaml wants it"
		return n
	case w.Surge && f.Absent != nil:
		n.Why = onlyInRolls
		return n
	case surgeNode{&n}.decided():
		n.Why = "it is left over by an earlier roll"
		return n
	case f.Absent != nil && !p.does(Image):
		n.Why = "not created: excluded by --what"
	case f.Absent != nil && o.Rebuild != "":
		planLost(&n, o)
	case f.Absent != nil:
		planCreate(&n, o)
	case f.Unfinished() && planReboot(&n, o):
	case f.Blank != nil:
		planInstallReset(&n, o, p)
	case f.Machine == nil:
		n.Why = "it could not be read"
	case !n.Drift.Rollable():
		n.Why = fmt.Sprintf("runs %s build %s", w.Build.TalosVersion, words.Short(w.Build.ID))
	case !p.of(n.Drift).Rollable():
		n.Why = p.leaves(n.Drift)
	case f.Pause() != "":
		n.Paused, n.Why = f.Pause(), "paused: "+f.Pause()
	case p.does(Image) && n.Drift.IsImage():
		planStale(&n, o, p)
	case p.does(Config) && n.Drift.ConfigReason() != "":
		planApplyConfig(&n, o, p)
	case p.does(Image) && n.Drift.Of(true, false, false).Tidy():
		n.Strategy, n.Why = cluster.InPlace, "runs the wanted build: only leftovers are cleaned up"
		n.EtcdKept = true
	default:
		planReshape(&n, o, p)
	}
	planShape(&n, o, p)
	n.planFile()
	n.refuseInit()
	n.planVolumes()
	n.planSelectors()
	n.Estimate(o.Took)
	return n
}

func planStale(n *NodePlan, o observe.Observation, p Policy) {
	system, err := cluster.ProveSystemDisk(*n.Found.VM, *n.Found.Machine, n.Wanted.SystemDisk)
	d := strategy.Decide(n.Wanted, n.Found, o, system, err)
	if n.Role == cluster.ControlPlane && len(d.Refused) == 0 {
		d = PlanEtcd(n, o, p, d, system, err)
	}
	if n.leftByHand(d, o, p, system, err) {
		return
	}
	n.Strategy, n.Why, n.Refused, n.WillLose, n.Notes = d.Strategy, d.Why, d.Refused, d.WillLose, d.Notes
	n.ToRecreate = d.ToRecreate
	if n.Strategy.Upgrades() {
		n.WithConfig = p.does(Config) && n.Drift.ConfigReason() != ""
		planFallback(n, o, p, system, err)
		return
	}
	n.Refused = append(n.Refused, o.Hidden(*n.Found.VM)...)
	disks, err := n.Found.VM.Disks()
	if err != nil {
		return // already a refusal
	}
	for _, disk := range disks {
		if !disk.CDROM && !disk.CSI() {
			n.Add(disk, disk.Key == system.Key)
		}
	}
	if n.Strategy.Replaces() {
		planPrepared(n, system)
		n.tellOfVM(disks, system)
		n.Space = o.NewDisk(n.Wanted, n.Found.VM.Host, system)
	}
}

// leftByHand leaves a node to a person's one command, which any strategy needs first. One that was named is refused.
func (n *NodePlan) leftByHand(d strategy.Decision, o observe.Observation, p Policy, system cluster.Disk, systemErr error) bool {
	if len(d.Refused) == 0 || systemErr != nil || slices.Contains(p.Only, n.Node) {
		return false
	}
	first, command := observe.BootsBefore(*n.Found.VM, system.Key)
	if first == "" || !n.Drift.ByHand() && len(n.decideWithBoot(o, system).Refused) > 0 {
		return false
	}
	who := "no strategy can"
	if s := n.Wanted.Strategy; s != "" && s != cluster.Auto {
		who = string(s) + " can't"
	}
	n.Why = fmt.Sprintf("left as it is: it boots from %s before its system disk %s, and %s fix that now", first, system.Key, who)
	n.ByHand = command
	return true
}

// decideWithBoot decides as if the VM booted from its system disk, with no pending change of the boot order.
func (n *NodePlan) decideWithBoot(o observe.Observation, system cluster.Disk) strategy.Decision {
	vm, f := *n.Found.VM, n.Found
	vm.Config = maps.Clone(vm.Config)
	vm.Config["boot"] = "order=" + system.Key
	vm.Pending = slices.DeleteFunc(slices.Clone(vm.Pending), func(key string) bool { return key == "boot" })
	f.VM = &vm
	return strategy.Decide(n.Wanted, f, o, system, nil)
}

// LeftByHand says which nodes are left as they are until a person has mended them, each with the command.
func (p Plan) LeftByHand() []string {
	left := cluster.Where(p.Nodes, func(n NodePlan) bool { return n.ByHand != "" })
	return cluster.Each(left, func(n NodePlan) string { return fmt.Sprintf("%s is %s: %s", n.Node, n.Why, n.ByHand) })
}

// refuseControlled refuses nodes whose controller would replace them, with their disks; what is unfinished goes on.
func refuseControlled(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if by, instead := strategy.Controlled(n.Found.Node); by != "" && n.Strategy != "" && !n.Resume {
			n.Refused = append(n.Refused, fmt.Sprintf("it is of %s: %s, and take it out of recast.yaml; --exclude %s rolls the others", by, instead, n.Node))
		}
	}
}

// warnOfIssues warns of releases that nobody should run. What only some configurations can't have, is refused there.
func (p worldOf) warnOfIssues() {
	var texts []string
	stay := map[string][]string{} // by what is wrong: the nodes that continue to run the release
	for _, n := range p.Nodes {
		gets := n.Strategy != "" && n.NeedsImage()
		version := n.Wanted.Build.TalosVersion
		if !gets && n.Found.Machine == nil {
			continue
		}
		if !gets {
			version = n.Found.Machine.TalosVersion
		}
		for _, text := range n.issuesOf(version, gets) {
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
			if !gets {
				stay[text] = append(stay[text], n.Node)
			}
		}
	}
	for _, text := range texts {
		if nodes := stay[text]; len(nodes) > 0 {
			text = fmt.Sprintf("%s (on %s now)", text, strings.Join(nodes, ", "))
		}
		p.Warn = append(p.Warn, text)
	}
}

func (n NodePlan) issuesOf(version string, gets bool) (out []string) {
	issue, known := knownissue.Of(version)
	switch {
	case known && !issue.Scheduler, known && !gets && n.Found.ConfigRefused != nil:
		out = append(out, issue.String()+": "+issue.Hint())
	}
	if b := n.Wanted.Build; b.Broken && b.TalosVersion == version {
		out = append(out, fmt.Sprintf("Talos %s was marked broken by the Image Factory: choose another version; the release notes of Talos say which one fixes it", version))
	}
	return out
}

// PeerLasts is how long Talos' discovery lists a stopped machine (defaultDiscoveryTTL in discovery_service.go).
const PeerLasts = 30 * time.Minute

// OldPeer says why an outage may last longer if a node gets another system disk: its KubeSpan identity is on the old
// disk. Of two peers with one address the lower node ID keeps it, and IDs are random (kubespan/peer_spec.go).
var OldPeer = fmt.Sprintf("KubeSpan: until discovery forgets its old peer, up to %s after its stop, other nodes may send its packets there (talos#4562)", PeerLasts)

// heedKubeSpan marks the nodes that become other peers of KubeSpan, and expects the longer outage.
func heedKubeSpan(p *Plan, o observe.Observation) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		leaves := strategy.DiskLeaves(n.Strategy, n.Wanted) || n.Strategy.From() == cluster.Nowhere && n.Rebuild != ""
		if n.Strategy.VM() == cluster.VMGone || !leaves && n.Previous == nil || !meshed(n.Found, o) {
			continue
		}
		if !leaves {
			n.FallbackKubeSpan = true
			continue
		}
		n.KubeSpan = true
		n.Notes = append(n.Notes, OldPeer)
		if n.OutageSeconds = max(n.OutageSeconds, int(PeerLasts.Seconds())); n.OutageFrom != "" {
			n.OutageFrom = "at most, because of KubeSpan"
		}
	}
}

// meshed says whether a node takes part in KubeSpan. A node that does not say counts as one if any other takes part.
func meshed(f observe.Found, o observe.Observation) bool {
	if on, known := kubeSpan(f); known {
		return on
	}
	return slices.ContainsFunc(o.Found, func(f observe.Found) bool {
		on, _ := kubeSpan(f)
		return on
	})
}

func kubeSpan(f observe.Found) (on, known bool) {
	if f.Machine == nil || len(f.Machine.Configs.Active) == 0 {
		return false, false
	}
	docs, err := config.Parse(f.Machine.Configs.Active)
	return docs.KubeSpan() && docs.DiscoveryService(), err == nil
}

// doneBy: a run of the saved plan has begun, so it is taken to have changed every node. Leftovers are cleaned up.
func (n NodePlan) doneBy(begun bool) bool {
	return begun && n.Paused == "" && len(n.Drift.Unread) == 0 && (n.Strategy == "" && !n.Drift.Rollable() || n.Drift.Tidy())
}

// Follow turns a plan of the present state into the saved plan, with its order and ID. It refuses other changes than
// those of its own runs; begun: the journal has one. What that left is finished before anything is compared.
func (p Plan) Follow(saved Plan, begun bool) (Plan, error) {
	against := follower{p, saved}
	moved := against.madeFrom()
	if len(moved) == 0 {
		moved = against.moved(begun || against.begun())
	}
	if len(moved) > 0 {
		return Plan{}, fault.WithHint(fault.PlanMoved.Refusedf("the cluster is no longer as plan %s describes it:\n  %s", saved.ID, strings.Join(moved, "\n  ")), planAgain)
	}
	if p.Run == "" {
		against.inOrder()
	}
	against.ID = saved.ID
	return against.Plan, nil
}

// Policy returns the policy that makes a saved plan again, for the nodes in it.
func (p Plan) Policy() Policy {
	names := cluster.Each(p.Nodes, func(n NodePlan) string { return n.Node })
	return Policy{AcceptOutage: p.AcceptOutage, Fingerprints: p.Fingerprints, What: p.What, Exactly: true, Only: names}
}

// RunSuffix ends the IDs of the runs that execute this plan: Proxmox and the journal identify them by it.
func (p Plan) RunSuffix() string { return "-" + p.ID[:8] }

// Seal completes a plan with the hashes of what it was made from. Its ID is the hash of everything in it.
func (p *Plan) Seal(lock, config string) {
	p.Version, p.Lock, p.Config = Version, lock, config
	p.ID = hashOf(*p)
}

// hashOf hashes the content as JSON, without the ID: short enough to compare by eye, and no protection against forgery.
func hashOf(p Plan) string {
	p.ID = ""
	b, err := json.Marshal(p)
	if err != nil {
		return "" // impossible for plain data
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])[:16]
}

// inOrder gives the nodes their places and phases of the saved plan.
func (p *follower) inOrder() {
	by := map[string]NodePlan{}
	for _, n := range p.Nodes {
		by[n.Node] = n
	}
	var nodes []NodePlan
	for _, s := range p.saved.Nodes {
		n := by[s.Node]
		if n.Strategy != "" && n.Phase != SurgeEnd {
			n.Phase = s.Phase
		}
		nodes = append(nodes, n)
	}
	slices.SortStableFunc(nodes, func(a, b NodePlan) int { // a planned surge node may exist by now: it goes last
		return cluster.TrueFirst(a.Phase != SurgeEnd, b.Phase != SurgeEnd)
	})
	p.Nodes = nodes
	p.Arrange()
}

// follower is a plan of the present state, and the saved plan that it should match.
type follower struct {
	Plan
	saved Plan
}

func (p follower) madeFrom() (moved []string) {
	for _, x := range []struct{ what, was, is string }{
		{"the cluster", p.saved.Cluster, p.Cluster}, {"recast.lock", p.saved.Lock, p.Lock}, {"recast.yaml", p.saved.Config, p.Config},
	} {
		if x.was != x.is {
			moved = append(moved, fmt.Sprintf("%s: %s → %s", x.what, words.Short(x.was), words.Short(x.is)))
		}
	}
	return moved
}

// begun: a run of the saved plan has left a trace that others see, a VM that it made or a node that it cordoned.
func (p follower) begun() bool {
	return slices.ContainsFunc(p.Nodes, func(n NodePlan) bool {
		made := n.Found.VM != nil && strings.HasSuffix(n.Found.VM.MadeBy(), p.saved.RunSuffix())
		return made || n.Found.Node != nil && n.Found.Node.Mark != nil && strings.HasSuffix(n.Found.Node.Mark.Run, p.saved.RunSuffix())
	})
}

func (p follower) moved(begun bool) (moved []string) {
	saved := p.saved
	if p.Run != "" {
		for _, n := range p.Nodes {
			if n.Resume && !strings.HasSuffix(n.Run, saved.RunSuffix()) {
				moved = append(moved, fmt.Sprintf("%s: left unfinished by run %s, which is not of this plan", n.Node, n.Run))
			}
		}
		return moved
	}
	moved = differ("", limitsOf(saved), limitsOf(p.Plan))
	was := map[string]NodePlan{}
	for _, n := range saved.Nodes {
		was[n.Node] = n
	}
	for _, n := range p.Nodes {
		old, known := was[n.Node]
		delete(was, n.Node)
		switch {
		case !known:
			moved = append(moved, n.Node+": the plan says nothing of it")
		case old.Strategy != "" && n.doneBy(begun), surgeNode{&n}.doneBy(saved, begun):
		case old.Strategy != n.Strategy: // everything else follows from the strategy
			moved = append(moved, differ(n.Node+": ", treatment(old), treatment(n))...)
		default:
			n.Drift.Reasons = slices.DeleteFunc(slices.Clone(n.Drift.Reasons), func(r cluster.Reason) bool {
				return r.Code == "cordoned" && strings.HasSuffix(r.Old, saved.RunSuffix()) // by a run of this plan, which was then interrupted
			})
			old.Drift.Reasons, n.Drift.Reasons = alike(old.Drift.Reasons, n.Drift.Reasons)
			moved = append(moved, differ(n.Node+": ", essence(old), essence(p.asBefore(old, n)))...)
		}
	}
	for _, n := range saved.Nodes {
		if _, gone := was[n.Node]; gone {
			moved = append(moved, n.Node+": it is not there any more")
		}
	}
	return moved
}

// fromPastLocks are codes that only a machine with the running image's lock gives; inPlaceOfLock make "lock" needless.
var (
	fromPastLocks = []string{"extension-digest", "overlay-digest", "rebuild"}
	inPlaceOfLock = append([]string{"extension-missing", "extension-extra", "overlay"}, fromPastLocks...)
)

// alike drops what comes from locks if only one plan has that: which past locks are at hand changes nothing on a node.
func alike(a, b []cluster.Reason) (_, _ []cluster.Reason) {
	has := func(reasons []cluster.Reason, codes ...string) bool {
		return slices.ContainsFunc(reasons, func(r cluster.Reason) bool { return slices.Contains(codes, r.Code) })
	}
	switch {
	case has(a, "lock") == has(b, "lock"), has(a, "lock") && !has(b, inPlaceOfLock...), has(b, "lock") && !has(a, inPlaceOfLock...):
		return a, b
	}
	rest := func(reasons []cluster.Reason) []cluster.Reason {
		return slices.DeleteFunc(slices.Clone(reasons), func(r cluster.Reason) bool { return r.Code == "lock" || slices.Contains(fromPastLocks, r.Code) })
	}
	return rest(a), rest(b)
}

// asBefore returns a node without what a run of the saved plan changed when it began to replace the node, and then
// put the old system disk back: the VM was made again, so Proxmox names its disks anew, and the system disk that
// was given up is freed in the end. All else must be unchanged.
func (p follower) asBefore(old, n NodePlan) NodePlan {
	ours := func(run string) bool { return strings.HasSuffix(run, p.saved.RunSuffix()) }
	if n.Found.Parking == nil || !ours(n.Found.Parking.Record.Run) {
		return n
	}
	n.Digest = old.Digest
	n.Frees = slices.Concat(slices.DeleteFunc(slices.Clone(n.Frees), func(f parking.FreePlan) bool { return f.GivenUp && ours(f.Run) })) // nil if none is left
	n.Carried = slices.Clone(n.Carried)
	for i := range min(len(n.Carried), len(old.Carried)) {
		n.Carried[i].Volid = old.Carried[i].Volid
	}
	if n.System != nil && old.System != nil {
		system := *n.System
		system.Volid = old.System.Volid
		n.System = &system
	}
	return n
}

// Read reads the output of recast plan -o json, which can be compared, not rolled: Follow turns a present plan into it.
func Read(b []byte) (p Plan, err error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return Plan{}, fault.WithHint(fault.Configf("it is not a plan: %w", err), planAgain)
	}
	if version.Version != Version {
		return Plan{}, fault.WithHint(fault.Configf("it is a plan of format %d; this recast reads format %d", version.Version, Version), planAgain)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Plan{}, fault.WithHint(fault.Configf("it is not a plan: %w", err), planAgain)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, fault.WithHint(fault.Configf("it holds more than one plan"), planAgain)
	}
	if p.ID != hashOf(p) {
		return Plan{}, fault.WithHint(fault.PlanMoved.Refusedf("it was changed after it was made: its ID is %s, that of its content %s", words.OrNone(p.ID), hashOf(p)), planAgain)
	}
	for _, n := range p.Nodes {
		if n.Resume {
			return Plan{}, fault.WithHint(fault.PlanMoved.Refusedf("it begins with %s, which was left unfinished then", n.Node), "recast roll finishes that; then "+planAgain)
		}
	}
	return p, nil
}

func asText(v any) string {
	switch v := v.(type) {
	case string:
		if len(v) > 40 {
			v = words.Short(v)
		}
		return words.OrNone(v)
	case []string:
		return words.OrNone(strings.Join(v, ", "))
	case []cluster.Reason:
		return words.OrNone(strings.Join(cluster.Each(v, func(r cluster.Reason) string { return r.Text }), "; "))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(b), "null", "none")
}

func differ(of string, was, is []trait) (moved []string) {
	for i := range min(len(was), len(is)) {
		if a, b := asText(was[i].value), asText(is[i].value); a != b {
			moved = append(moved, fmt.Sprintf("%s%s: %s → %s", of, was[i].name, a, b))
		}
	}
	return moved
}

// essence returns what must be as planned for a node; for a node that stays as it is, only that it stays.
func essence(n NodePlan) []trait {
	if n.Strategy == "" {
		return treatment(n)
	}
	file, runs := n.ConfigFile.HashOf()
	return append(treatment(n),
		trait{"role", n.Role}, trait{"VM", n.VMID}, trait{"Proxmox host", n.Host}, trait{"SMBIOS UUID", n.UUID}, trait{"address", n.Addr},
		trait{"digest of the VM's configuration", n.Digest}, trait{"slots", n.Slots},
		trait{"build", n.Drift.Build}, trait{"Talos now", n.Drift.Talos}, trait{"stale because", n.Drift.Reasons},
		trait{"system disk", n.System}, trait{"carried over", n.Carried}, trait{"Proxmox regenerates", n.Renewed},
		trait{"frees", n.Frees}, trait{"will be lost", n.WillLose},
		trait{"its file in talos.machineConfigs", file}, trait{"the configuration that it runs", runs},
	)
}

func limitsOf(p Plan) []trait {
	return []trait{
		{"workers at a time", p.MaxUnavailable},
		{"nodes of a Proxmox host at a time", p.PerHost},
		{"workers beside control planes", p.WorkersBeside},
		{"gates", p.Gates},
	}
}

const planAgain = "recast plan -o json makes a plan of how things stand now"

type trait struct {
	name  string
	value any
}

// treatment returns what is done to a node, or why nothing is.
func treatment(n NodePlan) []trait {
	return []trait{{"what is done", words.OrNone(string(n.Strategy))}, {"refused because", n.Refused}, {"paused", n.Paused}}
}

// Version is the format of a plan as JSON.
const Version = 1
