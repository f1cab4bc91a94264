// Package expression evaluates the CEL expressions of gates on Kubernetes objects.
package expression

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"

	"github.com/recast-sh/recast/internal/foreign"
)

const (
	// exprCost limits one evaluation, as the API server limits its own expressions
	// (k8s.io/apiserver/pkg/apis/cel/config.go, PerCallLimit).
	exprCost = 1_000_000
	// exprCheck is the number of iterations between two checks of the deadline.
	exprCheck = 1000
)

// exprRoots are the variables of an expression besides "now". tuppr's health checks have the first two
// (internal/healthcheck/checker.go), so tuppr's expressions work here.
var exprRoots = []string{"object", "status", "spec", "metadata"}

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	program cel.Program
	reads   [][]string // the paths that the expression reads, as written: {"status", "ceph", "health"}
}

var exprEnv = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{cel.OptionalTypes(), ext.Strings(), cel.Variable("now", cel.TimestampType)}
	for _, name := range exprRoots {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	return cel.NewEnv(options...)
})

func Check(expr string) error {
	_, err := Compile(expr)
	return err
}

// Compile compiles an expression. If the type of its value is known without an object, the value must be true or false.
func Compile(expr string) (*Expression, error) {
	program, ast, err := Program(exprEnv, expr)
	if err != nil {
		return nil, err
	}
	return &Expression{program: program, reads: reads(ast.NativeRep().Expr())}, nil
}

// Program is like Compile, with the caller's own variables. One evaluation may cost as much as the API server allows
// its own expressions, and ends with its context.
func Program(in func() (*cel.Env, error), expr string) (cel.Program, *cel.Ast, error) {
	env, err := in()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare CEL: %w", err)
	}
	ast, issues := env.Compile(expr)
	if errs := issues.Errors(); len(errs) > 0 {
		var texts []string
		for _, e := range errs {
			message, _, _ := strings.Cut(strings.TrimSpace(e.Message), " (in container '')")
			texts = append(texts, fmt.Sprintf("%d:%d: %s", max(1, e.Location.Line()), e.Location.Column()+1, message))
		}
		return nil, nil, fmt.Errorf("not a valid expression: %s", strings.Join(texts, "; "))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, nil, fmt.Errorf("its value is of type %s, must be true or false", t)
	}
	program, err := env.Program(ast, cel.CostLimit(exprCost), cel.InterruptCheckFrequency(exprCheck))
	if err != nil {
		return nil, nil, fmt.Errorf("not a valid expression: %w", err)
	}
	return program, ast, nil
}

// Judge says whether the expression is true of an object. If it is not, why has the fields that the expression reads,
// and the error of its evaluation.
func (e *Expression) Judge(ctx context.Context, object map[string]any) (holds bool, why string) {
	holds, err := e.holds(ctx, object)
	if holds && err == nil {
		return true, ""
	}
	why = e.shows(object)
	if err != nil {
		why = strings.TrimSuffix(why+"; ", "; ")
		why = strings.TrimPrefix(why+": "+foreign.Line(err.Error()), ": ")
	}
	return false, why
}

// holds evaluates the expression. If the evaluation fails, for example for a missing field, err says why in a few
// words.
func (e *Expression) holds(ctx context.Context, object map[string]any) (bool, error) {
	out, _, err := e.program.ContextEval(ctx, variables(object))
	if err != nil {
		return false, err
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("its value is of type %s, not true or false", out.Type().TypeName())
	}
	return holds, nil
}

// variables returns an expression's variables. A section that the object lacks is empty, so that an error is about
// the missing field only.
func variables(object map[string]any) map[string]any {
	vars := map[string]any{"object": object, "now": time.Now()}
	for _, name := range exprRoots[1:] {
		section, ok := object[name].(map[string]any)
		if !ok {
			section = map[string]any{}
		}
		vars[name] = section
	}
	return vars
}

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
