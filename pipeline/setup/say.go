package setup

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// sayable refuses what no recast.yaml can express, before the first question: it renders
// one from all that is known by now, with valid values for the rest.
func (in *initial) sayable() error {
	talos := in.Talos
	if talos == "" {
		versions, err := in.found.Versions()
		if err != nil {
			return err
		}
		talos = versions[0]
	}
	d := config.Draft{
		Cluster: in.clusterName(), Talos: talos, Factory: cmp.Or(in.Factory, publicFactory),
		Extensions: cmp.Or(in.Extensions, publicExtensions), Platform: "nocloud", Arch: "amd64", ISOStorage: []string{"local"},
		Endpoints: in.Endpoints, Fingerprint: in.Fingerprint, CAFile: in.CAFile, VMIDs: config.VMIDRange{First: 9000, Last: 9099},
		Schematics: []config.DraftSchematic{{Name: "default", File: "schematics/default.yaml"}},
	}
	for _, n := range in.found.Nodes {
		d.Nodes = append(d.Nodes, config.DraftNode{Name: n.Name, Schematic: "default", VMID: int(n.VM.ID)})
	}
	_, err := d.Render()
	return in.otherwise(err)
}

// otherwise reports the problems of a file that was not written, each with the flag that
// changes the value. Positions in that file would not help.
func (in *initial) otherwise(err error) error {
	found, ok := errors.AsType[config.Problems](err)
	if !ok {
		return err
	}
	var problems []error
	for _, p := range found {
		problem := fault.Configf("the result of the search is not a valid recast.yaml: %s: %s", p.Path, p.Message)
		if in.fresh {
			problem = fault.Configf("the answers make no valid recast.yaml: %s: %s", p.Path, p.Message)
		}
		if hint := in.otherFlag(p.Path); hint != "" {
			problem = fault.WithHint(problem, "%s", hint)
		}
		problems = append(problems, problem)
	}
	return errors.Join(problems...)
}

// otherFlag says which flag changes the value of a path in recast.yaml.
func (in *initial) otherFlag(path string) string {
	var i int
	if _, err := fmt.Sscanf(path, "nodes[%d].name", &i); err == nil && i < len(in.found.Nodes) {
		if in.fresh {
			return "--prefix gives the nodes other names: lower-case letters, digits and '-'"
		}
		return "recast can't manage a node of that name: --exclude " + in.found.Nodes[i].Name + " leaves it out"
	}
	for _, known := range []struct{ path, hint string }{
		{"cluster", "--cluster gives it another name"},
		{"talos.version", "--talos-version gives another one"},
		{"talos.config", "--talosconfig names another one"},
		{"images.factory", "--factory gives another one"},
		{"images.extensions", "--extensions gives another one"},
		{"images.iso", "--iso-storage gives another one"},
		{"proxmox.endpoints", "--endpoint gives another one"},
		{"proxmox.fingerprint", "--fingerprint gives another one"},
		{"proxmox.caFile", "--ca-file gives another one"},
		{"proxmox.vmids", "--vmids gives other ones"},
		{"kubernetes.version", "--kubernetes-version gives another one"},
		{"talos.machineConfigs.render.endpoint", "--kubernetes-endpoint gives another one"},
		{"vmClasses", "--cores, --memory, --bridge, --storage, --system-disk and --data-disk give other VMs"},
	} {
		if strings.HasPrefix(path, known.path) {
			return known.hint
		}
	}
	return ""
}
