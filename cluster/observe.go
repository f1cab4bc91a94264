package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/internal/fault"
)

// Sources is where Observe reads.
type Sources struct {
	Proxmox Inventory
	Talos   Talos
	// Maintenance reads machines that were reset; nil: they are as unreadable as others.
	Maintenance Maintenance
	Kube        Kube
	Cluster     string // name of the cluster; records of other clusters are not ours
	// ParkingIDs are the VMIDs that a parking VM may have, in order.
	ParkingIDs []VMID
	// ConfigKnown says where a node's machine configuration is at hand: in the journal
	// of the run that the record is of (the zero Record: of none), or in the
	// user's files. Its error is ErrConfigDamaged where the journal's is. nil: nowhere.
	ConfigKnown func(node string, rec Record) (ConfigPlace, error)
	// MachineConfig is Roller.MachineConfig; nil: there are no such files.
	MachineConfig func(node string) (config Secret, found bool, err error)
}

// Observation is the whole world as it was found, once.
type Observation struct {
	VMs      []VM       // of the whole Proxmox cluster, by VMID, but for those on hosts away
	Away     *HostsAway // hosts with VMs that do not answer; nil: there are none
	Quorate  bool       // the Proxmox cluster has quorum
	Parking  []Parking
	Nodes    []KubeNode
	Storages []Storage
	Rooms    map[string]Room // of the hosts of the nodes' VMs
	Dark     error           // why Kubernetes and Talos could not be read while a replacement has a control plane out; nil: they were
	Found    []Found         // one per wanted node, in their order

	// PastBuilds are builds of locks before this one, by ID: an unfinished
	// replacement is finished with the build that it was begun with.
	PastBuilds map[string]Build

	// Took is how long earlier rolls of nodes took, newest first.
	Took []Took

	// ParkingIDs are the VMIDs that a parking VM may have, in order.
	ParkingIDs []VMID
}

// Parking is a parking VM with what its description says.
type Parking struct {
	VM     VM
	Record Record
}

// Observe reads Proxmox, Kubernetes and every wanted node's machine. It fails
// where a source as a whole can't be read or a node can't be matched to exactly
// one VM; a single machine that does not answer is left nil with its reason in Errs.
func Observe(ctx context.Context, src Sources, wanted []Wanted) (Observation, error) {
	o, err := observeMatched(ctx, src, wanted)
	if err != nil {
		return Observation{}, err
	}
	hosts := hostsOf(o.Found)
	g := errgroup.Group{}
	g.Go(func() error { o.Rooms = roomsOf(ctx, src.Proxmox, hosts); return nil })
	g.Go(func() error { return observeMachines(ctx, src, src.Talos.Machine, wanted, o.Found) })
	g.Go(func() error { return observeTies(ctx, src, o.Found) })
	g.Go(func() error { return observeMoves(ctx, src.Proxmox, o.Found) })
	err = g.Wait()
	KnowPods(Matching(o.Found, func(f *Found) bool { return f.VM != nil })) // who reads the machines reads the VMs
	if err == nil {
		observeFiles(ctx, src, wanted, o.Found)
	}
	return o, err
}

