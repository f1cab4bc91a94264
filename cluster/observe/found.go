package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Found is what Proxmox, Talos and Kubernetes say about one node. What could not be read is nil: see Errs.
type Found struct {
	Name    string
	VM      *cluster.VM           // nil only while an unfinished replacement has deleted the VM
	Machine *cluster.Machine      // from ObserveDrift only what Diff compares
	Blank   *cluster.BlankMachine // set if it is in maintenance mode instead, without an unfinished replacement
	Node    *cluster.KubeNode
	Addr    netip.Addr       // where its Talos API is expected
	Parking *parking.Parking // its parking VM: the one with an open record, else the one on the VM's host, if any
	Ties    cluster.Ties
	Local   []cluster.LocalData
	Served  []cluster.LocalData // volumes of servers that may let in machines by their names
	handles []string            // of all volumes of Proxmox' CSI driver
	// ConfigKnown: even without the node, its configuration is in the user's files or an unfinished run's journal.
	ConfigKnown   bool
	ConfigDamaged error    // why the journal's configuration is not used; nil: the configuration is intact
	Unsupported   []string // why Talos does not support the change from the running version to the wanted one
	// ConfigRefused says why the wanted Talos would not read the machine configuration that the node runs; nil: it would.
	ConfigRefused error
	Errs          []error
	// Elsewhere are its other parking VMs, on hosts where its VM was before, or on the same host: see Parking.Twin.
	Elsewhere  []parking.Parking
	Unrecorded []cluster.VM // VMs that were the node's parking VMs, and whose Notes someone has edited
	Unmatched  bool         // which VM is the node's is not known: see Errs

	ConfigIn cluster.ConfigPlace // where the configuration is, if ConfigKnown
	File     *cluster.FoundFile  // in talos.machineConfigs; nil: there is none
	Volumes  ConfigVolumes

	Absent *Absent           // set if the node does not exist yet, and is to be made
	Shape  shape.Differences // how the node's VM differs from what recast.yaml says about it

	fit  *kubernetesFit // how the wanted versions fit; nil: Kubernetes is as wanted
	Away bool           // the node's VM may be on a host that does not answer

	Dangling bool // the source of an interrupted hand-over names a volume that has been renamed
}

// Host returns the Proxmox node of the node's VM, or of the VM that its unfinished replacement deleted; "" if unknown.
func (f *Found) Host() string {
	switch {
	case f.VM != nil:
		return f.VM.Host
	case f.Absent != nil:
		return f.Absent.Host
	case f.Parking != nil:
		return f.Parking.VM.Host
	}
	return ""
}

// Open: the node has an unfinished replacement. By pointer, as Observe writes other fields of f concurrently.
func (f *Found) Open() bool { return f.Parking != nil && f.Parking.Record.Open }

// Unfinished says whether an earlier run left something to finish on the node before anything else can be planned.
func (f *Found) Unfinished() bool {
	if f.Open() {
		return true
	}
	if f.Node == nil || f.Node.Mark == nil || !f.Node.Mark.Strategy.KeepsVM() {
		return false
	}
	mark := f.Node.Mark
	return f.Machine == nil || mark.Installed || !mark.Strategy.Upgrades() && mark.BootID != f.Machine.BootID
}

// Unread returns why a node's machine could not be read, and what to do about that.
func (o Observation) Unread(w cluster.Wanted, f Found) error {
	err := fmt.Errorf("node %s: %s", w.Name, strings.Join(Diff(w, f, nil).Unread, "; "))
	why := errors.Join(f.Errs...)
	hints := fault.Hints(why)
	if fault.CodeOf(why) == fault.ThisMachine {
		err = fault.ThisMachine.Of(err)
	}
	if lost := o.lostTrack(f); lost != "" {
		hints = append([]string{lost}, hints...)
	}
	switch {
	case f.Blank != nil:
		hints = append(hints, f.withoutConfig())
	case f.VM != nil && f.VM.Running && f.Addr.IsValid() && len(hints) == 0:
		hints = append(hints, f.silent(w))
	}
	for _, hint := range hints {
		err = fault.WithHint(err, "%s", hint)
	}
	return err
}

