package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	"github.com/recast-sh/recast/internal/sim/must"
	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "write docs/recast.schema.json afresh")

const schemaFile = "../../docs/recast.schema.json"

// TestSchemaIsUpToDate keeps the schema that editors use equal to what this
// package reads: go test ./internal/config -run Schema -update.
func TestSchemaIsUpToDate(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	must.Do(t, e.Encode(schema(t)))
	got := out.Bytes()
	if *update {
		must.Do(t, os.WriteFile(schemaFile, got, 0o644))
	}
	want := must.Get(os.ReadFile(schemaFile))(t)
	must.Equal(t, "run again with -update: -file +structs", string(want), string(got))
}

// TestSchemaDescribesEveryKey makes a field without a comment an error: it is what editors show.
func TestSchemaDescribesEveryKey(t *testing.T) {
	t.Parallel()
	s := schema(t)
	for name, def := range s.Definitions {
		for pair := def.Properties.Oldest(); pair != nil; pair = pair.Next() {
			must.Hold(t, pair.Value.Description != "" || pair.Value.Ref != "", "%s.%s has no description", name, pair.Key)
		}
	}
	must.Hold(t, len(s.Definitions) >= 8, "only %d definitions", len(s.Definitions))
}

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	r := &jsonschema.Reflector{
		Anonymous:                  true,
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		Mapper:                     textSchema,
	}
	must.Do(t, r.AddGoComments("github.com/recast-sh/recast/internal/config", "./"))
	s := r.Reflect(&Config{})
	s.Title = "recast.yaml"
	data := must.Get(yaml.Dump(defaults()))(t)
	var values map[string]any
	must.Do(t, yaml.Load(data, &values))
	configs := s.Definitions["Talos"].Properties.Value("machineConfigs")
	configs.OneOf, configs.Ref = []*jsonschema.Schema{{Type: "string", Examples: []any{"./machine"}}, {Ref: configs.Ref}}, ""
	for _, section := range []string{"images", "roll"} {
		fill(s, s.Definitions["Config"].Properties.Value(section), values[section].(map[string]any))
	}
	return s
}

// fill sets the defaults of a section and of those within it.
func fill(root, section *jsonschema.Schema, values map[string]any) {
	def := root.Definitions[strings.TrimPrefix(section.Ref, "#/$defs/")]
	for pair := def.Properties.Oldest(); pair != nil; pair = pair.Next() {
		switch v := values[pair.Key].(type) {
		case map[string]any:
			fill(root, pair.Value, v)
		case nil, []any:
		default:
			if !slices.Contains(def.Required, pair.Key) {
				pair.Value.Default = v
			}
		}
	}
}

func textSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, Examples: []any{"30s", "10m", "1h30m"}}
	case reflect.TypeFor[VMIDRange]():
		return &jsonschema.Schema{Type: "string", Pattern: `^[0-9]+-[0-9]+$`, Examples: []any{"9000-9099"}}
	case reflect.TypeFor[Share]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "1"},
			{Type: "string", Pattern: `^([1-9][0-9]?|100)%$`, Examples: []any{"20%"}},
		}}
	case reflect.TypeFor[Surge]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "0"},
			{Type: "string", Pattern: `^([1-9][0-9]?|100)%$`, Examples: []any{"10%"}},
		}}
	case reflect.TypeFor[DiskSize]():
		return &jsonschema.Schema{Type: "string", Pattern: `^[1-9][0-9]*[GT]$`, Examples: []any{"100G", "2T"}}
	case reflect.TypeFor[Canary]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "boolean"}, {Type: "string", Examples: []any{"wk1"}}}}
	case reflect.TypeFor[Storage]():
		systems := jsonschema.NewProperties()
		for _, key := range []string{"longhorn", "ceph", "linstor", "mayastor"} {
			systems.Set(key, &jsonschema.Schema{Type: "string", Enum: []any{"on", "off"}, Default: "on"})
		}
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "string", Enum: []any{"on", "off"}},
			{Type: "object", Properties: systems, AdditionalProperties: jsonschema.FalseSchema},
		}}
	case reflect.TypeFor[Schematic]():
		file := jsonschema.NewProperties()
		file.Set("file", &jsonschema.Schema{Type: "string", Description: "File in the Image Factory's own schematic format."})
		file.Set("extensions", &jsonschema.Schema{
			Type: "array", MinItems: new(uint64(1)),
			Items:       &jsonschema.Schema{Type: "string", Examples: []any{"ghcr.io/acme/frr:1.7.15@sha256:…"}},
			Description: "Images of extensions that no Image Factory knows: a tag that recast.lock pins, a digest, or both. The Talos imager builds them in, after the official ones that the file names.",
		})
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "string"},
			{Type: "object", Properties: file, Required: []string{"file"}, AdditionalProperties: jsonschema.FalseSchema},
		}}
	}
	return nil
}