// observeMatched reads the sources and finds each node's VM.
func observeMatched(ctx context.Context, src Sources, wanted []Wanted) (Observation, error) {
	o, members, err := observeSources(ctx, src)
	if err != nil {
		return Observation{}, err
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
	if err := errors.Join(append(problems, Shared(o.Found)...)...); err != nil {
		return Observation{}, err
	}
	return o, nil
}

func observeSources(ctx context.Context, src Sources) (o Observation, members []Member, err error) {
	o.ParkingIDs = src.ParkingIDs
	var errProxmox, errQuorum, errStorage, errKube, errTalos error
	g := errgroup.Group{}
	g.Go(func() error { o.VMs, errProxmox = src.Proxmox.VMs(ctx); return nil })
	g.Go(func() error { o.Quorate, errQuorum = src.Proxmox.Quorate(ctx); return nil })
	g.Go(func() error { o.Storages, errStorage = src.Proxmox.Storages(ctx); return nil })
	g.Go(func() error { o.Nodes, errKube = src.Kube.Nodes(ctx); return nil })
	g.Go(func() error { members, errTalos = src.Talos.Members(ctx); return nil })
	_ = g.Wait() // none of them returns an error: each is reported with its source
	errProxmox = o.noteAway(errProxmox)
	if err := fault.Prefix("read Proxmox", errors.Join(errProxmox, errQuorum, errStorage)); err != nil {
		return Observation{}, nil, err
	}
	if o.Parking, err = Parkings(o.VMs, src.Cluster); err != nil {
		return Observation{}, nil, err
	}
	err = errors.Join(fault.Prefix("read Kubernetes", errKube), fault.Prefix("read Talos", errTalos))
	if err != nil && o.controlPlaneOut() {
		o.Dark = err // it may be away because of that one
		return o, nil, nil
	}
	if err != nil && o.Away != nil {
		err = errors.Join(err, o.Away) // for that may be why
	}
	return o, members, fault.WithHint(err, "the Kubernetes API and one control plane's Talos API must answer, and so must etcd behind them: talosctl etcd status, and the consoles in Proxmox")
}

// controlPlaneOut says whether an unfinished replacement has a control plane out.
func (o Observation) controlPlaneOut() bool {
	return slices.ContainsFunc(o.Parking, func(p Parking) bool {
		mem, err := p.Record.ReadMemory(p.VM)
		return p.Record.Open && err == nil && mem.ControlPlane
	})
}

// Endpoint is where the Talos API of one node is.
type Endpoint struct {
	Node string
	Addr netip.Addr
}

// ControlPlanes are the cluster's control planes, as far as known.
func (o Observation) ControlPlanes() []Endpoint {
	var out []Endpoint
	for _, n := range o.Nodes {
		if addr := FirstAddr(n.Addresses); n.ControlPlane && addr.IsValid() {
			out = append(out, Endpoint{n.Name, addr})
		}
	}
	for _, p := range o.Parking {
		mem, err := p.Record.ReadMemory(p.VM)
		if p.Record.Open && err == nil && mem.ControlPlane && p.Record.Addr.IsValid() && !slices.Contains(out, Endpoint{p.Record.Node, p.Record.Addr}) {
			out = append(out, Endpoint{p.Record.Node, p.Record.Addr})
		}
	}
	return out
}

// noteAway keeps what of an error of reading VMs is that hosts do not answer, and
// gives back what is not.
func (o *Observation) noteAway(err error) error {
	if away, ok := errors.AsType[*HostsAway](err); ok {
		o.Away = away
		return nil
	}
	return err
}

// MatchNodes finds the one VM of a node: by the SMBIOS UUID that its Node object
// states, or, while its replacement is unfinished, by the record of that.
func MatchNodes(w Wanted, o *Observation, members []Member) (Found, error) {
	f := Found{Name: w.Name}
	uuid := ""
	if i := slices.IndexFunc(o.Nodes, func(n KubeNode) bool { return n.Name == w.Name }); i >= 0 {
		f.Node = &o.Nodes[i]
		uuid = f.Node.UUID
		f.Addr = FirstAddr(f.Node.Addresses)
	}
	if !f.Addr.IsValid() {
		if i := slices.IndexFunc(members, func(m Member) bool { return m.Nodename == w.Name }); i >= 0 {
			f.Addr = FirstAddr(members[i].Addresses)
		}
	}
	parked, err := parkingsOf(o.Parking, w.Name, uuid)
	if err != nil {
		return f, err
	}
	f.Parking, f.Elsewhere = takeParking(parked, func(p Parking) bool { return p.Record.Open })
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
		return f, fault.WithHint(fault.Configf("node %s: Kubernetes knows no node of that name", w.Name),
			"nodes[].name is the Kubernetes node name; the cluster has: %s", NodeNames(o.Nodes))
	}
	if err := MatchVM(w, &f, o, uuid); err != nil || f.Parking != nil || f.VM == nil {
		return f, err
	}
	f.Parking, f.Elsewhere = takeParking(parked, func(p Parking) bool { return p.VM.Host == f.VM.Host })
	return f, nil
}