// KeptElsewhere says how to bring the node's last system disk and its VM together if they are on two hosts.
func (f *Found) KeptElsewhere(kept parking.KeptDisk, on cluster.VM) string {
	if on.Host == f.VM.Host {
		return ""
	}
	together := fmt.Sprintf("on %s: %s", on.Host, cluster.MigrateCommand(on, f.VM.Host))
	if f.Parking != nil { // a host has room for one parking VM of a node
		together = fmt.Sprintf("on %s: %s", f.VM.Host, cluster.MigrateCommand(*f.VM, on.Host))
	}
	return fmt.Sprintf("the system disk that run %s replaced is %s of %s, and %s was moved since: %s brings them together; or %s",
		kept.Run, kept.Key, on, *f.VM, together, cluster.PreviousLock)
}

// LastKept returns the node's previous system disk, and the parking VM that has it, on any host.
func (f *Found) LastKept() (last parking.KeptDisk, on cluster.VM, found bool) {
	for _, p := range f.Parkings() { // the parking VM on the VM's host first
		for _, k := range slices.Backward(p.Record.Kept) {
			if k.GivenUp || k.Removed {
				continue
			}
			if !found || parking.Later(k, p.VM, last, on) > 0 {
				last, on, found = k, p.VM, true
			}
			break
		}
	}
	return last, on, found
}

func (f *Found) Pause() string {
	if f.Node == nil {
		return ""
	}
	return f.Node.Pause
}

func (f *Found) VMOrZero() cluster.VM {
	if f.VM == nil {
		return cluster.VM{}
	}
	return *f.VM
}

// observeMoves reads how far interrupted hand-overs have come.
func observeMoves(ctx context.Context, px cluster.StorageReader, found []Found) error {
	return tryFound(found, ObserveLimit, func(_ int, f *Found) (err error) {
		if f.Open() {
			f.Dangling, err = f.Parking.Record.Dangling(ctx, px, f.VMOrZero(), f.Parking.VM)
		}
		return fault.Prefix("node "+f.Name, err)
	})
}

// MadeNew says whether the record of the node's VM shows that recast made it from nothing.
func (f *Found) MadeNew() bool {
	return slices.ContainsFunc(f.Parkings(), func(p parking.Parking) bool { return p.Record.MadeNew(f.VMOrZero().UUID()) })
}

func (f *Found) Parkings() []parking.Parking {
	if f.Parking == nil {
		return f.Elsewhere
	}
	return append([]parking.Parking{*f.Parking}, f.Elsewhere...)
}

// parkingsOf returns the parking VMs of a node: one on each Proxmox host where the node was replaced, since a VM
// that is migrated leaves its old system disks behind. It refuses a copy (a clone, a restored backup), whose record
// describes other disks than its own. It leaves out parking VMs with the disks of another VM: of an earlier node of
// that name, or of a cluster whose recast.yaml was copied from this one. uuid is "" if the node's is unknown.
func parkingsOf(all []parking.Parking, node, uuid string) ([]parking.Parking, error) {
	mine := slices.DeleteFunc(slices.Clone(all), func(p parking.Parking) bool {
		return p.Record.Node != node || !p.Record.Open && uuid != "" && p.Record.UUID != uuid
	})
	for i, p := range mine {
		if p.Record.Open && uuid != "" && p.Record.UUID != uuid && p.Record.Rebuild != "" {
			return nil, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: run %s rebuilds the cluster from the snapshot of etcd with SHA-256 %s, and is not finished", node, p.Record.Run, p.Record.Rebuild), "%s", RebuildGoesOn)
		}
		if p.Record.Open && uuid != "" && p.Record.UUID != uuid {
			return nil, fault.WithHint(fault.UUIDMismatch.Refusedf("%s holds an unfinished replacement of a node %s whose SMBIOS UUID is %s, not %s as Kubernetes has it", p.VM, node, p.Record.UUID, uuid),
				"has another machine taken the hostname of %s since? Give it one of its own; its old Node is then NotReady (kubectl get nodes), and kubectl delete node %s removes it. "+
					"Or does another recast.yaml on this Proxmox cluster say cluster: %s as well? Then that run has to be finished with that one; give one of them another name", node, node, p.Record.Cluster)
		}
		for _, q := range mine[:i] {
			if err := p.Twin(q); err != nil {
				return nil, err
			}
		}
	}
	slices.SortStableFunc(mine, parking.Parking.Newer)
	return mine, nil
}

