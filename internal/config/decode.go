package config

import (
	"encoding"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/words"
)

// decode decodes n into out, which is one of this package's structs or a value in one. Unlike
// the YAML library's strict decoding, it knows the path and the column of every problem.
func (r *report) decode(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if out.Kind() == reflect.Pointer { // nil says that the key is missing
		out.Set(reflect.New(out.Type().Elem()))
		out = out.Elem()
	}
	if n.Kind == yaml.ScalarNode {
		r.decodeScalar(n, at, out, f)
		return
	}
	switch {
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Struct && !oneValue(out.Type()):
		r.decodeSection(n, at, out)
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Map:
		r.decodeEntries(n, at, out)
	case n.Kind == yaml.SequenceNode && out.Kind() == reflect.Slice:
		r.decodeItems(n, at, out)
	default:
		r.mismatch(n, at, out)
	}
}

// decodeSection decodes a mapping with known keys.
func (r *report) decodeSection(n *yaml.Node, at spot, out reflect.Value) {
	fields := fieldsOf(out.Type())
	for key, value := range r.pairs(n, at.path) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			r.unknownKey(at.key(key), key, fields)
			continue
		}
		r.decode(value, at.key(key), out.FieldByIndex(fields[i].index), fields[i])
	}
	for _, f := range fields {
		if path := at.key(f.key).path; f.required && !r.given(path) {
			r.add(path, "required")
		}
	}
}

// decodeEntries decodes a mapping from names to values.
func (r *report) decodeEntries(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeMap(out.Type()))
	for key, value := range r.pairs(n, at.path) {
		v := reflect.New(out.Type().Elem()).Elem()
		r.decode(value, at.entry(key), v, field{})
		out.SetMapIndex(reflect.ValueOf(key), v)
	}
}

// decodeItems decodes a list.
func (r *report) decodeItems(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeSlice(out.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		here := at.item(i)
		r.places[here.path] = place{item.Line, item.Column}
		r.decode(item, here, out.Index(i), field{})
	}
}

// decodeScalar decodes a single value.
func (r *report) decodeScalar(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.ShortTag() == "!!null" {
		r.add(at.path, "has no value: give it one or remove it")
		return
	}
	text := n.Value
	if n.ShortTag() == "!!bool" {
		text = strings.ToLower(text) // True and TRUE are true
	}
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok && textual(n, out) {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			r.add(at.path, "%v", err)
		}
		return
	}
	tag, kind := n.ShortTag(), out.Kind()
	switch {
	case kind == reflect.String && tag == "!!str":
		out.SetString(n.Value)
	case kind == reflect.Bool && tag == "!!bool":
		out.SetBool(text == "true")
	case kind == reflect.Int && tag == "!!int":
		i, err := strconv.Atoi(n.Value)
		if err != nil || strconv.Itoa(i) != n.Value {
			r.add(at.path, "%s is not a plain decimal number", quote(n.Value))
			return
		}
		out.SetInt(int64(i))
	default:
		r.mismatch(n, at, out)
		return
	}
	if f.enum != nil && !slices.Contains(f.enum, n.Value) {
		r.add(at.path, "%s is not one of %s%s", quote(n.Value), strings.Join(f.enum, ", "), words.DidYouMean(n.Value, f.enum))
	}
}

// oneValue says whether a struct is written as a single value.
func oneValue(t reflect.Type) bool {
	return t == reflect.TypeFor[VMIDRange]() || t == reflect.TypeFor[Share]() || t == reflect.TypeFor[Surge]() || t == reflect.TypeFor[Canary]() || t == reflect.TypeFor[ImageRef]() || t == reflect.TypeFor[DiskSize]()
}

// textual says whether a type with UnmarshalText reads this node. Numbers are passed to
// it only if it expects a number or a unit, so that its own message reports a missing unit.
func textual(n *yaml.Node, out reflect.Value) bool {
	tag, number := n.ShortTag(), out.Kind() == reflect.Int64 || out.Type() == reflect.TypeFor[Share]() || out.Type() == reflect.TypeFor[Surge]()
	if out.Type() == reflect.TypeFor[Canary]() {
		return tag == "!!str" || tag == "!!bool"
	}
	return tag == "!!str" || number && (tag == "!!int" || tag == "!!float")
}

func (r *report) mismatch(n *yaml.Node, at spot, out reflect.Value) {
	want, got := nameOfType(out.Type()), nameOfNode(n)
	if want == "text" && n.Kind == yaml.ScalarNode {
		got += ": put it in quotes"
	}
	r.add(at.path, "must be %s, not %s", want, got)
}
