package rolling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// GateAsker asks gates.
type GateAsker struct {
	Objects  cluster.ObjectJudge
	Commands cluster.CommandRunner
	Env      []string // for commands
}

// Look asks a gate once. seen says why the gate does not hold. An error of kind fault.Refused can be fixed only by
// the configuration, or by more rights.
func (a GateAsker) Look(ctx context.Context, g cluster.UserGate) (holds bool, seen string, err error) {
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
	return verdictOf(judged, *g.Objects)
}

// verdictOf says whether the gate holds. Without any object it does not hold, unless it is optional.
func verdictOf(j cluster.Judged, g cluster.ObjectGate) (holds bool, seen string, err error) {
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

// shownObjects is how many objects fit on a line.
const shownObjects = 3

// UserGates asks the gates about one node in a roll, before it goes and after it is back.
type UserGates struct {
	*Node
	Gates    []cluster.UserGate
	Objects  cluster.ObjectJudge
	Commands cluster.CommandRunner
	LeftOpen func(error) error // adds to the error of a finished node what else was not done
}

// After returns the last step of a node that is back: it asks the gates again. The node is done, whatever they say. If
// a run ends in this step, the next run asks them before it takes out another node.
func (n UserGates) After() []step.Step {
	after := n.afterwards()
	if len(after) == 0 || n.Plan.Strategy.From() == cluster.Halfway || n.StaysIn() {
		return nil
	}
	return []step.Step{{ID: "ask-gates-again", Code: fault.GateClosed, Title: "ask the gates with " + n.Plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

// Before returns the step before the final gate check: waiting is cheap while nothing was touched.
// If the node is already out, the gates can't be expected to hold.
func (n UserGates) Before() []step.Step {
	switch {
	case len(n.Gates) == 0 || n.Plan.Resume || n.Plan.OnlyTidies():
		return nil
	}
	return []step.Step{{ID: "ask-gates", Code: fault.GateClosed, Title: "ask the gates before " + n.Plan.Node + " goes", Yields: true, Do: n.awaitBefore}}
}

func (n UserGates) awaitAfter(ctx context.Context) error {
	for _, g := range n.afterwards() {
		if err := n.await(ctx, g, "ask-gates-again", "after"); err != nil {
			return n.LeftOpen(fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
				"once that holds, recast roll continues with the next node, before which it asks again"))
		}
	}
	return nil
}

func (n UserGates) awaitBefore(ctx context.Context) error {
	for _, g := range n.Gates {
		err := n.await(ctx, g, "ask-gates", "before")
		if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
			err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once that holds, run the same command again; recast doctor shows how the gates stand", n.Plan.Node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits until one gate holds. Before the node goes, an error that only a new configuration can fix ends the wait
// at once. Afterwards it does not: an API that has just come back may not serve every kind yet.
func (n UserGates) await(ctx context.Context, g cluster.UserGate, id, when string) error {
	ask := GateAsker{Objects: n.Objects, Commands: n.Commands, Env: []string{
		"RECAST_CLUSTER=" + n.Cluster, "RECAST_RUN=" + n.Run, "RECAST_NODE=" + n.Plan.Node,
		"RECAST_STRATEGY=" + string(n.Plan.Strategy), "RECAST_WHEN=" + when,
	}}
	name := fmt.Sprintf("gate %q", g.String())
	if g.Command != nil {
		n.Tell(id, name+": running "+g.Command.Args[0]) // it may take long
	}
	return n.Wait(ctx, id, name, g.Timeout(), func(ctx context.Context) (bool, string, error) {
		holds, seen, err := ask.Look(ctx, g)
		cut := ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) // an error of the command itself says more
		if cut || when == "before" && fault.KindOf(err) == fault.Refused {
			err = wait.Stop(err)
		}
		return holds, seen, err
	})
}

func (n UserGates) afterwards() []cluster.UserGate {
	return cluster.Where(n.Gates, func(g cluster.UserGate) bool { return !g.BeforeOnly })
}
