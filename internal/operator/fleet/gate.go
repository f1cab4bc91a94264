package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/expression"
)

// exprKept bounds the cache of compiled expressions.
const exprKept = 1000

// plan is the spec of a FleetRoll, read.
type plan struct{ stages []stage }

type stage struct {
	selector labels.Selector
	gates    []gate
}

type gate struct {
	expr    string
	program cel.Program
}

// programs compiles expressions, and keeps them.
type programs struct {
	mu   sync.Mutex
	kept map[string]cel.Program
}

var gateEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.OptionalTypes(), ext.Strings(), cel.Variable("cluster", cel.DynType))
})

// plan reads the selectors and gates of a spec. The error names every field that is wrong.
func (c *programs) plan(spec v1alpha1.FleetRollSpec) (plan, error) {
	var p plan
	var problems []error
	for i, s := range spec.Stages {
		selector, err := metav1.LabelSelectorAsSelector(&s.Selector)
		if err != nil {
			problems = append(problems, fmt.Errorf("spec.stages[%d].selector: %w: use matchLabels, or matchExpressions with In, NotIn, Exists or DoesNotExist", i, err))
		}
		read := stage{selector: selector}
		for j, expr := range s.Gates {
			program, err := c.compile(expr)
			if err != nil {
				problems = append(problems, fmt.Errorf("spec.stages[%d].gates[%d]: %w: write a CEL expression that is true or false, for example cluster.status.nodes.total >= 3", i, j, err))
			}
			read.gates = append(read.gates, gate{expr, program})
		}
		p.stages = append(p.stages, read)
	}
	return p, errors.Join(problems...)
}

func (c *programs) compile(expr string) (cel.Program, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if program := c.kept[expr]; program != nil {
		return program, nil
	}
	program, _, err := expression.Program(gateEnv, expr)
	if err != nil {
		return nil, err
	}
	if c.kept == nil || len(c.kept) >= exprKept {
		c.kept = map[string]cel.Program{}
	}
	c.kept[expr] = program
	return program, nil
}

// gate says why the gate behind a stage is closed, a line for each cluster. A cluster that was
// deleted since does not close it.
func (p *pass) gate(ctx context.Context, stage string, gates []gate) []string {
	var closed []string
	for _, m := range p.fleet.Status.Members {
		c := p.clusters[m.Cluster]
		if m.Stage != stage || m.Phase != v1alpha1.MemberDone || c == nil {
			continue
		}
		if why := unchecked(c, m); why != "" {
			closed = append(closed, m.Cluster+": "+why)
			continue
		}
		for _, g := range gates {
			if why := g.closed(ctx, c); why != "" {
				closed = append(closed, fmt.Sprintf("%s: %s: %s", m.Cluster, g.expr, why))
			}
		}
	}
	return closed
}

// unchecked says why it is not known that every node of a cluster runs what its files say since
// its roll has ended.
func unchecked(c *v1alpha1.TalosCluster, m v1alpha1.Member) string {
	const exitDone, exitDrift = 0, 2
	check, nodes := c.Status.Check, c.Status.Nodes
	switch {
	case check == nil || check.Ended == nil || nodes == nil || m.Ended != nil && begun(check).Before(m.Ended):
		return "no check has ended that was begun after its roll"
	case check.ExitCode != exitDone && check.ExitCode != exitDrift:
		return strings.TrimSuffix(fmt.Sprintf("its check failed with exit code %d: %s", check.ExitCode, strings.Join(check.Problems, "; ")), ": ")
	case nodes.Stale > 0 || nodes.Unread > 0:
		return fmt.Sprintf("%d nodes stale, %d unread", nodes.Stale, nodes.Unread)
	}
	return ""
}

// begun is when a check began; when it ended, if that is all that is known.
func begun(c *v1alpha1.Check) *metav1.Time {
	if c.Started != nil {
		return c.Started
	}
	return c.Ended
}

// closed says why an expression is not true of a cluster.
func (g gate) closed(ctx context.Context, c *v1alpha1.TalosCluster) string {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	if err != nil {
		return err.Error()
	}
	object["apiVersion"], object["kind"] = v1alpha1.GroupVersion.String(), "TalosCluster"
	out, _, err := g.program.ContextEval(ctx, map[string]any{"cluster": object})
	if err != nil {
		return err.Error()
	}
	if holds, ok := out.Value().(bool); !ok {
		return fmt.Sprintf("its value is of type %s, not true or false", out.Type().TypeName())
	} else if !holds {
		return "is not true"
	}
	return ""
}
