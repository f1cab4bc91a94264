package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Host is a Proxmox node as it says it stands. What could not be read is zero
// and has its reason in Errs.
type Host struct {
	Name      string
	Online    bool
	Entry     bool   // the one whose API answered: uploads are spooled there
	Version   string // "9.2.11"
	Clock     time.Time
	Asked     time.Time // the moment that Clock is to be held against
	SpoolFree int64     // bytes free on its root filesystem, which has /var/tmp
	ThinPools []ThinPool
	ErrPools  error // of reading them: a host need not have LVM at all
	Errs      []error
}

// ThinPool is an LVM thin pool of a host.
type ThinPool struct {
	VG, Name           string
	Size, Used         int64 // bytes
	MetaSize, MetaUsed int64
}

// Survey is Observe that goes on where something can't be read: each part comes
// with its error, and nodes that could not be matched are without a VM.
type Survey struct {
	Observation
	Proxmox, Kubernetes, Talos error   // why that one could not be read
	Shared                     []error // two nodes that claim to be one VM
	Unread                     []error // one per wanted node: why it was not matched, or what of it could not be read; nil: nothing
}

// LookAround reads what can be read of the world, for a diagnosis: any source
// may be nil. A plan must never be made of it.
func LookAround(ctx context.Context, src Sources, wanted []Wanted) Survey {
	s := Survey{Unread: make([]error, len(wanted))}
	var members []Member
	g := errgroup.Group{}
	g.Go(func() error { s.Proxmox = s.readProxmox(ctx, src.Proxmox); return nil })
	g.Go(func() error { s.Nodes, s.Kubernetes = readNodes(ctx, src.Kube); return nil })
	g.Go(func() error { members, s.Talos = readMembers(ctx, src.Talos); return nil })
	_ = g.Wait() // none of them returns an error: each is kept
	parking, err := Parkings(s.VMs, src.Cluster)
	s.Parking, s.Proxmox = parking, errors.Join(s.Proxmox, err)
	s.Found = make([]Found, len(wanted))
	for i, w := range wanted {
		s.Found[i], s.Unread[i] = s.match(w, members)
	}
	s.Shared = Shared(s.Found)
	nodes, vms := matching(s.Found, func(f *Found) bool { return f.Node != nil }), matching(s.Found, func(f *Found) bool { return f.VM != nil })
	var errLocal error
	var errTies []error
	g.Go(func() error { s.readMachines(ctx, src, wanted); return nil })
	g.Go(func() error { errLocal = readLocalData(ctx, src.Kube, nodes); return nil })
	g.Go(func() error { errTies = readTies(ctx, src.Proxmox, vms); return nil })
	_ = g.Wait() // the same
	knowPods(nodes)
	why := map[*Found]error{}
	for i, f := range vms {
		why[f] = errTies[i]
	}
	for _, f := range nodes {
		why[f] = errors.Join(why[f], errLocal)
	}
	for i := range s.Found {
		s.Unread[i] = errors.Join(s.Unread[i], why[&s.Found[i]])
	}
	return s
}

func (s *Survey) readMachines(ctx context.Context, src Sources, wanted []Wanted) {
	if src.Talos == nil {
		return
	}
	g := errgroup.Group{}
	g.SetLimit(machinesAtOnce)
	for i := range s.Found {
		g.Go(func() error { readMachine(ctx, src, src.Talos.Machine, wanted[i], &s.Found[i]); return nil })
	}
	_ = g.Wait() // the same
}

func (s *Survey) readProxmox(ctx context.Context, px Inventory) error {
	if px == nil {
		return errNoAccess
	}
	var errVMs, errQuorum, errStorages error
	s.VMs, errVMs = px.VMs(ctx)
	s.Away, _ = errors.AsType[*HostsAway](errVMs)
	s.Quorate, errQuorum = px.Quorate(ctx)
	s.Storages, errStorages = px.Storages(ctx)
	return errors.Join(errVMs, errQuorum, errStorages)
}

