package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/terraform"
)

// choose finds the VMs that are the nodes of one cluster.
func (in *adoption) choose() error {
	var clusters, modules, omni []string
	for _, vm := range in.doc.VMs {
		at := below(vm.Address, in.Only)
		why := in.reason(vm)
		switch {
		case len(in.Only) > 0 && at == "":
			continue
		case vm.Template:
			in.leave(vm, "a template")
			continue
		case in.holds(vm):
			in.leave(vm, "it owns disks of other VMs, so it is their holder")
			continue
		case why == "" && at != terraform.Block(vm.Address) && at != vm.Address:
			in.leave(vm, "nothing says that it runs Talos; --only takes it all the same")
			continue
		}
		m := in.machine(vm)
		if len(in.Only) == 0 && in.Cluster != "" && m.Cluster != "" && m.Cluster != in.Cluster {
			in.leave(vm, "of the cluster "+m.Cluster)
			continue
		}
		if in.ofOmni(vm, m) {
			omni = append(omni, vm.Name)
		}
		clusters, modules = append(clusters, m.Cluster), append(modules, vm.Module)
		in.add(vm, m)
	}
	if len(omni) > 0 {
		return fault.WithHint(fault.Refusedf("%s: the configuration or the image joins it to Omni, which decides its version and would undo a roll", strings.Join(omni, ", ")),
			"upgrade it in Omni, or take it out of Omni first: docs/howto/beside-others.md; --only takes other VMs")
	}
	if len(in.res.Nodes) == 0 {
		err := fault.Configf("%s: there is no VM of bpg/proxmox or Telmate/proxmox in it that is a Talos node", in.doc.File)
		for _, left := range in.res.Left {
			err = fault.WithHint(err, "%s", left)
		}
		return fault.WithHint(err, "--only ADDRESS takes the VM of that address; a plan shows what is there before it, not what it will create")
	}
	return in.one(clusters, modules)
}

// ofOmni says whether a machine joins Omni, by its configuration or by the kernel arguments of its image.
func (in *adoption) ofOmni(vm terraform.VM, m terraform.Machine) bool {
	if m.Omni {
		return true
	}
	for _, b := range in.builds(vm) {
		for _, s := range in.doc.Schematics {
			if s.ID == b.Schematic && strings.Contains(s.YAML, "siderolink.api=") {
				return true
			}
		}
	}
	return false
}

// holds says whether a VM owns disks of others.
func (in *adoption) holds(vm terraform.VM) bool {
	return slices.ContainsFunc(in.doc.VMs, func(o terraform.VM) bool {
		return o.VMID != vm.VMID && slices.ContainsFunc(o.Disks, func(d terraform.Disk) bool { return d.Owner() == vm.VMID })
	})
}

// one refuses VMs of several clusters.
func (in *adoption) one(clusters, modules []string) error {
	slices.Sort(clusters)
	slices.Sort(modules)
	names, places := slices.Compact(clusters), slices.Compact(modules)
	told := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	switch {
	case len(told) > 1:
		return fault.WithHint(fault.Configf("the VMs are of several clusters: %s", strings.Join(told, ", ")),
			"--cluster NAME takes the nodes of one; each cluster gets its own recast.yaml, in its own directory (--to)")
	case len(in.Only) > 0, len(told) == 1 && len(names) == 1, len(places) == 1:
	default:
		for i, place := range places {
			if place == "" {
				places[i] = "the root module"
			}
		}
		return fault.WithHint(fault.Configf("the VMs are in %d modules (%s), and the JSON does not say whether they are one cluster", len(places), strings.Join(places, ", ")),
			"--only %s takes the VMs there; give it once for each module, resource or instance of the cluster", places[len(places)-1])
	}
	if len(told) == 0 && in.Cluster == "" && len(in.doc.Clusters) == 1 && len(places) == 1 {
		told = in.doc.Clusters
	}
	in.res.Cluster = in.need(in.Cluster, told, "what the cluster is called", "--cluster NAME", "talosctl config info")
	in.draft.Cluster = in.res.Cluster
	return nil
}

func (in *adoption) leave(vm terraform.VM, why string) {
	in.res.Left = append(in.res.Left, fmt.Sprintf("%s (VM %d): %s", vm.Address, vm.VMID, why))
}

// below returns the address in list that equals address or contains it; "" if there is none.
func below(address string, list []string) string {
	for _, at := range list {
		if rest, in := strings.CutPrefix(address, at); in && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return at
		}
	}
	return ""
}

