package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"

	"github.com/recast-sh/recast/internal/fault"
)

const (
	// exprCost bounds one evaluation, as the API server does for its own
	// (k8s.io/apiserver/pkg/apis/cel/config.go, PerCallLimit).
	exprCost = 1_000_000
	// exprCheck is the number of iterations between two checks of the deadline.
	exprCheck = 1000
)

// exprRoots are the variables of an expression besides "now". tuppr's health checks
// have the first two (internal/healthcheck/checker.go), so that they work here.
var exprRoots = []string{"object", "status", "spec", "metadata"}

// expression is a compiled expression.
type expression struct {
	program cel.Program
	reads   [][]string // the paths that it reads, as written: {"status", "ceph", "health"}
}

var exprEnv = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{cel.OptionalTypes(), ext.Strings(), cel.Variable("now", cel.TimestampType)}
	for _, name := range exprRoots {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	return cel.NewEnv(options...)
})

// CheckExpr returns what is wrong with an expression, and where.
func CheckExpr(expr string) error {
	_, err := compile(expr)
	return err
}

// compile compiles an expression. Its value must be true or false, as far as that is
// known without an object.
func compile(expr string) (*expression, error) {
	env, err := exprEnv()
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	ast, issues := env.Compile(expr)
	if errs := issues.Errors(); len(errs) > 0 {
		var texts []string
		for _, e := range errs {
			message, _, _ := strings.Cut(strings.TrimSpace(e.Message), " (in container '')")
			texts = append(texts, fmt.Sprintf("%d:%d: %s", max(1, e.Location.Line()), e.Location.Column()+1, message))
		}
		return nil, fmt.Errorf("not a valid expression: %s", strings.Join(texts, "; "))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("its value is of type %s, must be true or false", t)
	}
	program, err := env.Program(ast, cel.CostLimit(exprCost), cel.InterruptCheckFrequency(exprCheck))
	if err != nil {
		return nil, fmt.Errorf("not a valid expression: %w", err)
	}
	return &expression{program: program, reads: reads(ast.NativeRep().Expr())}, nil
}

// holds evaluates the expression. If that fails, for example for a missing field,
// err says why in a few words.
func (e *expression) holds(ctx context.Context, object map[string]any) (bool, error) {
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

// variables returns an expression's variables. Sections that the object lacks are
// empty, so that an error is about the field only.
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

// invalid is the error for an expression that turns out to be wrong only in use.
func invalid(expr string, err error) error { return fault.Configf("expression %q: %w", expr, err) }
