package talos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// document is one YAML document of a machine configuration.
type document struct {
	raw  []byte     // including the line "---" that begins it
	node *yaml.Node // nil where it is empty or only comments
	root mapping
	orig any // as decoded before any edit
}

// kind is "" for the document that holds machine and cluster.
func (d *document) kind() string { return d.root.text("kind") }

// parseDocuments splits a configuration; its errors do not quote it. Joining
// unedited documents gives the same bytes.
func parseDocuments(config []byte) ([]*document, error) {
	var docs []*document
	before := 0
	for _, raw := range splitDocuments(config) {
		d := &document{raw: raw}
		// Blank lines in place of the preceding documents keep line numbers right.
		dec := yaml.NewDecoder(io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("\n"), before)), bytes.NewReader(raw)))
		before += bytes.Count(raw, []byte("\n"))
		var node, more yaml.Node
		switch err := dec.Decode(&node); {
		case errors.Is(err, io.EOF):
		case err != nil:
			// The parser's error may quote the configuration.
			return nil, errors.New("not valid YAML" + linesOf(err.Error()))
		case len(node.Content) == 1 && node.Content[0].Kind == yaml.MappingNode:
			d.node, d.root = &node, mapping{node.Content[0]}
			if err := node.Decode(&d.orig); err != nil {
				return nil, errors.New("not valid YAML" + linesOf(err.Error()))
			}
		case len(node.Content) != 1 || node.Content[0].ShortTag() != "!!null":
			return nil, errors.New("a document is not a mapping")
		}
		if d.node != nil && !errors.Is(dec.Decode(&more), io.EOF) {
			return nil, errors.New("documents must be separated by lines of ---")
		}
		docs = append(docs, d)
	}
	return docs, nil
}

// splitDocuments cuts before every line that begins a document. YAML treats such a
// line as a marker anywhere, even in a block of text.
func splitDocuments(config []byte) [][]byte {
	var parts [][]byte
	start := 0
	for at := 0; at < len(config); {
		end := len(config)
		if i := bytes.IndexByte(config[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if line := config[at:end]; at > start && isMarker(line) {
			parts = append(parts, config[start:at])
			start = at
		}
		at = end
	}
	return append(parts, config[start:])
}

func isMarker(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// bytes returns the document's current text; the original bytes if nothing was changed.
func (d *document) bytes() ([]byte, error) {
	var now any
	if d.node == nil {
		return d.raw, nil
	}
	if err := d.node.Decode(&now); err != nil {
		return nil, err
	}
	if reflect.DeepEqual(now, d.orig) {
		return d.raw, nil
	}
	var b bytes.Buffer
	if isMarker(d.raw) {
		b.WriteString("---\n")
	}
	indent, compact := layout(d.root.node)
	dumper, err := yaml.NewDumper(&b, yaml.WithV3Defaults(), yaml.WithIndent(indent), yaml.WithCompactSeqIndent(compact), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	if err := errors.Join(dumper.Dump(d.node), dumper.Close()); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return b.Bytes(), nil
}

// layout returns the document's indentation in columns, and whether the dash of a
// list stands below the first letter of its key.
func layout(root *yaml.Node) (indent int, compact bool) {
	indent, compact = 4, false
	for i := len(root.Content) - 2; i >= 0; i -= 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Style&yaml.FlowStyle != 0 || len(value.Content) == 0 {
			continue
		}
		child := value.Content[0]
		switch value.Kind {
		case yaml.MappingNode:
			_, inner := layout(value)
			compact = compact || inner
			if n := child.Column - key.Column; n >= 2 && n <= 9 {
				indent = n
			}
		case yaml.SequenceNode:
			compact = compact || value.Column == key.Column
		}
	}
	return indent, compact
}

// mapping edits a YAML mapping in place; what is not named keeps its order, style and comments.
type mapping struct{ node *yaml.Node }

func (m mapping) index(key string) int {
	for i := 0; i+1 < len(m.node.Content); i += 2 {
		if m.node.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// get returns the value at key, nil if there is none.
func (m mapping) get(key string) *yaml.Node {
	if i := m.index(key); i >= 0 {
		return m.node.Content[i+1]
	}
	return nil
}

// text is the scalar at key; "" if there is none or it is something else.
func (m mapping) text(key string) string {
	if v := m.get(key); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}

// in follows keys to a mapping; ok is false if one is missing or not a mapping.
func (m mapping) in(keys ...string) (_ mapping, ok bool) {
	for _, key := range keys {
		v := m.get(key)
		if v == nil || v.Kind != yaml.MappingNode {
			return mapping{}, false
		}
		m = mapping{v}
	}
	return m, true
}

// edit follows keys to a mapping and creates what is missing on the way.
func (m mapping) edit(keys ...string) (mapping, error) {
	for _, key := range keys {
		v := m.get(key)
		if v == nil || v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
			v = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			m.put(key, v)
		}
		if v.Kind != yaml.MappingNode {
			return mapping{}, fmt.Errorf("line %d: %s is not a plain mapping", v.Line, key)
		}
		m = mapping{v}
	}
	return m, nil
}

func (m mapping) put(key string, value *yaml.Node) {
	if i := m.index(key); i >= 0 {
		m.node.Content[i+1] = value
		return
	}
	if len(m.node.Content) == 0 {
		m.node.Style &^= yaml.FlowStyle // it was written {}
	}
	m.node.Content = append(m.node.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

// set gives key a scalar of that tag; an equal one stays untouched.
func (m mapping) set(key, tag, value string) {
	fresh := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if old := m.get(key); old != nil && old.Kind == yaml.ScalarNode {
		if old.Value == value && old.ShortTag() == tag {
			return
		}
		fresh.HeadComment, fresh.LineComment, fresh.FootComment = old.HeadComment, old.LineComment, old.FootComment
	}
	m.put(key, fresh)
}

func (m mapping) del(key string) {
	if i := m.index(key); i >= 0 {
		m.node.Content = slices.Delete(m.node.Content, i, i+2)
	}
}
