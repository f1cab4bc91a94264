// Package observe reads what Proxmox, Talos and Kubernetes say about the nodes, and compares that with what is wanted.
// [Observe] makes an [Observation], which has one [Found] for each node. [Diff] says whether a node is stale, and why;
// [Trace], how certain the origin of its image is, link by link: machine, boot entry, installer, lock, schematic,
// factory; [CompareFiles], whether the files of its extensions are those of its image. The package changes nothing.
package observe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
)

// MatchNodes finds the one VM of a node by the SMBIOS UUID in its Node object or, while its replacement is
// unfinished, in the replacement's record.
func MatchNodes(w cluster.Wanted, o *Observation, members []cluster.Member) (Found, error) {
	f := Found{Name: w.Name, Unrecorded: parking.Unrecorded(o.VMs, w.Name, o.ParkingIDs)}
	uuid := ""
	if i := slices.IndexFunc(o.Nodes, func(n cluster.KubeNode) bool { return n.Name == w.Name }); i >= 0 {
		f.Node = &o.Nodes[i]
		uuid = f.Node.UUID
		f.Addr = FirstAddr(f.Node.Addresses)
	}
	if !f.Addr.IsValid() {
		if i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Nodename == w.Name }); i >= 0 {
			f.Addr = FirstAddr(members[i].Addresses)
		}
	}
	parked, err := parkingsOf(o.Parking, w.Name, uuid)
	if err != nil {
		return f, err
	}
	f.Parking, f.Elsewhere = TakeParking(parked, func(p parking.Parking) bool { return p.Record.Open })
	if f.Open() {
		uuid = f.Parking.Record.UUID
		if !f.Addr.IsValid() {
			f.Addr = f.Parking.Record.Addr
		}
	}
	if uuid == "" && o.Dark != nil {
		f.Errs = append(f.Errs, o.Dark)
		return f, nil
	}
	if uuid == "" {
		f.Addr = w.Addr
		if f.Absent, err = absent(w, o, members); err == nil && (o.Rebuild != "" || w.Surge) {
			f.Parking, f.Elsewhere = TakeParking(parked, func(p parking.Parking) bool { return p.VM.Host == w.Shape.Host })
		}
		return f, err
	}
	if err := MatchVM(w, &f, o, uuid); err != nil || f.Parking != nil || f.VM == nil {
		return f, err
	}
	f.Parking, f.Elsewhere = TakeParking(parked, func(p parking.Parking) bool { return p.VM.Host == f.VM.Host })
	return f, nil
}

// goneForGood says how to delete a Node without a machine. A Ready Node has a machine, wherever that is.
func goneForGood(k *cluster.KubeNode) string {
	if k == nil || k.Ready {
		return ""
	}
	return fmt.Sprintf("; if its VM is gone for good: kubectl delete node %s, and, if it was a control plane, talosctl etcd members shows which member is to be removed", k.Name)
}

func MatchVM(w cluster.Wanted, f *Found, o *Observation, uuid string) error {
	matches := cluster.Where(o.VMs, func(vm cluster.VM) bool { return vm.UUID() == uuid })
	switch {
	case len(matches) > 1:
		return fault.WithHint(fault.UUIDMismatch.Configf("node %s: %d VMs have its SMBIOS UUID %s: %v", w.Name, len(matches), uuid, matches),
			"give every VM a UUID of its own (smbios1) before recast touches one of them")
	case len(matches) == 0 && f.Open():
		return nil // deleted by the unfinished replacement, or on an unavailable host
	case len(matches) == 0 && o.Away != nil:
		f.Away = true
		f.Errs = append(f.Errs, fmt.Errorf("no VM that can be read has its SMBIOS UUID %s: %w", uuid, o.Away))
		return nil
	case len(matches) == 0 && len(f.Unrecorded) > 0:
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: no VM has its SMBIOS UUID %s, and %s, its parking VM, has no record that can be read", w.Name, uuid, f.Unrecorded[0]),
			"someone edited its Notes, whose last line says where disks are: put that line back as it was")
	case len(matches) == 0:
		err := fault.UUIDMismatch.Configf("node %s: no VM has its SMBIOS UUID %s", w.Name, uuid)
		if lost := o.lostTrack(*f); lost != "" { // the run may have deleted the VM
			err = fault.WithHint(err, "%s", lost)
		}
		return fault.WithHint(err, "the token may not see the VM (VM.Audit), or the node runs elsewhere than on this Proxmox cluster%s", goneForGood(f.Node))
	case w.VMID != 0 && matches[0].ID != w.VMID:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: its UUID %s belongs to %s, not to VM %d as configured", w.Name, uuid, matches[0], w.VMID),
			"has that VM's machine been given the hostname of %s? If not, correct nodes[].vmid", w.Name)
	}
	f.VM = &matches[0]
	return nil
}

