package config

import (
	"cmp"
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/words"
	"go.yaml.in/yaml/v4"
)

// decode decodes n into out, which is a struct of this package or a value in one. Unlike the YAML library's strict
// decoding, decode knows the path and the column of every problem.
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
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Struct && !texts[out.Type()].whole:
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
		r.decode(value, at.key(key), v, field{})
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

// texts are types of this package that the file has as text.
var texts = map[reflect.Type]struct {
	words  string // what a value is
	whole  bool   // never a section
	number bool   // a number or a unit is expected
}{
	reflect.TypeFor[Duration]():  {"a duration such as 10m", true, true},
	reflect.TypeFor[VMIDRange](): {"a range such as 9000-9099", true, false},
	reflect.TypeFor[Surge]():     {"a number such as 1 or a percentage such as 10%", true, true},
	reflect.TypeFor[Share]():     {"a number such as 2 or a percentage such as 20%", true, true},
	reflect.TypeFor[Canary]():    {"true, false or the name of a node", true, false},
	reflect.TypeFor[Storage]():   {"on, off, or a section such as {linstor: off}", false, false},
	reflect.TypeFor[ImageRef]():  {"an image reference such as ghcr.io/acme/frr:1.7.15", true, false},
	reflect.TypeFor[DiskSize]():  {"a size such as 100G", true, false},
	reflect.TypeFor[Schematic](): {"the path of a file", false, false},
}

// textual says whether the type's UnmarshalText reads this node. A number is passed to UnmarshalText only if the type
// expects a number or a unit, so that the type's own message reports a missing unit.
func textual(n *yaml.Node, out reflect.Value) bool {
	tag := n.ShortTag()
	if out.Type() == reflect.TypeFor[Canary]() {
		return tag == "!!str" || tag == "!!bool"
	}
	return tag == "!!str" || texts[out.Type()].number && (tag == "!!int" || tag == "!!float")
}

func (r *report) mismatch(n *yaml.Node, at spot, out reflect.Value) {
	want, got := nameOfType(out.Type()), nameOfNode(n)
	if want == "text" && n.Kind == yaml.ScalarNode {
		got += ": put it in quotes"
	}
	r.add(at.path, "must be %s, not %s", want, got)
}

// field is a struct field that is a key of the file, with the rules of its jsonschema
// tag; the JSON Schema is generated from the same tag.
type field struct {
	key      string
	index    []int
	required bool
	enum     []string // the allowed values; nil: any
	rules    []string // all rules of the tag, such as "minimum=1"
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

// pairs iterates over the valid keys of a mapping, stores the position of each, and reports the other keys.
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

// unknownKey reports an unknown key, with the possible keys; for a key that looks like a secret, with what to do
// about it.
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
		r.bad[join(parent(at.path), meant)] = true // the key is misspelt, not missing
		return
	}
	r.add(at.path, "unknown key, expected one of %s", strings.Join(known, ", "))
}

// nameOfType describes the values that a key accepts.
func nameOfType(t reflect.Type) string {
	if text, is := texts[t]; is {
		return text.words
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	default:
		return "a section with keys"
	}
}

// nameOfNode describes a value of the file.
func nameOfNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a section"
	}
	switch n.ShortTag() {
	case "!!str":
		return "text"
	case "!!int", "!!float":
		return "the number " + bare(n.Value)
	case "!!bool":
		return bare(n.Value)
	case "!!timestamp":
		return "the date " + bare(n.Value)
	default:
		return "a value tagged " + quote(n.ShortTag())
	}
}

// bare is like quote, without the quotes.
func bare(s string) string { return strings.Trim(quote(s), `"`) }

// spot is the decoder's position in the file.
type spot struct{ path string }

func (s spot) key(name string) spot { return spot{join(s.path, plain(name))} }

func (s spot) item(i int) spot { return spot{s.path + "[" + strconv.Itoa(i) + "]"} }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// plain returns a key as shown in a path: quoted if it would break the line or the path.
func plain(key string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	if key == "" || len(key) > 60 || strings.ContainsFunc(key, special) {
		return quote(key)
	}
	return key
}

// Duration is a time.Duration that is read and written as "10m" or "1h30m".
type Duration time.Duration

// UnmarshalText reads a duration with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s is not a duration: write it like 30s, 10m or 1h30m", quote(string(text)))
	}
	*d = Duration(v)
	return nil
}

func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String leaves out the zero units that time.Duration prints: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// The VMIDs that Proxmox VE allows.
const (
	minVMID = 100
	maxVMID = 999999999
)

// VMIDRange is a range of VMIDs, both ends included, written "9000-9099".
type VMIDRange struct{ First, Last int }

// UnmarshalText reads "first-last" and accepts only VMIDs that Proxmox allows.
func (r *VMIDRange) UnmarshalText(text []byte) error {
	first, last, ok := strings.Cut(string(text), "-")
	lo, errLo := strconv.Atoi(first)
	hi, errHi := strconv.Atoi(last)
	switch {
	case !ok || errLo != nil || errHi != nil:
		return fmt.Errorf("%s is not a range of VMIDs: write it like 9000-9099", quote(string(text)))
	case lo < minVMID || hi > maxVMID:
		return fmt.Errorf("%s is out of bounds: Proxmox allows %d-%d", quote(string(text)), minVMID, maxVMID)
	case lo > hi:
		return fmt.Errorf("%s runs backwards: did you mean %d-%d?", quote(string(text)), hi, lo)
	}
	*r = VMIDRange{lo, hi}
	return nil
}

func (r VMIDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r VMIDRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r VMIDRange) Len() int { return r.Last - r.First + 1 }

func (r VMIDRange) Contains(id int) bool { return r.First <= id && id <= r.Last }

// All iterates over the VMIDs of the range, lowest first.
func (r VMIDRange) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for id := r.First; id <= r.Last; id++ {
			if !yield(id) {
				return
			}
		}
	}
}

// Problem is one mistake in the file.
type Problem struct {
	File         string
	Line, Column int    // counted from 1
	Path         string // "nodes[2].vmid"; "" for the whole file
	Message      string
}

// String returns the problem on one line: file:line:column: path: message.
func (p Problem) String() string {
	where := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		where += p.Path + ": "
	}
	return where + p.Message
}

// Problems are all mistakes in a file, in the order of the file. Load and Parse return them, with kind fault.Config.
type Problems []Problem

func (ps Problems) Error() string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, p)
	}
	if len(ps) == 1 {
		b.WriteString("1 problem")
	} else {
		fmt.Fprintf(&b, "%d problems", len(ps))
	}
	return b.String()
}

// report collects problems and the position of each path.
type report struct {
	file     string
	places   map[string]place
	problems Problems
	bad      map[string]bool // paths with a problem
}

// add reports a problem at the position of path. It drops the problem if path or a section around it already has a
// problem: the new one only follows from that.
func (r *report) add(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if r.bad[p] {
			return
		}
	}
	r.addAt(nearest(r.places, path), path, format, args...)
}

func (r *report) addAt(at place, path, format string, args ...any) {
	r.bad[path] = true
	r.problems = append(r.problems, Problem{
		File: r.file, Line: at.line, Column: at.column, Path: path,
		Message: fmt.Sprintf(format, args...),
	})
}

func (r *report) given(path string) bool {
	_, ok := r.places[path]
	return ok
}

// line returns the line of path, for messages that refer to it.
func (r *report) line(path string) int { return nearest(r.places, path).line }

// err returns the problems in the order of the file, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	return r.problems
}

// quote formats a value of the file for a message: one line, not too long.
func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}
