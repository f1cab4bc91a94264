package terraform

import (
	"slices"
	"strconv"
)

// values are the attributes of a resource, or of a block in it. What is not there, null or of another type
// reads as nothing.
type values map[string]any

func (v values) text(key string) string {
	switch x := v[key].(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return ""
}

// number is 0 for what is none.
func (v values) number(key string) int {
	switch x := v[key].(type) {
	case float64:
		return int(x)
	case string:
		n, err := strconv.Atoi(x)
		if err == nil {
			return n
		}
	}
	return 0
}

func (v values) is(key string) bool { b, _ := v[key].(bool); return b }

// blocks are the blocks of a type: a list, or a single object.
func (v values) blocks(key string) []values {
	switch x := v[key].(type) {
	case map[string]any:
		return []values{x}
	case []any:
		var out []values
		for _, item := range x {
			if block, is := item.(map[string]any); is {
				out = append(out, block)
			}
		}
		return out
	}
	return nil
}

// block is the only block of a type; empty if there is none.
func (v values) block(key string) values {
	if all := v.blocks(key); len(all) > 0 {
		return all[0]
	}
	return nil
}

// list are the texts of a list.
func (v values) list(key string) []string {
	var out []string
	items, _ := v[key].([]any)
	for _, item := range items {
		if s, is := item.(string); is {
			out = append(out, s)
		}
	}
	return out
}

// has says whether the resource's schema has the attribute: Terraform shows all of them.
func (v values) has(key string) bool { _, there := v[key]; return there }

// anywhere says whether a tree of booleans, as in after_unknown, holds a true.
func anywhere(x any) bool {
	switch x := x.(type) {
	case bool:
		return x
	case []any:
		if slices.ContainsFunc(x, anywhere) {
			return true
		}
	case map[string]any:
		for _, item := range x {
			if anywhere(item) {
				return true
			}
		}
	}
	return false
}
