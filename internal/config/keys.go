package config

import (
	"iter"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/words"
)

// field is a struct field that is a key of the file, with the rules of its jsonschema
// tag; the JSON Schema is generated from the same tag.
type field struct {
	key      string
	index    []int
	required bool
	enum     []string // the values allowed; nil: any
	rules    []string // all of the tag: "minimum=1"
}

func fieldsOf(t reflect.Type) []field {
	var fields []field
	for sf := range t.Fields() {
		key, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		f := field{key: key, index: sf.Index, rules: strings.Split(sf.Tag.Get("jsonschema"), ",")}
		for _, rule := range f.rules {
			if v, ok := strings.CutPrefix(rule, "enum="); ok {
				f.enum = append(f.enum, v)
			}
			f.required = f.required || rule == "required"
		}
		fields = append(fields, f)
	}
	return fields
}

// pairs iterates over the valid keys of a mapping, stores the position of each, and
// reports the others.
func (r *report) pairs(n *yaml.Node, path string) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			at := place{key.Line, key.Column}
			here := spot{path: path}.key(key.Value).path
			switch {
			case key.ShortTag() == "!!merge":
				r.addAt(at, here, "merge keys are not supported: write the keys out")
			case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
				r.addAt(at, here, "a key must be text: put it in quotes")
			case r.given(here):
				r.addAt(at, here, "is there already (line %d)", r.line(here))
			default:
				r.places[here] = at
				if !yield(key.Value, value) {
					return
				}
			}
		}
	}
}

// unknownKey reports an unknown key, with the keys that are possible, or with what to do
// if it looks like a secret.
func (r *report) unknownKey(at spot, key string, fields []field) {
	lower := strings.ToLower(key)
	for _, word := range []string{"token", "password", "passwd", "secret", "apikey"} {
		if strings.Contains(lower, word) {
			r.add(at.path, "secrets never live in this file: export PROXMOX_VE_API_TOKEN")
			return
		}
	}
	if lower == "insecure" {
		r.add(at.path, "TLS is always verified: give fingerprint or caFile")
		return
	}
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	if meant := words.Closest(key, known); meant != "" {
		r.add(at.path, "unknown key, did you mean %q?", meant)
		r.bad[join(parent(at.path), meant)] = true // it is not missing, it is misspelt
		return
	}
	r.add(at.path, "unknown key, expected one of %s", strings.Join(known, ", "))
}
