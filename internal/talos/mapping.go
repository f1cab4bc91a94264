package talos

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v4"
)

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