// TakeParking takes the first matching parking VM of a node out of the list; nil if none matches.
func TakeParking(all []parking.Parking, is func(parking.Parking) bool) (one *parking.Parking, others []parking.Parking) {
	for _, p := range all {
		if one == nil && is(p) {
			one = &p
			continue
		}
		others = append(others, p)
	}
	return one, others
}

func (f *Found) applyByHand() string {
	return fmt.Sprintf("talosctl apply-config --insecure -n %s --file %s.yaml", f.Addr, f.Name)
}

// silent says what to do about a machine that is on and does not answer at all.
func (f *Found) silent(w cluster.Wanted) string {
	look := fmt.Sprintf("look at the console of VM %d", f.VM.ID)
	disks, err := f.VM.Disks()
	if err != nil || len(w.ISOStorages) == 0 {
		return look
	}
	cd := cluster.CDKey(f.VM.Config, disks)
	iso, _ := w.Build.Upload(w.Build.ISOName, w.ISOStorages[0], f.VM.Host)
	boot := fmt.Sprintf("qm set %d --%s %s:iso/%s,media=cdrom", f.VM.ID, cd, w.ISOStorages[0], cmp.Or(iso.Name, w.Build.ISOName))
	if order := cluster.BootDevices(f.VM.Config["boot"]); order != nil && !slices.Contains(order, cd) {
		boot += fmt.Sprintf(" --boot 'order=%s'", strings.Join(append(order, cd), ";"))
	}
	return fmt.Sprintf("%s. Where it boots nothing, because its system disk was wiped (talosctl reset): recast publish, and this command again for the name of the ISO there, then on %s %s && qm stop %d && qm start %d; "+
		"in maintenance mode %s %s", look, f.VM.Host, boot, f.VM.ID, f.VM.ID, f.applyByHand(), bySerial)
}

// withoutConfig says what to do about a machine in maintenance mode whose configuration recast does not have.
func (f *Found) withoutConfig() string {
	if f.Blank.Installable() {
		return "Talos is on none of its disks: " + f.applyByHand() + " " + bySerial
	}
	return fmt.Sprintf("its machine configuration can't be found: put it as %s.yaml into the directory that talos.machineConfigs names, and run the same command again, or %s", f.Name, f.applyByHand())
}

const bySerial = "installs it on the disk that the file names, which is wiped: have it select that by its serial. Then run the same command again"

// readBlank reads the node's machine if it is in maintenance mode instead of configured; else nil.
func readBlank(ctx context.Context, src Sources, f *Found) *cluster.BlankMachine {
	if src.Maintenance == nil || f.VM == nil || !f.VM.Running || f.Open() {
		return nil
	}
	m, err := src.Maintenance.MaintenanceMachine(ctx, f.Addr)
	if err != nil || m.Stage != "maintenance" || m.UUID != f.VM.UUID() {
		return nil
	}
	return &m
}

// BlankSetting returns the VM's setting for its blank boot; nil if it needs none.
func (f Found) BlankSetting(b cluster.Build) *cluster.BlankSetting {
	switch {
	case f.Open():
		mem, _ := f.Parking.Record.ReadMemory(f.Parking.VM) // an unreadable record is refused elsewhere
		return mem.Blank
	case f.VM == nil || f.Machine == nil:
		return nil
	}
	set, _ := cluster.BlankAddress(f.Addr, *f.VM, *f.Machine, b)
	return set
}

// KnowPods marks which drives of the nodes' VMs are pods', as Kubernetes says.
func KnowPods(nodes []*Found) {
	for _, f := range nodes {
		if f.VM != nil {
			f.VM.Pods = f.VM.PodVolumes(f.handles)
		}
	}
}

