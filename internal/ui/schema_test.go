package ui

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/pipeline"
)

// answers are what commands print with -o json, by the name of the schema in docs/schemas.
var answers = map[string]struct {
	title string
	of    any
}{
	"plan":    {"recast plan -o json", &cluster.Plan{}},
	"explain": {"recast plan --explain NODE -o json", &cluster.Explanation{}},
	"drift":   {"recast drift -o json", &pipeline.DriftResult{}},
	"status":  {"recast status -o json", &pipeline.StatusResult{}},
	"report":  {"recast roll, rollback and recover -o json", &Report{}},
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
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(schemaFile(name), got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(schemaFile(name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s: run again with -update: -file +types\n%s", name, diff)
		}
	}
}

// reflector makes schemas of types. What a later version adds to an answer is no
// reason to refuse it, so that other properties are allowed.
func reflector(t *testing.T) *jsonschema.Reflector {
	t.Helper()
	r := &jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, Mapper: wordSchema}
	for _, dir := range []string{"../../cluster", "../../pipeline", "./"} {
		if err := r.AddGoComments("github.com/recast-sh/recast/internal/ui", dir); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// wordSchema describes the types whose values are words, or written as text.
func wordSchema(t reflect.Type) *jsonschema.Schema {
	words := func(list ...any) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Enum: list} }
	switch t {
	case reflect.TypeFor[cluster.Strategy]():
		return words("auto", "recreate", "reimage", "in-place", "rollback", "put-back", "configure", "")
	case reflect.TypeFor[cluster.Phase]():
		return words("unfinished", "reset", "canary", "control-planes", "workers")
	case reflect.TypeFor[cluster.Fate]():
		return words("stays", "carried", "detached", "replaced", "back", "pods", "medium")
	case reflect.TypeFor[NodeOutcome]():
		return words("done", "not needed", "failed", "stopped", "not started")
	case reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix]():
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// TestSchemasFitWhatIsPrinted holds answers in every shape against the schemas.
func TestSchemasFitWhatIsPrinted(t *testing.T) {
	t.Parallel()
	refused := many(2, 1)
	refused.Nodes[0].Strategy, refused.Nodes[0].Refused = cluster.Auto, []string{"no"}
	for name, values := range map[string][]any{
		"plan":    {everyPhase(), many(3, 2), refused},
		"explain": {explained()},
		"drift":   {manyDrifts(3, 1)},
		"status":  {pipeline.StatusResult{Open: []pipeline.Half{}, Marked: []pipeline.Marked{}, Kept: []pipeline.Kept{}}},
		"report":  {Report{pipeline.Report{Plan: many(3, 2)}, Fared{Nodes: []NodeFared{{Node: "wk1", Outcome: NodeDone}}}}},
	} {
		schema, err := validator.NewCompiler().Compile(schemaFile(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			var out bytes.Buffer
			if err := write(&out, "json", v, nil); err != nil {
				t.Fatal(err)
			}
			doc, err := validator.UnmarshalJSON(&out)
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := schema.Validate(map[string]any{"cluster": 1}); err == nil {
			t.Errorf("%s fits anything", name)
		}
	}
}

// TestSchemasDescribeWhatTheyPublish: most fields have a word on what they are.
func TestSchemasDescribeWhatTheyPublish(t *testing.T) {
	t.Parallel()
	for name := range answers {
		b, err := os.ReadFile(schemaFile(name))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), `"description": `); n < 10 {
			t.Errorf("%s: %d descriptions", name, n)
		}
	}
}
