package planning

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Replacing is a run that replaced the present system disks of nodes.
type Replacing struct {
	Run   string
	At    time.Time // when the run was active; zero: it is unfinished, or someone has edited its record
	What  string    // "" if this machine has no journal of the run
	Nodes []string
}

func (r Replacing) String() string {
	text := "run " + r.Run
	if !r.At.IsZero() {
		text += " of " + r.At.Local().Format("2006-01-02 15:04:05")
	}
	if r.What != "" {
		text += " (" + r.What + ")"
	}
	return text + ": " + strings.Join(r.Nodes, ", ")
}

// Way is how a node goes back. Its value is the command that a journal records.
type Way string

// The ways back.
const (
	Cancel   Way = "undo --cancel"   // cancels the unfinished replacement of one node
	Previous Way = "undo --previous" // boots nodes from the system disks that finished replacements have parked
)

// Undone selects what is undone.
type Undone struct {
	Way Way    // "": whichever applies
	Run string // ID of the run, or a part of it, if no node is named; "": the last run
	// Order sorts runs, the newest first; sure is false if the last run may be another of them.
	Order func([]Replacing) (ordered []Replacing, sure bool)
	Say   func(string) // called with the run that is undone
}

// CheckRun refuses a run of which no parking VM has anything to undo, and a part of an ID that several runs share.
func (u Undone) CheckRun(all []parking.Parking) error {
	if u.Run == "" {
		return nil
	}
	type machine struct{ node, uuid string } // an earlier machine of the same name may have been removed
	nodes := map[machine]*observe.Found{}
	var open, finished []Replacing
	for _, p := range slices.SortedStableFunc(slices.Values(all), parking.Parking.Newer) {
		is := machine{p.Record.Node, p.Record.UUID}
		f, known := nodes[is]
		if !known {
			f = &observe.Found{}
			nodes[is] = f
		}
		f.Elsewhere = append(f.Elsewhere, p)
		if p.Record.Open {
			open = added(open, Replacing{Run: p.Record.Run, Nodes: []string{p.Record.Node}})
		}
	}
	for _, is := range slices.SortedFunc(maps.Keys(nodes), func(a, b machine) int { return strings.Compare(a.node+a.uuid, b.node+b.uuid) }) {
		if kept, _, ok := nodes[is].LastKept(); ok {
			finished = added(finished, Replacing{Run: kept.Run, At: kept.Replaced, Nodes: []string{is.node}})
		}
	}
	_, _, err := u.named(open, finished)
	return err
}

// ForUndo plans to undo what the last run did to the named nodes: Cancel if their replacement is unfinished, else
// Previous. Cancel is for one node; Previous without names is for all nodes that can.
func ForUndo(ctx context.Context, clusterName string, wanted []cluster.Wanted, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy, u Undone) (plan Plan, way Way, err error) {
	if err := p.Check(wanted); err != nil {
		return Plan{}, u.Way, err
	}
	if u.Way == "" {
		if u.Way, p.Only, err = u.choose(wanted, o, p); err != nil {
			return Plan{}, "", err
		}
	}
	if u.Way == Cancel {
		plan, err = forCancel(clusterName, wanted, o, p.Only[0])
	} else {
		plan, err = forRollback(ctx, clusterName, wanted, o, talos, m, p)
	}
	return plan, u.Way, err
}

