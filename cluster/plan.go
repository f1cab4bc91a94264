package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Plan says what a roll will do, in order. It is data: steps are derived from
// it and from nothing else.
type Plan struct {
	Cluster string     `json:"cluster"`
	Run     string     `json:"run,omitempty"` // the unfinished run that this one continues
	Nodes   []NodePlan `json:"nodes"`         // every node looked at, in the order in which they are rolled
	Warn    []string   `json:"warnings,omitempty"`
}

// NodePlan is what happens to one node.
type NodePlan struct {
	Node     string     `json:"node"`
	Role     string     `json:"role"` // "worker" or "control-plane"
	Drift    Drift      `json:"drift"`
	Strategy Strategy   `json:"strategy,omitempty"` // "" when nothing is to be done
	Why      string     `json:"why"`                // of the strategy, or of doing nothing
	Refused  []string   `json:"refused,omitempty"`  // why it can't be done; a plan with any is not run
	Resume   bool       `json:"resume,omitempty"`   // finishes an interrupted replacement
	VMID     VMID       `json:"vmid"`
	Host     string     `json:"host"`
	UUID     string     `json:"uuid"`
	Addr     netip.Addr `json:"address"`
	Digest   string     `json:"digest,omitempty"` // of the VM's configuration when planned
	Carried  []DiskPlan `json:"carried,omitempty"`
	System   *DiskPlan  `json:"systemDisk,omitempty"` // parked and replaced by a blank one

	// OutageSeconds is how long the node is expected to be away.
	OutageSeconds int `json:"outageSeconds,omitempty"`

	wanted Wanted
	found  Found
}

// DiskPlan is one drive in a plan.
type DiskPlan struct {
	Key    string `json:"key"`
	Serial string `json:"serial,omitempty"`
	Volid  string `json:"volid"`
	Size   string `json:"size,omitempty"`
}

// Policy is how a roll goes about it.
type Policy struct {
	WorkersFirst bool
	Only         []string // nodes to look at; empty: all
	Exclude      []string
}

// expectedOutage is what one recreate is expected to cost: shutdown, parking
// and the 146 s from power on to ready that a recreated node took under
// software emulation (Talos v1.14.1 in QEMU), so an upper bound for the boot.
const expectedOutage = 4 * time.Minute

