package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Absent is a node of recast.yaml that is nowhere yet.
type Absent struct {
	Host    string   // where its VM is to be
	Against []string // why its VM could not be started there
	Traces  []string // what already exists of it: then it is not made, but something was lost
	Lost    *Lost    // in a rebuild: what is left of it, which is taken away first
}

// NotThereYet refuses what needs a node that is still to be made.
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

func asItIs(vm cluster.VM) string {
	if vm.Running {
		return ", which runs"
	}
	return ""
}

// whose says what to do about a VM that may be the node's. Nobody has looked at what its disks hold, so no hint
// deletes it.
func (o Observation) whose(other string) string {
	if o.First != "" {
		return fmt.Sprintf("if that is its machine, the cluster is there and its Kubernetes does not answer: recast doctor says what does not, and %s; if it is not, %s", o.rebuilds(), other)
	}
	return "if that is its machine, start it, or see why Kubernetes does not know it; if it is not, " + other
}

// rebuilds returns the command for a cluster that does not come back by itself.
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
	removed := false // by recast, as a surge node: what discovery remembers says nothing else
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

// forgetGone leaves out what a restored Kubernetes, and Talos' discovery, still list of control planes whose VMs
// are gone.
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

// observeLost finds the VMs that control planes of a broken cluster still have. Without Kubernetes, the VMs'
// numbers and names, and the machines that answer at the nodes' addresses, tell which they are.
func observeLost(ctx context.Context, src Sources, wanted []cluster.Wanted, o *Observation) error {
	if o.Rebuild == "" || o.First == "" {
		return nil
	}
	rebuilding, problems := o.Rebuilding(), make([]error, len(wanted))
	eachFound(o.Found, func(i int, f *Found) {
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

// lostVM returns the VM that a control plane still has; nil: it has none.
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

// unfinishedRebuild refuses a node that only the rebuild that began with it may finish.
func unfinishedRebuild(p parking.Parking) error {
	return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: run %s rebuilds the cluster from the snapshot of etcd with SHA-256 %s, and is not finished", p.Record.Node, p.Record.Run, p.Record.Rebuild), "%s", RebuildGoesOn)
}

// RebuildGoesOn says how to finish an unfinished rebuild.
const RebuildGoesOn = "run the same recast rebuild again, with the same snapshot: it goes on where it stopped"
