package observe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Absent is a node of recast.yaml that is nowhere yet.
type Absent struct {
	Host    string   // where its VM is to be
	Against []string // why its VM could not be started there
	Traces  []string // what there is of it all the same: then it is not made, but something was lost
	Lost    *Lost    // in a rebuild: what is left of it, and taken away first
}

// NotThereYet refuses what needs a node that is to be made.
func NotThereYet(node string) error {
	return fault.WithHint(fault.Refusedf("node %s is not there yet", node), "recast roll makes it")
}

// TracesOfCluster are what speaks against beginning a cluster: machines of it were here before.
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

// asItIs says whether a VM is at work.
func asItIs(vm cluster.VM) string {
	if vm.Running {
		return ", which runs"
	}
	return ""
}

// whose says what to do about a VM that may be that of the node. What its disks hold nobody has looked at, so no way
// out deletes it.
func (o Observation) whose(other string) string {
	if o.First != "" {
		return fmt.Sprintf("if that is its machine, the cluster is there and its Kubernetes does not answer: recast doctor says what does not, and %s; if it is not, %s", o.rebuilds(), other)
	}
	return "if that is its machine, start it, or see why Kubernetes does not know it; if it is not, " + other
}

// rebuilds is the command for a cluster that does not come back by itself.
func (o Observation) rebuilds() string {
	first := o.First
	if first == "" {
		first = "CONTROL-PLANE"
	}
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
	removed := false // as a surge node, by recast: what remembers it says nothing else
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
