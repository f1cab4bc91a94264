// Package observe reads what Proxmox, Talos and Kubernetes say about the nodes, and compares that with what is wanted.
// [Observe] makes an [Observation], which has one [Found] for each node. [Diff] says whether a node is stale, and why;
// [Trace], how certain the origin of its image is, link by link: machine, boot entry, installer, lock, schematic,
// factory; [CompareFiles], whether the files of its extensions are those of its image. The package changes nothing.
package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
)

// MatchNodes finds a node's VM by the SMBIOS UUID in its Node, or in an unfinished replacement's record.
func MatchNodes(w cluster.Wanted, o *Observation, members []cluster.Member) (Found, error) {
	f := Found{Name: w.Name, Unrecorded: parking.Unrecorded(o.VMs, w.Name, o.ParkingIDs)}
	uuid := ""
	if i := slices.IndexFunc(o.Nodes, func(n cluster.KubeNode) bool { return n.Name == w.Name }); i >= 0 {
		f.Node = &o.Nodes[i]
		uuid = f.Node.UUID
		f.Addr = FirstAddr(f.Node.Addresses)
		if mark := f.Node.Mark; mark != nil { // only recast marks Nodes: disks of this one may be there
			for _, u := range parking.NotOurs(o.VMs, "") {
				if u.Record.Open && u.Record.Run == mark.Run {
					return f, fault.ParkedHalf.Refusedf("node %s: run %s has marked its Node, and its record says where the node's disks are; but %s", w.Name, mark.Run, u)
				}
			}
		}
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

// unproven lists the VMs that say they are the node's parking VMs, and are not believed.
func (o Observation) unproven(node string) []parking.Unproven {
	return cluster.Where(parking.NotOurs(o.VMs, o.Cluster), func(u parking.Unproven) bool { return u.Of(node) })
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
		for _, u := range o.unproven(w.Name) {
			err = fault.WithHint(err, "%s", u)
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
	hosts, read := hostsOf(o.Found), machineRead(src.ReadWhole)
	if src.Past != nil { // first what a plan needs to see whether it has anything to do
		read = func(ctx context.Context, f *Found) (cluster.Machine, error) {
			return cluster.ReadForPlan(ctx, src.Talos, f.Addr)
		}
	}
	g := errgroup.Group{}
	g.Go(func() error { o.Rooms = roomsOf(ctx, src.Proxmox, hosts); return nil })
	g.Go(func() error { return observeMachines(ctx, src, read, wanted, o.Found) })
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

// complete reads the rest of all machines if a node is not settled: others' disks may matter for it.
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
	if f.Unmatched {
		return // which machine is the node's is not known
	}
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

// configRefused checks before a roll whether the wanted Talos can read the running configuration.
func (src Sources) configRefused(w cluster.Wanted, m cluster.Machine) error {
	issue, _ := knownissue.Of(m.TalosVersion) // of a release that reads some configurations, and then fails with them
	if src.Maintenance == nil || m.ConfigHidden || m.Configs.Stored == nil || m.TalosVersion == w.Build.TalosVersion && !issue.Scheduler {
		return nil // a roll checks that again
	}
	_, err := src.Maintenance.PatchConfig(m.Configs.Stored, cluster.ConfigPatch{Installer: cluster.NeutralPatch.Installer, Talos: w.Build.TalosVersion})
	return fault.Prefix("machine configuration of "+w.Name, err)
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
				"has one machine been given the other one's hostname? Correct that, or delete the Node that is left over, before recast touches either"))
		}
		by[f.VM.ID] = f.Name
	}
	return problems
}

type machineRead func(ctx context.Context, f *Found) (cluster.Machine, error)

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
		if err != nil { // the other nodes are read all the same
			f.Unmatched, f.Errs = true, append(f.Errs, err)
		}
		o.Found[i] = f
	}
	problems = append(problems, Shared(o.Found)...)
	if err := errors.Join(append(problems, observeLost(ctx, src, wanted, &o))...); err != nil {
		return Observation{}, err
	}
	return o, o.compareShapes(ctx, src.Proxmox, wanted)
}

