package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// StatusResult describes an active roll, or what one has left: from Proxmox, and from
// everything else that could be read.
type StatusResult struct {
	Cluster    string     `json:"cluster"`
	Claim      *ClaimHeld `json:"claim,omitempty"`      // nil: nobody holds it
	LastRun    *RunStatus `json:"lastRun,omitempty"`    // as recast history has it
	Shared     string     `json:"shared,omitempty"`     // where runs of other machines are, which history shows
	Open       []Half     `json:"open"`                 // unfinished replacements, from Proxmox
	Marked     []Marked   `json:"marked"`               // nodes that a run marked or cordoned, without an unfinished replacement
	Kept       []Kept     `json:"kept"`                 // old system disks that are kept
	Scratch    []Left     `json:"scratch,omitempty"`    // VMs on which an active or killed run tests an image
	Surge      []string   `json:"surge,omitempty"`      // surge nodes that are left over; none while a run is active
	Held       []HeldBack `json:"held,omitempty"`       // what recast has set in storage systems
	Unanswered []string   `json:"unanswered,omitempty"` // requests that Proxmox may still carry out, and what waits for them
	Kubernetes string     `json:"kubernetes,omitempty"` // why Kubernetes could not be asked; "": no error
	Problems   []string   `json:"problems,omitempty"`   // what else could not be read
}

// ClaimHeld is the claim of the cluster, from Proxmox or Kubernetes.
type ClaimHeld struct {
	claim.State
	VMID      cluster.VMID `json:"vmid,omitempty"`
	Lease     string       `json:"lease,omitempty"`     // if there is no VM: "kube-system/recast"
	Dead      bool         `json:"dead,omitempty"`      // the holder ran on this machine and has ended
	Suspended bool         `json:"suspended,omitempty"` // the holder is a process of this machine that is stopped
}

// RunStatus is one run, from its journal.
type RunStatus struct {
	ID        string    `json:"id"`
	Started   time.Time `json:"started"`
	Finished  time.Time `json:"finished,omitzero"`
	Outcome   string    `json:"outcome,omitempty"`   // "": still running, or killed
	State     string    `json:"state,omitempty"`     // of a run without an end: "suspended", "killed", "running or killed"
	Elsewhere bool      `json:"elsewhere,omitempty"` // only a copy of its journal is here
	// Took is how long its nodes were down, and the estimates.
	Took []cluster.Took `json:"took,omitempty"`
}

// Marked is a node that a run was about to change.
type Marked struct {
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Strategy cluster.Strategy `json:"strategy"`
	Build    string           `json:"build"`
	Ready    bool             `json:"ready"`
	// Installed says that the new system is on the disk, but not booted yet.
	Installed bool     `json:"installed,omitempty"`
	Foreign   bool     `json:"foreign,omitempty"` // someone else had cordoned it before
	Next      []Advice `json:"next"`
}

// Kept is an old system disk.
type Kept struct {
	Node       string       `json:"node"`
	Run        string       `json:"run"`               // the run that replaced it, or that created it and was given up
	GivenUp    bool         `json:"givenUp,omitempty"` // the run was given up: nothing boots this disk
	Removed    bool         `json:"removed,omitempty"` // any disk of a node that the run removed
	Volid      string       `json:"volid"`
	Parking    cluster.VMID `json:"parking"`
	Host       string       `json:"host"`
	Key        string       `json:"key"`                 // on the parking VM
	SizeBytes  uint64       `json:"sizeBytes,omitempty"` // size of the disk, not its usage
	Replaced   time.Time    `json:"replaced,omitzero"`   // when it was replaced; else when the run started, if its ID says so
	Talos      string       `json:"talos,omitempty"`     // version of the system on it
	Lock       string       `json:"lock,omitempty"`      // its lock hash; "" if recast did not make it
	Kubernetes string       `json:"kubernetes,omitempty"`
	Next       []Advice     `json:"next,omitempty"` // undo for the last disk of a node, prune for disks that it would free

	Nth int `json:"-"` // replacement of the node's system disk
}

