package ui

import (
	"bytes"
	gocmp "cmp"
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
)

// answers are what commands print with -o json, by the name of the schema in docs/schemas.
var answers = map[string]struct {
	title string
	of    any
}{
	"plan":    {"recast plan -o json", &planning.Plan{}},
	"explain": {"recast plan --explain NODE -o json", &survey.Explanation{}},
	"drift":   {"recast drift -o json", &pipeline.DriftResult{}},
	"config":  {"recast config diff -o json", &configs.Diffs{}},
	"status":  {"recast status -o json", &pipeline.StatusResult{}},
	"report":  {"recast roll and recast undo -o json", &Report{}},
}

func schemaFile(name string) string {
	return filepath.Join("..", "..", "docs", "schemas", name+".schema.json")
}

// TestSchemasAreUpToDate keeps the published schemas equal to what is printed:
// go test ./internal/ui -run SchemasAreUpToDate -update.
func TestSchemasAreUpToDate(t *testing.T) {
	t.Parallel()
	r := reflector(t)
	for name, answer := range answers {
		s := r.Reflect(answer.of)
		s.Title = answer.title
		emptyLists(s)
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		must.Do(t, e.Encode(s))
		if *update {
			must.Do(t, os.WriteFile(schemaFile(name), got.Bytes(), 0o644))
		}
		want := must.Get(os.ReadFile(schemaFile(name)))(t)
		must.Equal(t, name+": run again with -update: -file +types", string(want), got.String())
	}
}

// reflector creates schemas of types. Other properties are allowed: additions in a later
// version are no reason to refuse an answer.
func reflector(t *testing.T) *jsonschema.Reflector {
	t.Helper()
	r := &jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, Mapper: wordSchema, CommentMap: map[string]string{}}
	for _, pattern := range []string{"cluster", "cluster/*", "pipeline", "pipeline/*", "internal/ui"} {
		files := must.Get(filepath.Glob(filepath.Join("..", "..", pattern, "*.go")))(t)
		for _, file := range files {
			b := must.Get(os.ReadFile(file))(t)
			if strings.HasSuffix(file, "_test.go") || !bytes.Contains(b, []byte("`json:")) {
				continue // parsing all of them takes a second
			}
			parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, b, parser.ParseComments|parser.SkipObjectResolution))(t)
			comments(parsed, "github.com/recast-sh/recast/"+strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../"), r.CommentMap)
		}
	}
	return r
}

// comments collects the comments of a file's structs and fields, in the form that the
// reflector expects.
func comments(f *ast.File, pkg string, into map[string]string) {
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			named, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			of, ok := named.Type.(*ast.StructType)
			if !ok {
				continue
			}
			key := pkg + "." + named.Name.Name
			into[key] = new(doc.Package).Synopsis(gen.Doc.Text())
			for _, field := range of.Fields.List {
				text := gocmp.Or(field.Doc.Text(), field.Comment.Text())
				for _, name := range field.Names {
					into[key+"."+name.Name] = strings.TrimSpace(text)
				}
			}
		}
	}
}

// emptyLists lets lists that are always present be null: that is an empty list.
func emptyLists(s *jsonschema.Schema) {
	for _, def := range s.Definitions {
		for pair := def.Properties.Oldest(); pair != nil; pair = pair.Next() {
			if list := pair.Value; list.Type == "array" && slices.Contains(def.Required, pair.Key) {
				pair.Value = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "array", Items: list.Items}, {Type: "null"}}, Description: list.Description}
			}
		}
	}
}

// wordSchema describes the types whose values are words, or written as text.
func wordSchema(t reflect.Type) *jsonschema.Schema {
	words := func(list ...any) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Enum: list} }
	switch t {
	case reflect.TypeFor[cluster.Strategy]():
		return words("auto", "recreate", "reimage", "in-place", "rollback", "put-back", "apply-config", "install-reset", "reshape", "create", "remove", "")
	case reflect.TypeFor[planning.Phase]():
		return words("unfinished", "reset", "canary", "control-planes", "workers")
	case reflect.TypeFor[survey.Fate]():
		return words("stays", "carried", "detached", "replaced", "back", "pods", "medium")
	case reflect.TypeFor[NodeOutcome]():
		return words("done", "not needed", "failed", "stopped", "not started")
	case reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix]():
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// TestSchemasFitWhatIsPrinted checks answers in every shape against the schemas.
func TestSchemasFitWhatIsPrinted(t *testing.T) {
	t.Parallel()
	refused := many(2, 1)
	refused.Nodes[0].Strategy, refused.Nodes[0].Refused = cluster.Auto, []string{"no"}
	for name, values := range map[string][]any{
		"plan":    {everyPhase(), many(3, 2), refused},
		"explain": {explained()},
		"drift":   {manyDrifts(3, 1)},
		"status": {
			pipeline.StatusResult{Open: []pipeline.Half{}, Marked: []pipeline.Marked{}, Kept: []pipeline.Kept{}},
			pipeline.StatusResult{
				Claim: &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "r1"}}, LastRun: &pipeline.RunStatus{ID: "r1", Took: []cluster.Took{{Node: "wk1", Steps: map[string]int{"pull": 1}}}},
				Open: []pipeline.Half{{Node: "wk1", Strategy: cluster.Recreate, VMState: pipeline.VMDeleted}}, Marked: []pipeline.Marked{{Node: "wk2", Next: []pipeline.Advice{{Command: "recast roll", Does: "x"}}}},
				Kept: []pipeline.Kept{{Node: "wk1", SizeBytes: 1 << 40}},
			},
		},
		"report": {Report{pipeline.Report{Plan: many(3, 2)}, Fared{Nodes: []NodeFared{{Node: "wk1", Outcome: NodeDone}}}}},
	} {
		schema := must.Get(validator.NewCompiler().Compile(schemaFile(name)))(t)
		for _, v := range values {
			var out bytes.Buffer
			must.Do(t, write(&out, "json", v, nil))
			doc := must.Get(validator.UnmarshalJSON(&out))(t)
			if err := schema.Validate(doc); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := schema.Validate(map[string]any{"cluster": 1}); err == nil {
			t.Errorf("%s fits anything", name)
		}
	}
}

// TestSchemasDescribeWhatTheyPublish: most fields have a description.
func TestSchemasDescribeWhatTheyPublish(t *testing.T) {
	t.Parallel()
	for name := range answers {
		b := must.Get(os.ReadFile(schemaFile(name)))(t)
		if n := strings.Count(string(b), `"description": `); n < 10 {
			t.Errorf("%s: %d descriptions", name, n)
		}
	}
}