// choose returns the way back and its nodes: without names the unfinished, else those of the latest run, or u's.
func (u Undone) choose(wanted []cluster.Wanted, o observe.Observation, p Policy) (way Way, nodes []string, err error) {
	open, finished := replacings(wanted, o, p)
	nodes = nodesOf(open)
	switch {
	case len(p.Only) == 0 && u.Run != "":
		if open, finished, err = u.named(open, finished); err != nil {
			return "", nil, err
		}
		nodes = nodesOf(open)
	case len(nodes) == 1 && len(p.Only) == 0:
		ordered, _ := u.Order(open)
		u.Say(ordered[0].String() + ", which is not finished")
	}
	switch {
	case len(nodes) == 1 && len(p.Only) <= 1:
		return Cancel, nodes, nil
	case len(nodes) > 0:
		return "", nil, fault.WithHint(fault.ParkedHalf.Refusedf("%s: an earlier run is not finished", strings.Join(nodes, ", ")), "cancel it for one node after the other: recast undo %s", nodes[0])
	case len(p.Only) > 0:
		return Previous, p.Only, nil
	case len(finished) == 0:
		return "", nil, fault.NoWayBack.Refusedf("nothing is unfinished, and no earlier system disk of a node is parked: %s", cluster.PreviousLock)
	}
	ordered, sure := u.Order(finished)
	if !sure {
		return "", nil, fault.WithHint(fault.NoWayBack.Refusedf("which run was the last one is not certain, because their times are of the clocks of two machines, or not recorded: %s", listed(ordered)),
			"name the one to undo: recast undo --run %s, or recast undo NODE", ordered[0].Run)
	}
	u.Say(ordered[0].String())
	return Previous, ordered[0].Nodes, nil
}

// replacings returns the runs that left a selected node unfinished, and those that replaced a node last.
func replacings(wanted []cluster.Wanted, o observe.Observation, p Policy) (open, finished []Replacing) {
	for i, w := range wanted {
		f := o.Found[i]
		if !p.Selects(w.Name) {
			continue
		}
		if f.Open() {
			open = added(open, Replacing{Run: f.Parking.Record.Run, Nodes: []string{w.Name}})
		}
		if kept, _, ok := f.LastKept(); ok {
			finished = added(finished, Replacing{Run: kept.Run, At: kept.Replaced, Nodes: []string{w.Name}})
		}
	}
	return open, finished
}

// added adds the node of r to its run. A run is dated by its last node.
func added(runs []Replacing, r Replacing) []Replacing {
	at := slices.IndexFunc(runs, func(known Replacing) bool { return known.Run == r.Run })
	if at < 0 {
		return append(runs, r)
	}
	runs[at].Nodes = append(runs[at].Nodes, r.Nodes...)
	if r.At.After(runs[at].At) {
		runs[at].At = r.At
	}
	return runs
}

func nodesOf(runs []Replacing) (nodes []string) {
	for _, r := range runs {
		nodes = append(nodes, r.Nodes...)
	}
	slices.Sort(nodes)
	return nodes
}

func (u Undone) named(open, finished []Replacing) (ofOpen, ofFinished []Replacing, err error) {
	all := slices.Concat(open, finished)
	runs := cluster.Each(all, func(r Replacing) string { return r.Run })
	found := cluster.Where(runs, func(run string) bool {
		return run == u.Run || strings.Contains(run, u.Run) && !slices.Contains(runs, u.Run)
	})
	slices.Sort(found)
	switch found = slices.Compact(found); {
	case len(found) > 1:
		return nil, nil, fault.WithHint(fault.Configf("%q is a part of several runs: %s", u.Run, strings.Join(found, ", ")), "use more of the ID")
	case len(found) == 0:
		err := fault.NoWayBack.Refusedf("no node's present system disk is of a run %q: a later run has replaced it, or the disk before it is no longer parked", u.Run)
		if len(all) == 0 {
			return nil, nil, fault.WithHint(err, "the way back is to %s", cluster.PreviousLock)
		}
		all, _ = u.Order(all)
		return nil, nil, fault.WithHint(err, "the runs that can be undone: %s", listed(all))
	}
	other := func(r Replacing) bool { return r.Run != found[0] }
	return slices.DeleteFunc(open, other), slices.DeleteFunc(finished, other), nil
}

func listed(runs []Replacing) string { return strings.Join(cluster.Each(runs, Replacing.String), "; ") }