// StatusSources are the clients for Status. Only Proxmox must answer: a roll may have taken Kubernetes down.
type StatusSources struct {
	Proxmox cluster.Inventory
	// Nodes lists the Node objects; its error becomes part of the result.
	Nodes func(ctx context.Context) ([]cluster.KubeNode, error)
	// Lease reads the Lease that is a claim; called only if Nodes succeeded.
	Lease func(ctx context.Context) (cluster.Lease, error)
	// Holds lists what recast has set in storage systems; called only if Nodes succeeded. nil: the settings are not read.
	Holds func(ctx context.Context) ([]replica.Hold, error)
	// Dead says whether a holder ran on this machine and has ended.
	Dead func(claim.Holder) bool
	// Suspended says whether a holder is stopped on this machine; nil: never known.
	Suspended func(claim.Holder) bool
	// MachineConfig is Machines.MachineConfig.
	MachineConfig func(ctx context.Context, node string) (cluster.Secret, bool, error)
}

func (s StatusSources) suspended(h claim.Holder) bool { return s.Suspended != nil && s.Suspended(h) }

// askKubernetes limits how long status waits for an API that may be down.
const askKubernetes = 10 * time.Second

func (res *StatusResult) readLastRun(p Project, src StatusSources) {
	runs, err := p.Runs().List()
	res.problem(err)
	if len(runs) > 0 {
		last := p.Runs().Read(runs[0].ID, past.Options{Dead: src.Dead, Suspended: src.Suspended})
		res.LastRun = &RunStatus{
			ID: last.ID, Started: runs[0].Started, Finished: runs[0].Finished, Outcome: runs[0].Outcome,
			Elsewhere: !p.Runs().Has(last.ID), Took: last.Took,
		}
		if runs[0].Unfinished() {
			res.LastRun.State = last.Result
		}
		res.Problems = append(res.Problems, last.Problems...)
	}
}

// Status returns the active run and, for everything unfinished, where each disk is and
// what finishes it. It changes nothing, and fails only if Proxmox can't be read.
func Status(ctx context.Context, p Project, src StatusSources) (StatusResult, error) {
	res := StatusResult{Cluster: p.Config.Cluster, Shared: SharedRuns(p), Open: []Half{}, Marked: []Marked{}, Kept: []Kept{}}
	vms, away, err := readable(ctx, p, src.Proxmox)
	switch {
	case err != nil && away == nil:
		return res, err
	case err != nil:
		res.problem(err)
	case away != nil:
		res.problem(away)
	}
	state, held, err := claim.Peek(vms, p.Config.Cluster, p.ClaimID())
	res.problem(err)
	if held {
		res.Claim = &ClaimHeld{State: state, VMID: state.VM.ID, Dead: src.Dead(state.Holder), Suspended: src.suspended(state.Holder)}
		res.problem(state.OfOtherRange(p.ClaimID(), p.VMIDs()))
	}
	res.readLastRun(p, src)
	nodes, err := askNodes(ctx, src)
	if err != nil {
		res.Kubernetes = err.Error()
	} else if res.Claim == nil && src.Lease != nil {
		state, held, err := peekLease(ctx, src, p.Config.Cluster)
		res.problem(err)
		if held {
			res.Claim = &ClaimHeld{State: state, Lease: state.Lease.Name, Dead: src.Dead(state.Holder), Suspended: src.suspended(state.Holder)}
		}
	}
	if err == nil && src.Holds != nil {
		ctx, cancel := context.WithTimeout(ctx, askKubernetes)
		holds, err := src.Holds(ctx)
		cancel()
		res.problem(err)
		res.Held = heldBack(holds)
	}
	res.Scratch = scratchLeft(vms, p.Config.Cluster)
	parkings, err := parking.Parkings(vms, p.Config.Cluster)
	res.problem(err)
	for _, u := range parking.NotOurs(vms, p.Config.Cluster) {
		res.problem(errors.New(u.String()))
	}
	res.problem(claim.Strays(vms, p.Config.Cluster, p.VMIDs(), p.NodeVMs(planning.Plan{})))
	builds, err := lockedBuilds(p)
	res.problem(err)
	open := map[string]bool{}
	for _, park := range parkings {
		if rec := park.Record; rec.Open {
			open[rec.Node] = true
			h, err := half(ctx, src.Proxmox, park, vms, away)
			res.problem(err)
			place, err := configKnown(ctx, p, Machines{MachineConfig: src.MachineConfig}, rec.Node, rec)
			h.MachineConfig = place != cluster.ConfigNowhere
			res.problem(err)
			build, known := builds[rec.Build]
			h.BuildLocked, h.Talos = known, cmp.Or(h.Talos, build.TalosVersion)
			h.Next = h.advise()
			res.Open = append(res.Open, h)
		}
		res.Unanswered = append(res.Unanswered, park.Unanswered()...)
		res.Kept = append(res.Kept, keptBy(park)...)
	}
	res.adviseLast()
	if away == nil { // prune refuses otherwise
		res.advisePrune(vms, retention(p, nil))
	}
	res.Marked = append(res.Marked, marked(nodes, open)...)
	for _, n := range nodes {
		if res.Claim == nil && !open[n.Name] && p.Config.IsSurge(n.Name) {
			res.Surge = append(res.Surge, n.Name)
		}
	}
	return res, nil
}