func Matching(found []Found, of func(*Found) bool) (nodes []*Found) {
	for i := range found {
		if of(&found[i]) {
			nodes = append(nodes, &found[i])
		}
	}
	return nodes
}

// ObserveDrift reads what Diff compares, and fails like Observe. Without space and losses it is not for planning.
func ObserveDrift(ctx context.Context, src Sources, wanted []cluster.Wanted) (Observation, error) {
	o, err := observeMatched(ctx, src, wanted)
	if err != nil {
		return o, err
	}
	err = observeMachines(ctx, src, func(ctx context.Context, f *Found) (cluster.Machine, error) {
		return cluster.ReadCompared(ctx, src.Talos, f.Addr)
	}, wanted, o.Found)
	if err == nil {
		ObserveFiles(ctx, src, wanted, o.Found)
	}
	return o, err
}

// ReadData reads with one call what data is on one node only, and what storage systems keep on several.
func ReadData(ctx context.Context, kube cluster.VolumeReader, nodes []*Found) (systems []replica.System, err error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	known := cluster.Each(nodes, func(f *Found) cluster.KubeNode { return *f.Node })
	local, systems, err := kube.NodeData(ctx, known...)
	var handles []string
	var served []cluster.LocalData
	for _, v := range local[""] {
		if v.Access != "" {
			served = append(served, v)
			continue
		}
		handles = append(handles, v.Handle)
	}
	for _, f := range nodes {
		f.Local, f.handles, f.Served = local[f.Name], handles, served
	}
	return systems, err
}

// ReadTies reads what Proxmox keeps for the VMs of nodes, with one call; the errors are in the order of the nodes.
func ReadTies(ctx context.Context, px cluster.TieReader, nodes []*Found) []error {
	if len(nodes) == 0 {
		return nil
	}
	vms, errs := cluster.Each(nodes, func(f *Found) cluster.VM { return *f.VM }), make([]error, len(nodes))
	for i, of := range px.TiesOf(ctx, vms) {
		nodes[i].Ties, errs[i] = of.Ties, fault.Prefix("node "+nodes[i].Name, of.Err)
	}
	return errs
}

func observeMachine(ctx context.Context, src Sources, read machineRead, w cluster.Wanted, f *Found) (err error) {
	ReadMachine(ctx, src, read, w, f)
	if !f.Open() && f.Blank == nil || src.ConfigKnown == nil {
		return nil
	}
	var rec parking.Record
	if f.Open() {
		rec = f.Parking.Record
	}
	f.ConfigIn, err = src.ConfigKnown(ctx, f.Name, rec)
	f.ConfigKnown = f.ConfigIn != cluster.ConfigNowhere
	if errors.Is(err, cluster.ErrConfigDamaged) {
		f.ConfigDamaged, err = err, nil
	}
	return err
}

// observeMachines reads the machine of each node. A machine that does not answer is no error.
func observeMachines(ctx context.Context, src Sources, read machineRead, wanted []cluster.Wanted, found []Found) error {
	return tryFound(found, MachinesAtOnce, func(i int, f *Found) error {
		if f.Away || f.Absent != nil {
			return nil // unknown whose disks its machine has, or there is no machine
		}
		return observeMachine(ctx, src, read, wanted[i], f)
	})
}

// observeTies reads what would be lost with each node. The decision needs it, so a failed read is an error.
func observeTies(ctx context.Context, src Sources, o *Observation) error {
	nodes := Matching(o.Found, func(f *Found) bool { return !f.Away && f.VM != nil && f.Node != nil })
	g := errgroup.Group{}
	g.Go(func() (err error) {
		o.Storage, err = ReadData(ctx, src.Kube, nodes)
		return err
	})
	g.Go(func() error {
		err, _ := cluster.Find(ReadTies(ctx, src.Proxmox, nodes), func(err error) bool { return err != nil })
		return err // the others may be the same
	})
	return g.Wait()
}

// kubernetesFit says why versions of Talos and Kubernetes do not go together on one node; "": they do.
type kubernetesFit struct {
	runs, wanted string // versions of Kubernetes
	present      string // why the running Talos does not support the wanted Kubernetes
	coming       string // why the wanted Talos does not support the running Kubernetes
	both         string // why neither of the wanted versions supports the other
}

