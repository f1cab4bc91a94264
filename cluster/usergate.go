package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// UserGate is a condition of the user's own. It has to hold before a node is
// taken out, and again after it is back, before the next one goes. It is about
// objects or about a command.
type UserGate struct {
	Description    string       `json:"description,omitempty"`
	BeforeOnly     bool         `json:"beforeOnly,omitempty"` // not asked after the node is back
	TimeoutSeconds int          `json:"timeoutSeconds"`       // that it may take to hold, each time
	Objects        *ObjectGate  `json:"objects,omitempty"`
	Command        *CommandGate `json:"command,omitempty"`
}

// ObjectGate is an expression that has to be true of every object selected.
type ObjectGate struct {
	APIVersion string `json:"apiVersion"` // "ceph.rook.io/v1"
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"` // "": all
	Name       string `json:"name,omitempty"`      // "": all
	Labels     string `json:"labels,omitempty"`    // selector as the Kubernetes API takes it
	Expr       string `json:"expr"`
	Optional   bool   `json:"optional,omitempty"` // holds without any such object, or kind
}

// CommandGate is a program that has to end with 0. Hooks are such programs as well.
type CommandGate struct {
	Args []string `json:"args"`
	Dir  string   `json:"-"` // where it runs
	Env  []string `json:"-"` // names of variables that it gets of recast's environment, beside those that every program gets
}

// Judged is what a look at an ObjectGate's objects saw.
type Judged struct {
	Unserved string // why there can be no such objects: the kind is not installed; "" if it is
	Objects  int    // how many were selected
	Failing  []FailingObject
}

// FailingObject is one of which the expression is not true, or can't be told.
type FailingObject struct {
	Name string // with its namespace: "longhorn-system/pvc-1a2b"
	Why  string // what the expression reads of it: "status.robustness=degraded"; or the error of its evaluation
}

// ObjectJudge evaluates expressions on Kubernetes objects.
type ObjectJudge interface {
	Judge(ctx context.Context, g ObjectGate) (Judged, error)
}

// CommandRunner runs a program once, with env added to its environment. An error
// means that it could not be run, or not to its end.
type CommandRunner interface {
	// RunGate runs that of a gate; said is what it printed last.
	RunGate(ctx context.Context, g CommandGate, env []string) (exit int, said string, err error)
	// RunHook runs that of a hook; line is told what it prints, as it prints it.
	RunHook(ctx context.Context, g CommandGate, env []string, line func(text string)) (HookEnd, error)
}

// String names the gate: by its description, else by what it looks at.
func (g UserGate) String() string { return cmp.Or(g.Description, g.About()) }

// About is what the gate looks at.
func (g UserGate) About() string {
	if g.Command != nil {
		return g.Command.line()
	}
	o := g.Objects
	about := o.APIVersion + " " + o.Kind
	if where := strings.Trim(o.Namespace+"/"+o.Name, "/"); where != "" {
		about += " " + where
	}
	if o.Labels != "" {
		about += " with " + o.Labels
	}
	return about
}

// line is the program with its arguments on one line, a script among them too.
func (c CommandGate) line() string {
	var words []string
	for _, arg := range c.Args {
		var lines []string
		for line := range strings.Lines(arg) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		words = append(words, strings.Join(lines, "; "))
	}
	return strings.Join(words, " ")
}

func (g UserGate) timeout() time.Duration { return time.Duration(g.TimeoutSeconds) * time.Second }

// askBefore are the steps before the last look: to wait is cheap as long as
// nothing was touched. A node that is out already can't make them hold.
func (n *nodeRoll) askBefore() []step.Step {
	switch {
	case len(n.gates) == 0 || n.plan.Resume || n.plan.Strategy == Configure || n.plan.Strategy == PutBack || n.isTidied():
		return nil
	}
	return []step.Step{{ID: "ask-gates", Code: fault.GateClosed, Title: "ask the gates before " + n.plan.Node + " goes", Yields: true, Do: n.awaitBefore}}
}