// Lists are what the servers list, with the error of each source. Hosts that do not answer are in Away, and no error.
type Lists struct {
	Observation
	Members                    []cluster.Member // of Talos' discovery
	Proxmox, Kubernetes, Talos error            // why that source could not be read
}

// Incomplete returns why some of Proxmox could not be read; a host that does not answer is a reason.
func (l Lists) Incomplete() error {
	if l.Away == nil {
		return l.Proxmox
	}
	return errors.Join(l.Away.Hinted(), l.Proxmox)
}

// List reads the lists of all sources, side by side. A source that is nil is not asked, and has no error.
func (src Sources) List(ctx context.Context) (l Lists) {
	var errVMs, errQuorum, errStorages error
	g := errgroup.Group{}
	if src.Proxmox != nil {
		g.Go(func() error { l.VMs, errVMs = src.Proxmox.VMs(ctx); return nil })
		g.Go(func() error { l.Quorate, errQuorum = src.Proxmox.Quorate(ctx); return nil })
		g.Go(func() error { l.Storages, errStorages = src.Proxmox.Storages(ctx); return nil })
	}
	if src.Kube != nil {
		g.Go(func() error { l.Nodes, l.Kubernetes = src.Kube.Nodes(ctx); return nil })
	}
	if src.Talos != nil {
		g.Go(func() error { l.Members, l.Talos = src.Talos.Members(ctx); return nil })
	}
	_ = g.Wait() // no call returns an error: each is kept with its source
	if away, ok := errors.AsType[*cluster.HostsAway](errVMs); ok {
		l.Away, errVMs = away, nil
	}
	l.Proxmox = errors.Join(errVMs, errQuorum, errStorages)
	return l
}

func observeSources(ctx context.Context, src Sources, wanted []cluster.Wanted) (o Observation, members []cluster.Member, err error) {
	if src.First != "" {
		src.Kube, src.Talos = nil, nil
	}
	l := src.List(ctx)
	o = l.Observation
	o.ParkingIDs, o.First, o.Rebuild = src.ParkingIDs, src.First, src.Rebuild
	if err := fault.Prefix("read Proxmox", l.Proxmox); err != nil {
		return Observation{}, nil, err
	}
	o.Cluster = src.Cluster
	if o.Parking, err = parking.Readable(o.VMs, src.Cluster); err != nil {
		return Observation{}, nil, err
	}
	err = errors.Join(fault.Prefix("read Kubernetes", l.Kubernetes), fault.Prefix("read Talos", l.Talos))
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
	return o, l.Members, fault.WithHint(err, "the Kubernetes API and one control plane's Talos API must answer, and so must etcd behind them: talosctl etcd status, and the consoles in Proxmox; where there is no cluster yet, recast bootstrap makes it; where etcd is lost for good, recast rebuild")
}

// namesThatAreOff adds to a silent cluster's error which VMs with names of nodes are off: it can't tell whose they are.
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
	// First is the control plane with which a cluster begins: nothing to ask is there yet. "": there is a cluster.
	First string
	// Rebuild is the SHA-256 of the snapshot with which a broken cluster begins again: see observeLost. "": no rebuild.
	Rebuild string
	// Past is for a plan: of machines that it leaves as they are, only what it needs is read. nil: all is read.
	Past       cluster.History
	ParkingIDs []cluster.VMID // the VMIDs that a parking VM may have, in order
	// ConfigKnown says where a node's machine configuration is available: in the journal of the record's run (the zero
	// Record: of no run), or in the user's files. Its error is ErrConfigDamaged if the journal's is damaged. nil: nowhere.
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
	if a, is4 := cluster.Find(addrs, netip.Addr.Is4); is4 || len(addrs) == 0 {
		return a
	}
	return addrs[0]
}

func NodeNames(nodes []cluster.KubeNode) []string {
	return cluster.Each(nodes, func(n cluster.KubeNode) string { return n.Name })
}

// OwnPod is where recast itself runs.
type OwnPod struct {
	Node string // the node, if recast is a pod of this cluster; "": it is not
	Err  error  // why Node is not known; nil: it is
}

