package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// Report is the result of a command that changes nodes.
type Report struct {
	pipeline.Report
	Fared
}

// WriteReport prints the result of a roll and of each node.
func WriteReport(w io.Writer, format string, rep pipeline.Report, fared Fared) error {
	place := func(n NodeFared) int { // in the plan: events of nodes that go together come in any order
		i := slices.IndexFunc(rep.Plan.Nodes, func(p planning.NodePlan) bool { return p.Node == n.Node })
		if i < 0 {
			return len(rep.Plan.Nodes)
		}
		return i
	}
	slices.SortStableFunc(fared.Nodes, func(a, b NodeFared) int { return cmp.Compare(place(a), place(b)) })
	return write(w, format, Report{rep, fared}, func(p *page) {
		took := rep.Ended.Sub(rep.Started).Round(time.Second)
		outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
		switch {
		case rep.Run == "" && rep.Outcome == "nothing to do":
			p.line("nothing to do: %s checked in %s", words.Counted(len(rep.Plan.Nodes), "node"), took)
			return
		case rep.Run == "":
			p.line("%s after %s", outcome, took)
		default:
			p.line("run %s: %s after %s", rep.Run, outcome, took)
		}
		for _, id := range rep.Resumed {
			p.line("  first finished run %s, which had not ended", id)
		}
		if fared.Snapshot != "" {
			p.line("  etcd was saved to %s", fared.Snapshot)
		}
		for _, r := range rep.Rehearsed {
			p.wrapped("  ", "      ", fmt.Sprintf("rehearsed on %s with %s, %s: %s", r.Host, r.Firmware, r.Medium, r))
		}
		for _, n := range fared.Nodes {
			drawFared(p, n, rep.Plan)
		}
		drawHooked(p, rep.Hooks)
		drawAfterwards(p, rep.Afterwards)
		p.wrapped(p.paint(yellow, "  not notified: "), "      ", rep.Unsent...)
		if rep.Outcome != "done" && rep.Outcome != "nothing to do" {
			p.line("next: recast status shows where every disk is; recast roll continues where this one stopped")
		}
		for _, file := range rep.Pages {
			p.line("report: %s", file)
		}
	})
}

func drawFared(p *page, n NodeFared, plan planning.Plan) {
	parts := []string{fate(p, n, plan)}
	if n.AwaySeconds > 0 {
		lead := "away for "
		if cluster.Strategy(n.Strategy).From() == cluster.Nowhere {
			lead = "in "
		}
		parts = append(parts, lead+(time.Duration(n.AwaySeconds)*time.Second).String()+expected(n, plan))
	}
	if n.Kept != "" {
		parts = append(parts, n.Kept)
	}
	p.wrapped("  "+n.Node+" ", "      ", strings.Join(parts, ", "))
}

// expected is the plan's estimate of a node's outage; "" if there is none.
func expected(n NodeFared, plan planning.Plan) string {
	i := slices.IndexFunc(plan.Work(), func(w planning.NodePlan) bool { return w.Node == n.Node && string(w.Phase) == n.Phase })
	if i < 0 || plan.Work()[i].OutageFrom == "" {
		return ""
	}
	return " (" + (time.Duration(plan.Work()[i].OutageSeconds) * time.Second).String() + " expected)"
}

// fate is the result of a node's branch.
func fate(p *page, n NodeFared, plan planning.Plan) string {
	mood, gates, hooks := red, "its gates do not hold", "a hook failed"
	if n.Outcome == NodeStopped || n.Outcome == NodeNotStarted {
		mood, gates, hooks = yellow, "stopped while its gates were checked", "stopped while its hooks ran"
	}
	switch {
	case n.Gates == "before":
		return p.paint(mood, "not touched: "+gates)
	case n.Gates == "after":
		return achieved(n, plan) + ", " + p.paint(mood, gates)
	case n.Hooks == "before" && n.Phase == string(planning.Unfinished):
		return p.paint(mood, "as it was left: "+hooks)
	case n.Hooks == "before":
		return p.paint(mood, "not touched: "+hooks)
	case n.Hooks == "after":
		return achieved(n, plan) + ", " + p.paint(mood, hooks)
	case n.Outcome == NodeDone:
		return achieved(n, plan)
	case n.Outcome == NodeNotNeeded:
		return "nothing was left to do: " + n.Now
	}
	return p.paint(mood, n.Strategy+" "+string(n.Outcome))
}

// achieved includes the build if the plan has it: not for unfinished nodes of an earlier
// run, which are finished with that run's build.
func achieved(n NodeFared, plan planning.Plan) string {
	text := cluster.Strategy(n.Strategy).Words().Done
	i := slices.IndexFunc(plan.Work(), func(w planning.NodePlan) bool { return w.Node == n.Node })
	if i < 0 || n.Phase == string(planning.Unfinished) {
		return text
	}
	switch w := plan.Work()[i]; {
	case w.Strategy.Replaces():
		disks := map[bool]string{true: "disk", false: "disks"}[len(w.Carried) == 1]
		return fmt.Sprintf("%s as build %s, %d %s carried over", text, words.Short(w.Drift.Build), len(w.Carried), disks)
	case w.Strategy.Upgrades():
		return fmt.Sprintf("%s to build %s", text, words.Short(w.Drift.Build))
	}
	return text
}

// drawHooked prints the number of hooks that ran, and the failures.
func drawHooked(p *page, hooks []planning.HookRun) {
	if len(hooks) == 0 {
		return
	}
	var took float64
	for _, h := range hooks {
		took += h.Seconds
	}
	p.line("  %s ran, for %s in all", words.Counted(len(hooks), "hook"), time.Duration(took*float64(time.Second)).Round(time.Second))
	for _, h := range hooks {
		if h.Error == "" {
			continue
		}
		what := string(h.Point)
		if h.Node != "" {
			what += " of " + h.Node
		} else if h.Batch != "" {
			what += " of " + string(h.Batch)
		}
		p.wrapped(p.paint(red, "  hook failed: "), "      ", what+": "+h.Error)
	}
}

// Trouble describes a failed command.
type Trouble struct {
	Err  error
	Safe string // what is safe, if the error itself does not say it
	// Runbook returns how to read the page of a code: command and URL.
	Runbook func(fault.Code) string
}

// WriteTrouble prints what happened, what is safe, what to type next, and where to read
// more.
func WriteTrouble(w io.Writer, t Trouble) error {
	p := newPage(w)
	p.lines(p.paint(red, "error:") + " " + t.Err.Error())
	safe := fault.Safe(t.Err)
	if len(safe) == 0 && t.Safe != "" {
		safe = []string{t.Safe}
	}
	p.wrapped(p.paint(green, "safe:")+" ", "  ", safe...)
	codes, hints := fault.Codes(t.Err), fault.Hints(t.Err)
	if len(hints) == 0 {
		hints = []string{codes[0].Next()}
	}
	for _, hint := range hints {
		p.lines(p.paint(yellow, "hint:") + " " + hint)
	}
	for _, code := range codes {
		p.line("%s %s", p.paint(dim, "runbook:"), t.Runbook(code))
	}
	return p.err
}
