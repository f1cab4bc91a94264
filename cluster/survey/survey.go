// Package survey looks at a cluster and says what is here, what is missing, and why.
//
// [LookAround] makes a [Survey], for a diagnosis: unlike an observation for a plan, it goes on where something can't
// be read. [Discover] reads from a running cluster what recast.yaml needs to know: which VM is which node, where its
// disks are, which VM holds them. [Needs] are the Proxmox privileges that a command needs, compared with those of the
// token. [Explain] says why a plan treats a node as it does: what is wanted beside what was found, what speaks
// against each strategy, and the steps to come.
package survey

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
)

// Assessment is what could be done to one node if it were stale.
type Assessment struct {
	Node     string                        `json:"node"`
	Role     string                        `json:"role,omitempty"` // "" where its machine could not be read
	VMID     cluster.VMID                  `json:"vmid,omitempty"`
	Host     string                        `json:"host,omitempty"`
	Strategy cluster.Strategy              `json:"strategy,omitempty"` // the one that a roll would take; "": none is possible, or it is not known
	Why      string                        `json:"why,omitempty"`
	Against  map[cluster.Strategy][]string `json:"against,omitempty"` // what forbids each
	WillLose []string                      `json:"willLose,omitempty"`
	Notes    []string                      `json:"notes,omitempty"`
	Refused  []string                      `json:"refused,omitempty"` // why nothing is possible, or not what is asked for
	// ToRecreate lists the obstacles to lift before a roll would recreate the node; none if it would already, or if
	// recast.yaml asks for another strategy.
	ToRecreate []cluster.Obstacle `json:"toRecreate,omitempty"`
	System     string             `json:"systemDisk,omitempty"`

	disks []cluster.Disk
	// Unread says that only Proxmox could be asked: data on the disks may forbid more.
	Unread bool `json:"unread,omitempty"`
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

// systemDisk is the proven system disk.
func (a Assessment) systemDisk() (cluster.Disk, bool) {
	return cluster.Find(a.disks, func(d cluster.Disk) bool { return a.System != "" && d.Key == a.System })
}

// etcd adds what etcd forbids for a control plane.
func (a Assessment) etcd(m cluster.Machine, o observe.Observation, p planning.Policy) {
	onSystem, err := strategy.EtcdOnSystemDisk(m)
	for _, s := range cluster.Strategies {
		refused, _ := strategy.EtcdRules(len(o.ControlPlanes()), onSystem && !s.KeepsVM(), m.TypeInit, s, p.AcceptOutage)
		if err != nil && !s.KeepsVM() {
			refused = []string{err.Error()}
		}
		a.Against[s] = append(a.Against[s], refused...)
	}
}

// LookAround reads as much as it can, for a diagnosis: any source may be nil. A plan must never be made from it.
func LookAround(ctx context.Context, src observe.Sources, wanted []cluster.Wanted) Survey {
	s := Survey{Unread: make([]error, len(wanted))}
	var members []cluster.Member
	g := errgroup.Group{}
	g.Go(func() error { s.Proxmox = s.readProxmox(ctx, src.Proxmox); return nil })
	g.Go(func() error { s.Nodes, s.Kubernetes = readNodes(ctx, src.Kube); return nil })
	g.Go(func() error { members, s.Talos = readMembers(ctx, src.Talos); return nil })
	_ = g.Wait() // no function returns an error: each result is kept
	parking, err := parking.Parkings(s.VMs, src.Cluster)
	s.Parking, s.Proxmox = parking, errors.Join(s.Proxmox, err)
	s.Found = make([]observe.Found, len(wanted))
	for i, w := range wanted {
		s.Found[i], s.Unread[i] = s.match(w, members)
	}
	s.Shared = observe.Shared(s.Found)
	nodes, vms := observe.Matching(s.Found, func(f *observe.Found) bool { return f.Node != nil }), observe.Matching(s.Found, func(f *observe.Found) bool { return f.VM != nil })
	var errLocal error
	var errTies []error
	g.Go(func() error { s.readMachines(ctx, src, wanted); return nil })
	g.Go(func() error { s.Storage, errLocal = observe.ReadData(ctx, src.Kube, nodes); return nil })
	g.Go(func() error { errTies = observe.ReadTies(ctx, src.Proxmox, vms); return nil })
	_ = g.Wait() // as above
	observe.KnowPods(nodes)
	why := map[*observe.Found]error{}
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

// Survey is an Observation that may be incomplete: each part has the error of reading it, and nodes that could not be
// matched have no VM.
type Survey struct {
	observe.Observation
	Proxmox, Kubernetes, Talos error   // why that source could not be read
	Shared                     []error // two nodes that claim to be the same VM
	Unread                     []error // one per wanted node: why it was not matched, or what could not be read; nil: nothing
}

// Assess lists for every node what forbids which strategy. Without a lock the wanted builds are
// empty, and what depends on them is left out.
func (s Survey) Assess(wanted []cluster.Wanted, p planning.Policy) []Assessment {
	out := make([]Assessment, len(wanted))
	for i, w := range wanted {
		out[i] = assess(w, s.Found[i], s.Observation, p)
	}
	return out
}

// Needs returns the privileges for a roll of these nodes. Each node counts by its expected strategy or, if that is
// unknown, by the configured strategy, or else by recreate.
func (s Survey) Needs(wanted []cluster.Wanted, assessments []Assessment) Needs {
	var needs Needs
	for i, w := range wanted {
		a, f := assessments[i], s.Found[i]
		strategy := a.Strategy
		if s.unseen(a) {
			strategy = w.Strategy // what was found possible is limited to what the token can see
		}
		if !slices.Contains(cluster.Strategies, strategy) {
			strategy = w.Strategy
		}
		if !slices.Contains(cluster.Strategies, strategy) {
			strategy = cluster.Recreate
		}
		if f.Absent != nil {
			needs = needs.With(NeedsOf(planning.Plan{Nodes: []planning.NodePlan{toCreate(w, f)}}, false))
			continue
		}
		if f.VM == nil {
			needs = needs.With(NeedsToRoll(w.ISOStorages, nil, strategy)).With(NeedsToPublish(nil, w.DiskStorages))
			continue
		}
		var disks []planning.DiskPlan
		for _, d := range a.disks {
			if !d.CDROM && (strategy.DeletesVM() || d.Key == a.System || a.System == "") {
				disks = append(disks, planning.DiskPlan{Key: d.Key, Volid: d.Volid})
			}
		}
		needs.common([]string{f.VM.Host})
		if !strategy.KeepsVM() { // a roll of in-place nodes alone can use a Lease
			needs.claim()
		}
		needs.node(strategy, w, f, disks)
	}
	return needs
}

// match finds the VM of a node; if Kubernetes can't be asked, by the VMID in the configuration.
func (s *Survey) match(w cluster.Wanted, members []cluster.Member) (observe.Found, error) {
	if s.Kubernetes == nil {
		f, err := observe.MatchNodes(w, &s.Observation, members)
		if f.Away {
			err = errors.Join(f.Errs...)
		}
		return f, err
	}
	f := observe.Found{Name: w.Name}
	if i := slices.IndexFunc(s.VMs, func(vm cluster.VM) bool { return w.VMID != 0 && vm.ID == w.VMID }); i >= 0 {
		f.VM = &s.VMs[i]
	}
	if i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Nodename == w.Name }); i >= 0 {
		f.Addr = observe.FirstAddr(members[i].Addresses)
	}
	if f.VM == nil {
		return f, fmt.Errorf("node %s: which VM it is can't be determined without Kubernetes", w.Name)
	}
	return f, nil
}