func (r *StatusResult) problem(err error) {
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
}

func askNodes(ctx context.Context, src StatusSources) ([]cluster.KubeNode, error) {
	if src.Nodes == nil {
		return nil, errors.New("no access to Kubernetes is configured")
	}
	ctx, cancel := context.WithTimeout(ctx, askKubernetes)
	defer cancel()
	return src.Nodes(ctx)
}

func peekLease(ctx context.Context, src StatusSources, name string) (claim.State, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askKubernetes)
	defer cancel()
	return claim.PeekLease(ctx, src.Lease, name)
}

// lockedBuilds returns the builds of every lock on this machine, by ID.
func lockedBuilds(p Project) (map[string]cluster.Build, error) {
	builds, err := pastBuilds(p)
	if err != nil {
		return nil, err
	}
	lock, err := schematics.ReadLock(p.LockFile())
	for name := range lock.Schematics {
		b := build(lock, name)
		builds[b.ID] = b
	}
	return builds, err
}

// keptBy lists the old system disks on a parking VM. A rollback uses the last of them, and checks by itself whether
// the disk can be used.
func keptBy(park parking.Parking) []Kept {
	var out []Kept
	for _, k := range park.Record.Kept {
		disk, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key])
		if err != nil {
			continue // someone freed it
		}
		out = append(out, Kept{
			Node: park.Record.Node, Run: k.Run, GivenUp: k.GivenUp, Removed: k.Removed, Volid: disk.Volid, Parking: park.VM.ID, Host: park.VM.Host, Key: k.Key,
			SizeBytes: disk.SizeBytes(), Replaced: replacedAt(k), Nth: k.Nth,
			Talos: k.Talos, Lock: k.Build, Kubernetes: k.Kubernetes,
		})
	}
	for i, k := range slices.Backward(out) {
		if k.Removed {
			out[i].Next = []Advice{{fmt.Sprintf("recast remove %s --free %[1]s", k.Node), "frees it, and all others of that node"}}
			break
		}
		if !k.GivenUp && !park.Record.Open {
			out[i].Next = []Advice{{"recast undo " + k.Node, "boots it if nothing relevant has changed since"}}
			break
		}
	}
	return out
}

// replacedAt returns when a kept disk was replaced. For a disk that was given up, or of a removed node, it returns
// when the run began.
func replacedAt(k parking.KeptDisk) time.Time {
	if k.Replaced.IsZero() {
		return journal.RunBegan(k.Run)
	}
	return k.Replaced
}

func (k Kept) entry() parking.KeptDisk {
	return parking.KeptDisk{Nth: k.Nth, Replaced: k.Replaced, Run: k.Run}
}

// adviseLast advises a rollback only for the last of a node's old system disks: each of its parking VMs has a last
// disk, and an earlier disk may be on another host.
func (r *StatusResult) adviseLast() {
	for i, k := range r.Kept {
		later := func(o Kept) bool {
			return !o.GivenUp && o.Node == k.Node && o.Parking != k.Parking && parking.Later(o.entry(), cluster.VM{ID: o.Parking, Host: o.Host}, k.entry(), cluster.VM{ID: k.Parking, Host: k.Host}) > 0
		}
		if slices.ContainsFunc(r.Kept, later) {
			r.Kept[i].Next = nil
		}
	}
}

// advisePrune marks the old system disks that recast prune would free.
func (r *StatusResult) advisePrune(vms []cluster.VM, keep prune.Retention) {
	verdicts, _ := prune.JudgeParked(vms, parking.UsesOf(vms), keep)
	for _, v := range verdicts {
		i := slices.IndexFunc(r.Kept, func(k Kept) bool { return k.Parking == v.Parking && k.Key == v.Key && k.Run == v.Run })
		if i >= 0 && len(v.Keep) == 0 {
			r.Kept[i].Next = append(r.Kept[i].Next, Advice{"recast prune", "frees it: " + v.Goes})
		}
	}
}

