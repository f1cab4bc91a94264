package planning

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// doneBy says whether a run of a saved plan has already changed the node. If such a run has begun, it is assumed to
// have changed every node. Anything that the run left behind is cleaned up.
func (n NodePlan) doneBy(begun bool) bool {
	return begun && n.Paused == "" && len(n.Drift.Unread) == 0 && (n.Strategy == "" && !n.Drift.Rollable() || n.Drift.Tidy())
}

// Follow turns a plan of the present state into the saved plan, with its order and ID. It refuses if the state has
// changed other than by earlier runs of the saved plan; begun says whether the journal has such a run. What that
// run left unfinished is finished before anything is compared.
func (p Plan) Follow(saved Plan, begun bool) (Plan, error) {
	against := follower{p, saved}
	moved := against.madeFrom()
	if len(moved) == 0 {
		moved = against.moved(begun || against.begun())
	}
	if len(moved) > 0 {
		return Plan{}, fault.WithHint(fault.PlanMoved.Refusedf("things are no longer as plan %s has them:\n  %s", saved.ID, strings.Join(moved, "\n  ")), planAgain)
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
	return Policy{AcceptOutage: p.AcceptOutage, What: p.What, Exactly: true, Only: names}
}

// RunSuffix ends the IDs of the runs that execute this plan: Proxmox and the journal identify them by it.
func (p Plan) RunSuffix() string { return "-" + p.ID[:8] }

// Seal completes a plan before it is saved: lock and config are the hashes of what the plan was made from. Its ID
// is the hash of everything in it.
func (p *Plan) Seal(lock, config string) {
	p.Version, p.Lock, p.Config = Version, lock, config
	p.ID = hashOf(*p)
}

// hashOf hashes the content as JSON, without the ID. The hash is short enough to compare by eye; it does not
// protect against forgery.
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

// madeFrom compares what the two plans were made from.
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

// begun says whether a run of the saved plan has left a trace that another machine also sees: a VM that it has
// created, or a node that it has cordoned.
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

// fromPastLocks are the codes of reasons that only a machine with the lock of the running image gives;
// inPlaceOfLock are all codes with which that machine needs no reason that the lock differs.
var (
	fromPastLocks = []string{"extension-digest", "overlay-digest", "rebuild"}
	inPlaceOfLock = append([]string{"extension-missing", "extension-extra", "overlay"}, fromPastLocks...)
)

// alike returns the reasons of two plans, without those from another lock if only one plan has such: which past
// locks are at hand depends on the machine, and changes nothing on the node.
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

// Read reads the output of recast plan -o json. The result can be compared, not rolled: Follow turns a plan of the
// present state into it.
func Read(b []byte) (Plan, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return Plan{}, fault.WithHint(fault.Configf("it is no plan: %w", err), planAgain)
	}
	if version.Version != Version {
		return Plan{}, fault.WithHint(fault.Configf("it is a plan of format %d; this recast reads format %d", version.Version, Version), planAgain)
	}
	var p Plan
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Plan{}, fault.WithHint(fault.Configf("it is no plan: %w", err), planAgain)
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

// differ lists each trait that has changed.
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

// trait is one property by which plans are compared.
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