func (s *Survey) readMachines(ctx context.Context, src observe.Sources, wanted []cluster.Wanted) {
	if src.Talos == nil {
		return
	}
	g := errgroup.Group{}
	g.SetLimit(observe.MachinesAtOnce)
	for i := range s.Found {
		if s.Found[i].Absent != nil {
			continue
		}
		g.Go(func() error { observe.ReadMachine(ctx, src, src.ReadWhole, wanted[i], &s.Found[i]); return nil })
	}
	_ = g.Wait() // as above
}

func (s *Survey) readProxmox(ctx context.Context, px cluster.Inventory) error {
	if px == nil {
		return errNoAccess
	}
	var errVMs, errQuorum, errStorages error
	s.VMs, errVMs = px.VMs(ctx)
	s.Away, _ = errors.AsType[*cluster.HostsAway](errVMs)
	s.Quorate, errQuorum = px.Quorate(ctx)
	s.Storages, errStorages = px.Storages(ctx)
	return errors.Join(errVMs, errQuorum, errStorages)
}

// unseen says whether Proxmox does not list a storage of the node's disks: a token sees a
// storage only with Datastore.Audit or Datastore.AllocateSpace on it.
func (s Survey) unseen(a Assessment) bool {
	return slices.ContainsFunc(a.Storages(), func(name string) bool {
		return !slices.ContainsFunc(s.Observation.Storages, func(l cluster.Storage) bool { return l.Name == name })
	})
}