// marked lists the nodes with a mark of recast, except those with an open record.
func marked(nodes []cluster.KubeNode, open map[string]bool) []Marked {
	var out []Marked
	for _, n := range nodes {
		if n.Mark == nil || open[n.Name] {
			continue
		}
		out = append(out, Marked{
			Node: n.Name, Run: n.Mark.Run, Strategy: n.Mark.Strategy, Build: n.Mark.Build, Ready: n.Ready,
			Installed: n.Mark.Installed, Foreign: n.Mark.Foreign, Next: []Advice{{"recast roll", n.Mark.Strategy.Words().Resume}},
		})
	}
	return out
}

// Half is an unfinished replacement.
type Half struct {
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Strategy cluster.Strategy `json:"strategy"`
	Build    string           `json:"build,omitempty"` // the target build; for a rollback, the lock hash
	Talos    string           `json:"talos,omitempty"` // its version, if a lock here has the build
	GivenUp  bool             `json:"givenUp,omitempty"`
	Rebuild  string           `json:"rebuild,omitempty"`  // SHA-256 of the snapshot with which its cluster is rebuilt
	LeftEtcd bool             `json:"leftEtcd,omitempty"` // the node is not a member of etcd until it is back

	VMID    cluster.VMID `json:"vmid"`
	VMState VMState      `json:"vmState"`
	VM      string       `json:"vm"` // the same in words
	Running bool         `json:"running"`
	Parking cluster.VMID `json:"parking"`
	Disks   []DiskStatus `json:"disks"`

	// Whether this machine can finish it.
	BuildLocked   bool     `json:"buildLocked"`   // a lock on this machine has the build
	MachineConfig bool     `json:"machineConfig"` // its machine configuration is in the journal here, or unchanged in talos.machineConfigs
	Next          []Advice `json:"next"`
}

// VMState says which VM has the VMID of a node.
type VMState string

// The states of a VM in a replacement.
const (
	VMDeleted      VMState = "deleted"
	VMAway         VMState = "away"          // on a Proxmox host that does not answer
	VMStranger     VMState = "stranger"      // another VM uses the VMID
	VMOld          VMState = "old"           // the VM from before the replacement
	VMNew          VMState = "new"           // created by this run
	VMSystemParked VMState = "system-parked" // the same VM; its system disk is on the parking VM
	VMBlankSystem  VMState = "new-system"    // the same VM with a new system disk
	VMRestored     VMState = "restored"      // the same VM with its kept system disk
)

// DiskPlace is the location of a disk.
type DiskPlace string

// The places of a disk.
const (
	OnVM      = DiskPlace(parking.OnVM)
	OnParking = DiskPlace(parking.OnParking)
	Detached  = DiskPlace(parking.Detached)
	Unnamed   = DiskPlace(parking.Unnamed)
	Lost      = DiskPlace(parking.Lost)
)

// DiskStatus is one disk of a node and where it is now.
type DiskStatus struct {
	Disk   string    `json:"disk"` // its key on the node's VM
	System bool      `json:"system,omitempty"`
	Kept   bool      `json:"kept,omitempty"` // in a rollback: the disk that is put back
	Place  DiskPlace `json:"place"`
	Volid  string    `json:"volid,omitempty"` // now, or as last known
	Where  string    `json:"where"`           // in words: "scsi1 of VM 9090"
}

// half describes an open record. The error says which details could not be read.
func half(ctx context.Context, px cluster.Inventory, park parking.Parking, vms []cluster.VM, away *cluster.HostsAway) (Half, error) {
	rec := park.Record
	h := Half{
		Node: rec.Node, Run: rec.Run, Strategy: rec.Strategy, Build: rec.Build,
		GivenUp: rec.PutBack, Rebuild: rec.Rebuild, LeftEtcd: rec.Left, VMID: rec.VMID, Parking: park.VM.ID,
	}
	vm, there := find(vms, rec.VMID)
	stranger := there && vm.UUID() != rec.UUID
	s := scene{rec: rec, park: park.VM}
	var errState error
	if there && !stranger {
		var now cluster.VM // the list of VMs shows power states about 10 s late
		now, errState = px.VM(ctx, vm.ID)
		s.vm, h.Running = vm, now.Running
	}
	dangling, err := rec.Dangling(ctx, px, s.vm, park.VM)
	for _, d := range rec.Disks {
		h.Disks = append(h.Disks, s.locate(d, dangling))
	}
	if back := rec.Restore; back != nil {
		h.Talos = back.Talos
		at := s.locate(parking.ParkedDisk{Key: back.Slot, ParkKey: back.Key, Options: back.Options, System: true}, dangling)
		at.Kept = true
		h.Disks = append(h.Disks, at)
	}
	elsewhere, unread := away.VM(rec.VMID)
	switch {
	case unread:
		h.VMState, h.VM = VMAway, fmt.Sprintf("on %s, which does not answer", elsewhere.Host)
		for i, d := range h.Disks {
			if d.Place == Lost {
				h.Disks[i].Where = fmt.Sprintf("not on parking VM %d; VM %d may have it", park.VM.ID, rec.VMID)
			}
		}
	case !there:
		h.VMState, h.VM = VMDeleted, "deleted"
	case stranger:
		h.VMState, h.VM = VMStranger, "a stranger: "+vm.String()
	default:
		h.VMState, h.VM = s.vmState(h)
		if vm.Host != park.VM.Host {
			h.VM += fmt.Sprintf("; it is on %s and the parking VM is on %s: recast plan says how to bring them together", vm.Host, park.VM.Host)
		}
	}
	return h, errors.Join(errState, err)
}