// readOwnPod fails if only this does not answer. With a control plane out, or a broken cluster, it stays unknown.
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

// Hidden says why a system disk must not be replaced while hosts do not answer: the configurations of their VMs are
// unknown, and may name the disk's volumes; such a VM may even be a parking VM with an unfinished replacement of
// this node. Volumes on a storage that is not shared are safe: each host has its own volumes under their names.
func (o Observation) Hidden(vm cluster.VM) (out []string) {
	if o.Away == nil {
		return nil
	}
	disks, err := vm.Disks()
	if err != nil {
		return nil // already refused for that
	}
	exposed := cluster.Where(disks, func(d cluster.Disk) bool { return !d.CDROM && !d.CSI() && d.Storage() != "" && !o.Local(d.Storage()) })
	if len(exposed) > 0 {
		out = append(out, fmt.Sprintf("%s: whether one of them uses %s too, on a storage that is not known to be local, can't be determined: bring %s back first",
			o.Away.Error(), strings.Join(cluster.Each(exposed, func(d cluster.Disk) string { return fmt.Sprintf("%s (%s)", d.Key, d.Volid) }), ", "), o.Away.Names()))
	}
	numbered := cluster.Where(o.Away.VMs, func(vm cluster.VM) bool { return slices.Contains(o.ParkingIDs, vm.ID) })
	if len(numbered) > 0 {
		out = append(out, fmt.Sprintf("%s: %s may be a parking VM with an unfinished replacement of this node: bring %s back first",
			o.Away.Who(), cluster.Numbers(numbered), o.Away.Names()))
	}
	return out
}

// Local says whether each host has its own volumes on a storage. A storage that Proxmox does not list counts as
// shared. A device's path is each host's own, except for names by which every host that has a LUN knows it.
func (o Observation) Local(storage string) bool {
	if strings.HasPrefix(storage, "/dev/") {
		return !strings.HasPrefix(storage, "/dev/disk/") && !strings.HasPrefix(storage, "/dev/mapper/")
	}
	return slices.ContainsFunc(o.Storages, func(s cluster.Storage) bool { return s.Name == storage && !s.Shared })
}

// UnknownStorages reports storages in a setting that Proxmox does not show: publish and a roll refuse them.
func (o Observation) UnknownStorages(setting string, names []string) (out []string) {
	known := cluster.Each(o.Storages, func(s cluster.Storage) string { return s.Name })
	for _, name := range names {
		if !slices.Contains(known, name) {
			out = append(out, fmt.Sprintf("%s: storage %q is unknown: Proxmox has none of that name, or the token lacks Datastore.Audit on /storage/%s. "+
				"recast publish and recast roll would refuse it; there are: %s", setting, name, name, strings.Join(known, ", ")))
		}
	}
	return out
}

// Namesakes returns the VMs that mean this VM's volume by its name: on the same host if the storage is not shared.
func (o Observation) Namesakes(vm cluster.VM, storage string) []cluster.VM {
	if !o.Local(storage) {
		return o.VMs
	}
	return cluster.Where(o.VMs, func(other cluster.VM) bool { return other.Host == vm.Host })
}

// QuorumOnOneHost warns of a Proxmox host with so many control planes that etcd has no quorum without that host.
func (o Observation) QuorumOnOneHost() (warn []string) {
	by := map[string][]string{}
	hosts := map[string]bool{}
	for _, vm := range o.VMs {
		hosts[vm.Host] = true
	}
	all := 0
	for _, f := range o.Found {
		if f.Machine != nil && f.Machine.ControlPlane {
			all++
			by[f.Host()] = append(by[f.Host()], f.Name)
		}
	}
	if all < 3 || len(hosts) < 2 {
		return nil
	}
	for _, host := range slices.Sorted(maps.Keys(by)) {
		if names := by[host]; all-len(names) < all/2+1 {
			warn = append(warn, fmt.Sprintf("%d of %d control planes are on Proxmox host %s (%s): etcd has no quorum without that host", len(names), all, host, strings.Join(names, ", ")))
		}
	}
	return warn
}