var talos = regexp.MustCompile(`(?i)(^|[^a-z])talos([^a-z]|$)`)

// reason returns what shows that a VM runs Talos; "" if nothing does.
func (in *adoption) reason(vm terraform.VM) string {
	if m := in.machine(vm); m.Address != "" {
		return m.Address
	}
	if builds := in.builds(vm); len(builds) > 0 {
		return "its image"
	}
	for _, text := range slices.Concat(vm.Shape.Tags, vm.Media, []string{vm.Name}) {
		if talos.MatchString(text) {
			return text
		}
	}
	return ""
}

// machine joins what the Talos provider says about a VM's machine, which is known by its address or its name.
func (in *adoption) machine(vm terraform.VM) terraform.Machine {
	var out terraform.Machine
	for _, m := range in.doc.Machines {
		if !m.Of(vm) {
			continue
		}
		for _, f := range []struct{ to, from *string }{{&out.Role, &m.Role}, {&out.Cluster, &m.Cluster}, {&out.Image, &m.Image}, {&out.Hostname, &m.Hostname}, {&out.Address, &m.Address}} {
			if *f.to == "" {
				*f.to = *f.from
			}
		}
		out.Omni = out.Omni || m.Omni
	}
	return out
}

// builds returns the builds of an Image Factory that a VM's disks, its drive or its configuration name.
func (in *adoption) builds(vm terraform.VM) []terraform.Build {
	var out []terraform.Build
	names := []string{in.machine(vm).Image}
	for _, im := range in.doc.Images {
		if slices.Contains(vm.Media, im.ID) {
			names = append(names, im.URL)
		}
	}
	for _, name := range names {
		if b, is := terraform.BuildOf(name); is {
			out = append(out, b)
		}
	}
	return out
}

func (in *adoption) add(vm terraform.VM, m terraform.Machine) {
	n := Node{Name: vm.Name, Role: m.Role, VMID: cluster.VMID(vm.VMID), Host: vm.Host, Address: vm.Address, Disks: []string{}, vm: vm}
	if m.Hostname != "" {
		n.Name = m.Hostname
	}
	if n.Name == "" || vm.Host == "" {
		in.missing = append(in.missing, fault.WithHint(fmt.Errorf("%s has no name, or no host", vm.Address), "terraform apply -refresh-only, then terraform show -json again"))
	}
	if slices.ContainsFunc(in.res.Nodes, func(o Node) bool { return o.Name == n.Name || o.VMID == n.VMID && o.Host == n.Host }) {
		in.missing = append(in.missing, errors.New(vm.Address+": there is another VM with the name "+n.Name+", or with the same VMID: --only leaves one of them out"))
	}
	if vm.Tainted {
		in.ask("terraform untaint '"+vm.Address+"'", "%s is tainted: the next apply would replace it", n.Name)
	}
	in.res.Nodes = append(in.res.Nodes, n)
}

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

