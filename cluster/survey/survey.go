// Package survey looks at a cluster and says what is here, what is missing, and why.
//
// [LookAround] makes a [Survey], for a diagnosis: unlike an observation for a plan, it goes on where something can't
// be read. [Discover] reads from a running cluster what recast.yaml needs to know: which VM is which node, where its
// disks are, which VM holds them. [Needs] are the Proxmox privileges that a command needs, compared with those of the
// token. [Explain] says why a plan treats a node as it does: what is wanted beside what was found, what speaks
// against each strategy, and the steps to come.
package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
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

func (a Assessment) Storages() (out []string) {
	for _, d := range a.disks {
		if s := d.Storage(); !d.CDROM && s != d.Volid && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

func (a Assessment) systemDisk() (cluster.Disk, bool) {
	return cluster.Find(a.disks, func(d cluster.Disk) bool { return a.System != "" && d.Key == a.System })
}

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
	s := Survey{Lists: src.List(ctx), Unread: make([]error, len(wanted))}
	if src.Proxmox == nil {
		s.Proxmox = errNoAccess
	}
	if src.Kube == nil {
		s.Kubernetes = errNoAccess
	}
	if src.Talos == nil {
		s.Talos = errNoAccess
	}
	parking, err := parking.Parkings(s.VMs, src.Cluster)
	s.Parking, s.Proxmox = parking, errors.Join(s.Incomplete(), err)
	s.Found = make([]observe.Found, len(wanted))
	for i, w := range wanted {
		s.Found[i], s.Unread[i] = s.match(w)
	}
	s.Shared = observe.Shared(s.Found)
	nodes, vms := observe.Matching(s.Found, func(f *observe.Found) bool { return f.Node != nil }), observe.Matching(s.Found, func(f *observe.Found) bool { return f.VM != nil })
	var errLocal error
	var errTies []error
	g := errgroup.Group{}
	g.Go(func() error { s.readMachines(ctx, src, wanted); return nil })
	g.Go(func() error { s.Storage, errLocal = observe.ReadData(ctx, src.Kube, nodes); return nil })
	g.Go(func() error { errTies = observe.ReadTies(ctx, src.Proxmox, vms); return nil })
	_ = g.Wait() // no function returns an error: each is kept with its node
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

// Survey is an Observation that may lack parts, each with its error; unmatched nodes have no VM.
type Survey struct {
	observe.Lists
	Shared []error // two nodes that claim to be the same VM
	Unread []error // one per wanted node: why it was not matched, or what could not be read; nil: nothing
}

// Assess lists for every node what forbids which strategy, without a lock only what depends on no build.
func (s Survey) Assess(wanted []cluster.Wanted, p planning.Policy) []Assessment {
	out := make([]Assessment, len(wanted))
	for i, w := range wanted {
		out[i] = assess(w, s.Found[i], s.Observation, p)
	}
	return out
}

// Needs are for a roll of these nodes by the expected strategy, if unknown the configured, or else recreate.
func (s Survey) Needs(wanted []cluster.Wanted, assessments []Assessment) (needs Needs) {
	for i, w := range wanted {
		a, f := assessments[i], s.Found[i]
		strategy := a.Strategy
		if s.unseen(a) || !slices.Contains(cluster.Strategies, strategy) { // what was found possible is limited to what the token can see
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
		replaced := cluster.Where(a.disks, func(d cluster.Disk) bool {
			return !d.CDROM && (strategy.DeletesVM() || d.Key == a.System || a.System == "")
		})
		disks := cluster.Each(replaced, func(d cluster.Disk) planning.DiskPlan { return planning.DiskPlan{Key: d.Key, Volid: d.Volid} })
		needs.common([]string{f.VM.Host})
		if !strategy.KeepsVM() { // a roll of in-place nodes alone can use a Lease
			needs.claim()
		}
		needs.node(strategy, w, f, disks)
	}
	return needs
}

func (s *Survey) match(w cluster.Wanted) (observe.Found, error) {
	if s.Kubernetes == nil {
		f, err := observe.MatchNodes(w, &s.Observation, s.Members)
		if f.Away {
			err = errors.Join(f.Errs...)
		}
		return f, err
	}
	f := observe.Found{Name: w.Name}
	if i := slices.IndexFunc(s.VMs, func(vm cluster.VM) bool { return w.VMID != 0 && vm.ID == w.VMID }); i >= 0 {
		f.VM = &s.VMs[i]
	}
	if i := slices.IndexFunc(s.Members, func(m cluster.Member) bool { return m.Nodename == w.Name }); i >= 0 {
		f.Addr = observe.FirstAddr(s.Members[i].Addresses)
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
	observe.EachAtOnce(s.Found, observe.MachinesAtOnce, func(i int, f *observe.Found) {
		if f.Absent == nil {
			observe.ReadMachine(ctx, src, src.ReadWhole, wanted[i], f)
		}
	})
}

// unseen: Proxmox does not list a storage of the node's disks, which takes Datastore.Audit or AllocateSpace.
func (s Survey) unseen(a Assessment) bool {
	return slices.ContainsFunc(a.Storages(), func(name string) bool {
		return !slices.ContainsFunc(s.Observation.Storages, func(l cluster.Storage) bool { return l.Name == name })
	})
}

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

func toCreate(w cluster.Wanted, f observe.Found) planning.NodePlan {
	n := planning.NodePlan{Node: w.Name, Wanted: w, Found: f}
	planning.Create(&n)
	return n
}

var errNoAccess = errors.New("there is no access to it")

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

func (s Survey) NewDisks(wanted []cluster.Wanted, assessments []Assessment) (out []observe.NewDisk) {
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
func (s Survey) EtcdTroubles(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader) (out []error) {
	planes := s.ControlPlanes()
	if len(planes) == 0 {
		return nil // reported with Kubernetes
	}
	v, err := etcd.Look(ctx, talos, planes)
	if err != nil {
		return []error{fault.WithHint(err, "talosctl etcd status; bring etcd back first")}
	}
	for _, wrong := range v.Unhealthy("") {
		hint := "talosctl etcd status; talosctl etcd alarm list"
		if i := slices.IndexFunc(planes, func(e cluster.Endpoint) bool { return wrong == e.Node+cluster.IsLearner }); i >= 0 {
			hint = etcd.AdviceForLearner(planes[i].Node, planes[i].Addr, s.machineOf(planes[i].Node))
		}
		out = append(out, fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s", wrong), "%s; a roll takes no control plane out before that is repaired", hint))
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

// noMember: a control plane that was removed but has data restarts its etcd for ever; only that etcd's log says so.
func (s Survey) noMember(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader, v etcd.View, e cluster.Endpoint) error {
	err := fault.EtcdUnhealthy.Refusedf("%s is not a member of etcd (%s are)", e.Node, v.Names())
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

// Discovery describes a cluster that was read without a configuration that says what to look for.
type Discovery struct {
	Nodes []Discovered // control planes first, then by name
	Left  []string     // nodes that were excluded, by name
	VMs   []cluster.VM // of the whole Proxmox cluster
	// Silent lists the addresses that were to be asked, do not answer, and belong to no known node.
	Silent  []netip.Addr
	Cluster string // the cluster's name in the parking VMs of these nodes; "": there are none

	uuids []string // of all nodes, also the excluded ones
}

// Discovered is one node of a Discovery, with its VM.
type Discovered struct {
	Name    string
	Addr    netip.Addr
	Node    *cluster.KubeNode // nil: Kubernetes was not asked
	Machine cluster.Machine
	VM      cluster.VM
	// System is the drive on which Talos is proven to be installed; zero if there is no proof, and Unproven says why.
	System     cluster.Disk
	Unproven   error
	Candidates []cluster.Disk // the system disk is one of these; nil: System is proven
	Persistent []cluster.Disk // all other disks, of the node's VM or of a data VM; nil if Candidates is set
	Holder     cluster.VMID   // the data VM that owns some of the disks; 0: none
}

// DiscoverOptions say what Discover can't find out.
type DiscoverOptions struct {
	Addrs   []netip.Addr // addresses of machines that perhaps neither Talos' discovery nor Kubernetes lists
	Exclude []string     // nodes to leave out
}

// Discover finds a cluster's nodes and their VMs, all or none, and reports all problems. Sources.Kube may be nil.
func Discover(ctx context.Context, src observe.Sources, o DiscoverOptions) (Discovery, error) {
	l := src.List(ctx)
	// All must be complete: an unread VM may be a node.
	err := errors.Join(fault.Prefix("read Proxmox", l.Incomplete()), fault.Prefix("read Talos", l.Talos), fault.Prefix("read Kubernetes", l.Kubernetes))
	if err == nil {
		err = requireOneCluster(l.Members, l.Nodes)
	}
	if err != nil {
		return Discovery{}, err
	}
	d := Discovery{VMs: l.VMs}
	found := whereabouts(l.Members, l.Nodes)
	listed := len(found)
	errs := discoverMachines(ctx, src.Talos, found)
	known := cluster.Each(l.Members, func(m cluster.Member) []netip.Addr { return m.Addresses })
	known = append(known, cluster.Each(l.Nodes, func(n cluster.KubeNode) []netip.Addr { return n.Addresses })...)
	found, errs, d.Silent = addSeeds(ctx, src.Talos, found, errs, o.Addrs, slices.Concat(known...))
	if err := allListed(listed, found[listed:], src.Kube != nil); err != nil {
		return Discovery{}, err
	}
	if err := excludable(found, o.Exclude); err != nil {
		return Discovery{}, err
	}
	if err := d.knowPods(ctx, src.Kube); err != nil {
		return Discovery{}, err
	}
	var problems []error
	for i, n := range found {
		if uuid := n.uuid(); uuid != "" {
			d.uuids = append(d.uuids, uuid)
		}
		if slices.Contains(o.Exclude, n.Name) {
			d.Left = append(d.Left, n.Name)
			continue
		}
		err := errs[i]
		if err == nil {
			err = n.match(d.VMs)
		}
		if owned := strategy.Uncontrolled(n.Node); owned != nil {
			err = owned
		}
		if err != nil {
			problems = append(problems, fault.WithHint(err, "or leave it out: --exclude %s", n.Name))
			continue
		}
		d.Nodes = append(d.Nodes, n)
	}
	problems = append(problems, observe.Shared(cluster.Each(d.Nodes, Discovered.Found))...)
	if len(found) > 0 && len(d.Nodes) == 0 && len(problems) == 0 {
		problems = append(problems, fault.Configf("every node was left out"))
	}
	if err := errors.Join(problems...); err != nil {
		return Discovery{}, err
	}
	slices.SortFunc(d.Nodes, func(a, b Discovered) int {
		role := cluster.TrueFirst(a.Machine.ControlPlane, b.Machine.ControlPlane)
		return cmp.Or(role, cluster.CompareKeys(a.Name, b.Name))
	})
	return d, d.unfinished()
}

func requireOneCluster(members []cluster.Member, nodes []cluster.KubeNode) error {
	var names []string
	for _, m := range members {
		if slices.ContainsFunc(nodes, func(n cluster.KubeNode) bool { return n.Name == m.Nodename }) {
			return nil
		}
		names = append(names, m.Nodename)
	}
	if len(members) == 0 || len(nodes) == 0 {
		return nil
	}
	return fault.WithHint(fault.Configf("talosconfig and kubeconfig are of two clusters: Talos has the nodes %s, Kubernetes has %s", strings.Join(names, ", "), strings.Join(observe.NodeNames(nodes), ", ")),
		"TALOSCONFIG and KUBECONFIG name them; talosctl kubeconfig FILE writes the one that belongs to the talosconfig")
}

func whereabouts(members []cluster.Member, nodes []cluster.KubeNode) (out []Discovered) {
	for i, n := range nodes {
		out = append(out, Discovered{Name: n.Name, Addr: observe.FirstAddr(n.Addresses), Node: &nodes[i]})
	}
	for _, m := range members {
		i := slices.IndexFunc(out, func(d Discovered) bool { return d.Name == m.Nodename })
		switch {
		case i < 0:
			out = append(out, Discovered{Name: m.Nodename, Addr: observe.FirstAddr(m.Addresses)})
		case !out[i].Addr.IsValid():
			out[i].Addr = observe.FirstAddr(m.Addresses)
		}
	}
	return out
}

// discoverMachines reads the machine of every node; the errors are in the order of the nodes.
func discoverMachines(ctx context.Context, talos cluster.PartReader, nodes []Discovered) []error {
	errs := make([]error, len(nodes))
	observe.EachAtOnce(nodes, observe.MachinesAtOnce, func(i int, n *Discovered) {
		if !n.Addr.IsValid() {
			errs[i] = fmt.Errorf("node %s: %w", n.Name, observe.NoAddress(n.Name))
			return
		}
		m, err := cluster.ReadMachine(ctx, talos, n.Addr)
		if err != nil {
			err = fmt.Errorf("node %s: read its machine: %w", n.Name, err)
		}
		if err != nil && len(fault.Hints(err)) == 0 {
			err = fault.WithHint(err, "what a node runs only it can say: bring %s up, then run the same command again", n.Name)
		}
		n.Machine, errs[i] = m, err
	})
	return errs
}

// uuid returns the machine's UUID, or else the UUID that Kubernetes has for the node.
func (d Discovered) uuid() string {
	if d.Machine.UUID == "" && d.Node != nil {
		return d.Node.UUID
	}
	return d.Machine.UUID
}

// excludable refuses to exclude a node that does not exist: the name is probably mistyped.
func excludable(nodes []Discovered, exclude []string) error {
	names := cluster.Each(nodes, func(n Discovered) string { return n.Name })
	slices.SortFunc(names, cluster.CompareKeys)
	for _, name := range exclude {
		if !slices.Contains(names, name) {
			return fault.WithHint(fault.Configf("--exclude %s: there is no node of that name", name), "the cluster has: %s", strings.Join(names, ", "))
		}
	}
	return nil
}

func (d *Discovered) match(vms []cluster.VM) error {
	uuid := d.Machine.UUID
	if uuid == "" {
		return fault.Refusedf("node %s: the machine at %s does not say which UUID it has", d.Name, d.Addr)
	}
	if d.Node != nil && d.Node.UUID != uuid {
		return fault.WithHint(fault.Refusedf("node %s: Kubernetes says that its UUID is %s, but the machine at %s has %s", d.Name, d.Node.UUID, d.Addr, uuid),
			"has another machine been given the hostname of %s, or its address? Correct that first", d.Name)
	}
	f := observe.Found{Name: d.Name}
	if err := observe.MatchVM(cluster.Wanted{Name: d.Name}, &f, &observe.Observation{VMs: vms}, uuid); err != nil {
		return err
	}
	d.VM = *f.VM
	drives, err := d.VM.Bootable()
	if err != nil {
		return fault.As(fault.Config, err)
	}
	d.System, d.Unproven = cluster.ProveSystemDisk(d.VM, d.Machine, "")
	drives = slices.DeleteFunc(drives, func(drive cluster.Disk) bool {
		return drive.Key == d.System.Key || drive.CSI() || drive.LikeCSI() && !slices.ContainsFunc(vms, func(vm cluster.VM) bool { return vm.ID == drive.Owner })
	}) // a plan asks Kubernetes about a drive that only looks like one of the CSI driver
	if d.Unproven == nil {
		d.Persistent = drives
	} else {
		d.Candidates = drives
	}
	return d.findHolder(vms, drives)
}

func (d *Discovered) findHolder(vms []cluster.VM, disks []cluster.Disk) error {
	for _, drive := range disks {
		if drive.Owner == 0 || drive.Owner == d.VM.ID {
			continue
		}
		if d.Holder != 0 && d.Holder != drive.Owner {
			return fault.WithHint(fault.Refusedf("node %s: its disks belong to VM %d and to VM %d, but a node has one data VM at most", d.Name, d.Holder, drive.Owner),
				"move the disks of one of them to the other (qm disk move)")
		}
		d.Holder = drive.Owner
	}
	if d.Holder != 0 && !slices.ContainsFunc(vms, func(vm cluster.VM) bool { return vm.ID == d.Holder }) {
		return fault.WithHint(fault.Refusedf("node %s: disks of it belong to VM %d, which is not there", d.Name, d.Holder),
			"the token may not see it (VM.Audit), or it was deleted: only its number says whose the disks are")
	}
	return nil
}

// unfinished refuses a cluster with an unfinished run, which only its recast.yaml can finish. It sets d.Cluster.
func (d *Discovery) unfinished() error {
	for _, vm := range d.VMs {
		rec, ok, err := parking.SaidRecord(vm)
		if !ok || err != nil && rec.UUID == "" {
			continue // an unreadable record belongs to no known cluster; its own run handles it
		}
		mine := slices.ContainsFunc(d.Nodes, func(n Discovered) bool { return n.VM.UUID() == rec.UUID })
		switch {
		case mine && err != nil:
			return err
		case mine && rec.Open:
			return fault.WithHint(fault.Refusedf("%s holds an unfinished replacement of node %s, begun by run %s of cluster %s", vm, rec.Node, rec.Run, rec.Cluster),
				"finish it first with the recast.yaml that it was begun with: recast status says what is left")
		case mine:
			d.Cluster = rec.Cluster
		}
	}
	return nil
}

// Found returns the node in the form that Diff takes.
func (d Discovered) Found() observe.Found {
	return observe.Found{Name: d.Name, VM: &d.VM, Machine: &d.Machine, Node: d.Node, Addr: d.Addr}
}

// Versions returns the Talos versions that the nodes run, the newest first.
func (d Discovery) Versions() ([]string, error) {
	var versions []cluster.Version
	for _, n := range d.Nodes {
		v, err := cluster.ParseVersion(n.Machine.TalosVersion)
		if err != nil {
			return nil, fmt.Errorf("node %s: it says that it runs Talos %q", n.Name, n.Machine.TalosVersion)
		}
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(a, b cluster.Version) int { return b.Compare(a) })
	return cluster.Each(slices.Compact(versions), cluster.Version.String), nil
}

// knowPods marks on all VMs the drives that belong to pods, with one request to Kubernetes; nil: none.
func (d *Discovery) knowPods(ctx context.Context, kube cluster.VolumeReader) error {
	if kube == nil {
		return nil
	}
	handles := sync.OnceValues(func() ([]string, error) { return kube.PodVolumes(ctx) })
	for i := range d.VMs {
		if err := d.VMs[i].KnowPods(ctx, func(context.Context) ([]string, error) { return handles() }); err != nil {
			return err
		}
	}
	return nil
}

// Own returns recast's own VMs: the nodes' parking VMs, and those whose record, claim or mark names the cluster.
func (d Discovery) Own(name string) (own []cluster.VM) {
	named := func(of string) bool { return of != "" && of == name || d.Cluster != "" && of == d.Cluster }
	for _, vm := range d.VMs {
		rec, parking, _ := parking.SaidRecord(vm) // the record of a newer recast is an error, but names its cluster
		claim, held, _ := claim.Read(vm)
		if parking && (named(rec.Cluster) || slices.Contains(d.uuids, rec.UUID)) || held && named(claim.Cluster) {
			own = append(own, vm)
		}
	}
	for _, s := range planning.ScratchVMs(d.VMs, name) {
		own = append(own, s.VM)
	}
	return own
}

// IsClaim says whether the VM is the claim of a cluster, even an unreadable one.
func IsClaim(vm cluster.VM) bool {
	_, held, _ := claim.Read(vm)
	return held
}

// addSeeds adds the machines at further addresses. A silent node may answer there. silent are addresses of no known
// node without an answer: they may move between control planes.
func addSeeds(ctx context.Context, talos cluster.PartReader, nodes []Discovered, errs []error, addrs, known []netip.Addr) (_ []Discovered, _ []error, silent []netip.Addr) {
	for _, addr := range addrs {
		if slices.ContainsFunc(nodes, func(n Discovered) bool { return n.Addr == addr }) || slices.Contains(silent, addr) {
			continue
		}
		m, err := cluster.ReadMachine(ctx, talos, addr)
		if err != nil || m.Nodename == "" {
			if !slices.Contains(known, addr) {
				silent = append(silent, addr)
			}
			continue
		}
		i := slices.IndexFunc(nodes, func(n Discovered) bool { return n.Name == m.Nodename || m.UUID != "" && n.Machine.UUID == m.UUID })
		switch {
		case i < 0:
			nodes, errs = append(nodes, Discovered{Name: m.Nodename, Addr: addr, Machine: m}), append(errs, nil)
		case errs[i] != nil:
			nodes[i].Addr, nodes[i].Machine, errs[i] = addr, m, nil
		}
	}
	return nodes, errs, silent
}

// allListed refuses if no source lists all nodes: one found in no list means that there may be more.
func allListed(listed int, others []Discovered, kubernetes bool) error {
	const fetch = "talosctl kubeconfig FILE writes a kubeconfig, and KUBECONFIG names it"
	names := cluster.Each(others, func(n Discovered) string { return n.Name })
	switch {
	case kubernetes && listed == 0:
		return fault.WithHint(fault.Refusedf("no node is known: Talos' discovery lists none, and neither does Kubernetes"),
			"kubectl get nodes has to list them, or talosctl get members (cluster.discovery in the machine configurations). Is KUBECONFIG of another cluster?")
	case kubernetes:
		return nil
	case listed == 0:
		return fault.WithHint(fault.Refusedf("Talos' discovery lists no machine (is cluster.discovery off?), and Kubernetes is not asked: the nodes are unknown"), "%s", fetch)
	case len(names) > 0:
		return fault.WithHint(fault.Refusedf("Talos' discovery does not list %s, and Kubernetes is not asked: the nodes are unknown", strings.Join(names, ", ")), "%s", fetch)
	}
	return nil
}
