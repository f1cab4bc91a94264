package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"

	"github.com/recast-sh/recast/internal/fault"
)

const (
	// exprCost bounds one evaluation, as the API server does for its own
	// (k8s.io/apiserver/pkg/apis/cel/config.go, PerCallLimit).
	exprCost = 1_000_000
	// exprCheck is after how many turns of a comprehension a deadline is looked at.
	exprCheck = 1000
)

// exprRoots are the variables of an expression. tuppr's health checks have the
// first two (internal/healthcheck/checker.go), so that those can be taken over.
var exprRoots = []string{"object", "status", "spec", "metadata"}

// expression is one that has been compiled.
type expression struct {
	program cel.Program
	reads   [][]string // the paths that it reads, as written: {"status", "ceph", "health"}
}

var exprEnv = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{cel.OptionalTypes(), ext.Strings()}
	for _, name := range exprRoots {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	return cel.NewEnv(options...)
})

// CheckExpr says what is wrong with an expression, and where in it.
func CheckExpr(expr string) error {
	_, err := compile(expr)
	return err
}

// compile reads an expression whose value is true or false, as far as that can
// be told before it has seen an object.
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

// holds evaluates the expression. Where it can't be, as for want of a field, err
// says why in a few words.
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

// variables are those of an expression. What an object has not is empty, so that
// only the field that is read is missing.
func variables(object map[string]any) map[string]any {
	vars := map[string]any{"object": object}
	for _, name := range exprRoots[1:] {
		section, ok := object[name].(map[string]any)
		if !ok {
			section = map[string]any{}
		}
		vars[name] = section
	}
	return vars
}

// invalid is the error of an expression that is found wrong only when it is used.
func invalid(expr string, err error) error { return fault.Configf("expression %q: %w", expr, err) }
