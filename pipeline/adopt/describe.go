package adopt

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/terraform"
)

// describe writes the nodes and their classes.
func (in *adoption) describe() {
	for i := range in.res.Nodes {
		n := &in.res.Nodes[i]
		in.holder(n)
		if n.vm.Whole() {
			n.Class = in.class(n)
		} else {
			in.ask("recast init --dir elsewhere", "the shape of %s: %s does not describe all of it", n.Name, n.vm.Type)
		}
		at := "NODE"
		if len(n.vm.Addresses) > 0 {
			at = n.vm.Addresses[0]
		}
		if n.Role == "" {
			in.ask("talosctl -n "+at+" get machinetype", "is %s a control plane or a worker?", n.Name)
		}
		if in.machine(n.vm).Hostname == "" {
			in.ask("kubectl get nodes -o wide", "do the nodes have the names of their VMs?")
		}
		role := n.Role
		if role == "" {
			role = "role not told"
		}
		in.draft.Nodes = append(in.draft.Nodes, config.DraftNode{
			Name: n.Name, VMID: int(n.VMID), Class: n.Class, Host: n.Host, Holder: int(n.Holder), Note: role + ", " + n.Address,
		})
	}
}

// holder finds the VM that owns disks of a node.
func (in *adoption) holder(n *Node) {
	var owners []int
	for _, d := range n.vm.Disks {
		n.Disks = append(n.Disks, d.String())
		if owner := d.Owner(); owner != 0 && owner != n.vm.VMID && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	switch len(owners) {
	case 0:
	case 1:
		n.Holder = cluster.VMID(owners[0])
	default:
		in.ask(fmt.Sprintf("qm config %d, as root on %s", n.VMID, n.Host), "which one of the VMs %v is the holder of %s? They all own disks of it", owners, n.Name)
	}
}

// class is the class with the shape of a node's VM.
func (in *adoption) class(n *Node) string {
	shape := n.vm.Shape
	system := in.system(n)
	for _, d := range n.vm.Disks {
		if system == "" || !n.owns(d) || d.GiB() == 0 || d.Slot == "" {
			continue // a disk that a class does not name stays as it is; a roll must not make one anew
		}
		disk := config.VMDisk{Slot: d.Slot, Storage: &d.Storage, Size: &config.DiskSize{GiB: d.GiB()}}
		if d.Slot == system {
			disk.System = new(true)
		}
		shape.Disks = append(shape.Disks, disk)
	}
	base := map[string]string{"control plane": "control-plane", "worker": "worker", "": "node"}[n.Role]
	same := 0
	for _, s := range in.draft.Shapes {
		if s.Name == base || strings.HasPrefix(s.Name, base+"-") {
			same++
			if reflect.DeepEqual(s.VM, shape) {
				return s.Name
			}
		}
	}
	name := base
	if same > 0 {
		name = fmt.Sprintf("%s-%d", base, same+1)
	}
	in.draft.Shapes = append(in.draft.Shapes, config.DraftShape{Name: name, VM: shape})
	return name
}

// owns says whether a disk is a volume of the node's own VM: not another VM's, and not a device of the host.
func (n *Node) owns(d terraform.Disk) bool {
	owner := d.Owner()
	return d.Storage != "" && (owner == 0 || owner == n.vm.VMID)
}

// system is the slot of the disk that Talos is on: the only one, or the only one that is made from an image
// of Talos. recast proves it again before it replaces a disk.
func (in *adoption) system(n *Node) string {
	var own, imaged []terraform.Disk
	for _, d := range n.vm.Disks {
		if !n.owns(d) {
			continue
		}
		own = append(own, d)
		if d.Image != "" && in.ofTalos(d.Image) {
			imaged = append(imaged, d)
		}
	}
	switch {
	case len(imaged) == 1:
		return imaged[0].Slot
	case len(own) == 1 && len(n.vm.Disks) == 1:
		return own[0].Slot
	}
	var slots []string
	for _, d := range own {
		slots = append(slots, d.Slot)
	}
	in.ask("recast doctor", "on which disk of %s is Talos: %s? recast proves it from the running machine; system: true in its class says which it must be", n.Name, strings.Join(slots, ", "))
	return ""
}

// ofTalos says whether an image is one of Talos.
func (in *adoption) ofTalos(id string) bool {
	if talos.MatchString(id) {
		return true
	}
	return slices.ContainsFunc(in.doc.Images, func(im terraform.Image) bool {
		_, is := terraform.BuildOf(im.URL)
		return im.ID == id && (is || talos.MatchString(im.URL))
	})
}
