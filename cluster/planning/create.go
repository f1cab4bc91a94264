package planning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
)

// Create makes the plan's node one that a roll creates, unless something of the node already exists.
func Create(n *NodePlan) {
	w := n.Wanted
	n.Strategy, n.Why, n.EtcdKept = cluster.Create, "create: it is nowhere yet", true
	if w.Surge {
		n.Why = "create: it serves while workers are away, and is removed after the last one is back"
	}
	n.Host, n.Addr, n.VMID = w.Shape.Host, w.Addr, w.VMID
	for _, trace := range n.Found.Absent.Traces {
		n.Refused = append(n.Refused, "it is in recast.yaml, and there is something of it: "+trace)
	}
	n.Refused = append(n.Refused, n.Found.Absent.Against...)
	n.Refused = append(n.Refused, strategy.BringsConfig(w.Build)...)
}

// planCreate plans the VM of a node that does not exist yet, and the machine in it.
func planCreate(n *NodePlan, o observe.Observation) {
	w := n.Wanted
	Create(n)
	for _, f := range o.Found {
		if f.Name != n.Node && f.Addr.IsValid() && f.Addr == n.Addr {
			n.Refused = append(n.Refused, fmt.Sprintf("its address is to be %s, which is that of node %s", n.Addr, f.Name))
		}
	}
	switch file := n.Found.File; {
	case file == nil:
		n.Refused = append(n.Refused, "its machine configuration is not in talos.machineConfigs: a new node has nothing else to get it from")
	case file.Err == nil:
		n.Role = file.Role
		if n.Node == o.First {
			n.Bootstraps, n.Why = true, "bootstrap: the cluster begins with it"
			n.Notes = append(n.Notes, n.Found.FileHardlyCompared()...)
		} else if file.Beside == "" || file.Beside == cluster.Talosconfig {
			n.Refused = append(n.Refused, "no node shows its machine configuration: whether its file in talos.machineConfigs is of this cluster can't be seen")
		}
	}
	switch {
	case n.Bootstraps && n.Role != cluster.ControlPlane:
		n.Refused = append(n.Refused, "a cluster begins with a control plane, and its machine configuration is that of a worker")
	case n.Role == cluster.ControlPlane && len(o.ControlPlanes()) == 0:
		n.Refused = append(n.Refused, "it is a control plane, and there is no other: recast bootstrap makes a cluster")
	}
	n.Refused = append(n.Refused, o.TracesOfCluster(n.Node)...)
	vm := shape.New(w, n.VMID, "")
	n.Notes = append(n.Notes, "its VM: "+describe(vm, w))
	if d, err := cluster.ParseDisk(w.SystemDisk, vm.Config[w.SystemDisk]); err == nil {
		if n.Space = o.NewDisk(w, n.Host, d); n.Space == nil {
			n.Refused = append(n.Refused, "Proxmox has no storage "+d.Storage())
		}
	}
}

// describe lists the settings of a new VM.
func describe(vm cluster.VM, w cluster.Wanted) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if !cluster.IsDiskKey(key) && key != "name" && key != "smbios1" && key != "ide0" {
			out = append(out, key+" "+vm.Config[key])
		}
	}
	for _, d := range w.Shape.Disks {
		size := d.SizeGiB
		if d.Key == w.SystemDisk {
			size = w.SystemGiB
		}
		out = append(out, strings.Join(append([]string{d.Key + " on " + d.Storage, fmt.Sprintf("size=%dG", size)}, d.Options...), ","))
	}
	return strings.Join(out, "; ")
}

// newNumbers gives new VMs without a number in recast.yaml the first numbers that are free and that recast does not
// keep for itself. Whether a number is still free shows when its VM is created.
func (p worldOf) newNumbers() {
	next := cluster.VMID(100)
	taken := func(id cluster.VMID) bool {
		return slices.Contains(p.o.ParkingIDs, id) || slices.ContainsFunc(p.o.VMs, func(vm cluster.VM) bool { return vm.ID == id }) ||
			slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.VMID == id })
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.From() != cluster.Nowhere || n.VMID != 0 || n.Resume {
			continue
		}
		for taken(next) {
			next++
		}
		n.VMID = next
	}
}
