// Package rolling has what all steps of a node share while the node is rolled. [Node] is their handle: the ports,
// what the plan says about the node, and what its record and the journal remember. A Node caches nothing, so a step
// may ask it at any time. [Roll] has what all nodes of a roll share, such as which of them are out. [Node.CheckGate]
// is the last check before the node is taken out; each Require… checks one condition. [UserGates] asks the gates of a
// recast.yaml: commands, and conditions of Kubernetes objects.
package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Journal keeps what can't be read from the world once a VM is gone. Every write is durable when it returns.
type Journal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
	PutSecret(key string, b []byte) error
	Secret(key string) (b []byte, found bool, err error)
	// Delete removes the value and the secret of a key, if there are any.
	Delete(key string) error
}

// Roll is what all nodes of one roll share.
type Roll struct {
	// Each of these four checks that the claim is still ours before it changes anything: see Held.Guard.
	Proxmox     cluster.Proxmox
	Talos       cluster.Talos
	Maintenance cluster.Maintenance
	Kube        cluster.Kube
	Journal     Journal

	Cluster      string
	Run          string // ID of the run
	Timing       cluster.Timing
	AcceptOutage bool // of etcd and the Kubernetes API, in a cluster of two control planes
	// Say receives what a running step waits for; never nil.
	Say func(path, text string)

	Out  outNodes // nodes that this roll has taken out and not finished
	Late exchange.Late
}

// outNodes are the nodes that this roll has taken out and not finished.
type outNodes struct {
	mu    sync.Mutex
	names map[string]bool
}

// Add marks a node as taken out.
func (o *outNodes) Add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil {
		o.names = map[string]bool{}
	}
	o.names[name] = true
}

// Remove marks a node as back.
func (o *outNodes) Remove(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.names, name)
}

// Has says whether this roll has the node out.
func (o *outNodes) Has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.names[name]
}

// Node is one node in a roll: what the plan says about it, and what its record and the journal remember. It caches
// nothing in memory.
type Node struct {
	*Roll
	Plan planning.NodePlan
	Want cluster.Wanted
	Path string // of its branch in the tree
}

// Key returns the journal key of something about the node.
func (n *Node) Key(what string) string { return n.Plan.Node + "/" + what }

// Parking reads the node's parking VM again on each call; ErrNotFound while there is none.
func (n *Node) Parking(ctx context.Context) (parking.Parking, error) {
	id, err := n.ParkingID(ctx)
	if err != nil {
		return parking.Parking{}, err
	}
	vm, err := exchange.ConfigOf(ctx, n.Proxmox, id)
	if err != nil {
		return parking.Parking{}, fmt.Errorf("look up parking VM %d: %w", id, err)
	}
	rec, ok, err := parking.ReadRecord(vm)
	if err != nil {
		return parking.Parking{}, err
	}
	switch {
	case rec.Node == n.Plan.Node && rec.Cluster == n.Cluster:
		return parking.Parking{VM: vm, Record: rec}, nil
	case n.Plan.Found.Parking == nil && (!ok && vm.Name != cluster.ParkingName(n.Plan.Node) || ok && rec.Node != n.Plan.Node):
		// The VMID was only reserved for the parking VM; another VM took it first.
		return parking.Parking{}, fmt.Errorf("parking VM of %s: %w", n.Plan.Node, cluster.ErrNotFound)
	}
	return parking.Parking{}, parking.DescriptionChanged(vm, n.Plan.Node)
}

// ParkingID returns the VMID of the parking VM, from the plan or the journal.
func (n *Node) ParkingID(ctx context.Context) (cluster.VMID, error) {
	if p := n.Plan.Found.Parking; p != nil {
		return p.VM.ID, nil
	}
	var id cluster.VMID
	found, err := n.Journal.Get(n.Key("parking"), &id)
	if err != nil {
		return 0, fmt.Errorf("journal: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("parking VM of %s: %w", n.Plan.Node, cluster.ErrNotFound)
	}
	return id, nil
}

// Tell shows, under a step of the node, what it is waiting for.
func (n *Node) Tell(id, text string) { n.Say(n.Path+"/"+id, text) }

// IsOldBoot says whether m is still the boot from before the node was taken down.
func (n *Node) IsOldBoot(ctx context.Context, m cluster.Machine) bool {
	mem, err := n.Memory(ctx)
	return err == nil && m.BootID == mem.BootID
}

// Published finds the images of the wanted build for the node's host.
func (n *Node) Published() Published {
	return Published{Proxmox: n.Proxmox, Wanted: n.Want, Host: n.Plan.Host}
}

// KubeNode reads the node's Node; a missing Node is a refusal.
func (n *Node) KubeNode(ctx context.Context) (cluster.KubeNode, error) {
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return cluster.KubeNode{}, fault.Refusedf("Kubernetes no longer knows node %s", n.Plan.Node)
	case err != nil:
		return cluster.KubeNode{}, fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	}
	return k, nil
}

