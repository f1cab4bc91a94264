package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// WritePlan prints what a roll would do.
func WritePlan(w io.Writer, format string, plan cluster.Plan) error {
	if format == "markdown" {
		return write(w, format, plan, func(p *page) { writeMarkdown(p, plan) })
	}
	return write(w, format, plan, func(p *page) {
		rest := plan.Nodes
		drawRehearsal(p, plan)
		for _, phase := range phases(plan) {
			nodes := ofPhase(plan, phase)
			p.line("%s", p.paint(bold, heading(plan, phase, len(nodes))))
			for _, n := range nodes {
				drawNode(p, n)
			}
			p.line("")
		}
		rest = slices.DeleteFunc(slices.Clone(rest), acts)
		for _, n := range rest {
			drawIdle(p, n)
		}
		if len(rest) > 0 {
			p.line("")
		}
		drawGates(p, plan)
		drawHooks(p, plan)
		for _, text := range plan.Warn {
			p.wrapped(p.paint(yellow, "warning: "), "  ", text)
		}
		for _, text := range plan.Kubernetes {
			p.wrapped("beside this: ", "  ", text)
		}
		drawSum(p, plan)
	})
}

// drawRehearsal says which VMs go and are made before any node is touched.
func drawRehearsal(p *page, plan cluster.Plan) {
	if len(plan.Scratch)+len(plan.Trials) == 0 {
		return
	}
	p.line("%s", p.paint(bold, "before any node goes"))
	for _, l := range plan.Scratch {
		p.wrapped("  "+p.paint(red, "delete")+"  ", "      ", l.String())
	}
	for _, t := range plan.Trials {
		p.wrapped("  "+p.paint(yellow, "rehearse")+"  ", "      ", t.String())
	}
	p.line("")
}

// acts says whether the plan has anything to say about a node but that it stays.
func acts(n cluster.NodePlan) bool { return n.Strategy != "" || len(n.Refused) > 0 }

// phases lists the phases of a plan that have something to do, in order.
func phases(plan cluster.Plan) []cluster.Phase {
	var out []cluster.Phase
	for _, n := range plan.Nodes {
		if acts(n) && !slices.Contains(out, n.Phase) {
			out = append(out, n.Phase)
		}
	}
	return out
}

func ofPhase(plan cluster.Plan, phase cluster.Phase) []cluster.NodePlan {
	return slices.DeleteFunc(slices.Clone(plan.Nodes), func(n cluster.NodePlan) bool { return !acts(n) || n.Phase != phase })
}

func heading(plan cluster.Plan, phase cluster.Phase, nodes int) string {
	switch phase {
	case cluster.Unfinished:
		if plan.Run == "" {
			return "first: left cordoned by an earlier run"
		}
		return "finish first: left by run " + plan.Run
	case cluster.Canary:
		return "canary: one node first, since none runs the new build yet"
	case cluster.ControlPlanes:
		return fmt.Sprintf("control planes: %d, one at a time", nodes) + beside(plan, phase)
	}
	text := fmt.Sprintf("workers: %d, at most %d at a time and %d per Proxmox host", nodes, max(1, plan.MaxUnavailable), max(1, plan.PerHost))
	return text + beside(plan, phase)
}

// beside says of a batch that it does not wait for the one before it.
func beside(plan cluster.Plan, phase cluster.Phase) string {
	i := slices.IndexFunc(plan.Batches, func(b cluster.Batch) bool { return b.Phase == phase })
	if i < 1 || !plan.Batches[i].Beside {
		return ""
	}
	return fmt.Sprintf(", beside the %s", strings.ReplaceAll(string(plan.Batches[i-1].Phase), "-", " "))
}

