package pipeline

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// StatusResult explains to somebody who was not there what a roll is about, or
// what one has left: from Proxmox, and from whatever else could be asked.
type StatusResult struct {
	Cluster    string     `json:"cluster"`
	Claim      *ClaimHeld `json:"claim,omitempty"`      // nil: nobody holds it
	LastRun    *RunStatus `json:"lastRun,omitempty"`    // as the journal here knows it; other machines have their own
	Open       []Half     `json:"open"`                 // unfinished replacements, as Proxmox knows them
	Marked     []Marked   `json:"marked"`               // nodes that a run marked or cordoned, without such a record
	Kept       []Kept     `json:"kept"`                 // old system disks that are still there
	Scratch    []Left     `json:"scratch,omitempty"`    // VMs on which a boot ISO is tried out, or was when its run was killed
	Unanswered []string   `json:"unanswered,omitempty"` // requests that Proxmox may still carry out, and what waits for them
	Kubernetes string     `json:"kubernetes,omitempty"` // why it could not be asked; "": it was
	Problems   []string   `json:"problems,omitempty"`   // what else could not be read
}

// ClaimHeld is the claim of the cluster as its holder left it in Proxmox, or in Kubernetes.
type ClaimHeld struct {
	cluster.ClaimState
	VMID  cluster.VMID `json:"vmid,omitempty"`
	Lease string       `json:"lease,omitempty"` // where there is no VM: "kube-system/recast"
}