// Memory reads what was remembered about the node: from the journal, else from the record.
func (n *Node) Memory(ctx context.Context) (parking.Memory, error) {
	var m parking.Memory
	found, err := n.Journal.Get(n.Key("memory"), &m)
	if err != nil {
		return m, fmt.Errorf("journal: %w", err)
	}
	if found {
		return m, nil
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return m, err
	}
	return park.Record.ReadMemory(park.VM)
}

// UpdateRecord changes the open record of this run.
func (n *Node) UpdateRecord(ctx context.Context, change func(*parking.Record)) error {
	park, err := n.Parking(ctx)
	if err != nil {
		return err
	}
	return exchange.ChangeRecord(ctx, n.Proxmox, park.VM, n.Run, n.Late.Forgetting(park.VM.ID, change))
}

// AskEtcd lists the endpoints to ask about etcd, the node itself last.
func (n *Node) AskEtcd() []cluster.Endpoint {
	return append(n.OtherControlPlanes(), cluster.Endpoint{Node: n.Plan.Node, Addr: n.Plan.Addr})
}

// OtherControlPlanes lists the control planes without the node itself.
func (n *Node) OtherControlPlanes() []cluster.Endpoint {
	return slices.DeleteFunc(slices.Clone(n.Plan.ControlPlanes), func(e cluster.Endpoint) bool { return e.Node == n.Plan.Node })
}

// AsReimage returns the node with a plan to reimage it to its previous build.
func (n *Node) AsReimage() *Node {
	f := *n
	f.Plan.Strategy, f.Plan.EtcdKept, f.Plan.Resume = cluster.Reimage, n.Plan.FallbackKept, true
	f.Plan.KubeSpan = n.Plan.FallbackKubeSpan
	f.Want.Build, f.Path = *n.Plan.Previous, n.Path+"/fallback"
	f.Plan.Wanted = f.Want
	return &f
}

// StaysIn says whether the node is only cleaned up, and no run, not even an earlier one, has taken it out.
func (n *Node) StaysIn() bool {
	cordoned := slices.ContainsFunc(n.Plan.Drift.Reasons, func(r cluster.Reason) bool { return r.Code == "cordoned" })
	return n.Plan.OnlyTidies() && !cordoned
}

// JustNow is the maximum age of a positive result that the next step may reuse.
const JustNow = time.Second

// Wait waits until look succeeds, and shows under the step's ID what look sees. An error about our own credentials
// ends the wait at once.
func (n *Node) Wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return n.Watch(ctx, id, wait.For{Name: name, Timeout: timeout}, look)
}

// Watch is Wait with control over when to look.
func (n *Node) Watch(ctx context.Context, id string, w wait.For, look wait.Look) error {
	w.Seen = func(seen string) { n.Tell(id, w.Name+": "+seen) }
	return n.Timing.Await(ctx, w, look)
}

// WatchMachine reports changes of the node's machine; see wait.Watch.
func (n *Node) WatchMachine(ctx context.Context, tell func(look bool)) error {
	return n.Talos.WatchMachine(ctx, n.Plan.Addr, tell)
}

// WatchNode reports changes of the node's Node object; see wait.Watch.
func (n *Node) WatchNode(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchNode(ctx, n.Plan.Node, tell)
}

// WatchDetached reports volumes that are detached from the node; see wait.Watch.
func (n *Node) WatchDetached(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchDetached(ctx, n.Plan.Node, tell)
}

// Arrived reads a machine that is running and ready. If the machine is not, Arrived reads little, and lacks says how
// far the machine is.
func (n *Node) Arrived(ctx context.Context) (m cluster.Machine, lacks string, err error) {
	if m, err = cluster.ReadArrived(ctx, n.Talos, n.Plan.Addr); err == nil {
		lacks = n.LacksMachine(m.MachineStanding)
	}
	return m, lacks, err
}

// LacksMachine says why the node's own machine is not running and ready.
func (n *Node) LacksMachine(m cluster.MachineStanding) string {
	switch {
	case m.UUID != n.Plan.UUID:
		return fmt.Sprintf("%s answers with UUID %s", n.Plan.Addr, m.UUID)
	case m.Stage != "running" || !m.Ready:
		return m.Standing()
	}
	return ""
}

// OfMachine returns a wait for something that the machine itself reports.
func (n *Node) OfMachine(name string, timeout time.Duration) wait.For {
	return wait.For{Name: name, Timeout: timeout, Watches: []wait.Watch{n.WatchMachine}}
}