func fitOf(talos cluster.Compatibility, w cluster.Wanted, m cluster.Machine, kubelet string) *kubernetesFit {
	if w.Kubernetes == "" || kubelet == "" || kubelet == w.Kubernetes || w.Build.TalosVersion == "" {
		return nil
	}
	return &kubernetesFit{
		runs: kubelet, wanted: w.Kubernetes, present: talos.UnsupportedKubernetes(m.TalosVersion, w.Kubernetes),
		coming: talos.UnsupportedKubernetes(w.Build.TalosVersion, kubelet), both: talos.UnsupportedKubernetes(w.Build.TalosVersion, w.Kubernetes),
	}
}

func (k kubernetesFit) order() string {
	upgrade := fmt.Sprintf("recast upgrade-k8s --to %s", k.wanted)
	change := fmt.Sprintf("Kubernetes %s → %s: ", k.runs, k.wanted)
	switch {
	case k.both != "":
		return change + "talos.version and kubernetes.version do not go together: " + k.both
	case k.coming != "" && k.present != "":
		return change + "the wanted Talos does not support what runs, and the Talos that runs not the wanted Kubernetes: go to a version of Kubernetes in between that both support, with recast upgrade-k8s, then roll, then go on"
	case k.coming != "":
		return change + "first " + upgrade + ", then the roll: " + k.coming
	case k.present != "":
		return change + "first the roll, then " + upgrade + ": " + k.present
	}
	return change + "the roll leaves it; " + upgrade + " brings it there, best after the roll"
}

func (o Observation) KubernetesOrder() (out []string) {
	for _, f := range o.Found {
		if f.fit == nil {
			continue
		}
		if text := f.fit.order(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// Absent is a node of recast.yaml that is nowhere yet.
type Absent struct {
	Host    string   // where its VM is to be
	Against []string // why its VM could not be started there
	Traces  []string // what already exists of it: then it is not made, but something was lost
	Lost    *Lost    // in a rebuild: what is left of it, which is taken away first
}

func NotThereYet(node string) error {
	return fault.WithHint(fault.Refusedf("node %s is not there yet", node), "recast roll makes it")
}

// TracesOfCluster lists what speaks against beginning a cluster: traces of its machines.
func (o Observation) TracesOfCluster(node string) (traces []string) {
	for _, p := range o.Parking {
		if node == o.First && o.Rebuild == "" && len(p.Record.Kept) > 0 {
			free := "recast prune --only disks --keep-disks 0 frees them"
			if slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return k.Removed }) {
				free = fmt.Sprintf("recast remove %s --free %s frees them", p.Record.Node, p.Record.Node)
			}
			traces = append(traces, fmt.Sprintf("%s has disks of node %s of this cluster (recast status lists them): if the cluster is gone for good, %s; else %s, since a second one with its secrets could destroy it", p.VM, p.Record.Node, free, o.rebuilds()))
		}
	}
	return traces
}

func asItIs(vm cluster.VM) string { return map[bool]string{true: ", which runs"}[vm.Running] }

// whose says what to do about a VM that may be the node's. Its disks are unknown: no hint deletes it.
func (o Observation) whose(other string) string {
	if o.First != "" {
		return fmt.Sprintf("if that is its machine, the cluster is there and its Kubernetes does not answer: recast doctor says what does not, and %s; if it is not, %s", o.rebuilds(), other)
	}
	return "if that is its machine, start it, or see why Kubernetes does not know it; if it is not, " + other
}

func (o Observation) rebuilds() string {
	first := cmp.Or(o.First, "CONTROL-PLANE")
	return fmt.Sprintf("recast rebuild %s --from SNAPSHOT makes the control planes of a broken cluster again", first)
}

// absent says that a node is to be made, or that it should be there.
func absent(w cluster.Wanted, o *Observation, members []cluster.Member) (*Absent, error) {
	lacks := shape.Lacks(w)
	if w.Shape.Class == "" || len(lacks) > 0 {
		err := fault.WithHint(fault.Configf("node %s: Kubernetes knows no node of that name", w.Name),
			"nodes[].name is the Kubernetes node name; the cluster has: %s", NodeNames(o.Nodes))
		if w.Shape.Class != "" {
			err = fault.WithHint(err, "if it is a new node, its class lacks what a VM is made of: %s", strings.Join(lacks, "; "))
		}
		return nil, err
	}
	var traces []string
	for _, vm := range o.VMs {
		switch {
		case o.Rebuild != "" && o.First != "": // see observeLost
		case vm.ID == w.VMID:
			traces = append(traces, fmt.Sprintf("its number has %s%s: %s", vm, asItIs(vm), o.whose("give nodes[].vmid another number")))
		case vm.Name == w.Name:
			traces = append(traces, fmt.Sprintf("its name has %s%s: %s", vm, asItIs(vm), o.whose("give that VM another name")))
		}
	}
	traces = append(traces, cluster.Each(o.unproven(w.Name), parking.Unproven.String)...) // its disks may be there
	removed := false                                                                      // by recast, as a surge node: what discovery remembers says nothing else
	for _, p := range o.Parking {
		going := w.Surge && p.Record.Strategy.VM() == cluster.VMGone && p.VM.Host == w.Shape.Host && !slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return !k.Going })
		removed = removed || p.Record.Node == w.Name && going
		if p.Record.Node == w.Name && len(p.Record.Kept) > 0 && o.Rebuild == "" && !going {
			traces = append(traces, fmt.Sprintf("%s has disks of it: recast status lists them, and recast remove %s --free %s frees those of a node that was removed", p.VM, w.Name, w.Name))
		}
	}
	if !removed && slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Nodename == w.Name }) {
		traces = append(traces, "Talos' discovery has a machine with its name: see talosctl get members; an entry is gone half an hour after its machine")
	}
	if o.Away != nil {
		traces = append(traces, o.Away.Error()+": whether one of them is its VM can't be determined")
	}
	return &Absent{Host: w.Shape.Host, Traces: traces}, nil
}

