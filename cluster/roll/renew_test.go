package roll

import (
	"context"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
)

// oneNode is a Kubernetes with one Node, or with none.
type oneNode struct {
	cluster.Kube
	node cluster.KubeNode
}

func (k oneNode) Node(context.Context, string) (cluster.KubeNode, error) {
	if k.node.Name == "" {
		return k.node, cluster.ErrNotFound
	}
	return k.node, nil
}

// oneVM is a Proxmox that has a single VM.
type oneVM struct {
	cluster.Proxmox
	vm cluster.VM
}

func (p oneVM) VM(context.Context, cluster.VMID) (cluster.VM, error) { return p.vm, nil }

// TestCutOffInstallation: a disk of this run is replaced only if nothing but an interrupted
// installation can be on it.
func TestCutOffInstallation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(vm *cluster.VM, node *cluster.KubeNode, n *node)
		want   bool
	}{
		"halted":                       {func(*cluster.VM, *cluster.KubeNode, *node) {}, true},
		"in the run that installed it": {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Resume = false }, false},
		"renewed already":              {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.renewed = true }, false},
		"a rollback":                   {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Strategy = cluster.Rollback }, false},
		"Ready, but out of our reach":  {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Ready = true }, false},
		"given back":                   {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Mark = nil }, false},
		"marked by another run":        {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Mark = &cluster.Mark{Run: "r2"} }, false},
		"off":                          {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Running = false }, false},
		"a VM of another run": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) {
			vm.Config["description"] = "recast: run=r2 build=b"
		}, false},
		"another VM":              {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Config["smbios1"] = "uuid=b" }, false},
		"a disk that is not ours": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Config["scsi0"] = "fast:vm-101-disk-6" }, false},
		"our serial on another VM's one": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) {
			vm.Config["scsi0"] = "fast:vm-7-disk-0,serial=blank"
		}, false},
		"new, never joined": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy = cluster.KubeNode{}, cluster.Create
		}, true},
		"new, has joined": {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Strategy = cluster.Create }, false},
		"new, begins etcd": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy, n.Plan.Bootstraps = cluster.KubeNode{}, cluster.Create, true
		}, false},
		"new, in a rebuild": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy, n.Plan.Rebuild = cluster.KubeNode{}, cluster.Create, "sum"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: 101, Running: true, Config: map[string]string{"smbios1": "uuid=u", "description": "recast: run=r1 build=b", "scsi0": "fast:vm-101-disk-5,serial=blank"}}
			kubeNode := cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r1"}}
			n := (&Roller{Roll: &rolling.Roll{Run: "r1"}}).node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u", Strategy: cluster.Recreate, Resume: true}})
			c.change(&vm, &kubeNode, n)
			n.Kube = oneNode{node: kubeNode}
			r := &exchange.Replace{Proxmox: oneVM{vm: vm}, Run: "r1", VM: cluster.VM{ID: 101}, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}, Serial: "blank"}
			if got := n.cutOff(t.Context(), r, parking.Memory{}); got != c.want {
				t.Errorf("cut off: %t, want %t", got, c.want)
			}
		})
	}
}
