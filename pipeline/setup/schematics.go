package setup

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// plannedSchematic is a schematic file to write.
type plannedSchematic struct {
	schematics.Schematic
	name    string
	nodes   []survey.Discovered
	guessed bool // from the extensions, since no node shows it
	fresh   bool // of nodes that are not there yet
}

// schematics finds the schematics that the nodes run, and names them.
func (in *initial) schematics(ctx context.Context) error {
	for _, n := range in.found.Nodes {
		s, guessed, err := in.schematicRun(ctx, n)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(in.plans, func(p plannedSchematic) bool { return p.Canonical() == s.Canonical() })
		if i < 0 {
			in.plans, i = append(in.plans, plannedSchematic{Schematic: s}), len(in.plans)
		}
		p := &in.plans[i]
		p.nodes, p.guessed = append(p.nodes, n), p.guessed || guessed
	}
	nameSchematics(in.plans)
	for _, p := range in.plans {
		res := InitSchematic{Name: p.name, File: p.file(), Extensions: shortNames(p.Extensions()), Nodes: p.nodeNames()}
		in.res.Schematics = append(in.res.Schematics, res)
		in.draft.Schematics = append(in.draft.Schematics, config.DraftSchematic{Name: p.name, File: p.file(), Nodes: res.Nodes})
		if p.guessed {
			in.warn("%s: the image of %s contains no schematic, so the file was written from the listed extensions: add the kernel arguments that it was built with, if any",
				p.file(), strings.Join(res.Nodes, ", "))
		}
		if secrets := p.Secrets(); len(secrets) > 0 {
			in.warn("%s and recast.lock hold secrets, as the image of %s does (%s): commit neither; first remove the secrets from the schematic, then run recast lock",
				p.file(), strings.Join(res.Nodes, ", "), strings.Join(secrets, ", "))
			in.res.Secret = append(in.res.Secret, p.file())
		}
	}
	if len(in.res.Secret) > 0 {
		in.res.Secret = append([]string{"recast.lock"}, in.res.Secret...)
	}
	return nil
}

// schematicRun is the schematic that a node runs, without recast's own kernel argument.
func (in *initial) schematicRun(ctx context.Context, n survey.Discovered) (s schematics.Schematic, guessed bool, err error) {
	if text := n.Machine.Schematic.YAML; text != "" {
		s, err = schematics.Unlocked("the schematic of "+n.Name, []byte(text))
		return s, false, fault.WithHint(err, "it may come from an Image Factory that is too new for this recast: check for a newer recast, or leave the node out: --exclude %s", n.Name)
	}
	im, err := in.src.Images(pipeline.Project{Config: &config.Config{Cluster: in.draft.Cluster, Images: config.Images{Factory: in.draft.Factory, Extensions: in.draft.Extensions}}})
	if err != nil {
		return s, false, err
	}
	official, err := im.Catalog.Official(ctx, in.draft.Talos)
	if err != nil {
		return s, false, fmt.Errorf("list the official extensions for Talos %s: %w", in.draft.Talos, err)
	}
	var listed []string
	for _, x := range n.Machine.Extensions {
		listed = append(listed, x.Name)
	}
	s, _, err = schematics.Guess("the schematic of "+n.Name, listed, official)
	return s, true, err
}

func (in *initial) schematicOf(node string) string {
	for _, p := range in.plans {
		if slices.Contains(p.nodeNames(), node) {
			return p.name
		}
	}
	return ""
}

func (p plannedSchematic) file() string { return "schematics/" + p.name + ".yaml" }

func (p plannedSchematic) nodeNames() []string {
	var out []string
	for _, n := range p.nodes {
		out = append(out, n.Name)
	}
	return out
}

// content is the file: what a factory would store, with a comment about its origin.
func (p plannedSchematic) content() string {
	if p.fresh {
		return "# Image Factory format: anyone can post it to a factory. After a change: recast lock.\n" + p.Canonical()
	}
	return "# Image Factory format: anyone can post it to a factory. recast init wrote it from what\n# these nodes run: " +
		strings.Join(p.nodeNames(), ", ") + "\n" + p.Canonical()
}

// nameSchematics names each after the nodes that run it, or, if that is not unique, after
// an extension that only it has.
func nameSchematics(plans []plannedSchematic) {
	if len(plans) == 1 {
		plans[0].name = "default"
		return
	}
	taken := map[string]int{}
	for i := range plans {
		plans[i].name = plans[i].kind()
		taken[plans[i].name]++
	}
	used := map[string]bool{}
	for i := range plans {
		p := &plans[i]
		if taken[p.name] > 1 {
			if own := p.ownExtension(plans); own != "" {
				p.name += "-" + own
			}
		}
		base := p.name
		for n := 2; used[p.name]; n++ {
			p.name = fmt.Sprintf("%s-%d", base, n)
		}
		used[p.name] = true
	}
}

// kind is the role of its nodes: "control-plane", "worker", or "default" for both.
func (p plannedSchematic) kind() string {
	workers := 0
	for _, n := range p.nodes {
		if !n.Machine.ControlPlane {
			workers++
		}
	}
	switch workers {
	case 0:
		return "control-plane"
	case len(p.nodes):
		return "worker"
	}
	return "default"
}

// ownExtension is the first extension that no other schematic has; "" if there is none.
func (p plannedSchematic) ownExtension(all []plannedSchematic) string {
	for _, x := range p.Extensions() {
		if !slices.ContainsFunc(all, func(o plannedSchematic) bool {
			return o.Canonical() != p.Canonical() && slices.Contains(o.Extensions(), x)
		}) {
			return path.Base(x)
		}
	}
	return ""
}

func shortNames(extensions []string) []string {
	out := []string{}
	for _, x := range extensions {
		out = append(out, path.Base(x))
	}
	return out
}
