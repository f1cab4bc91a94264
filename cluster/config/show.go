package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/redact"
)

// Hidden replaces a value that is secret as a whole. It differs from redact.Mark: a journal treats redact.Mark as a
// secret that should have been kept, and refuses a fact with it.
const Hidden = "[redacted value]"

// screen removes secrets from what is shown of a configuration: by path, and everywhere else by value.
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

// collect finds the secrets of a value. In fields that another program reads, a text that is short enough to be a
// word of the configuration is not a secret.
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
	if text := s.flow(keysIn(path), v); text != redact.Mark { // a list with that one word would look like the mark
		return text
	}
	return Hidden
}

// keysIn returns the keys of a path. The keys say what a value is.
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

// name shows a text that is not secret by its place, but may be secret by its value.
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

// Redacted returns a configuration for people to read: its documents in their order, without
// secrets, and without comments, which may quote one.
func Redacted(b []byte) ([]byte, error) {
	docs, err := Parse(b)
	if err != nil || len(docs.list) == 0 {
		return nil, err
	}
	s := newScreen(docs)
	var out bytes.Buffer
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	dumper, err := yaml.NewDumper(&out, yaml.WithV3Defaults(), yaml.WithIndent(4), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	for {
		var n yaml.Node
		err := decoder.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, notYAML(err)
		}
		if len(n.Content) != 1 || n.Content[0].ShortTag() == "!!null" {
			continue // only comments
		}
		s.redact(n.Content[0], nil)
		if err := dumper.Dump(n.Content[0]); err != nil {
			return nil, errors.New("it can't be written as YAML") // the writer's error may quote it
		}
	}
	if err := dumper.Close(); err != nil {
		return nil, errors.New("it can't be written as YAML")
	}
	return out.Bytes(), nil
}

// redact replaces the secrets below a node. An alias shows what its anchor shows: a value that is
// secret at either place is known as a secret.
func (s screen) redact(n *yaml.Node, path []string) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			s.redact(value, append(path[:len(path):len(path)], key.Value))
			s.redact(key, nil)
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			s.redact(item, path)
		}
	case yaml.ScalarNode:
		if n.ShortTag() == "!!null" || n.Value == "" {
			return
		}
		if shown := s.scalar(path, n.Value); shown != quoted(n.Value) {
			n.SetString(shown)
			n.Tag, n.Style = "!!str", 0
		}
	}
}