// assess lists for one node what forbids which strategy.
func assess(w cluster.Wanted, f observe.Found, o observe.Observation, p planning.Policy) Assessment {
	a := Assessment{Node: w.Name}
	if f.Absent != nil {
		n := toCreate(w, f)
		a.Host, a.Strategy, a.Why, a.Refused = n.Host, n.Strategy, n.Why, n.Refused
		return a
	}
	if f.VM == nil {
		a.Unread = true
		return a
	}
	a.VMID, a.Host = f.VM.ID, f.VM.Host
	c := strategy.Candidate{Wanted: w, VM: *f.VM, Found: f, Observation: o}
	c.Disks, c.DisksErr = f.VM.Disks()
	c.Disks = slices.DeleteFunc(c.Disks, cluster.Disk.CSI)
	if f.Machine == nil {
		a.Unread, a.disks, a.Against, a.Refused = true, c.Disks, c.SeenFromProxmox(), cluster.Texts(c.Doubled())
		return a
	}
	c.Machine = *f.Machine
	c.System, c.SystemErr = cluster.ProveSystemDisk(c.VM, c.Machine, w.SystemDisk)
	n := planning.NodePlan{Node: w.Name, Role: cluster.RoleOf(c.Machine.ControlPlane), Wanted: w, Found: f}
	a.Against, _ = c.Against()
	if n.Role == cluster.ControlPlane {
		a.etcd(c.Machine, o, p)
	}
	d := strategy.Decide(w, f, o, c.System, c.SystemErr)
	if n.Role == cluster.ControlPlane && len(d.Refused) == 0 {
		d = planning.PlanEtcd(&n, o, p, d, c.System, c.SystemErr)
	}
	a.Role, a.Strategy, a.Why, a.Refused, a.WillLose, a.Notes = n.Role, d.Strategy, d.Why, d.Refused, d.WillLose, d.Notes
	a.disks, a.System, a.ToRecreate = c.Disks, c.System.Key, d.ToRecreate
	return a
}

// toCreate returns the plan of a node that does not exist yet, as a roll creates it.
func toCreate(w cluster.Wanted, f observe.Found) planning.NodePlan {
	n := planning.NodePlan{Node: w.Name, Wanted: w, Found: f}
	planning.Create(&n)
	return n
}

var errNoAccess = errors.New("there is no access to it")

func readMembers(ctx context.Context, talos cluster.MemberReader) ([]cluster.Member, error) {
	if talos == nil {
		return nil, errNoAccess
	}
	return talos.Members(ctx)
}

func readNodes(ctx context.Context, kube cluster.NodeReader) ([]cluster.KubeNode, error) {
	if kube == nil {
		return nil, errNoAccess
	}
	return kube.Nodes(ctx)
}