func MatchVM(w Wanted, f *Found, o *Observation, uuid string) error {
	var matches []VM
	for _, vm := range o.VMs {
		if vm.UUID() == uuid {
			matches = append(matches, vm)
		}
	}
	switch {
	case len(matches) > 1:
		return fault.WithHint(fault.UUIDMismatch.Configf("node %s: %d VMs have its SMBIOS UUID %s: %v", w.Name, len(matches), uuid, matches),
			"give every VM a UUID of its own (smbios1) before recast touches one of them")
	case len(matches) == 0 && f.Open():
		return nil // deleted by the unfinished replacement, or away: see apart
	case len(matches) == 0 && o.Away != nil:
		f.Away = true
		f.Errs = append(f.Errs, fmt.Errorf("no VM that can be read has its SMBIOS UUID %s: %w", uuid, o.Away))
		return nil
	case len(matches) == 0:
		return fault.WithHint(fault.UUIDMismatch.Configf("node %s: no VM has its SMBIOS UUID %s", w.Name, uuid),
			"the token may not see the VM (VM.Audit), or the node runs elsewhere than on this Proxmox cluster")
	case w.VMID != 0 && matches[0].ID != w.VMID:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("node %s: its UUID %s belongs to %s, not to VM %d as configured", w.Name, uuid, matches[0], w.VMID),
			"has that VM's machine been given the hostname of %s? If not, correct nodes[].vmid", w.Name)
	}
	f.VM = &matches[0]
	return nil
}

// Shared finds VMs that two nodes claim to be: a machine that has taken another
// one's hostname goes by two Nodes.
func Shared(found []Found) (problems []error) {
	by := map[VMID]string{}
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

// NoAddress is the error of a node that neither Kubernetes nor Talos' discovery
// tells an address of.
func NoAddress(node string) error {
	return fault.WithHint(errors.New("no address known"),
		"its Node in Kubernetes has none, and Talos' discovery lists no machine of that name: see whether its VM is on and what its console says; "+
			"kubectl get node %s -o wide and talosctl get members show when it has one again; then run the same command again", node)
}

// machineRead is MachineReader's Machine, or System.
type machineRead func(ctx context.Context, addr netip.Addr) (Machine, error)

func ReadMachine(ctx context.Context, src Sources, read machineRead, w Wanted, f *Found) {
	if !f.Addr.IsValid() {
		f.Errs = append(f.Errs, NoAddress(f.Name))
		return
	}
	m, err := read(ctx, f.Addr)
	switch {
	case err != nil:
		err = fmt.Errorf("read machine %s: %w", f.Addr, err)
		if f.Blank = readBlank(ctx, src, f); f.Blank != nil {
			err = fmt.Errorf("%s is in maintenance mode: its machine has no configuration any more, as after talosctl reset", f.VM)
		}
		if f.VM != nil && !f.VM.Running {
			err = SwitchedOff(f.VM.State(), err)
		}
		f.Errs = append(f.Errs, err)
	case f.VM != nil && m.UUID != f.VM.UUID():
		f.Errs = append(f.Errs, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, but %s has %s", f.Addr, m.UUID, f.VM, f.VM.UUID()))
	case m.isBeingInstalled() && !f.Open():
		f.Errs = append(f.Errs, fault.WithHint(fmt.Errorf("machine %s runs from its boot ISO, and is being installed", f.Addr), "wait until it has booted from its system disk, then run the same command again"))
	case f.Node != nil:
		f.Machine = new(f.Node.Corrected(m))
	default:
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

func NodeNames(nodes []KubeNode) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}
