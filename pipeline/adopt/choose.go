package adopt

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
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

// below is the address in list that the address is, or is in; "" if there is none.
func below(address string, list []string) string {
	for _, at := range list {
		if rest, in := strings.CutPrefix(address, at); in && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return at
		}
	}
	return ""
}

var talos = regexp.MustCompile(`(?i)(^|[^a-z])talos([^a-z]|$)`)

// reason says by what a VM is known to run Talos; "" if by nothing.
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

// machine joins what the Talos provider says of a VM's machine: told by its address or its name.
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

// builds are the builds of an Image Factory that a VM's disks, its drive or its configuration name.
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

// add makes a node of a VM.
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
