package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/redact"
)

// Hidden replaces a value that is secret as a whole. It differs from redact.Mark: a journal treats
// that as a secret that should have been kept, and refuses the fact that has it.
const Hidden = "[redacted value]"

// screen removes secrets from what is shown of a configuration: by path, and by value at every
// other place.
type screen struct {
	secrets map[string]bool // whole values
	known   redact.Redactor
}

func newScreen(of ...Documents) screen {
	s := screen{secrets: map[string]bool{}}
	var foreign []string
	for _, docs := range of {
		for _, doc := range docs.list {
			s.collect(doc.root, nil, &foreign)
		}
	}
	s.known = redact.New(append(foreign, slices.Collect(maps.Keys(s.secrets))...))
	return s
}

// collect finds the secrets of a value. In fields that another program reads, texts that are short
// enough to be a word of the configuration are no secrets.
func (s *screen) collect(v *value, path []string, foreign *[]string) {
	for key, child := range v.fields {
		s.collect(child, append(slices.Clip(path), key), foreign)
	}
	for _, item := range v.items {
		s.collect(item, path, foreign)
	}
	switch text := v.shown; {
	case v.kind != scalar || text == "":
	case redact.Named(path, text):
		s.secrets[text] = true
	case redact.Foreign(path):
		if _, value, ok := redact.Variable(path, text); ok {
			text = value
		}
		*foreign = append(*foreign, text)
	}
}

// show writes a value on one line, without secrets.
func (s screen) show(path []part, v *value) string {
	if text := s.flow(keysIn(path), v); text != redact.Mark { // a list of that one word would be the mark
		return text
	}
	return Hidden
}

// keysIn are the keys of a path, which say what a value is.
func keysIn(path []part) []string {
	var keys []string
	for _, p := range path {
		if !p.entry {
			keys = append(keys, p.key)
		}
	}
	return keys
}

func (s screen) flow(path []string, v *value) string {
	var parts []string
	switch v.kind {
	case mapping:
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			parts = append(parts, s.name(key)+": "+s.flow(append(slices.Clip(path), key), v.fields[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case list:
		for _, item := range v.items {
			parts = append(parts, s.flow(path, item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case scalar:
		return s.scalar(path, v.shown)
	}
	return "null"
}

func (s screen) scalar(path []string, text string) string {
	switch {
	case text == "":
		return quoted(text)
	case redact.Named(path, text):
		return Hidden
	case redact.Foreign(path):
		if name, _, ok := redact.Variable(path, text); ok {
			return s.name(name) + "=" + redact.Mark
		}
		return Hidden
	}
	return s.name(text)
}

// name shows a text that is no secret by its place, but may be one by its value.
func (s screen) name(text string) string {
	if s.secrets[text] {
		return Hidden
	}
	if text = s.known.Text(text); text == redact.Mark {
		return Hidden
	}
	return quoted(text)
}

// path writes a path for people: machine.sysctls["vm.swappiness"].
func (s screen) path(path []part) string {
	var out strings.Builder
	for _, p := range path {
		key := s.name(p.key)
		switch {
		case p.entry:
			out.WriteString("[" + key + "]")
		case key != Hidden && !plainKey(p.key):
			out.WriteString("[" + strconv.Quote(s.known.Text(p.key)) + "]")
		default:
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(key)
		}
	}
	return out.String()
}