func readNodes(ctx context.Context, kube Kube) ([]KubeNode, error) {
	if kube == nil {
		return nil, errNoAccess
	}
	return kube.Nodes(ctx)
}

func readMembers(ctx context.Context, talos Talos) ([]Member, error) {
	if talos == nil {
		return nil, errNoAccess
	}
	return talos.Members(ctx)
}

var errNoAccess = errors.New("there is no access to it")

// match is the survey's: where Kubernetes can't be asked, the number in the
// configuration has to do.
func (s *Survey) match(w Wanted, members []Member) (Found, error) {
	if s.Kubernetes == nil {
		f, err := match(w, &s.Observation, members)
		if f.away {
			err = errors.Join(f.Errs...)
		}
		return f, err
	}
	f := Found{Name: w.Name}
	if i := slices.IndexFunc(s.VMs, func(vm VM) bool { return w.VMID != 0 && vm.ID == w.VMID }); i >= 0 {
		f.VM = &s.VMs[i]
	}
	if i := slices.IndexFunc(members, func(m Member) bool { return m.Nodename == w.Name }); i >= 0 {
		f.Addr = FirstAddr(members[i].Addresses)
	}
	if f.VM == nil {
		return f, fmt.Errorf("node %s: which VM it is can't be told without Kubernetes", w.Name)
	}
	return f, nil
}

// Assessment is what could be done to one node if it were stale.
type Assessment struct {
	Node     string                `json:"node"`
	Role     string                `json:"role,omitempty"` // "" where its machine could not be read
	VMID     VMID                  `json:"vmid,omitempty"`
	Host     string                `json:"host,omitempty"`
	Strategy Strategy              `json:"strategy,omitempty"` // the one that a roll would take; "": none is possible, or it is not known
	Why      string                `json:"why,omitempty"`
	Against  map[Strategy][]string `json:"against,omitempty"` // what forbids each
	WillLose []string              `json:"willLose,omitempty"`
	Notes    []string              `json:"notes,omitempty"`
	Refused  []string              `json:"refused,omitempty"` // why nothing is possible, or not what is asked for
	// ToRecreate is what has to be lifted until a roll would recreate it; none where it would, or where recast.yaml asks for another way.
	ToRecreate []Obstacle `json:"toRecreate,omitempty"`
	System     string     `json:"systemDisk,omitempty"`

	disks []Disk
	// Unread says that only Proxmox could be asked: data on the disks may forbid more.
	Unread bool `json:"unread,omitempty"`
}

// Assess says of every node what forbids which strategy. Without a lock the
// wanted builds are empty, and what depends on them is left out.
func (s Survey) Assess(wanted []Wanted, p Policy) []Assessment {
	out := make([]Assessment, len(wanted))
	for i, w := range wanted {
		out[i] = assess(w, s.Found[i], s.Observation, p)
	}
	return out
}

func assess(w Wanted, f Found, o Observation, p Policy) Assessment {
	a := Assessment{Node: w.Name}
	if f.VM == nil {
		a.Unread = true
		return a
	}
	a.VMID, a.Host = f.VM.ID, f.VM.Host
	c := candidate{Wanted: w, vm: *f.VM, found: f, world: o}
	c.disks, c.disksErr = f.VM.Disks()
	c.disks = slices.DeleteFunc(c.disks, Disk.CSI)
	if f.Machine == nil {
		a.Unread, a.disks, a.Against = true, c.disks, c.seenFromProxmox()
		return a
	}
	c.m = *f.Machine
	c.system, c.systemErr = ProveSystemDisk(c.vm, c.m, w.SystemDisk)
	n := NodePlan{Node: w.Name, Role: Worker, wanted: w, found: f}
	if c.m.ControlPlane {
		n.Role = ControlPlane
	}
	a.Against = map[Strategy][]string{Recreate: texts(c.againstRecreate()), Reimage: texts(c.againstReimage()), InPlace: c.againstInPlace()}
	if n.Role == ControlPlane {
		a.etcd(c.m, o, p)
	}
	d := decide(w, f, o, c.system, c.systemErr)
	if n.Role == ControlPlane && len(d.Refused) == 0 {
		d = planEtcd(&n, o, p, d, c.system, c.systemErr)
	}
	a.Role, a.Strategy, a.Why, a.Refused, a.WillLose, a.Notes = n.Role, d.Strategy, d.Why, d.Refused, d.WillLose, d.Notes
	a.disks, a.System, a.ToRecreate = c.disks, c.system.Key, d.ToRecreate
	return a
}