// askAfter is the last step of a node that is back. The node is done by then,
// whatever they say. Where a run ends in it, the next one asks them before it
// takes out another node.
func (n *nodeRoll) askAfter() []step.Step {
	after := n.gatesAfter()
	if len(after) == 0 || n.plan.Strategy == PutBack || n.isTidied() && !n.wasCordoned() {
		return nil
	}
	return []step.Step{{ID: "ask-gates-again", Code: fault.GateClosed, Title: "ask the gates with " + n.plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

// isTidied says whether the node is only cleared up, without being taken out.
func (n *nodeRoll) isTidied() bool { return n.plan.Strategy == InPlace && n.plan.Drift.tidy() }

// wasCordoned says whether an earlier run had it out, and was cut off before the end.
func (n *nodeRoll) wasCordoned() bool {
	return slices.ContainsFunc(n.plan.Drift.Reasons, func(r Reason) bool { return r.Code == "cordoned" })
}

func (n *nodeRoll) gatesAfter() []UserGate {
	var after []UserGate
	for _, g := range n.gates {
		if !g.BeforeOnly {
			after = append(after, g)
		}
	}
	return after
}

func (n *nodeRoll) awaitBefore(ctx context.Context) error {
	for _, g := range n.gates {
		err := n.awaitGate(ctx, g, "ask-gates", "before")
		if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
			err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once that holds, run the same command again; recast doctor shows how the gates stand", n.plan.Node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *nodeRoll) awaitAfter(ctx context.Context) error {
	for _, g := range n.gatesAfter() {
		if err := n.awaitGate(ctx, g, "ask-gates-again", "after"); err != nil {
			return n.batchLeftOpen(fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.plan.Node, err),
				"once that holds, recast roll goes on with the next node, before which it asks again"))
		}
	}
	return nil
}

// awaitGate waits for one gate to hold. What only the configuration can mend
// ends the wait at once, but not after the node was out: an API that has just
// come back may not serve every kind yet.
func (n *nodeRoll) awaitGate(ctx context.Context, g UserGate, id, when string) error {
	ask := GateAsk{Objects: n.Objects, Commands: n.Commands, Env: []string{
		"RECAST_CLUSTER=" + n.Cluster, "RECAST_RUN=" + n.Run, "RECAST_NODE=" + n.plan.Node,
		"RECAST_STRATEGY=" + string(n.plan.Strategy), "RECAST_WHEN=" + when,
	}}
	name := fmt.Sprintf("gate %q", g.String())
	if g.Command != nil {
		n.say(id, name+": running "+g.Command.Args[0]) // which may take long
	}
	return n.wait(ctx, id, name, g.timeout(), func(ctx context.Context) (bool, string, error) {
		holds, seen, err := ask.Look(ctx, g)
		cut := ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) // a command knows more than that
		if cut || when == "before" && fault.KindOf(err) == fault.Refused {
			err = wait.Stop(err)
		}
		return holds, seen, err
	})
}

// GateAsk looks at gates.
type GateAsk struct {
	Objects  ObjectJudge
	Commands CommandRunner
	Env      []string // of commands
}

// Look asks a gate once. seen says what keeps it from holding. An error of kind
// fault.Refused is one that only the configuration, or more rights, can mend.
func (a GateAsk) Look(ctx context.Context, g UserGate) (holds bool, seen string, err error) {
	if g.Command != nil {
		exit, said, err := a.Commands.RunGate(ctx, *g.Command, a.Env)
		if err != nil || exit == 0 {
			return err == nil, "", err
		}
		seen = fmt.Sprintf("%s ended with %d", g.Command.Args[0], exit)
		if said != "" {
			seen += ": " + said
		}
		return false, seen, nil
	}
	judged, err := a.Objects.Judge(ctx, *g.Objects)
	if err != nil {
		return false, "", err
	}
	return judged.verdict(*g.Objects)
}

// shownObjects are as many as a line takes.
const shownObjects = 3

// verdict says whether the gate holds: of objects of which there are none nothing is known.
func (j Judged) verdict(g ObjectGate) (holds bool, seen string, err error) {
	switch {
	case j.Unserved != "" && !g.Optional:
		return false, "", fault.WithHint(fault.GateClosed.Refusedf("%s", j.Unserved), "correct apiVersion and kind in roll.gates; optional: true lets the gate hold without")
	case j.Unserved != "" || j.Objects == 0 && g.Optional:
		return true, "", nil
	case j.Objects == 0:
		return false, "there is no such object", nil
	case len(j.Failing) == 0:
		return true, "", nil
	}
	var texts []string
	for _, f := range j.Failing[:min(len(j.Failing), shownObjects)] {
		texts = append(texts, f.Name+": "+f.Why)
	}
	seen = strings.Join(texts, "; ")
	if more := len(j.Failing) - shownObjects; more > 0 {
		seen += fmt.Sprintf("; and %d more", more)
	}
	return false, fmt.Sprintf("%d of %d: %s", len(j.Failing), j.Objects, seen), nil
}
