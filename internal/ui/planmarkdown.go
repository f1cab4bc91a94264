package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// writeMarkdown prints a plan as a comment on a pull request.
func writeMarkdown(p *page, plan cluster.Plan) {
	p.line("### recast plan of %s: %s", escape(plan.Cluster), summary(plan))
	nodes := slices.DeleteFunc(slices.Clone(plan.Nodes), func(n cluster.NodePlan) bool { return !acts(n) && n.Paused == "" })
	if len(nodes) > 0 {
		p.line("")
		p.line("| node | role | now → then | strategy | why | outage |")
		p.line("|---|---|---|---|---|---|")
	}
	for _, n := range nodes {
		p.line("| %s |", strings.Join(rowOf(n), " | "))
	}
	batches(p, plan)
	before(p, plan)
	list(p, "Refused", nodes, func(n cluster.NodePlan) []string { return n.Refused })
	list(p, "Will be lost", nodes, func(n cluster.NodePlan) []string {
		var out []string
		for _, text := range n.WillLose {
			out = append(out, strings.TrimSuffix(text, " will be lost"))
		}
		return out
	})
	list(p, "Carried over", nodes, func(n cluster.NodePlan) []string {
		var out []string
		for _, d := range n.Carried {
			out = append(out, drawDisk(d))
		}
		return out
	})
	list(p, "Freed at the end", nodes, func(n cluster.NodePlan) []string {
		var out []string
		for _, f := range n.Frees {
			out = append(out, drawFree(f))
		}
		return out
	})
	list(p, "Notes", nodes, func(n cluster.NodePlan) []string { return n.Notes })
	if len(plan.Warn)+len(plan.Kubernetes) > 0 {
		p.line("")
		p.line("**Warnings**")
		p.line("")
		for _, text := range slices.Concat(plan.Warn, plan.Kubernetes) {
			p.line("- %s", escape(text))
		}
	}
	if plan.ID != "" {
		p.line("")
		p.line("Plan `%s`", plan.ID)
	}
}

func summary(plan cluster.Plan) string {
	work, refused := len(plan.Work()), 0
	for _, n := range plan.Nodes {
		if len(n.Refused) > 0 {
			refused++
		}
	}
	total := counted(len(plan.Nodes), "node")
	switch {
	case refused > 0:
		return fmt.Sprintf("%d of %s refused", refused, total)
	case work == 0:
		return "nothing to do"
	}
	return fmt.Sprintf("%d of %s, about %s in all", work, total, minutes(time.Duration(plan.TotalSeconds)*time.Second))
}

// rowOf is what the table says of one node, escaped.
func rowOf(n cluster.NodePlan) []string {
	var changes []string
	for _, r := range n.Drift.Reasons {
		changes = append(changes, escape(r.Text))
	}
	what, away := escape(string(n.Strategy)), minutes(outage(n))
	switch {
	case len(n.Refused) > 0:
		what, away = "**refused**", "–"
	case n.Strategy == "":
		what, away = "paused", "–"
	case n.OutageFrom != "":
		away += " (" + escape(n.OutageFrom) + ")"
	}
	why := strings.TrimPrefix(strings.TrimPrefix(n.Why, "paused: "), string(n.Strategy)+": ")
	return []string{escape(n.Node), escape(n.Role), strings.Join(changes, "<br>"), what, escape(why), away}
}

// batches says in which order the nodes go.
func batches(p *page, plan cluster.Plan) {
	if len(plan.Work()) < 2 || len(plan.Batches) == 0 {
		return
	}
	p.line("")
	for i, b := range plan.Batches {
		text := fmt.Sprintf("%d. %s", i+1, strings.ReplaceAll(string(b.Phase), "-", " "))
		if b.Beside {
			text += " beside them"
		}
		var names []string
		for _, name := range b.Nodes {
			names = append(names, escape(name))
		}
		p.line("%s, %d at a time: %s", text, b.Limit, strings.Join(names, ", "))
	}
}

// before says which VMs go and are made before any node is touched.
func before(p *page, plan cluster.Plan) {
	if len(plan.Scratch)+len(plan.Trials) == 0 {
		return
	}
	p.line("")
	p.line("**Before any node goes**")
	p.line("")
	for _, l := range plan.Scratch {
		p.line("- delete %s", escape(l.String()))
	}
	for _, t := range plan.Trials {
		p.line("- rehearse: %s", escape(t.String()))
	}
}

// list prints what there is to say of nodes under one heading; nothing where there is nothing.
func list(p *page, heading string, nodes []cluster.NodePlan, of func(cluster.NodePlan) []string) {
	var lines []string
	for _, n := range nodes {
		for _, text := range of(n) {
			lines = append(lines, fmt.Sprintf("- %s: %s", escape(n.Node), escape(text)))
		}
	}
	if len(lines) == 0 {
		return
	}
	p.line("")
	p.line("**%s**", heading)
	p.line("")
	for _, line := range lines {
		p.line("%s", line)
	}
}

// markdown is what would be more than text in a comment: markup, HTML, and what
// a forge makes links of (@somebody, #12).
var markdown = strings.NewReplacer(
	"\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "|", "\\|", "~", "\\~", "!", "\\!",
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "&#64;", "#", "&#35;",
)

// escape makes one line of plain text of what somebody else may have written.
func escape(s string) string { return markdown.Replace(strings.Join(strings.Fields(s), " ")) }
