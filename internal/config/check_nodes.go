package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

func (k checker) nodes() {
	if k.given("nodes") && len(k.c.Nodes) == 0 {
		k.add("nodes", "is empty: name at least one node")
	}
	names, vmids := map[string]int{}, map[int]int{}
	for i, n := range k.c.Nodes {
		k.node(fmt.Sprintf("nodes[%d]", i), n)
		if first, ok := names[n.Name]; ok && n.Name != "" {
			k.add(nodePath(i, "name"), "%s is there already (line %d)", quote(n.Name), k.line(nodePath(first, "name")))
		} else {
			names[n.Name] = i
		}
		if first, ok := vmids[n.VMID]; ok && n.VMID != 0 {
			k.add(nodePath(i, "vmid"), "%d is already used by %s (line %d)", n.VMID, quote(k.c.Nodes[first].Name), k.line(nodePath(first, "vmid")))
		} else {
			vmids[n.VMID] = i
		}
	}
}

func nodePath(i int, key string) string { return fmt.Sprintf("nodes[%d].%s", i, key) }

func (k checker) node(path string, n Node) {
	k.pattern(path+".name", n.Name, `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`,
		"name of a node: lower-case letters, digits and '-', at most 63")
	if k.given(path+".vmid") && (n.VMID < minVMID || n.VMID > maxVMID) {
		k.add(path+".vmid", "%d is out of bounds: Proxmox allows %d-%d", n.VMID, minVMID, maxVMID)
	}
	k.holder(path+".holder", n)
	k.names(path+".acceptLoss", "that the plan shows", n.AcceptLoss)
	if _, ok := k.c.Schematics[n.Schematic]; !ok && k.given(path+".schematic") && !k.bad["schematics"] {
		names := slices.Sorted(maps.Keys(k.c.Schematics))
		k.add(path+".schematic", "%s is not in schematics (line %d)%s", quote(n.Schematic), k.line("schematics"), words.DidYouMean(n.Schematic, names))
	}
	disk := path + ".systemDisk"
	k.pattern(disk+".slot", n.SystemDisk.Slot, diskSlot,
		"slot of a disk: write it like scsi0, virtio0 or sata0")
	if k.given(disk+".sizeGiB") && n.SystemDisk.SizeGiB < 1 {
		k.add(disk+".sizeGiB", "must be at least 1")
	}
}

func (k checker) holder(path string, n Node) {
	if !k.given(path) {
		return
	}
	if n.Holder < minVMID || n.Holder > maxVMID {
		k.add(path, "%d is out of bounds: Proxmox allows %d-%d", n.Holder, minVMID, maxVMID)
	}
	for i, other := range k.c.Nodes {
		if other.VMID == n.Holder {
			k.add(path, "%d is the VM of node %s (line %d): a holder must be another VM", n.Holder, quote(other.Name), k.line(nodePath(i, "vmid")))
		}
	}
}

// names checks that a list of names has no empty name and no duplicate.
func (r *report) names(list, of string, names []string) {
	for i, name := range names {
		path := fmt.Sprintf("%s[%d]", list, i)
		if strings.TrimSpace(name) == "" {
			r.add(path, "is empty: give the name %s, or remove it", of)
		}
		if first := slices.Index(names, name); first < i {
			r.add(path, "%s is listed already (line %d)", quote(name), r.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
}

func (k checker) roll() {
	r := k.c.Roll
	if r.MaxUnavailable.PerHost < 1 {
		k.add("roll.maxUnavailable.perHost", "must be at least 1")
	}
	if name := r.Canary.Node; name != "" && !slices.ContainsFunc(k.c.Nodes, func(n Node) bool { return n.Name == name }) {
		k.add("roll.canary", "%s is not in nodes (line %d): write true, false or the name of a node", quote(name), k.line("nodes"))
	}
	if r.KeepDisks < 1 {
		k.add("roll.keepDisks", "must be at least 1: it is the way back; recast prune --keep-disks 0 frees it too")
	}
	k.names("roll.ignoreNodes", "of a node", r.IgnoreNodes)
	k.surge()
	k.notEmpty("roll.etcdSnapshot", r.EtcdSnapshot)
	k.gates()
	k.hooks()
	k.rehearse()
	if r.Settle < 0 {
		k.add("roll.settle", "must not be negative")
	}
	for path, d := range map[string]Duration{
		"roll.drain.timeout": r.Drain.Timeout,
		"roll.poll":          r.Poll,
		"roll.timeouts.stop": r.Timeouts.Stop,
		"roll.timeouts.boot": r.Timeouts.Boot,
		"roll.timeouts.join": r.Timeouts.Join,
		"roll.timeouts.try":  r.Timeouts.Try,

		"roll.timeouts.storage": r.Timeouts.Storage,
	} {
		if d <= 0 {
			k.add(path, "must be longer than 0")
		}
	}
}