func forCancel(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes()}
	for i, w := range wanted {
		f := o.Found[i]
		if w.Name != node {
			continue
		}
		if f.Away {
			return Plan{}, fault.As(fault.Refused, fmt.Errorf("node %s: %w", node, errors.Join(f.Errs...)))
		}
		if !f.Open() {
			return Plan{}, nothingToCancel(node, f)
		}
		switch rec := f.Parking.Record; {
		case rec.Rebuild != "" && (rec.Strategy.From() == cluster.Nowhere || o.Dark != nil): // its disks are on the parking VM
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is part of a rebuild, and its cluster is not there to take it back", node), "%s", observe.RebuildGoesOn)
		case rec.Rebuild != "": // the cluster works again, without a rebuild
			park := *f.Parking
			park.Record.Rebuild = ""
			f.Parking = &park
		case rec.Strategy.From() == cluster.Nowhere:
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is being made: it has no earlier state", node),
				"%s", giveUp(f))
		case rec.Strategy.System() == cluster.SystemKept:
			return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: a rollback of it is unfinished", node), "recast roll finishes that; recast undo %s then goes the other way", node)
		}
		n := ForNode(w, f, o, func(string) (cluster.LockedContent, bool) { return cluster.LockedContent{}, false }, Policy{})
		if n.Strategy.From() != cluster.Halfway {
			n.PutBack("recast undo asked for it")
		}
		n.AskLosses()
		plan.Run, plan.Nodes = n.Run, []NodePlan{n}
	}
	heedOwnPod(&plan, o)
	heedKubeSpan(&plan, o)
	plan.Order(Policy{})
	plan.Arrange()
	return plan, nil
}

// giveUp says how to cancel a creation: only what that run made and nothing used goes; etcd may know a control plane.
func giveUp(f observe.Found) string {
	rec, park := f.Parking.Record, f.Parking.VM
	text := fmt.Sprintf("recast roll finishes it; recast remove %s then takes it away, and keeps its disks", rec.Node)
	destroy := func(id cluster.VMID) string { return fmt.Sprintf("qm set %d --protection 0 && qm destroy %[1]d", id) }
	mem, err := rec.ReadMemory(park)
	switch {
	case err != nil || !park.Bare() || f.Node != nil || f.Machine != nil:
		return text
	case f.VM == nil:
		return fmt.Sprintf("%s. To cancel it before its VM is made, on %s: %s", text, park.Host, destroy(park.ID))
	case mem.ControlPlane || !madeAlone(*f.VM, rec.Run, mem.DiskSerial):
		return text
	case f.VM.Running:
		return fmt.Sprintf("%s. To cancel it, switch VM %d off, and run the same command again", text, f.VM.ID)
	}
	return fmt.Sprintf("%s. To cancel it (its VM is off, and has only disks that the run made), on %s: %s && %s", text, park.Host, destroy(f.VM.ID), destroy(park.ID))
}

// madeAlone says whether the VM is as the run made it: with its new system disk, and no other disk.
func madeAlone(vm cluster.VM, run, serial string) bool {
	disks, err := vm.Disks()
	other := slices.ContainsFunc(disks, func(d cluster.Disk) bool {
		return !d.CDROM && (d.Owner != vm.ID || d.Key != "efidisk0" && (serial == "" || d.Option("serial") != serial))
	})
	return err == nil && !other && vm.MadeBy() == run && !vm.HA && vm.Config["vmstate"] == "" && vm.Config["parent"] == ""
}

func nothingToCancel(node string, f observe.Found) error {
	if f.Unfinished() {
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an upgrade in place of it is unfinished; its system disk was not replaced, so there is none to put back", node),
			"recast roll finishes the upgrade")
	}
	err := fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, so there is nothing to cancel", node)
	if _, _, kept := f.LastKept(); kept {
		return fault.WithHint(err, "recast undo %s boots the system disk that it had before its last roll", node)
	}
	return fault.WithHint(err, "recast status says what is unfinished")
}