// NewDisk returns the blank system disk that a node gets; nil if its storage is not listed, which is refused.
func (o Observation) NewDisk(w cluster.Wanted, host string, system cluster.Disk) *NewDisk {
	s, listed := cluster.Find(o.Storages, func(s cluster.Storage) bool { return s.Name == system.Storage() })
	if !listed {
		return nil
	}
	size := max(system.SizeBytes(), uint64(max(w.SystemGiB, 0))<<30)
	return &NewDisk{Node: w.Name, Host: host, Storage: s, Bytes: int64(size)}
}

// Signed: all builds that a kept system may be from are signed for Secure Boot. Its lock hash does not say.
func (o Observation) Signed(w cluster.Wanted, kept parking.KeptDisk) bool {
	known := false
	for _, b := range append(slices.Collect(maps.Values(o.PastBuilds)), w.Build) {
		if b.LockHash != kept.Build || b.TalosVersion != kept.Talos {
			continue
		}
		if known = b.SecureBoot; !known {
			return false
		}
	}
	return known
}

// Build finds a build by its ID: the wanted build, or one of a past lock.
func (o Observation) Build(w cluster.Wanted, id string) (cluster.Build, bool) {
	if id == w.Build.ID {
		return w.Build, true
	}
	b, ok := o.PastBuilds[id]
	return b, ok
}

