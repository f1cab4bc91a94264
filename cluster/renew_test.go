package cluster

import (
	"context"
	"testing"
)

// oneNode is a Kubernetes with one Node.
type oneNode struct {
	Kube
	node KubeNode
}

func (k oneNode) Node(context.Context, string) (KubeNode, error) { return k.node, nil }

// TestCutOffInstallation: the disk of this very run is freed only where nothing
// but a cut off installation can be on it.
func TestCutOffInstallation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(vm *VM, node *KubeNode, n *nodeRoll)
		want   bool
	}{
		"halted":                         {func(*VM, *KubeNode, *nodeRoll) {}, true},
		"in the run that installed it":   {func(_ *VM, _ *KubeNode, n *nodeRoll) { n.plan.Resume = false }, false},
		"renewed already":                {func(_ *VM, _ *KubeNode, n *nodeRoll) { n.renewed = true }, false},
		"a rollback":                     {func(_ *VM, _ *KubeNode, n *nodeRoll) { n.plan.Strategy = Rollback }, false},
		"Ready, but out of our reach":    {func(_ *VM, node *KubeNode, _ *nodeRoll) { node.Ready = true }, false},
		"given back":                     {func(_ *VM, node *KubeNode, _ *nodeRoll) { node.Mark = nil }, false},
		"marked by another run":          {func(_ *VM, node *KubeNode, _ *nodeRoll) { node.Mark = &Mark{Run: "r2"} }, false},
		"off":                            {func(vm *VM, _ *KubeNode, _ *nodeRoll) { vm.Running = false }, false},
		"a VM of another run":            {func(vm *VM, _ *KubeNode, _ *nodeRoll) { vm.Config["description"] = "recast: run=r2 build=b" }, false},
		"another VM":                     {func(vm *VM, _ *KubeNode, _ *nodeRoll) { vm.Config["smbios1"] = "uuid=b" }, false},
		"a disk that is not ours":        {func(vm *VM, _ *KubeNode, _ *nodeRoll) { vm.Config["scsi0"] = "fast:vm-101-disk-6" }, false},
		"our serial on another VM's one": {func(vm *VM, _ *KubeNode, _ *nodeRoll) { vm.Config["scsi0"] = "fast:vm-7-disk-0,serial=blank" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := VM{ID: 101, Running: true, Config: map[string]string{"smbios1": "uuid=u", "description": "recast: run=r1 build=b", "scsi0": "fast:vm-101-disk-5,serial=blank"}}
			node := KubeNode{Name: "wk1", Unschedulable: true, Mark: &Mark{Run: "r1"}}
			n := &nodeRoll{Roller: &Roller{Run: "r1"}, plan: NodePlan{Node: "wk1", UUID: "u", Strategy: Recreate, Resume: true}}
			c.change(&vm, &node, n)
			n.Kube = oneNode{node: node}
			r := &Replace{Proxmox: &guardedPair{vms: map[VMID]VM{101: vm}}, Run: "r1", VM: VM{ID: 101}, Disks: []ParkedDisk{{Key: "scsi0", System: true}}, Serial: "blank"}
			if got := n.cutOff(t.Context(), r, memory{}); got != c.want {
				t.Errorf("cut off: %t, want %t", got, c.want)
			}
		})
	}
}