func find(vms []cluster.VM, id cluster.VMID) (cluster.VM, bool) {
	return cluster.Find(vms, func(vm cluster.VM) bool { return vm.ID == id })
}

// scene is the two VMs of a replacement and its record.
type scene struct {
	rec  parking.Record
	vm   cluster.VM // zero if there is none, or another VM has the VMID
	park cluster.VM
}

func (s scene) vmState(h Half) (VMState, string) {
	if h.Strategy.MakesVM() {
		switch {
		case s.vm.MadeBy() == s.rec.Run:
			return VMNew, "created by this run"
		case s.rec.PutBack:
			return VMOld, "as it was before"
		}
		return VMOld, "the old one"
	}
	i := slices.IndexFunc(h.Disks, func(d DiskStatus) bool { return d.System && !d.Kept })
	switch {
	case i < 0 || h.Disks[i].Place == OnVM:
		return VMOld, "the same one, with the system disk that it had"
	case s.vm.Config[h.Disks[i].Disk] == "":
		return VMSystemParked, "the same one, without a system disk"
	case h.Strategy.System() == cluster.SystemKept:
		return VMRestored, "the same one, with its kept system disk"
	}
	return VMBlankSystem, "the same one, with a new system disk"
}

func (s scene) locate(d parking.ParkedDisk, dangling bool) DiskStatus {
	now := s.rec.Locate(d, s.vm, s.park, dangling)
	return DiskStatus{Disk: d.Key, System: d.System, Place: DiskPlace(now.Place), Volid: now.Volid, Where: now.Where}
}

// advise says what a roll on this machine would do, and what else is possible.
func (h Half) advise() []Advice {
	const roll, before = "recast roll", "; otherwise it puts the old system disk back first, and plans the node again"
	giveUp := Advice{"recast undo " + h.Node, h.Strategy.Words().Cancel}
	switch {
	case h.VMState == VMAway:
		return []Advice{{"pvecm status", "on another Proxmox node shows which nodes are up; recast continues when that host is back"}}
	case h.VMState == VMStranger:
		return []Advice{{fmt.Sprintf("qm config %d", h.VMID), "shows which VM has the number; recast does not touch it, and continues when the number is free"}}
	case h.Rebuild != "":
		return []Advice{{"recast rebuild CONTROL-PLANE --from FILE", "as it was run, with the same snapshot, continues"}}
	case h.GivenUp:
		return []Advice{{roll, "continues to put the old system disk back"}}
	case h.Strategy.System() == cluster.SystemKept:
		return []Advice{{roll, "finishes the rollback"}}
	case h.Strategy.Reshapes(), h.Strategy.VM() == cluster.VMGone:
		return []Advice{{roll, "finishes it"}, giveUp}
	case h.Strategy.From() == cluster.Nowhere && !(h.BuildLocked && h.MachineConfig):
		return []Advice{{"recast plan", "says what is missing to finish it"}, giveUp}
	case !h.BuildLocked:
		return []Advice{{roll, "puts the old system disk back first, since no lock here has that build, and plans the node again"}, giveUp}
	case !h.MachineConfig:
		return []Advice{{roll, "finishes it if the node answers" + before + ": its machine configuration is neither in a journal here nor in talos.machineConfigs"}, giveUp}
	}
	return []Advice{{roll, "finishes it"}, giveUp}
}

// Advice is a command and what it does.
type Advice struct {
	Command string `json:"command"`
	Does    string `json:"does"`
}