func drawNode(p *page, n cluster.NodePlan) {
	what := p.paint(yellow, string(n.Strategy))
	away := ", away for about " + minutes(outage(n))
	if n.OutageFrom != "" && n.OutageFrom != "assumed" {
		away += ", as in " + n.OutageFrom
	}
	if len(n.Refused) > 0 {
		what, away = p.paint(red, "refused"), ""
	}
	if n.OutageSeconds == 0 {
		away = ""
	}
	vm := fmt.Sprintf("VM %d on %s", n.VMID, n.Host)
	if n.VMID == 0 {
		vm = "no VM that can be read"
	}
	p.line("  %s  %s (%s, %s)%s", what, n.Node, n.Role, vm, away)
	detail := func(label, text string) { p.wrapped("      "+label, "        ", text) }
	if why := strings.TrimPrefix(n.Why, string(n.Strategy)+": "); why != "" {
		detail("why: ", reasons(why))
	}
	for _, r := range n.Drift.Reasons {
		if r.Code == kubernetesVersion {
			detail("no roll changes it: ", r.Text)
			continue
		}
		detail("stale: ", r.Text)
	}
	for _, r := range n.Refused {
		detail(p.paint(red, "refused: "), r)
	}
	for _, text := range n.Notes {
		detail("note: ", text)
	}
	if len(n.Refused) > 0 {
		return
	}
	carried := "carried over: "
	if n.Strategy == cluster.PutBack {
		carried = "comes back: "
	}
	for _, d := range n.Carried {
		detail(carried, drawDisk(d))
	}
	if what := fateOfSystem(n.Strategy); n.System != nil && what != "" {
		if n.System.NewSize != "" {
			what += fmt.Sprintf(" (%s → %s)", n.System.Size, n.System.NewSize)
		}
		detail("system disk: ", drawDisk(*n.System)+": "+what)
	}
	if len(n.Renewed) > 0 {
		detail("Proxmox gives anew: ", strings.Join(n.Renewed, ", ")+"; Talos looks at none of it")
	}
	for _, f := range n.Frees {
		detail("frees: ", drawFree(f))
	}
	for _, text := range n.WillLose {
		detail("", p.paint(red, "will be lost: "+strings.TrimSuffix(text, " will be lost")))
	}
}

// fateOfSystem says what becomes of the present system disk; "" if it stays.
func fateOfSystem(s cluster.Strategy) string {
	switch s {
	case cluster.Recreate, cluster.Reimage:
		return "parked and replaced by a blank one"
	case cluster.Rollback:
		return "parked; the one that the node had before comes back"
	case cluster.PutBack:
		return "comes back; the new one is freed"
	}
	return ""
}

// drawIdle is one line for a node that stays as it is.
func drawIdle(p *page, n cluster.NodePlan) {
	state := p.paint(green, "in sync")
	switch {
	case n.Paused != "":
		state = p.paint(yellow, "paused")
	case len(n.Drift.Unread) > 0:
		state = p.paint(yellow, "later")
	case n.Drift.Stale:
		state = p.paint(yellow, "stays")
	}
	p.line("%s  %s: %s", state, n.Node, strings.TrimPrefix(n.Why, "paused: "))
	for _, u := range n.Drift.Unread {
		p.wrapped("      unread: ", "        ", u)
	}
	for _, r := range n.Drift.Reasons {
		label := "no roll changes it: "
		if n.Paused != "" {
			label = "stale: "
		}
		p.wrapped("      "+label, "        ", r.Text)
	}
}

func drawSum(p *page, plan cluster.Plan) {
	refused := 0
	var order []cluster.Strategy
	count := map[cluster.Strategy]int{}
	for _, n := range plan.Nodes {
		switch {
		case len(n.Refused) > 0:
			refused++
		case n.Strategy != "":
			if count[n.Strategy]++; count[n.Strategy] == 1 {
				order = append(order, n.Strategy)
			}
		}
	}
	var parts []string
	for _, s := range order {
		parts = append(parts, fmt.Sprintf("%d %s", count[s], s))
	}
	work := strings.Join(parts, ", ")
	switch {
	case refused > 0:
		p.line("%s%s: a roll refuses until every reason is gone", then(work, "; "), p.paint(red, fmt.Sprintf("%d refused", refused)))
	case work == "":
		p.line("%s: nothing to do", counted(len(plan.Nodes), "node"))
	default:
		p.line("%s: %d of %d nodes, about %s in all", work, len(plan.Work()), len(plan.Nodes), minutes(time.Duration(plan.TotalSeconds)*time.Second))
		if _, first := plan.Unfinished(); first {
			p.line("What was left unfinished comes first, by itself; recast roll plans the rest anew after it.")
		}
	}
}

func then(s, separator string) string {
	if s == "" {
		return ""
	}
	return s + separator
}

func outage(n cluster.NodePlan) time.Duration { return time.Duration(n.OutageSeconds) * time.Second }

// minutes rounds an estimate to what it is worth.
func minutes(d time.Duration) string {
	if d < time.Minute {
		return d.Round(time.Second).String()
	}
	d = d.Round(time.Minute)
	if hours := d / time.Hour; hours > 0 {
		return fmt.Sprintf("%d h %d min", hours, (d%time.Hour)/time.Minute)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

func drawDisk(d cluster.DiskPlan) string {
	parts := []string{d.Key, d.Volid}
	if d.Size != "" {
		parts = append(parts, d.Size)
	}
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

// drawFree is an old system disk that goes at the end.
func drawFree(f cluster.FreePlan) string {
	text := f.String()
	if f.Volid != "" {
		text += " (" + strings.Join(slices.DeleteFunc([]string{f.Volid, f.Size}, func(s string) bool { return s == "" }), ", ") + ")"
	}
	return text
}