// Observe reads Proxmox, Kubernetes and every wanted node's machine. It fails if a source as a whole can't be read
// or a node does not match exactly one VM. A single machine that does not answer is nil, with its reason in Errs.
func Observe(ctx context.Context, src Sources, wanted []cluster.Wanted) (Observation, error) {
	o, err := observeMatched(ctx, src, wanted)
	if err != nil {
		return Observation{}, err
	}
	hosts := hostsOf(o.Found)
	g := errgroup.Group{}
	g.Go(func() error { o.Rooms = roomsOf(ctx, src.Proxmox, hosts); return nil })
	g.Go(func() error { return observeMachines(ctx, src, src.readFirst, wanted, o.Found) })
	g.Go(func() error { return observeTies(ctx, src, &o) })
	g.Go(func() error { return observeMoves(ctx, src.Proxmox, o.Found) })
	g.Go(func() error { return o.readOwnPod(ctx, src) })
	err = g.Wait()
	KnowPods(Matching(o.Found, func(f *Found) bool { return f.VM != nil })) // not earlier: reading machines reads the VMs concurrently
	if err != nil {
		return o, err
	}
	whole, err := src.complete(ctx, wanted, o.Found)
	if err != nil {
		return o, err
	}
	ObserveFiles(ctx, src, wanted, o.Found)
	if whole {
		return o, nil
	}
	whole, err = src.complete(ctx, wanted, o.Found)
	if whole && err == nil { // for a file that differs
		ObserveFiles(ctx, src, wanted, o.Found)
	}
	return o, err
}

// readFirst reads of a machine what a plan needs to see whether it has anything to do.
func (src Sources) readFirst(ctx context.Context, f *Found) (cluster.Machine, error) {
	if src.Past == nil {
		return src.ReadWhole(ctx, f)
	}
	return cluster.ReadForPlan(ctx, src.Talos, f.Addr)
}

// complete reads the rest of every machine if one of the nodes is not settled: what a plan does to one node may depend
// on the disks of others.
func (src Sources) complete(ctx context.Context, wanted []cluster.Wanted, found []Found) (done bool, err error) {
	if src.Past == nil {
		return false, nil // all was read at once
	}
	for i := range found {
		done = done || !found[i].settled(wanted[i], src.Past)
	}
	if !done {
		return false, nil
	}
	return true, tryFound(found, MachinesAtOnce, func(i int, f *Found) error {
		if f.Machine == nil {
			return nil
		}
		first := *f.Machine
		f.Machine, f.Unsupported, f.fit, f.ConfigRefused = nil, nil, nil, nil
		return observeMachine(ctx, src, func(ctx context.Context, f *Found) (cluster.Machine, error) {
			return first.Complete(ctx, src.Talos, f.Addr)
		}, wanted[i], f)
	})
}

// settled says whether a plan leaves the node as it is, whatever else its machine would say.
func (f Found) settled(w cluster.Wanted, past cluster.History) bool {
	return f.Machine != nil && !f.Machine.ConfigHidden && !f.Open() && !f.Unfinished() && f.Blank == nil && f.Absent == nil && !f.Away &&
		!w.Surge && len(f.Unrecorded) == 0 && !Diff(w, f, past).Rollable()
}