func hostsOf(found []Found) (hosts []string) {
	for _, f := range found {
		for _, host := range []string{f.Host(), f.Shape.Moves(shape.Live)} {
			if host != "" && (f.VM != nil || f.Absent != nil) && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts
}

// roomsOf reads the space on hosts. A host that does not answer blocks only its own nodes.
func roomsOf(ctx context.Context, px cluster.StorageReader, hosts []string) map[string]cluster.Room {
	read := make([]cluster.Room, len(hosts)) // each has its own error
	EachAtOnce(hosts, ObserveLimit, func(i int, host *string) { read[i] = cluster.RoomOn(ctx, px, *host) })
	rooms := map[string]cluster.Room{}
	for i, host := range hosts {
		rooms[host] = read[i]
	}
	return rooms
}

// lostTrack hints at a deleted parking VM, or description: a node was taken out, and its record is missing.
func (o Observation) lostTrack(f Found) string {
	if f.Node == nil || f.Node.Mark == nil || f.Open() || f.Node.Mark.Strategy.KeepsVM() {
		return ""
	}
	what := fmt.Sprintf("run %s had taken %s out to %s, and no parking VM has the record of that any more", f.Node.Mark.Run, f.Name, f.Node.Mark.Strategy.Words().OnIt)
	if f.VM != nil {
		what += fmt.Sprintf("; %s has %s", f.VM, cluster.DrivesOf(*f.VM))
	}
	for _, vm := range parking.Unrecorded(o.VMs, f.Name, nil) {
		return fmt.Sprintf("%s: the description of %s, which has %s, was changed. Put it back as it was, then run the same command again", what, vm, cluster.DrivesOf(vm))
	}
	return what + ": someone deleted it, and with it what was parked there. If the VM has all its disks, start it; else they, and its configuration, have to come from a backup"
}

// Observation is everything as found, read once.
type Observation struct {
	Cluster  string
	VMs      []cluster.VM       // of the whole Proxmox cluster, by VMID, without those on unavailable hosts
	Away     *cluster.HostsAway // hosts with VMs that do not answer; nil: there are none
	Quorate  bool               // the Proxmox cluster has quorum
	Parking  []parking.Parking
	Nodes    []cluster.KubeNode
	Storages []cluster.Storage
	Rooms    map[string]cluster.Room // of the hosts of the nodes' VMs
	Dark     error                   // why Kubernetes and Talos could not be read while a replacement has a control plane out of service; nil: they were
	Found    []Found                 // one per wanted node, in their order
	First    string                  // see Sources.First
	Rebuild  string                  // see Sources.Rebuild
	OwnPod   OwnPod                  // from Observe only
	Storage  []replica.System        // from Observe only

	// PastBuilds are builds of earlier locks, by ID: what began with one is finished with it.
	PastBuilds map[string]cluster.Build

	Took []cluster.Took // how long earlier rolls of nodes took, newest first

	ParkingIDs []cluster.VMID // the VMIDs that a parking VM may have, in order
}

func (o Observation) ControlPlanes() []cluster.Endpoint {
	of := cluster.Where(o.Found, func(f Found) bool { return f.Name == o.First && f.Addr.IsValid() })
	out := cluster.Each(of, func(f Found) cluster.Endpoint { return cluster.Endpoint{Node: f.Name, Addr: f.Addr} })
	for _, n := range o.Nodes {
		if addr := FirstAddr(n.Addresses); n.ControlPlane && addr.IsValid() {
			out = append(out, cluster.Endpoint{Node: n.Name, Addr: addr})
		}
	}
	for _, p := range o.Parking {
		mem, err := p.Record.ReadMemory(p.VM)
		if p.Record.Open && err == nil && mem.ControlPlane && p.Record.Addr.IsValid() && !slices.Contains(out, cluster.Endpoint{Node: p.Record.Node, Addr: p.Record.Addr}) {
			out = append(out, cluster.Endpoint{Node: p.Record.Node, Addr: p.Record.Addr})
		}
	}
	return out
}

// NewDisk is a blank system disk that a roll creates while the old one stays parked.
type NewDisk struct {
	Node, Host string
	Storage    cluster.Storage
	Bytes      int64
	// Freed is what the same node's roll frees at its end on the same storage, for later disks: old
	// system disks beyond the retention.
	Freed int64
}

// takes returns how much space the disk takes until its node is healthy.
func (d NewDisk) takes() int64 {
	if d.Storage.Thick {
		return d.Bytes
	}
	return min(d.Bytes, max(freshSystem, d.Bytes/freshShare))
}

// SpaceUse is how much new disks take of the space that they share.
type SpaceUse struct {
	Storage, Host string
	Disks         []NewDisk // in the order in which they are created
	Room          cluster.StorageRoom
	thin          *cluster.ThinPool
	unknown       string // why the free space is unknown; "": it is known
	notes         []string
}

// Lacks says for each disk why it can't be created; "" if there is space for it beside the earlier ones. What a
// roll frees at its end counts for later disks, but not for those that may be in progress at the same time.
func (u SpaceUse) Lacks(atOnce int) []string {
	out := make([]string, len(u.Disks))
	var taken int64
	var before []string
	var freed []int64
	for i, d := range u.Disks {
		back := settled(freed, atOnce-1)
		need := taken + d.takes()
		switch {
		case u.unknown != "":
			out[i] = u.unknown
		case d.Bytes <= 0:
			out[i] = "how large its new system disk is to be can't be determined: the drive has no size=: run qm disk rescan, or set nodes[].systemDisk.sizeGiB"
		case need > u.Room.Free+back:
			out[i] = u.lack(fmt.Sprintf("has %s free", cluster.Size(u.Room.Free+back)), d.takes(), taken, before)
		case u.thin != nil && metadata(need) > u.thin.MetaSize-u.thin.MetaUsed+metadata(back):
			out[i] = fmt.Sprintf("the metadata of thin pool %s/%s on %s has %s left, and the new system disks take %s: extend it (lvextend --poolmetadatasize)",
				u.thin.VG, u.thin.Name, u.Host, cluster.Size(u.thin.MetaSize-u.thin.MetaUsed), cluster.Size(metadata(need)))
		}
		taken, before, freed = need, append(before, d.Node), append(freed, d.Freed)
	}
	return out
}

func (u SpaceUse) Takes() (total int64) {
	for _, d := range u.Disks {
		total += d.takes()
	}
	return total
}

// Warn says what works at first and may fail later.
func (u SpaceUse) Warn() []string {
	out := slices.Clone(u.notes)
	if u.unknown != "" || u.Room.Total <= 0 || len(u.Disks) == 0 || u.Disks[0].Storage.Thick {
		return out
	}
	grown := u.Room.Total - u.Room.Free
	for _, d := range u.Disks {
		grown += d.Bytes
	}
	if share := float64(grown) / float64(u.Room.Total); share > cluster.FullPool {
		out = append(out, fmt.Sprintf("storage %s on %s would be %.0f%% full if the new system disks filled up while the old ones are parked: "+
			"once it is full, every disk on it fails: extend it, or free old system disks with recast prune", u.Storage, u.Host, 100*share))
	}
	return out
}

func (u SpaceUse) lack(free string, takes, taken int64, before []string) string {
	also := ""
	if len(before) > 0 {
		also = fmt.Sprintf(" besides %s for %s before it", cluster.Size(taken), strings.Join(before, ", "))
	}
	return fmt.Sprintf("storage %s on %s %s, but a new system disk takes %s there%s while the old one stays parked: "+
		"free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage", u.Storage, u.Host, free, cluster.Size(takes), also)
}

// SpaceUses groups new disks by shared space: a shared storage, else per host, with all storages of a pool.
func SpaceUses(disks []NewDisk, rooms map[string]cluster.Room) (uses []SpaceUse) {
	var keys []string
	for _, d := range disks {
		key := cmp.Or(d.Storage.Pool, "storage "+d.Storage.Name)
		if !d.Storage.Shared {
			key += " on " + d.Host
		}
		i := slices.Index(keys, key)
		if i < 0 {
			i = len(keys)
			keys = append(keys, key)
			uses = append(uses, newSpaceUse(d, rooms))
		}
		uses[i].Disks = append(uses[i].Disks, d)
	}
	return uses
}

// What a fresh system writes to a disk that grows with its data: the images of kernel and initramfs
// (twice, for the upgrade after this one), XFS on EPHEMERAL, and the container images of Talos,
// Kubernetes and the evicted pods, which are pulled again. No figure is right for every cluster: 4
// GiB are plenty for the first ones, a fifth of the disk stands for the last.
const (
	freshSystem = 4 << 30
	freshShare  = 5
)

func metadata(bytes int64) int64 { return bytes / thinBlock * thinMetadata }

func newSpaceUse(d NewDisk, rooms map[string]cluster.Room) SpaceUse {
	u := SpaceUse{Storage: d.Storage.Name, Host: d.Host}
	room, asked := rooms[d.Host]
	s, listed := cluster.Find(room.Storages, func(s cluster.StorageRoom) bool { return s.Name == d.Storage.Name })
	switch {
	case !asked:
		u.unknown = fmt.Sprintf("nobody asked %s for its room", d.Host)
	case room.Err != nil:
		u.unknown = fmt.Sprintf("the room on %s can't be read: %v", d.Host, room.Err)
	case !listed:
		u.unknown = fmt.Sprintf("storage %s takes no disks on %s: see its content, nodes and state (pvesm status)", u.Storage, u.Host)
	case !s.Active:
		u.unknown = fmt.Sprintf("storage %s is not active on %s: see pvesm status there", u.Storage, u.Host)
	default:
		u.Room = s
	}
	if u.unknown != "" || d.Storage.Type != "lvmthin" {
		return u
	}
	for _, p := range room.ThinPools {
		if p.VG+"/"+p.Name == d.Storage.Pool {
			u.thin = &p
		}
	}
	if u.thin == nil {
		why := "Proxmox does not list it"
		if room.ErrPools != nil {
			why = room.ErrPools.Error()
		}
		u.notes = append(u.notes, fmt.Sprintf("how full the metadata of thin pool %s on %s is can't be determined: %s", d.Storage.Pool, u.Host, why))
	}
	return u
}

// settled returns how much is certainly free again while underWay rolls go on: those that free most.
func settled(freed []int64, underWay int) (total int64) {
	sorted := slices.Sorted(slices.Values(freed))
	for _, f := range sorted[:max(0, len(sorted)-max(0, underWay))] {
		total += f
	}
	return total
}

// A thin pool's metadata for a block, and the smallest block (Linux, device-mapper/thin-provisioning.rst).
const (
	thinMetadata = 48
	thinBlock    = 64 << 10
)
