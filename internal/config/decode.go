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

// decoder fills the structs of this package from YAML nodes. Unlike the YAML
// library's strict decoding, it knows the path and the column of every problem.
type decoder struct{ *report }

// value decodes n into out.
func (d decoder) value(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if out.Kind() == reflect.Pointer { // nil says that the key is missing
		out.Set(reflect.New(out.Type().Elem()))
		out = out.Elem()
	}
	if n.Kind == yaml.ScalarNode {
		d.scalar(n, at, out, f)
		return
	}
	switch {
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Struct && !oneValue(out.Type()):
		d.section(n, at, out)
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Map:
		d.entries(n, at, out)
	case n.Kind == yaml.SequenceNode && out.Kind() == reflect.Slice:
		d.items(n, at, out)
	default:
		d.mismatch(n, at, out)
	}
}

// section decodes a mapping with known keys.
func (d decoder) section(n *yaml.Node, at spot, out reflect.Value) {
	fields := fieldsOf(out.Type())
	for key, value := range d.pairs(n, at.path) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			d.unknown(at.key(key), key, fields)
			continue
		}
		d.value(value, at.key(key), out.FieldByIndex(fields[i].index), fields[i])
	}
	for _, f := range fields {
		if path := at.key(f.key).path; f.required && !d.given(path) {
			d.add(path, "required")
		}
	}
}

// entries decodes a mapping from names to values.
func (d decoder) entries(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeMap(out.Type()))
	for key, value := range d.pairs(n, at.path) {
		v := reflect.New(out.Type().Elem()).Elem()
		d.value(value, at.entry(key), v, field{})
		out.SetMapIndex(reflect.ValueOf(key), v)
	}
}

// items decodes a list.
func (d decoder) items(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeSlice(out.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		here := at.item(i)
		d.places[here.path] = place{item.Line, item.Column}
		d.value(item, here, out.Index(i), field{})
	}
}

// scalar decodes a single value.
func (d decoder) scalar(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.ShortTag() == "!!null" {
		d.add(at.path, "has no value: give it one or remove it")
		return
	}
	text := n.Value
	if n.ShortTag() == "!!bool" {
		text = strings.ToLower(text) // True and TRUE are true
	}
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok && textual(n, out) {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			d.add(at.path, "%v", err)
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
			d.add(at.path, "%s is not a plain decimal number", quote(n.Value))
			return
		}
		out.SetInt(int64(i))
	default:
		d.mismatch(n, at, out)
		return
	}
	if f.enum != nil && !slices.Contains(f.enum, n.Value) {
		d.add(at.path, "%s is not one of %s%s", quote(n.Value), strings.Join(f.enum, ", "), words.DidYouMean(n.Value, f.enum))
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

func (d decoder) mismatch(n *yaml.Node, at spot, out reflect.Value) {
	want, got := nameOfType(out.Type()), nameOfNode(n)
	if want == "text" && n.Kind == yaml.ScalarNode {
		got += ": put it in quotes"
	}
	d.add(at.path, "must be %s, not %s", want, got)
}