// forRollback plans to boot the nodes' previous system disks; without names all that can. Refusals say the other way.
func forRollback(ctx context.Context, clusterName string, wanted []cluster.Wanted, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes(), Heed: p.Heed(wanted)}
	for i, w := range wanted {
		f := o.Found[i]
		switch err := fault.ParkedHalf.Refusedf("node %s: an earlier run is not finished", w.Name); {
		case f.Open():
			return Plan{}, fault.WithHint(err, "recast roll finishes it, recast undo %s cancels it", w.Name)
		case f.Unfinished():
			return Plan{}, fault.WithHint(err, "recast roll finishes its upgrade in place")
		}
		if !p.Selects(w.Name) {
			continue
		}
		n := planOf(w, f)
		n.Role, n.EtcdKept = cluster.Worker, true
		if err := planRollback(ctx, &n, o, talos, m, p); err != nil {
			return Plan{}, fmt.Errorf("node %s: %w", w.Name, err)
		}
		if n.Strategy == "" && len(p.Only) == 0 {
			n.Refused = nil // this node was not named
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	refuseControlled(&plan)
	heedOwnPod(&plan, o)
	heedKubeSpan(&plan, o)
	noteInitiators(&plan)
	plan.Order(p)
	plan.Arrange()
	plan.AwaitOthers(o)
	heedStorage(&plan, o)
	worldOf{&plan, o}.ceph()
	return plan, nil
}

func planRollback(ctx context.Context, n *NodePlan, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy) error {
	kept, on, ok := n.Found.LastKept()
	switch {
	case n.Found.Away:
		PlanAway(n, o.Away)
		return nil
	case !ok:
		n.Why = "no earlier system disk of it is parked"
		n.Refused = []string{n.Why + ": " + cluster.PreviousLock}
		return nil
	case n.Found.Machine == nil || n.Found.Node == nil:
		n.Why = "it could not be read"
		why := errors.Join(n.Found.Errs...)
		if why == nil {
			why = errors.New("there is no Node of that name in Kubernetes")
		}
		n.Refused = []string{n.Why + ": " + why.Error()}
		if n.Found.Blank != nil {
			n.Refused[0] += ": recast roll gives it its configuration back"
		}
		return nil
	}
	if why := n.Found.Pause(); why != "" {
		n.Paused, n.Why = why, "paused: "+why
		n.Refused = []string{n.Why + ": " + cluster.Unpause(n.Node)}
		return nil
	}
	machine := *n.Found.Machine
	if twice := (strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: machine, Found: n.Found, Observation: o}).Doubled(); len(twice) > 0 {
		n.Strategy, n.Restore, n.Why, n.Refused = cluster.Rollback, &kept, "a volume of it stands in two slots", cluster.Texts(twice)
		return nil
	}
	n.Strategy, n.Restore = cluster.Rollback, &kept
	n.Why = fmt.Sprintf("boots the system disk that run %s replaced: Talos %s, lock %s", kept.Run, words.OrNone(kept.Talos), words.OrNone(words.Short(kept.Build)))
	n.Estimate(o.Took)
	config, err := talos.MachineConfig(ctx, n.Addr)
	if err != nil {
		return fmt.Errorf("read machine configuration: %w", err)
	}
	hash, err := ConfigHash(m, config)
	if err != nil {
		return err
	}
	refuse := func(format string, args ...any) {
		n.Refused = append(n.Refused, fmt.Sprintf(format, args...)+": "+cluster.PreviousLock)
	}
	if hash != kept.Config {
		refuse("its machine configuration has changed since")
	}
	if k := n.Found.Node.KubeletVersion; k != kept.Kubernetes {
		refuse("its Kubernetes version was %s and is %s", words.OrNone(kept.Kubernetes), words.OrNone(k))
	}
	if machine.Secured() && !o.Signed(n.Wanted, kept) {
		refuse("its firmware boots only what is signed (Secure Boot), and whether that system is can't be determined from the locks that are here")
	}
	if machine.ControlPlane {
		if err := planRollbackEtcd(ctx, n, o, talos, p, kept); err != nil {
			return err
		}
	}
	if elsewhere := n.Found.KeptElsewhere(kept, on); elsewhere != "" {
		n.Refused = append(n.Refused, elsewhere)
	}
	system, err := cluster.ProveSystemDisk(*n.Found.VM, machine, n.Wanted.SystemDisk)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
	}
	if system.Key != kept.Slot {
		refuse("its system disk was %s and is %s", words.OrNone(kept.Slot), words.OrNone(system.Key))
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: machine, Found: n.Found, Observation: o, System: system, SystemErr: err}
	c.Disks, c.DisksErr = c.VM.Disks()
	n.Refused = append(n.Refused, slices.Concat(cluster.Texts(c.Occupied()), c.Untellable(), cluster.Texts(c.Entangled()), cluster.Texts(c.Replicated(cluster.Reimage)), c.Immovable(cluster.Reimage), o.Hidden(c.VM))...)
	n.AskLosses()
	n.Add(system, true)
	return nil
}

