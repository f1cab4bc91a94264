// Package expression evaluates the CEL expressions of gates on Kubernetes objects.
package expression

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
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

// Check returns what is wrong with an expression, and where.
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
