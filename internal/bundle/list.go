package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// LeftOut replaces what a list does not allow.
const LeftOut = "[left out]"

// List is the paths of a document to keep: "nodes.*.name". "*" is any key or index; a
// final "**" is everything below.
type List []string

// JSON marshals v and returns what the list allows of it.
func (l List) JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	doc, err := decode(b)
	if err != nil {
		return nil, err
	}
	return indented(l.keep(doc, nil))
}

// Line is what the list allows of a JSON object on one line; false if it is not an object.
func (l List) Line(line []byte) ([]byte, bool) {
	doc, err := decode(line)
	object, ok := doc.(map[string]any)
	if err != nil || !ok {
		return nil, false
	}
	kept, err := json.Marshal(l.keep(object, nil))
	return kept, err == nil
}

// YAML is what the list allows of a YAML document, without its comments.
func (l List) YAML(data []byte) ([]byte, error) {
	var doc any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("it is no YAML%s", linesOf(err))
	}
	return yaml.Marshal(l.keep(doc, nil))
}

// linesOf is the line number in a YAML error; the rest of the error quotes the document.
func linesOf(err error) string {
	_, rest, found := strings.Cut(err.Error(), "line ")
	if !found {
		return ""
	}
	number := strings.TrimRightFunc(rest[:min(len(rest), 6)], func(r rune) bool { return r < '0' || r > '9' })
	if _, err := strconv.Atoi(number); err != nil {
		return ""
	}
	return ", line " + number
}

func decode(b []byte) (any, error) {
	var doc any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err := d.Decode(&doc)
	return doc, err
}

// keep is v without what the list does not allow. It drops the names of keys that are not
// on the list too.
func (l List) keep(v any, at []string) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			below := append(slices.Clone(at), key)
			if l.allows(below) {
				out[key] = l.keep(value, below)
			}
		}
		if more := len(v) - len(out); more > 0 {
			out[LeftOut] = fmt.Sprintf("%d more", more)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for i, value := range v {
			below := append(slices.Clone(at), strconv.Itoa(i))
			if l.allows(below) {
				out = append(out, l.keep(value, below))
			} else {
				out = append(out, LeftOut)
			}
		}
		return out
	case nil, bool:
		return v
	}
	if !l.allowsValue(at) {
		return LeftOut
	}
	return v
}

// allows says whether the list has a path, or one below it.
func (l List) allows(at []string) bool {
	return slices.ContainsFunc(l, func(p string) bool {
		want := strings.Split(p, ".")
		for i, key := range at {
			switch {
			case i >= len(want):
				return false
			case want[i] == "**":
				return true
			case want[i] != "*" && want[i] != key:
				return false
			}
		}
		return true
	})
}

// allowsValue says whether the list has exactly this path.
func (l List) allowsValue(at []string) bool {
	return slices.ContainsFunc(l, func(p string) bool {
		want := strings.Split(p, ".")
		if want[len(want)-1] != "**" && len(want) != len(at) {
			return false
		}
		return List{p}.allows(at)
	})
}