// Lost is what is left of a control plane whose cluster is broken.
type Lost struct {
	VM     cluster.VM
	Ties   cluster.Ties
	Leader bool // its etcd has a leader: then the cluster is not broken
	Silent bool // the VM runs, and its etcd does not say whether it has a leader
}

// lostAnswers bounds the wait for a control plane of a broken cluster: its etcd may hang.
const lostAnswers = 30 * time.Second

// Rebuilding says whether a rebuild has taken all control planes away, and makes them again.
func (o Observation) Rebuilding() bool {
	return slices.ContainsFunc(o.Parking, func(p parking.Parking) bool {
		return p.Record.Open && p.Record.Rebuild != "" && p.Record.Strategy.From() == cluster.Nowhere
	})
}

// Rebuilt says whether the present cluster was begun with the snapshot, on that node.
func (o Observation) Rebuilt(first string) bool {
	return slices.ContainsFunc(o.Parking, func(p parking.Parking) bool {
		return p.Record.Node == first && p.Record.Rebuild == o.Rebuild && p.Record.Strategy.From() == cluster.Nowhere
	})
}

// forgetGone leaves out what is still listed of control planes whose VMs are gone.
func (o *Observation) forgetGone(wanted []cluster.Wanted, members []cluster.Member) []cluster.Member {
	ours := func(name string) bool {
		return slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Name == name })
	}
	if o.Away != nil {
		return members // nobody can see whether a VM is gone
	}
	o.Nodes = slices.DeleteFunc(o.Nodes, func(k cluster.KubeNode) bool {
		return ours(k.Name) && !slices.ContainsFunc(o.VMs, func(vm cluster.VM) bool { return vm.UUID() == k.UUID })
	})
	return slices.DeleteFunc(members, func(m cluster.Member) bool {
		return ours(m.Nodename) && !slices.ContainsFunc(o.Nodes, func(k cluster.KubeNode) bool { return k.Name == m.Nodename })
	})
}