// planRollbackEtcd lets a control plane back without etcd's data only, or if its member had left: it never joins again.
func planRollbackEtcd(ctx context.Context, n *NodePlan, o observe.Observation, talos cluster.TalosReader, p Policy, kept parking.KeptDisk) error {
	n.Role = cluster.ControlPlane
	onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
	if err != nil {
		return err
	}
	n.EtcdKept = !onSystem
	if kept.EtcdOn && !kept.Left {
		n.Refused = append(n.Refused, "its old system disk holds the data of an etcd member that did not leave before it was replaced: it would never join again")
	}
	status, err := talos.EtcdStatus(ctx, n.Addr)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if minor(status.Version) != minor(kept.Etcd) {
		n.Refused = append(n.Refused, fmt.Sprintf("its etcd was %s and is %s: going back across a minor version is not safe", words.OrNone(kept.Etcd), words.OrNone(status.Version)))
	}
	refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), onSystem, n.Found.Machine.TypeInit, cluster.Reimage, p.AcceptOutage)
	n.Refused = append(n.Refused, refused...)
	n.Notes = append(n.Notes, warn...)
	return nil
}

// ConfigHash identifies a machine configuration and reveals nothing of it. What recast itself sets does not count.
func ConfigHash(m cluster.Maintenance, config cluster.Secret) (string, error) {
	patched, err := m.PatchConfig(config, cluster.NeutralPatch)
	if err != nil {
		return "", fmt.Errorf("compare machine configurations: %w", err)
	}
	sum := sha256.Sum256(patched)
	return hex.EncodeToString(sum[:16]), nil
}

func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// ForRemove plans to take one node away: its disks are parked, VM and Node deleted. reach: the talosconfig's endpoints.
func ForRemove(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string, reach []netip.Addr) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes(), Heed: Policy{}.Heed(wanted)}
	i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == node })
	if i < 0 {
		return Plan{}, fault.WithHint(fault.Configf("no node %q in the configuration", node), "leave it in recast.yaml until it is removed")
	}
	f, n := o.Found[i], planOf(wanted[i], o.Found[i])
	switch {
	case f.Away:
		PlanAway(&n, o.Away)
	case f.Open() && f.Parking.Record.Strategy.VM() == cluster.VMGone:
		planResume(&n, o)
	case f.Open(), f.Unfinished():
		return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an earlier run is not finished", node), "recast roll finishes it; recast undo %s cancels a replacement", node)
	case f.Absent != nil && slices.ContainsFunc(o.Parking, func(p parking.Parking) bool {
		return p.Record.Node == node && slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return k.Removed })
	}):
		n.Why = "it is removed, and its disks are parked"
	case f.Absent != nil:
		return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is not there: there is nothing to remove", node), "take it out of recast.yaml; recast remove %s --free %s frees the disks of one that was removed", node, node)
	case f.Machine == nil || f.Node == nil:
		n.Refused = []string{"it could not be read: " + errors.Join(f.Errs...).Error() + ": bring it back first"}
	default:
		planRemove(&n, o, reach)
		n.AskLosses()
	}
	plan.Run, plan.Nodes = n.Run, []NodePlan{n}
	refuseControlled(&plan)
	heedOwnPod(&plan, o)
	plan.Order(Policy{})
	plan.Arrange()
	plan.AwaitOthers(o)
	heedStorage(&plan, o)
	return plan, nil
}

