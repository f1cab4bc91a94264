package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
)

// largest is the maximum length of a comment on a pull request: GitHub allows 65536
// characters, and the poster may add some.
const largest = 60_000

// writeMarkdown prints a plan as a comment on a pull request. For hundreds of changed nodes
// it counts the disks instead of listing them.
func writeMarkdown(p *page, plan planning.Plan) {
	var text strings.Builder
	drawMarkdown(&page{w: &text}, plan, false)
	if text.Len() > largest {
		text.Reset()
		drawMarkdown(&page{w: &text}, plan, true)
	}
	p.lines(strings.TrimSuffix(text.String(), "\n"))
}

func drawMarkdown(p *page, plan planning.Plan, brief bool) {
	p.line("### recast plan of %s: %s", escape(plan.Cluster), summary(plan))
	rows(p, slices.DeleteFunc(slices.Clone(plan.Nodes), func(n planning.NodePlan) bool { return !acts(n) && n.Paused == "" }))
	batches(p, plan)
	before(p, plan)
	bullets(p, "Surge nodes", plan.Surge.Lines())
	for _, l := range []struct{ label, heading string }{
		{factRefused, "Refused"},
		{factLost, "Will be lost"},
		{factFile, "Changed by their files in talos.machineConfigs"},
		{factCarried, "Carried over"},
		{factBack, "Comes back"},
		{factSystem, "System disks"},
		{factFrees, "Freed at the end"},
		{factRenewed, "Proxmox regenerates"},
		{factNote, "Notes"},
	} {
		if brief && slices.Contains([]string{factCarried, factSystem, factRenewed, factFile}, l.label) {
			count(p, l.heading, plan.Nodes, l.label)
			continue
		}
		list(p, l.heading, plan.Nodes, l.label)
	}
	idle(p, plan)
	bullets(p, "Gates, checked before each node and when it is back", gateLines(plan))
	bullets(p, strings.ToUpper(storageHeading[:1])+storageHeading[1:], storageLines(plan))
	bullets(p, "Hooks (if one fails, the roll stops)", hookLines(plan))
	bullets(p, "Warnings", slices.Concat(plan.Warn, plan.Kubernetes))
	if plan.ID != "" {
		p.line("")
		p.line("Plan `%s`", plan.ID)
	}
}

func summary(plan planning.Plan) string {
	work, refused := len(plan.Work()), 0
	for _, n := range plan.Nodes {
		if len(n.Refused) > 0 {
			refused++
		}
	}
	total := words.Counted(len(plan.Nodes), "node")
	switch {
	case refused > 0:
		return fmt.Sprintf("%d of %s refused", refused, total)
	case work == 0:
		return "nothing to do"
	}
	return fmt.Sprintf("%d of %s, about %s in all", work, total, minutes(inAll(plan)))
}

// rows prints the table of nodes that have facts; nodes with the same facts share a row.
func rows(p *page, nodes []planning.NodePlan) {
	if len(nodes) == 0 {
		return
	}
	var table group
	for _, n := range nodes {
		table.add(strings.Join(rowOf(n), " | "), n.Node)
	}
	p.line("")
	tabled(p, "role | now → then | strategy | why | outage", table)
}

// tabled prints a table; nodes with the same row share it.
func tabled(p *page, titles string, rows group) {
	p.line("| node | %s |", titles)
	p.line("%s|", strings.Repeat("|---", strings.Count(titles, "|")+2))
	for _, row := range rows.texts {
		p.line("| %s | %s |", escape(together(rows.names[row])), row)
	}
}

// rowOf returns the table cells of one node after its name, escaped.
func rowOf(n planning.NodePlan) []string {
	var changes []string
	for _, r := range n.Drift.Reasons {
		text := escape(r.Text)
		if r.Code == kubernetesVersion {
			text += " (not changed by a roll)"
		}
		changes = append(changes, text)
	}
	what, away := escape(string(n.Strategy)), minutes(outage(n))
	switch {
	case len(n.Refused) > 0:
		what, away = "**refused**", "–"
	case n.Strategy == "":
		what, away = "paused", "–"
	case n.OutageSeconds == 0:
		away = "–"
	case n.OutageFrom != "":
		away += " (" + escape(n.OutageFrom) + ")"
	}
	why := strings.TrimPrefix(strings.TrimPrefix(n.Why, "paused: "), string(n.Strategy)+": ")
	return []string{escape(n.Role), strings.Join(changes, "<br>"), what, escape(why), away}
}

func batches(p *page, plan planning.Plan) {
	if len(plan.Work()) < 2 || len(plan.Batches) == 0 {
		return
	}
	p.line("")
	for i, b := range plan.Batches {
		text := fmt.Sprintf("%d. %s", i+1, strings.ReplaceAll(string(b.Phase), "-", " "))
		if b.Beside {
			text += " beside them"
		}
		p.line("%s, %d at a time: %s", text, b.Limit, escape(together(b.Nodes)))
	}
}

// before prints which VMs are deleted and created before any node is touched.
func before(p *page, plan planning.Plan) {
	lines := each(plan.Scratch, func(l planning.LeftScratch) string { return "delete " + l.String() })
	if proofs := plan.Proofs(); proofs != "" {
		lines = append(lines, "prove "+proofs)
	}
	for _, t := range plan.Trials {
		lines = append(lines, "rehearse: "+t.String())
	}
	bullets(p, "Before the first node", lines)
}

// list prints the facts of nodes with one label under a heading, if there are any.
func list(p *page, heading string, nodes []planning.NodePlan, label string) {
	var said group
	for _, n := range nodes {
		for _, f := range factsOf(n) {
			if f.Label == label {
				said.add(f.Text, n.Node)
			}
		}
	}
	bullets(p, heading, said.lines())
}

// count prints the length of a list that is too long to be shown.
func count(p *page, heading string, nodes []planning.NodePlan, label string) {
	facts, of := 0, 0
	for _, n := range nodes {
		mine := 0
		for _, f := range factsOf(n) {
			if f.Label == label {
				mine++
			}
		}
		if facts += mine; mine > 0 {
			of++
		}
	}
	if facts > 0 {
		bullets(p, heading, []string{fmt.Sprintf("%d on %s: recast plan shows each", facts, words.Counted(of, "node"))})
	}
}

// idle lists the nodes that stay as they are, except paused ones, which are in the table.
func idle(p *page, plan planning.Plan) {
	var said group
	for _, n := range plan.Nodes {
		if acts(n) || n.Paused != "" {
			continue
		}
		texts := []string{idleWhy(n)}
		for _, f := range factsOf(n) {
			if f.Label != factNote {
				texts = append(texts, f.Label+": "+f.Text)
			}
		}
		said.add(strings.Join(texts, "; "), n.Node)
	}
	bullets(p, "Stay as they are", said.lines())
}

// bullets prints a list under a heading; nothing if it is empty.
func bullets(p *page, heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.line("")
	p.line("**%s**", heading)
	p.line("")
	for _, line := range lines {
		p.line("- %s", escape(line))
	}
}

// markdown matches text with a special meaning in a comment: markup, HTML, and what a
// forge turns into links (@someone, #12).
var markdown = strings.NewReplacer(
	"\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "|", "\\|", "~", "\\~", "!", "\\!",
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "&#64;", "#", "&#35;",
)

// escape turns foreign text into one line of plain text.
func escape(s string) string {
	return markdown.Replace(strings.Join(strings.Fields(foreign.Line(s)), " "))
}