// observeLost finds a broken cluster's VMs: by numbers, names, and the machines at the nodes' addresses.
func observeLost(ctx context.Context, src Sources, wanted []cluster.Wanted, o *Observation) error {
	if o.Rebuild == "" || o.First == "" {
		return nil
	}
	rebuilding, problems := o.Rebuilding(), make([]error, len(wanted))
	EachAtOnce(o.Found, MachinesAtOnce, func(i int, f *Found) {
		if f.Absent == nil {
			return
		}
		vm, err := lostVM(ctx, src, wanted[i], o)
		switch {
		case err != nil || vm == nil:
			problems[i] = err
		case rebuilding: // the control plane is already made
			f.VM, f.Absent = vm, nil
		default:
			f.Absent.Lost = &Lost{VM: *vm}
		}
	})
	var left []*Found
	for i := range o.Found {
		if a := o.Found[i].Absent; a != nil && a.Lost != nil {
			left = append(left, &Found{Name: o.Found[i].Name, VM: &a.Lost.VM})
		}
	}
	if err := errors.Join(append(problems, ReadTies(ctx, src.Proxmox, left)...)...); err != nil {
		return err
	}
	g := errgroup.Group{}
	for i := range o.Found {
		a, addr := o.Found[i].Absent, o.Found[i].Addr
		if a == nil || a.Lost == nil {
			continue
		}
		a.Lost.Ties = left[0].Ties
		left = left[1:]
		g.Go(func() error {
			asking, cancel := context.WithTimeout(ctx, lostAnswers)
			defer cancel()
			s, _ := src.Talos.EtcdStatus(asking, addr) // the answer counts, even with an error
			if a.Lost.Leader = s.Leader != 0; s.MemberID != 0 {
				return ctx.Err()
			}
			now, err := src.Proxmox.VMState(ctx, a.Lost.VM.ID)
			a.Lost.Silent = now.Running
			return fault.Prefix("look up "+a.Lost.VM.String(), err)
		})
	}
	return g.Wait()
}

func lostVM(ctx context.Context, src Sources, w cluster.Wanted, o *Observation) (*cluster.VM, error) {
	uuid := ""
	recorded := map[string]bool{} // UUIDs of VMs that the control plane had
	for _, p := range o.Parking {
		if p.Record.Node == w.Name && p.Record.UUID != "" {
			recorded[p.Record.UUID] = true
		}
	}
	if w.Addr.IsValid() {
		asking, cancel := context.WithTimeout(ctx, lostAnswers)
		defer cancel()
		m, err := cluster.ReadIdentity(asking, src.Talos, w.Addr)
		switch {
		case err != nil: // its machine may be gone
		case m.Nodename != "" && m.Nodename != w.Name:
			return nil, fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: the machine at its address %s is node %s", w.Name, w.Addr, m.Nodename), "correct its address in recast.yaml")
		default:
			uuid = m.UUID
		}
	}
	is := cluster.Where(o.VMs, func(vm cluster.VM) bool {
		return vm.ID == w.VMID || vm.Name == w.Name || uuid != "" && vm.UUID() == uuid || recorded[vm.UUID()]
	})
	switch {
	case len(is) > 1:
		return nil, fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: %v may be its VM, by nodes[].vmid, by its name, or by the machine at its address", w.Name, is),
			"rename those that are not, or correct nodes[].vmid")
	case uuid != "" && (len(is) == 0 || is[0].UUID() != uuid):
		return nil, fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: the machine at its address %s has UUID %s, which is that of no VM of it", w.Name, w.Addr, uuid),
			"switch that machine off, or correct the address, or nodes[].vmid, in recast.yaml")
	case len(is) == 0 && w.VMID == 0 && len(recorded) == 0:
		return nil, fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: no VM has its name, and none answers at its address: whether its VM is gone, or has another name, can't be seen", w.Name),
			"give it the number of its VM, nodes[].vmid: if that is gone, the number that it had")
	case len(is) == 0:
		return nil, ctx.Err()
	}
	return &is[0], ctx.Err()
}

// RebuildGoesOn says how to finish an unfinished rebuild.
const RebuildGoesOn = "run the same recast rebuild again, with the same snapshot: it continues where it stopped"