// RunStatus is one run as its journal tells it.
type RunStatus struct {
	ID       string    `json:"id"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	Outcome  string    `json:"outcome,omitempty"` // "": still running, or killed
	// Took is how long its nodes were away, and were expected to be.
	Took []cluster.Took `json:"took,omitempty"`
}

// Advice is what to type, and what that does.
type Advice struct {
	Command string `json:"command"`
	Does    string `json:"does"`
}

// Marked is a node that a run was about to change.
type Marked struct {
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Strategy cluster.Strategy `json:"strategy"`
	Build    string           `json:"build"`
	Ready    bool             `json:"ready"`
	// Installed says that the new system is on its disk, to be booted.
	Installed bool     `json:"installed,omitempty"`
	Foreign   bool     `json:"foreign,omitempty"` // somebody else had cordoned it before
	Next      []Advice `json:"next"`
}

// Kept is an old system disk with what is on it.
type Kept struct {
	Node       string       `json:"node"`
	Run        string       `json:"run"`               // that replaced it, or had made it and was given up
	GivenUp    bool         `json:"givenUp,omitempty"` // that run was given up: nothing boots it
	Volid      string       `json:"volid"`
	Parking    cluster.VMID `json:"parking"`
	Host       string       `json:"host"`
	Key        string       `json:"key"`                 // on the parking VM
	SizeBytes  uint64       `json:"sizeBytes,omitempty"` // of the disk, not of what it takes
	Replaced   time.Time    `json:"replaced,omitzero"`   // when that run began, if its ID says so
	Talos      string       `json:"talos,omitempty"`     // version of the system on it
	Lock       string       `json:"lock,omitempty"`      // the hash that it was locked with; "" if not by recast
	Kubernetes string       `json:"kubernetes,omitempty"`
	Next       []Advice     `json:"next,omitempty"` // rollback of the last one of a node, prune of what it would free

	Nth int `json:"-"` // replacement of the node's system disk
}

// StatusSources is where Status reads. Only Proxmox has to answer: a roll may
// have taken Kubernetes down.
type StatusSources struct {
	Proxmox cluster.Inventory
	// Nodes lists the Node objects; its error is told in the result.
	Nodes func(ctx context.Context) ([]cluster.KubeNode, error)
	// Lease reads the Lease that is a claim; asked only where Nodes answered.
	Lease func(ctx context.Context) (cluster.Lease, error)
	// MachineConfig is Machines.MachineConfig.
	MachineConfig func(node string) (cluster.Secret, bool, error)
}

// askKubernetes bounds how long status waits for an API that may be away.
const askKubernetes = 10 * time.Second

// Status says who is at work and, for everything unfinished, where each disk is
// and what finishes it. It changes nothing, and fails only where Proxmox can't be read.
func Status(ctx context.Context, p Project, src StatusSources) (StatusResult, error) {
	res := StatusResult{Cluster: p.Config.Cluster, Open: []Half{}, Marked: []Marked{}, Kept: []Kept{}}
	vms, away, err := p.readable(ctx, src.Proxmox)
	switch {
	case err != nil && away == nil:
		return res, err
	case err != nil:
		res.problem(err)
	case away != nil:
		res.problem(away)
	}
	claim, held, err := cluster.PeekClaim(vms, p.Config.Cluster, p.claimID())
	res.problem(err)
	if held {
		res.Claim = &ClaimHeld{ClaimState: claim, VMID: claim.VM.ID}
		res.problem(claim.OfOtherRange(p.claimID(), p.vmids()))
	}
	runs, err := journal.Runs(p.runs())
	res.problem(err)
	if len(runs) > 0 {
		res.LastRun = &RunStatus{ID: runs[0].ID, Started: runs[0].Started, Finished: runs[0].Finished, Outcome: runs[0].Outcome}
		res.LastRun.Took, err = p.tookIn(runs[0].ID)
		res.problem(err)
	}
	nodes, err := askNodes(ctx, src)
	if err != nil {
		res.Kubernetes = err.Error()
	} else if res.Claim == nil && src.Lease != nil {
		claim, held, err := peekLease(ctx, src, p.Config.Cluster)
		res.problem(err)
		if held {
			res.Claim = &ClaimHeld{ClaimState: claim, Lease: claim.Lease.Name}
		}
	}
	res.Scratch = scratchLeft(vms, p.Config.Cluster)
	parkings, err := cluster.Parkings(vms, p.Config.Cluster)
	res.problem(err)
	res.problem(cluster.Strays(vms, p.Config.Cluster, p.vmids(), p.nodeVMs(cluster.Plan{})))
	builds, err := p.lockedBuilds()
	res.problem(err)
	open := map[string]bool{}
	for _, park := range parkings {
		if rec := park.Record; rec.Open {
			open[rec.Node] = true
			h, err := half(ctx, src.Proxmox, park, vms, away)
			res.problem(err)
			place, err := p.configKnown(Machines{MachineConfig: src.MachineConfig}, rec.Node, rec)
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
		res.advisePrune(vms, p.retention(nil))
	}
	res.Marked = append(res.Marked, marked(nodes, open)...)
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

func peekLease(ctx context.Context, src StatusSources, name string) (cluster.ClaimState, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askKubernetes)
	defer cancel()
	return cluster.PeekLease(ctx, src.Lease, name)
}

// lockedBuilds are the builds of every lock that is here, by ID.
func (p Project) lockedBuilds() (map[string]cluster.Build, error) {
	builds, err := p.pastBuilds()
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

// keptBy lists the old system disks that are on a parking VM. The last one is
// what a rollback takes; whether it would work is for that to find out.
func keptBy(park cluster.Parking) []Kept {
	var out []Kept
	for _, k := range park.Record.Kept {
		disk, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key])
		if err != nil {
			continue // freed by somebody: nothing is kept there any more
		}
		out = append(out, Kept{
			Node: park.Record.Node, Run: k.Run, GivenUp: k.GivenUp, Volid: disk.Volid, Parking: park.VM.ID, Host: park.VM.Host, Key: k.Key,
			SizeBytes: disk.SizeBytes(), Replaced: journal.RunBegan(k.Run), Nth: k.Nth,
			Talos: k.Talos, Lock: k.Build, Kubernetes: k.Kubernetes,
		})
	}
	for i, k := range slices.Backward(out) {
		if !k.GivenUp && !park.Record.Open {
			out[i].Next = []Advice{{"recast rollback " + k.Node, "boots it if nothing relevant has changed since"}}
			break
		}
	}
	return out
}

// adviseLast leaves the way back to the last of a node's old system disks: each of
// its parking VMs has one, and an earlier one may be on another host.
func (r *StatusResult) adviseLast() {
	for i, k := range r.Kept {
		later := func(o Kept) bool {
			return !o.GivenUp && o.Node == k.Node && o.Parking != k.Parking && o.Nth > k.Nth
		}
		if slices.ContainsFunc(r.Kept, later) {
			r.Kept[i].Next = nil
		}
	}
}

// advisePrune says of which old system disks recast prune would free.
func (r *StatusResult) advisePrune(vms []cluster.VM, keep cluster.Retention) {
	verdicts, _ := cluster.JudgeParked(vms, cluster.UsesOf(vms), keep)
	for _, v := range verdicts {
		i := slices.IndexFunc(r.Kept, func(k Kept) bool { return k.Parking == v.Parking && k.Key == v.Key && k.Run == v.Run })
		if i >= 0 && len(v.Keep) == 0 {
			r.Kept[i].Next = append(r.Kept[i].Next, Advice{"recast prune", "frees it: " + v.Goes})
		}
	}
}

// marked lists the nodes that carry a mark of recast, but for those whose open
// record says more.
func marked(nodes []cluster.KubeNode, open map[string]bool) []Marked {
	var out []Marked
	for _, n := range nodes {
		if n.Mark == nil || open[n.Name] {
			continue
		}
		does := "clears that up"
		if n.Mark.Strategy == cluster.InPlace {
			does = "finishes the upgrade"
		}
		out = append(out, Marked{
			Node: n.Name, Run: n.Mark.Run, Strategy: n.Mark.Strategy, Build: n.Mark.Build, Ready: n.Ready,
			Installed: n.Mark.Installed, Foreign: n.Mark.Foreign, Next: []Advice{{"recast roll", does}},
		})
	}
	return out
}