func planRemove(n *NodePlan, o observe.Observation, reach []netip.Addr) {
	n.Strategy, n.Why = cluster.Remove, "remove: its disks are parked and stay, its VM and its Node are deleted"
	n.Refused = append(n.Refused, strategy.AgainstInit(true, n.Found.Machine.TypeInit)...)
	if left := len(o.ControlPlanes()) - 1; n.Role == cluster.ControlPlane {
		n.Notes = append(n.Notes, "check that neither the kubeconfig nor cluster.controlPlane.endpoint is this node's address: what uses it would lose the cluster")
		switch {
		case left < 1:
			n.Refused = append(n.Refused, "it is the only control plane: without it there is no cluster")
		case left == 2:
			n.Notes = append(n.Notes, "two control planes are left: etcd survives the loss of neither; remove another one, or add one")
		}
	}
	if !slices.ContainsFunc(reach, func(addr netip.Addr) bool { return addr != n.Addr }) {
		n.Refused = append(n.Refused, "the talosconfig has no other endpoint: add one first (talosctl config endpoint)")
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
	n.Refused = append(n.Refused, c.AgainstRemove()...)
	n.Refused = append(n.Refused, o.Hidden(*n.Found.VM)...)
	for _, d := range n.Found.Local {
		if n.Wanted.Surge {
			break // a refusal, unless acceptLoss names it
		}
		n.Notes = append(n.Notes, fmt.Sprintf("%s is on this node only: it stays on its parked disks, and no pod can use it", d.What))
	}
	disks, err := n.Found.VM.Disks()
	if err != nil {
		return // already a refusal
	}
	for _, d := range disks {
		if !d.CDROM && !d.CSI() {
			n.Add(d, false)
		}
	}
	if n.Wanted.Surge {
		surgeNode{n}.remove(disks)
	}
	if n.Found.Ties.HA != nil {
		n.Notes = append(n.Notes, "it is taken out of Proxmox HA for good")
	}
}

// takesAway says whether the node's VM is taken away because its cluster is broken.
func takesAway(n NodePlan) bool { return n.Strategy.VM() == cluster.VMGone && n.Rebuild != "" }

// TakesAway says whether the plan takes away what is left of control planes of a broken cluster.
func TakesAway(p Plan) bool { return slices.ContainsFunc(p.Nodes, takesAway) }

// planLost plans a control plane of a broken cluster: first what is left of it is taken away, then it is made again.
func planLost(n *NodePlan, o observe.Observation) {
	planCreate(n, o)
	if n.Rebuild = o.Rebuild; n.Bootstraps {
		n.Why = "rebuild: etcd begins with it, from the snapshot"
	}
	if o.Away != nil {
		n.Refused = append(n.Refused, fmt.Sprintf("%s: a control plane on them could come back, and there would be two etcds: bring them back; one that is gone for good has to leave the Proxmox cluster", o.Away.Error()))
	}
	for _, p := range o.Parking {
		if p.Record.Node == n.Node && len(p.Record.Kept) > 0 {
			n.Notes = append(n.Notes, fmt.Sprintf("%s has %d disks of what it was: they stay there", p.VM, len(p.Record.Kept)))
		}
	}
	lost := n.Found.Absent.Lost
	if lost == nil {
		return
	}
	// Both are checked again once the VM is away, and its memory is free.
	against := n.Found.Absent.Against
	n.Refused = slices.DeleteFunc(n.Refused, func(why string) bool { return slices.Contains(against, why) })
	n.Space, n.Bootstraps, n.Notes = nil, false, nil

	n.Strategy, n.Role, n.EtcdKept = cluster.Remove, cluster.ControlPlane, true
	n.Why = "remove: the cluster is broken, so its VM goes; all its disks are parked and stay; then it is made again"
	n.Drift.Reasons = nil // the node exists, and can't be compared
	n.VMID, n.Host, n.UUID, n.Digest = lost.VM.ID, lost.VM.Host, lost.VM.UUID(), lost.VM.Digest
	n.Found.VM, n.Found.Ties, n.Found.Absent = &lost.VM, lost.Ties, nil
	n.Found.Parking, n.Found.Elsewhere = observe.TakeParking(n.Found.Parkings(), func(p parking.Parking) bool { return p.VM.Host == lost.VM.Host })
	if lost.VM.Host != n.Wanted.Shape.Host {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM is on %s, and nodes[].host is %s: it is made again where it was, so that its disks need not move: set nodes[].host to %s", lost.VM.Host, n.Wanted.Shape.Host, lost.VM.Host))
	}
	if lost.Silent {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM runs, and its etcd does not say whether it has a leader. Check that it does not serve (talosctl -n %s etcd status), and switch it off: qm stop %d on %s", n.Addr, lost.VM.ID, lost.VM.Host))
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: lost.VM, Found: n.Found, Observation: o}
	n.Refused = append(n.Refused, c.AgainstRemove()...)
	disks, err := lost.VM.Disks()
	if err != nil {
		return // already a refusal
	}
	for _, d := range disks {
		if !d.CDROM {
			n.Add(d, false)
		}
	}
}

// againstRebuild refuses to rebuild a cluster that exists, unless an unfinished rebuild began it with that snapshot.
func (p Policy) againstRebuild(o observe.Observation) error {
	for _, f := range o.Found { // also those that the plan leaves out
		if f.Absent != nil && f.Absent.Lost != nil && f.Absent.Lost.Leader {
			return fault.PlanRefused.Refusedf("etcd on %s has a leader, so the cluster is not broken: recast remove takes out one control plane, and recast roll makes one that is missing", f.Name)
		}
	}
	if o.Rebuild == "" || o.First != "" || o.Rebuilt(p.Bootstrap) {
		return nil
	}
	return fault.WithHint(fault.PlanRefused.Refusedf("the cluster's Kubernetes API answers: it is not broken"),
		"recast roll makes a node that is missing (if its Node is still there and NotReady: kubectl delete node), and recast remove takes one away; recast undo NODE puts back what an interrupted rebuild was taking away; recast restore gives a single control plane its etcd back")
}

// onlyTaking reduces the plan to what is taken away, if anything: the rest is planned again afterwards.
func onlyTaking(p *Plan) {
	if !TakesAway(*p) {
		return
	}
	p.Bootstrap = "" // one after the other
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.From() == cluster.Nowhere {
			against := n.Found.Absent.Against // checked again when it is made: memory gets free
			n.Strategy, n.Why, n.Space = "", "it is made again once what is left of the others is taken away", nil
			n.Refused = slices.DeleteFunc(n.Refused, func(why string) bool { return slices.Contains(against, why) })
		}
	}
}

// refuseOthersRebuild refuses to finish what a rebuild began with another command, or another snapshot.
func refuseOthersRebuild(n *NodePlan, o observe.Observation) {
	rec := n.Found.Parking.Record
	switch {
	case rec.Rebuild == o.Rebuild, rec.Rebuild != "" && o.Rebuild != "" && n.Strategy.VM() == cluster.VMGone: // nothing has begun yet
	case rec.Rebuild == "":
		n.Refused = append(n.Refused, fmt.Sprintf("run %s began to %s, which is not finished and no part of a rebuild: recast status shows what finishes or cancels it", rec.Run, n.Strategy.Words().OnIt))
	case o.Rebuild == "":
		n.Refused = append(n.Refused, "recast rebuild began it, and nothing else may finish it: "+observe.RebuildGoesOn)
	default:
		n.Refused = append(n.Refused, fmt.Sprintf("run %s began with another snapshot, SHA-256 %s, not %s: run recast rebuild with that one", rec.Run, words.Short(rec.Rebuild), words.Short(o.Rebuild)))
	}
}