// NeedsToRehearse are the needs of a plan that renews all of these nodes.
func (s Survey) NeedsToRehearse(wanted []cluster.Wanted, assessments []Assessment, h planning.Rehearsal) Needs {
	var p planning.Plan
	for i, w := range wanted {
		f := s.Found[i]
		if f.VM == nil || assessments[i].Strategy.KeepsVM() || w.Strategy.KeepsVM() {
			continue
		}
		p.Nodes = append(p.Nodes, planning.NodePlan{Node: w.Name, Strategy: cluster.Recreate, Host: f.VM.Host, Addr: f.Addr, VMID: f.VM.ID, Wanted: w, Found: f})
	}
	p.Trials = p.TrialsOf(h)
	return NeedsToRehearse(p)
}

// NewDisks lists the disks that a roll of all these nodes would make.
func (s Survey) NewDisks(wanted []cluster.Wanted, assessments []Assessment) []observe.NewDisk {
	var out []observe.NewDisk
	for i, a := range assessments {
		disk, known := a.systemDisk()
		if !known || a.Strategy.KeepsVM() {
			continue
		}
		if d := s.NewDisk(wanted[i], a.Host, disk); d != nil {
			out = append(out, *d)
		}
	}
	return out
}

// EtcdTroubles lists what is wrong with etcd, each with a hint.
func (s Survey) EtcdTroubles(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader) []error {
	planes := s.ControlPlanes()
	if len(planes) == 0 {
		return nil // reported with Kubernetes
	}
	v, err := etcd.Look(ctx, talos, planes)
	if err != nil {
		return []error{fault.WithHint(err, "talosctl etcd status; bring etcd back first")}
	}
	var out []error
	for _, wrong := range v.Unhealthy("") {
		hint := "talosctl etcd status; talosctl etcd alarm list"
		if i := slices.IndexFunc(planes, func(e cluster.Endpoint) bool { return wrong == e.Node+cluster.IsLearner }); i >= 0 {
			hint = etcd.AdviceForLearner(planes[i].Node, planes[i].Addr, s.machineOf(planes[i].Node))
		}
		out = append(out, fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s", wrong), "%s; a roll takes no control plane out before that is put right", hint))
	}
	for _, e := range planes {
		if !v.Has(e) {
			out = append(out, s.noMember(ctx, talos, files, v, e))
		}
	}
	return out
}

// machineOf returns the machine of a node; nil if it does not answer.
func (s Survey) machineOf(node string) *cluster.Machine {
	f, _ := cluster.Find(s.Found, func(f observe.Found) bool { return f.Name == node })
	return f.Machine
}

// noMember says what is known about a control plane that is not among the members. A control plane that was removed
// from etcd but kept its data restarts its etcd for ever, and only the log of its etcd says so.
func (s Survey) noMember(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader, v etcd.View, e cluster.Endpoint) error {
	err := fault.EtcdUnhealthy.Refusedf("%s is no member of etcd (%s are)", e.Node, v.Names())
	if own, errOwn := talos.EtcdStatus(ctx, e.Addr); errOwn == nil {
		return fault.WithHint(fmt.Errorf("%w, but runs etcd member %x", err, own.MemberID),
			"there are two etcds: talosctl etcd members, asked of each control plane, shows who is in which; find out which has the cluster's data before anything is wiped")
	}
	m := s.machineOf(e.Node)
	if m == nil {
		return fault.WithHint(err, "bring its machine back; in Proxmox, see whether its VM is there. Where it is gone for good: kubectl delete node %s", e.Node)
	}
	data, errData := etcd.HasData(ctx, files, e, m.UUID)
	switch {
	case errData != nil:
		return fmt.Errorf("%w, and whether it has data of etcd can't be determined: %w", err, errData)
	case data && len(v.Members)*2 > len(s.ControlPlanes()):
		return fault.WithHint(fmt.Errorf("%w, but has data of one: it was removed, and its etcd restarts for ever (the member has been permanently removed from the cluster)", err),
			"make it a new one with empty data: %s; or roll it to another build by recreate or reimage, if etcd's data is on its system disk", etcd.EmptyData(e.Node, e.Addr, m))
	}
	return fault.WithHint(err, "talosctl -n %s service etcd says what it waits for", e.Addr)
}
