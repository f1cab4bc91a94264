package expression

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/recast-sh/recast/internal/foreign"
)

const (
	shownReads = 4   // most fields shown of an object
	readBytes  = 120 // most bytes shown of a field's value
)

// reads lists the fields of the object that an expression reads, in the order of the expression. Fields of a list's
// items are shown as the list.
func reads(e ast.Expr) [][]string {
	var found [][]string
	var visit func(ast.Expr)
	visit = func(e ast.Expr) {
		if path := pathOf(e); len(path) > 1 {
			if !slices.ContainsFunc(found, func(p []string) bool { return slices.Equal(p, path) }) {
				found = append(found, path)
			}
			return
		}
		for _, child := range children(e) {
			visit(child)
		}
	}
	visit(e)
	return found
}

// pathOf returns the path from one of our variables to the field e; nil if e is not a field.
func pathOf(e ast.Expr) []string {
	extend := func(operand ast.Expr, key string) []string {
		path := pathOf(operand)
		if path == nil {
			return nil
		}
		return append(slices.Clone(path), key)
	}
	switch e.Kind() {
	case ast.IdentKind:
		if slices.Contains(exprRoots, e.AsIdent()) {
			return []string{e.AsIdent()}
		}
	case ast.SelectKind:
		return extend(e.AsSelect().Operand(), e.AsSelect().FieldName())
	case ast.CallKind:
		call := e.AsCall()
		if !slices.Contains([]string{operators.Index, operators.OptIndex, operators.OptSelect}, call.FunctionName()) {
			return nil
		}
		if arg := call.Args()[1]; arg.Kind() == ast.LiteralKind {
			if key, ok := arg.AsLiteral().(types.String); ok {
				return extend(call.Args()[0], string(key))
			}
		}
	}
	return nil
}

func children(e ast.Expr) []ast.Expr {
	switch e.Kind() {
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			return append([]ast.Expr{call.Target()}, call.Args()...)
		}
		return call.Args()
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		return []ast.Expr{c.IterRange(), c.LoopCondition(), c.LoopStep(), c.Result()}
	case ast.MapKind:
		var all []ast.Expr
		for _, entry := range e.AsMap().Entries() {
			all = append(all, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
		return all
	}
	return nil
}

// shows formats what the expression read of an object: "status.robustness=degraded".
func (e *Expression) shows(object map[string]any) string {
	var texts []string
	for _, path := range e.reads[:min(len(e.reads), shownReads)] {
		value, found := lookUp(variables(object), path)
		text := "(none)"
		if found {
			text = brief(value)
		}
		texts = append(texts, strings.TrimPrefix(strings.Join(path, "."), "object.")+"="+text)
	}
	if more := len(e.reads) - shownReads; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more fields", more))
	}
	return strings.Join(texts, ", ")
}

func lookUp(value any, path []string) (any, bool) {
	for _, key := range path {
		section, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = section[key]; !ok {
			return nil, false
		}
	}
	return value, true
}

// brief writes a value on one short line. Of conditions it writes only type and status.
func brief(value any) string {
	if text, ok := value.(string); ok {
		return cut(foreign.Line(text))
	}
	if list, ok := value.([]any); ok && len(list) > 0 {
		if conditions, ok := conditionsOf(list); ok {
			return cut("[" + strings.Join(conditions, " ") + "]")
		}
	}
	if section, ok := value.(map[string]any); ok && len(section) > 0 {
		if conditions, ok := conditionsBelow(section); ok {
			return cut(strings.Join(conditions, " "))
		}
	}
	b, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("(%T)", value)
	}
	return cut(foreign.Line(string(b)))
}

// conditionsOf formats a list of conditions: "Ready=False".
func conditionsOf(list []any) (texts []string, ok bool) {
	for _, item := range list {
		c, _ := item.(map[string]any)
		kind, isKind := c["type"].(string)
		status, isStatus := c["status"].(string)
		if !isKind || !isStatus {
			return nil, false
		}
		texts = append(texts, foreign.Line(kind)+"="+foreign.Line(status))
	}
	return texts, true
}

// conditionsBelow formats the conditions of the objects in a mapping: "disk-1[Ready=False]".
func conditionsBelow(section map[string]any) (texts []string, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(section)) {
		below, _ := section[key].(map[string]any)
		list, isList := below["conditions"].([]any)
		conditions, are := conditionsOf(list)
		if !isList || !are {
			return nil, false
		}
		texts = append(texts, foreign.Line(key)+"["+strings.Join(conditions, " ")+"]")
	}
	return texts, true
}

func cut(s string) string {
	if len(s) <= readBytes {
		return s
	}
	return strings.ToValidUTF8(s[:readBytes], "") + "…"
}