func ReadMachine(ctx context.Context, src Sources, read machineRead, w cluster.Wanted, f *Found) {
	if !f.Addr.IsValid() {
		f.Errs = append(f.Errs, NoAddress(f.Name))
		return
	}
	m, err := read(ctx, f)
	switch {
	case err != nil:
		err = fmt.Errorf("read machine %s: %w", f.Addr, err)
		if f.Blank = readBlank(ctx, src, f); f.Blank != nil {
			err = fmt.Errorf("%s is in maintenance mode: its machine has no configuration any more, as after talosctl reset", f.VM)
		}
		if f.VM != nil && !f.VM.Running {
			err = cluster.SwitchedOff(f.VM.State(), err)
		}
		f.Errs = append(f.Errs, err)
	case f.VM != nil && m.UUID != f.VM.UUID():
		f.Errs = append(f.Errs, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, but %s has %s", f.Addr, m.UUID, f.VM, f.VM.UUID()))
	case m.IsBeingInstalled() && !f.Open():
		f.Errs = append(f.Errs, fault.WithHint(fmt.Errorf("machine %s runs from its boot ISO, and is being installed", f.Addr), "wait until it has booted from its system disk, then run the same command again"))
	default:
		if f.Node != nil {
			m.RunningSystem = f.Node.Corrected(m.RunningSystem, m.BootID)
		}
		f.Machine = &m
	}
	if f.Machine == nil || w.Build.TalosVersion == "" {
		return
	}
	kubelet := ""
	if f.Node != nil {
		kubelet = f.Node.KubeletVersion
	}
	f.Unsupported = src.Talos.Unsupported(m.TalosVersion, w.Build.TalosVersion, kubelet)
	f.fit = fitOf(src.Talos, w, m, kubelet)
	f.ConfigRefused = src.configRefused(w, m)
}

// configRefused checks what a roll checks before it touches a node: whether the wanted Talos can read the running
// configuration. The running version can.
func (src Sources) configRefused(w cluster.Wanted, m cluster.Machine) error {
	issue, _ := knownissue.Of(m.TalosVersion) // of a release that reads some configurations, and then fails with them
	if src.Maintenance == nil || m.ConfigHidden || m.Configs.Stored == nil || m.TalosVersion == w.Build.TalosVersion && !issue.Scheduler {
		return nil // a roll checks that again
	}
	_, err := src.Maintenance.PatchConfig(m.Configs.Stored, cluster.ConfigPatch{Installer: cluster.NeutralPatch.Installer, Talos: w.Build.TalosVersion})
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", w.Name, err)
	}
	return nil
}

// Shared finds VMs that two nodes claim to be: a machine that took another's hostname has two Nodes.
func Shared(found []Found) (problems []error) {
	by := map[cluster.VMID]string{}
	for _, f := range found {
		if f.VM == nil {
			continue
		}
		if other, twice := by[f.VM.ID]; twice {
			problems = append(problems, fault.WithHint(fault.UUIDMismatch.Configf("nodes %s and %s are both %s: Kubernetes has its SMBIOS UUID for either", other, f.Name, f.VM),
				"has one machine been given the other one's hostname? Put that right, or delete the Node that is left over, before recast touches either"))
		}
		by[f.VM.ID] = f.Name
	}
	return problems
}

type machineRead func(ctx context.Context, f *Found) (cluster.Machine, error)

// ReadWhole reads all of a node's machine.
func (src Sources) ReadWhole(ctx context.Context, f *Found) (cluster.Machine, error) {
	return cluster.ReadMachine(ctx, src.Talos, f.Addr)
}

// observeMatched reads the sources and finds each node's VM.
func observeMatched(ctx context.Context, src Sources, wanted []cluster.Wanted) (Observation, error) {
	o, members, err := observeSources(ctx, src, wanted)
	if err != nil {
		return Observation{}, err
	}
	if src.Rebuild != "" {
		members = o.forgetGone(wanted, members)
	}
	o.Found = make([]Found, len(wanted))
	var problems []error
	for i, w := range wanted {
		f, err := MatchNodes(w, &o, members)
		if err != nil {
			problems = append(problems, err)
		}
		o.Found[i] = f
	}
	problems = append(problems, Shared(o.Found)...)
	if err := errors.Join(append(problems, observeLost(ctx, src, wanted, &o))...); err != nil {
		return Observation{}, err
	}
	return o, o.compareShapes(ctx, src.Proxmox, wanted)
}

func observeSources(ctx context.Context, src Sources, wanted []cluster.Wanted) (o Observation, members []cluster.Member, err error) {
	o.ParkingIDs, o.First, o.Rebuild = src.ParkingIDs, src.First, src.Rebuild
	var errProxmox, errQuorum, errStorage, errKube, errTalos error
	g := errgroup.Group{}
	g.Go(func() error { o.VMs, errProxmox = src.Proxmox.VMs(ctx); return nil })
	g.Go(func() error { o.Quorate, errQuorum = src.Proxmox.Quorate(ctx); return nil })
	g.Go(func() error { o.Storages, errStorage = src.Proxmox.Storages(ctx); return nil })
	if src.First == "" {
		g.Go(func() error { o.Nodes, errKube = src.Kube.Nodes(ctx); return nil })
		g.Go(func() error { members, errTalos = src.Talos.Members(ctx); return nil })
	}
	_ = g.Wait() // no call returns an error: each is reported with its source
	errProxmox = o.noteAway(errProxmox)
	if err := fault.Prefix("read Proxmox", errors.Join(errProxmox, errQuorum, errStorage)); err != nil {
		return Observation{}, nil, err
	}
	if o.Parking, err = parking.Readable(o.VMs, src.Cluster); err != nil {
		return Observation{}, nil, err
	}
	err = errors.Join(fault.Prefix("read Kubernetes", errKube), fault.Prefix("read Talos", errTalos))
	if err != nil && parking.ControlPlaneOut(o.Parking) {
		o.Dark = err // the control plane that is out may be the reason
		return o, nil, nil
	}
	if err != nil && o.Away != nil {
		err = errors.Join(err, o.Away) // unavailable hosts may be the reason
	}
	if err != nil {
		err = namesThatAreOff(err, wanted, o.VMs)
	}
	return o, members, fault.WithHint(err, "the Kubernetes API and one control plane's Talos API must answer, and so must etcd behind them: talosctl etcd status, and the consoles in Proxmox; where there is no cluster yet, recast bootstrap makes it; where etcd is lost for good, recast rebuild")
}

