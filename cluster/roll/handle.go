package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

// Journal keeps what the world can no longer tell once a VM is gone. Every
// write is durable when it returns.
type Journal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
	PutSecret(key string, b []byte) error
	Secret(key string) (b []byte, found bool, err error)
	// Delete removes the fact and the secret of a key; there need be neither.
	Delete(key string) error
}

// Roll is what all nodes of one roll share.
type Roll struct {
	// Each of these four checks that the claim is still ours before it changes
	// anything: see Held.Guard.
	Proxmox     cluster.Proxmox
	Talos       cluster.Talos
	Maintenance cluster.Maintenance
	Kube        cluster.Kube
	Journal     Journal

	Cluster      string
	Run          string // ID of the run
	Timing       cluster.Timing
	AcceptOutage bool // of etcd and the Kubernetes API, where two control planes are all there are
	// Say is told what a running step is waiting for; never nil.
	Say func(path, text string)

	out  outNodes // what this roll has out at the moment
	late exchange.Late
}

// outNodes are the nodes that this roll has out at the moment.
type outNodes struct {
	mu    sync.Mutex
	names map[string]bool
}

func (o *outNodes) add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil {
		o.names = map[string]bool{}
	}
	o.names[name] = true
}

func (o *outNodes) remove(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.names, name)
}

func (o *outNodes) has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.names[name]
}

// handle is one node in a roll: what the plan says of it, and what its record and the
// journal remember of it. It keeps nothing in memory.
type handle struct {
	*Roll
	plan planning.NodePlan
	want cluster.Wanted
	path string // of its branch in the tree
}

func (n *handle) key(what string) string { return n.plan.Node + "/" + what }

// parking reads the node's parking VM afresh; ErrNotFound while there is none.
func (n *handle) parking(ctx context.Context) (parking.Parking, error) {
	id, err := n.parkingID(ctx)
	if err != nil {
		return parking.Parking{}, err
	}
	vm, err := n.Proxmox.VMConfig(ctx, id)
	if err != nil {
		return parking.Parking{}, fmt.Errorf("look up parking VM %d: %w", id, err)
	}
	rec, ok, err := parking.ReadRecord(vm)
	if err != nil {
		return parking.Parking{}, err
	}
	switch {
	case rec.Node == n.plan.Node && rec.Cluster == n.Cluster:
		return parking.Parking{VM: vm, Record: rec}, nil
	case n.plan.Found.Parking == nil && (!ok && vm.Name != cluster.ParkingName(n.plan.Node) || ok && rec.Node != n.plan.Node):
		// The number was only meant for it; another VM took it first.
		return parking.Parking{}, fmt.Errorf("parking VM of %s: %w", n.plan.Node, cluster.ErrNotFound)
	}
	return parking.Parking{}, parking.DescriptionChanged(vm, n.plan.Node)
}

// parkingID finds the parking VM by its record once, and remembers its number.
func (n *handle) parkingID(ctx context.Context) (cluster.VMID, error) {
	if p := n.plan.Found.Parking; p != nil {
		return p.VM.ID, nil
	}
	var id cluster.VMID
	found, err := n.Journal.Get(n.key("parking"), &id)
	if err != nil {
		return 0, fmt.Errorf("journal: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("parking VM of %s: %w", n.plan.Node, cluster.ErrNotFound)
	}
	return id, nil
}

func (n *handle) say(id, text string) { n.Say(n.path+"/"+id, text) }

func (n *handle) isOldBoot(ctx context.Context, m cluster.Machine) bool {
	mem, err := n.memory(ctx)
	return err == nil && m.BootID == mem.BootID
}

func (n *handle) isoVolume(ctx context.Context) (string, error) {
	return n.want.ISOVolume(ctx, n.Proxmox, n.plan.Host)
}

func (n *handle) kubeNode(ctx context.Context) (cluster.KubeNode, error) {
	k, err := n.Kube.Node(ctx, n.plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return cluster.KubeNode{}, fault.Refusedf("Kubernetes no longer knows node %s", n.plan.Node)
	case err != nil:
		return cluster.KubeNode{}, fmt.Errorf("ask Kubernetes for node %s: %w", n.plan.Node, err)
	}
	return k, nil
}

// memory reads what was remembered of the node: from the journal, else from the record.
func (n *handle) memory(ctx context.Context) (parking.Memory, error) {
	var m parking.Memory
	found, err := n.Journal.Get(n.key("memory"), &m)
	if err != nil {
		return m, fmt.Errorf("journal: %w", err)
	}
	if found {
		return m, nil
	}
	park, err := n.parking(ctx)
	if err != nil {
		return m, err
	}
	return park.Record.ReadMemory(park.VM)
}

// updateRecord changes the open *node of this run.
func (n *handle) updateRecord(ctx context.Context, change func(*parking.Record)) error {
	park, err := n.parking(ctx)
	if err != nil {
		return err
	}
	return exchange.ChangeRecord(ctx, n.Proxmox, park.VM, n.Run, n.late.Forgetting(park.VM.ID, change))
}

// askEtcd lists whom to ask about etcd, the node itself last.
func (n *handle) askEtcd() []cluster.Endpoint {
	return append(n.otherControlPlanes(), cluster.Endpoint{Node: n.plan.Node, Addr: n.plan.Addr})
}

func (n *handle) otherControlPlanes() []cluster.Endpoint {
	return slices.DeleteFunc(slices.Clone(n.plan.ControlPlanes), func(e cluster.Endpoint) bool { return e.Node == n.plan.Node })
}

// asReimage is the same node on its way back to the build that it had.
func (n *handle) asReimage() *handle {
	f := *n
	f.plan.Strategy, f.plan.EtcdKept, f.plan.Resume = cluster.Reimage, n.plan.FallbackKept, true
	f.want.Build, f.path = *n.plan.Previous, n.path+"/fallback"
	f.plan.Wanted = f.want
	return &f
}