// etcd adds what it forbids to do to a control plane.
func (a Assessment) etcd(m Machine, o Observation, p Policy) {
	onSystem, err := etcdOnSystemDisk(m)
	for _, s := range strategies {
		refused, _ := etcdRules(len(o.controlPlanes()), onSystem && s != InPlace, s, p.AcceptOutage)
		if err != nil && s != InPlace {
			refused = []string{err.Error()}
		}
		a.Against[s] = append(a.Against[s], refused...)
	}
}

// seenFromProxmox is what forbids a strategy whatever the machine would say.
func (c candidate) seenFromProxmox() map[Strategy][]string {
	var replacing []string
	if c.disksErr != nil {
		replacing = append(replacing, c.disksErr.Error())
	}
	replacing = slices.Concat(replacing, texts(c.occupied()), texts(c.entangled()), texts(c.preconfigured()))
	return map[Strategy][]string{
		Recreate: slices.Concat(replacing, texts(c.tied()), texts(c.unwritable()), c.immovable(Recreate)),
		Reimage:  replacing,
	}
}

// SystemDisk is the proven system disk.
func (a Assessment) SystemDisk() (Disk, bool) {
	i := slices.IndexFunc(a.disks, func(d Disk) bool { return a.System != "" && d.Key == a.System })
	if i < 0 {
		return Disk{}, false
	}
	return a.disks[i], true
}

// Storages lists the storages of the node's own disks, sorted.
func (a Assessment) Storages() []string {
	var out []string
	for _, d := range a.disks {
		if s := d.Storage(); !d.CDROM && s != d.Volid && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

// CanReassign says whether storages of that type can hand a disk over to another VM.
func (s Storage) CanReassign() bool { return slices.Contains(reassigns, s.Type) }

// unseen says whether Proxmox does not list a storage of the node's disks: a
// token is shown none on which it has neither Datastore.Audit nor Datastore.AllocateSpace.
func (s Survey) unseen(a Assessment) bool {
	return slices.ContainsFunc(a.Storages(), func(name string) bool {
		return !slices.ContainsFunc(s.Observation.Storages, func(l Storage) bool { return l.Name == name })
	})
}

// Needs is what a roll of these nodes takes, each by the strategy that it would
// get: by the one asked for, or recreate, where that is not known.
func (s Survey) Needs(wanted []Wanted, assessments []Assessment) Needs {
	var needs Needs
	for i, w := range wanted {
		a, f := assessments[i], s.Found[i]
		strategy := a.Strategy
		if s.unseen(a) {
			strategy = w.Strategy // what was found possible is only what the token lets be seen
		}
		if !slices.Contains(strategies, strategy) {
			strategy = w.Strategy
		}
		if !slices.Contains(strategies, strategy) {
			strategy = Recreate
		}
		if f.VM == nil {
			needs = needs.With(NeedsToRoll(w.ISOStorages, nil, strategy))
			continue
		}
		var disks []DiskPlan
		for _, d := range a.disks {
			if !d.CDROM && (strategy != Reimage || d.Key == a.System || a.System == "") {
				disks = append(disks, DiskPlan{Key: d.Key, Volid: d.Volid})
			}
		}
		needs.common([]string{f.VM.Host})
		if strategy != InPlace { // a roll of such nodes alone can do with a Lease
			needs.claim()
		}
		needs.node(strategy, w, f, disks)
	}
	return needs
}