// NewPlan decides what to do about every wanted node, by what was observed and
// nothing else. It fails only where the question itself makes no sense: an
// unknown node name, a node that could not be read.
func NewPlan(cluster string, wanted []Wanted, o Observation, past History, p Policy) (Plan, error) {
	plan := Plan{Cluster: cluster}
	if err := p.check(wanted); err != nil {
		return Plan{}, err
	}
	var unread []error
	for i, w := range wanted {
		if !p.selects(w.Name) && !o.Found[i].Open() {
			continue
		}
		n := planNode(w, o.Found[i], o, past)
		if n.Resume {
			plan.Run = n.found.Parking.Record.Run
		}
		if o.Found[i].Machine == nil && !n.Resume {
			unread = append(unread, fmt.Errorf("node %s: %s", w.Name, strings.Join(n.Drift.Unread, "; ")))
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	if err := errors.Join(unread...); err != nil {
		return Plan{}, fmt.Errorf("a plan needs every node's answer: %w", err)
	}
	plan.order(p)
	plan.refuseSecondRun()
	if !o.Quorate {
		plan.Warn = append(plan.Warn, "the Proxmox cluster has no quorum: a roll will refuse to start")
	}
	return plan, nil
}

func planNode(w Wanted, f Found, o Observation, past History) NodePlan {
	n := NodePlan{Node: w.Name, Role: "worker", Addr: f.Addr, Drift: Diff(w, f, past), wanted: w, found: f}
	if f.Machine != nil && f.Machine.ControlPlane {
		n.Role = "control-plane"
	}
	if f.VM != nil {
		n.VMID, n.Host, n.UUID, n.Digest = f.VM.ID, f.VM.Host, f.VM.UUID(), f.VM.Digest
	}
	switch {
	case f.Open():
		planResume(&n)
	case f.Machine == nil:
		n.Why = "it could not be read"
	case !n.Drift.Stale:
		n.Why = fmt.Sprintf("runs %s build %s", w.Build.TalosVersion, short(w.Build.ID))
	default:
		planRecreate(&n, o)
	}
	return n
}

// planResume finishes what a run began, with the build that its record names.
func planResume(n *NodePlan) {
	rec := n.found.Parking.Record
	n.Resume, n.Strategy = true, Recreate
	n.Why = fmt.Sprintf("run %s began to recreate it and did not finish", rec.Run)
	n.VMID, n.UUID, n.Host = rec.VMID, rec.UUID, n.found.Parking.VM.Host
	n.OutageSeconds = int(expectedOutage.Seconds())
	for _, d := range rec.Disks {
		disk, err := ParseDisk(d.Key, joinOptions(d.Volid, d.Options))
		if err != nil {
			n.Refused = append(n.Refused, fmt.Sprintf("record of run %s: %v", rec.Run, err))
			continue
		}
		n.add(disk, d.System)
	}
	if rec.Build != n.wanted.Build.ID {
		n.Refused = append(n.Refused, fmt.Sprintf(
			"run %s was bringing it to build %s, but the lock now says %s: put that lock back and roll once, then roll to the new one",
			rec.Run, short(rec.Build), short(n.wanted.Build.ID)))
	}
}

func planRecreate(n *NodePlan, o Observation) {
	n.Strategy = Recreate
	n.Why = "possible: every persistent disk can be carried over"
	if n.wanted.Strategy == Recreate {
		n.Why = "as configured"
	}
	n.OutageSeconds = int(expectedOutage.Seconds())
	system, err := ProveSystemDisk(*n.found.VM, *n.found.Machine, n.wanted.SystemDisk)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
	}
	n.Refused = append(n.Refused, refusals(n.wanted, n.found, o, system)...)
	disks, err := n.found.VM.Disks()
	if err != nil {
		return // among the refusals
	}
	for _, d := range disks {
		if !d.CDROM {
			n.add(d, d.Key == system.Key)
		}
	}
}

func (n *NodePlan) add(d Disk, system bool) {
	p := DiskPlan{Key: d.Key, Serial: d.Option("serial"), Volid: d.Volid, Size: d.Option("size")}
	if system {
		n.System = &p
		return
	}
	n.Carried = append(n.Carried, p)
}

// order puts unfinished replacements first, then control planes and workers as
// the policy says, each as the configuration lists them.
func (p *Plan) order(policy Policy) {
	rank := func(n NodePlan) int {
		switch {
		case n.Resume:
			return 0
		case (n.Role == "control-plane") != policy.WorkersFirst:
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(p.Nodes, func(a, b NodePlan) int { return rank(a) - rank(b) })
}

// refuseSecondRun stops a plan that would have to continue two runs at once.
func (p *Plan) refuseSecondRun() {
	for i, n := range p.Nodes {
		if n.Resume && n.found.Parking.Record.Run != p.Run {
			p.Nodes[i].Refused = append(n.Refused, fmt.Sprintf("its replacement belongs to run %s, another node's to run %s",
				n.found.Parking.Record.Run, p.Run))
		}
	}
}

// Work lists the nodes that something will be done to.
func (p Plan) Work() []NodePlan {
	var out []NodePlan
	for _, n := range p.Nodes {
		if n.Strategy != "" {
			out = append(out, n)
		}
	}
	return out
}

// Refused lists every reason why the plan can't be run, with its node.
func (p Plan) Refused() []string {
	var out []string
	for _, n := range p.Nodes {
		for _, r := range n.Refused {
			out = append(out, n.Node+": "+r)
		}
	}
	return out
}

func joinOptions(volid, options string) string {
	if options == "" {
		return volid
	}
	return volid + "," + options
}