// class returns the name of the class with the shape of a node's VM, and adds the class if it is new.
func (in *adoption) class(n *Node) string {
	shape := n.vm.Shape
	system := in.system(n)
	for _, d := range n.vm.Disks {
		if system == "" || !n.owns(d) || d.GiB() == 0 || d.Slot == "" {
			continue // a disk that a class does not name stays as it is; a roll must not recreate this disk
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

// system returns the slot of the disk that Talos is on: the only disk, or the only disk that is made from an image of
// Talos. recast proves again that it is the system disk before it replaces a disk.
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
	slots := cluster.Each(own, func(d terraform.Disk) string { return d.Slot })
	in.ask("recast doctor", "on which disk of %s is Talos: %s? recast proves it from the running machine; system: true in its class says which it must be", n.Name, strings.Join(slots, ", "))
	return ""
}

// ofTalos says whether an image is a Talos image.
func (in *adoption) ofTalos(id string) bool {
	if talos.MatchString(id) {
		return true
	}
	return slices.ContainsFunc(in.doc.Images, func(im terraform.Image) bool {
		_, is := terraform.BuildOf(im.URL)
		return im.ID == id && (is || talos.MatchString(im.URL))
	})
}

// images fills in which images the nodes run.
func (in *adoption) images() {
	var all []terraform.Build
	for _, n := range in.res.Nodes {
		all = append(all, in.builds(n.vm)...)
	}
	of := func(field func(terraform.Build) string) []string {
		var out []string
		for _, b := range all {
			if text := field(b); text != "" {
				out = append(out, text)
			}
		}
		return out
	}
	d := &in.draft
	at := "talosctl -n NODE "
	d.Talos = in.need(in.Talos, of(func(b terraform.Build) string { return b.Talos }), "which Talos every node should run", "--talos-version v1.13.9", at+"version")
	in.res.Talos = d.Talos
	d.Platform = in.need(in.Platform, of(func(b terraform.Build) string { return b.Platform }), "for which platform the images are", "--platform nocloud", at+"get platformmetadata")
	factories := of(func(b terraform.Build) string { return b.Factory })
	if len(factories) == 0 {
		factories = []string{"https://factory.talos.dev"} // the default of recast.yaml
	}
	d.Factory = in.need(in.Factory, factories, "which Image Factory builds the images", "--factory URL", at+"get machineconfig -o yaml | grep image:")
	d.Extensions = cmp.Or(in.Extensions, "ghcr.io/siderolabs")
	if d.Arch = "amd64"; len(of(func(b terraform.Build) string { return b.Arch })) > 0 {
		d.Arch = in.need("", of(func(b terraform.Build) string { return b.Arch }), "for which architecture the images are", "nodes of two architectures need two recast.yaml: --only", at+"version")
	} else {
		in.ask(at+"version", "the architecture of the nodes: images.arch is amd64 unless you change it")
	}
	secure := of(func(b terraform.Build) string { return fmt.Sprint(b.SecureBoot) })
	if len(secure) == 0 {
		in.ask(at+"get securitystate", "do the nodes use Secure Boot? images.secureBoot is false unless you change it")
	} else {
		d.SecureBoot = in.need("", secure, "whether the nodes use Secure Boot", "nodes with and without it need two recast.yaml: --only", at+"get securitystate") == "true"
	}
	in.ask("kubectl get nodes", "which Kubernetes should the nodes run? kubernetes.version may say it")
	in.schematics()
}

// schematics fills in what the images contain.
func (in *adoption) schematics() {
	if in.Schematic != "" {
		in.given()
		return
	}
	wanted := map[string][]int{} // ID → nodes
	var order []string
	var without []string
	for i, n := range in.res.Nodes {
		id := ""
		for _, b := range in.builds(n.vm) {
			id = b.Schematic // the configuration's installer is first; an image is only what the node began with
			break
		}
		if id == "" {
			without = append(without, n.Name)
			continue
		}
		if wanted[id] == nil {
			order = append(order, id)
		}
		wanted[id] = append(wanted[id], i)
	}
	if len(without) > 0 {
		in.need("", nil, "what the images of "+strings.Join(without, ", ")+" contain", "--schematic FILE", "talosctl -n NODE get extensions; recast init reads it from running nodes")
	}
	for _, id := range order {
		name := "default"
		if len(order) > 1 {
			name = "schematic-" + id[:8]
		}
		at := slices.IndexFunc(in.doc.Schematics, func(s terraform.Schematic) bool { return s.ID == id })
		if at < 0 {
			in.need("", nil, "what the schematic "+id+" contains", "--schematic FILE", fmt.Sprintf("curl -sf %s/schematics/%s, from factories that show it; recast init reads it from running nodes", in.draft.Factory, id))
			continue
		}
		if err := in.schematic(in.doc.Schematics[at], name); err != nil {
			in.missing = append(in.missing, fault.WithHint(err, "--schematic FILE names another one"))
			continue
		}
		s := config.DraftSchematic{Name: name, File: "schematics/" + name + ".yaml"}
		for _, i := range wanted[id] {
			in.draft.Nodes[i].Schematic = name
			s.Nodes = append(s.Nodes, in.res.Nodes[i].Name)
		}
		in.draft.Schematics = append(in.draft.Schematics, s)
	}
}

// given makes all nodes run the schematic of --schematic.
func (in *adoption) given() {
	file, errFile := filepath.Abs(in.Schematic)
	dir, errDir := filepath.Abs(in.Dir)
	rel, err := filepath.Rel(dir, file)
	if errFile != nil || errDir != nil || err != nil {
		in.missing = append(in.missing, fmt.Errorf("--schematic %s: there is no path to it from %s", in.Schematic, in.Dir))
		return
	}
	s := config.DraftSchematic{Name: "default", File: filepath.ToSlash(rel)}
	for i, n := range in.res.Nodes {
		in.draft.Nodes[i].Schematic = s.Name
		s.Nodes = append(s.Nodes, n.Name)
	}
	in.draft.Schematics = []config.DraftSchematic{s}
}
