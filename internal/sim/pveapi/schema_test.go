package pveapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/apidoc"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestRoutesAgreeWithTheSchema checks every route against Proxmox's own API schema: it
// exists, it accepts only defined parameters, and the same parameters are required.
func TestRoutesAgreeWithTheSchema(t *testing.T) {
	t.Parallel()
	schema := apidoctest.Schema(t)
	seen := map[string]bool{}
	for _, r := range routes() {
		name := r.method + " " + r.template()
		must.Hold(t, !seen[name], "%s is there twice", name)
		seen[name] = true
		defined, ok := schema.Parameters(r.method, r.template())
		if !ok {
			t.Errorf("%s: there is no such method", name)
			continue
		}
		for _, problem := range r.disagrees(defined) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func (r route) template() string { return strings.ReplaceAll(r.path, "...}", "}") }

func (r route) disagrees(defined []apidoc.Parameter) (problems []string) {
	var inPath, known, required []string
	for segment := range strings.SplitSeq(r.template(), "/") {
		if name, isVar := strings.CutPrefix(segment, "{"); isVar {
			inPath = append(inPath, strings.TrimSuffix(name, "}"))
		}
	}
	for _, p := range defined {
		known = append(known, p.Name)
		if p.Required && !slices.Contains(inPath, p.Name) {
			required = append(required, p.Name)
		}
	}
	if diff := cmp.Diff(required, slices.Sorted(slices.Values(r.need))); diff != "" {
		problems = append(problems, "other parameters are required (-schema +route):\n"+diff)
	}
	for _, name := range slices.Concat(r.params, r.need, inPath) {
		if !slices.Contains(known, name) {
			problems = append(problems, name+" is not defined")
		}
	}
	for _, p := range defined {
		if slices.Contains(r.params, p.Name) || slices.Contains(inPath, p.Name) {
			problems = append(problems, r.mistypes(p)...)
		}
	}
	if r.options {
		problems = append(problems, r.lacksOptions(defined, inPath)...)
	}
	return problems
}

// lacksOptions says how the route's options differ from the schema's.
func (r route) lacksOptions(defined []apidoc.Parameter, inPath []string) (problems []string) {
	for _, p := range defined {
		if slices.Contains(r.params, p.Name) || slices.Contains(inPath, p.Name) {
			continue
		}
		key, beyond := p.Name, p.Name+"1"
		if p.Indexed {
			key, beyond = fmt.Sprint(p.Name, p.Last), fmt.Sprint(p.Name, p.Last+1)
		}
		if !world.IsOption(key) {
			problems = append(problems, key+" is not taken")
		}
		alsoIndexed := slices.ContainsFunc(defined, func(q apidoc.Parameter) bool { return q.Indexed && q.Name == p.Name })
		if world.IsOption(beyond) && p.Indexed == alsoIndexed { // numa and numa1 are different options
			problems = append(problems, beyond+" is taken")
		}
	}
	return problems
}

// mistypes says if the route's type of a parameter differs from the schema's.
func (r route) mistypes(p apidoc.Parameter) (problems []string) {
	if is := r.isBoolean(p.Name); is != (p.Type == "boolean") {
		problems = append(problems, fmt.Sprintf("%s is a boolean: %v, type in the schema %s", p.Name, is, p.Type))
	}
	within, is := r.isInteger(p.Name)
	if is != (p.Type == "integer") {
		return append(problems, fmt.Sprintf("%s is an integer: %v, type in the schema %s", p.Name, is, p.Type))
	}
	want := unbounded
	if p.Minimum != nil {
		want.from = int(*p.Minimum)
	}
	if p.Maximum != nil {
		want.to = int(*p.Maximum)
	}
	if is && within != want {
		problems = append(problems, fmt.Sprintf("%s is within %v, in the schema within %v", p.Name, within, want))
	}
	return problems
}
