package adopt

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/terraform"
)

// images says which images the nodes run.
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

// schematics says what the images contain.
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
			id = b.Schematic // the configuration's installer is first, and an image is what it began with
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

// given has all nodes run the schematic of --schematic.
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