// namesThatAreOff adds which VMs with the name of a node are off, to the error of a cluster that does not answer
// and so can't tell which VM is whose.
func namesThatAreOff(err error, wanted []cluster.Wanted, vms []cluster.VM) error {
	for _, vm := range vms {
		if !vm.Running && slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Name == vm.Name && !w.Surge }) {
			err = fault.WithHint(err, "%s has the name of a node, and is switched off: start %[1]s in Proxmox", vm)
		}
	}
	return err
}

// Sources are what Observe reads from.
type Sources struct {
	Proxmox cluster.Inventory
	Talos   cluster.TalosReader
	// Maintenance reads machines that were reset; nil: they count as unreadable.
	Maintenance cluster.Maintenance
	Kube        cluster.KubeReader
	Cluster     string // name of the cluster; records of other clusters are not ours
	// First is the control plane with which the cluster is to begin: there is neither Kubernetes nor etcd, so
	// neither is asked. "": there is a cluster.
	First string
	// Rebuild is the SHA-256 of the snapshot with which a broken cluster begins again: see observeLost. "": no rebuild.
	Rebuild string
	// Past is for a plan: of machines that it leaves as they are, only what it needs is read. nil: all is read.
	Past cluster.History
	// ParkingIDs are the VMIDs that a parking VM may have, in order.
	ParkingIDs []cluster.VMID
	// ConfigKnown says where a node's machine configuration is available: in the journal of the
	// record's run (the zero Record: of no run), or in the user's files. Its error is
	// ErrConfigDamaged if the journal's is damaged. nil: nowhere.
	ConfigKnown func(ctx context.Context, node string, rec parking.Record) (cluster.ConfigPlace, error)
	// MachineConfig is Roller.MachineConfig; nil: there are no such files.
	MachineConfig func(ctx context.Context, node string) (config cluster.Secret, found bool, err error)
}

const (
	// ObserveLimit bounds how many VMs or hosts a server of the cluster is asked about at once.
	ObserveLimit = 8
	// MachinesAtOnce bounds how many machines are read at once: each is its own server.
	MachinesAtOnce = 64
)

// NoAddress is the error for a node without an address in Kubernetes and in Talos' discovery.
func NoAddress(node string) error {
	return fault.WithHint(errors.New("no address known"),
		"its Node in Kubernetes has none, and Talos' discovery lists no machine of that name: see whether its VM is on and what its console says; "+
			"kubectl get node %s -o wide and talosctl get members show when it has one again; then run the same command again", node)
}

func FirstAddr(addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() {
			return a
		}
	}
	if len(addrs) > 0 {
		return addrs[0]
	}
	return netip.Addr{}
}

func NodeNames(nodes []cluster.KubeNode) []string {
	return cluster.Each(nodes, func(n cluster.KubeNode) string { return n.Name })
}

// OwnPod is where recast itself runs.
type OwnPod struct {
	Node string // the node, if recast is a pod of this cluster; "": it is not
	Err  error  // why Node is not known; nil: it is
}

// readOwnPod fails only if Kubernetes does not answer while the rest of it was read. If it does not answer because
// a control plane is out, or the cluster is broken, the own pod stays unknown.
func (o *Observation) readOwnPod(ctx context.Context, src Sources) error {
	if o.First != "" && o.Rebuild == "" {
		return nil // there is no cluster yet, and no pod of it
	}
	o.OwnPod.Node, o.OwnPod.Err = src.Kube.OwnNode(ctx)
	if cluster.IsUnanswered(o.OwnPod.Err) && o.Dark == nil && o.First == "" {
		return fault.Prefix("read Kubernetes", o.OwnPod.Err)
	}
	return nil
}
