package ui

import (
	"strings"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// driftMarkdown prints drift for an issue, a chat or a job summary.
func driftMarkdown(p *page, res pipeline.DriftResult) {
	p.line("### recast drift of %s: %s", escape(res.Cluster), escape(driftSum(res)))
	p.line("")
	p.line("| node | state | Talos | wanted build | why |")
	p.line("|---|---|---|---|---|")
	var order []string
	names := map[string][]string{}
	for _, d := range res.Nodes {
		row := strings.Join(driftCells(d), " | ")
		if names[row] == nil {
			order = append(order, row)
		}
		names[row] = append(names[row], d.Node)
	}
	for _, row := range order {
		p.line("| %s | %s |", escape(together(names[row])), row)
	}
	if more := unlisted(res); more != "" {
		p.line("")
		p.line("%s", escape(more))
	}
	for _, h := range res.Held {
		p.line("")
		p.line("**held back**: %s; %s %s", escape(heldText(h)), escape(h.Next[0].Command), escape(h.Next[0].Does))
	}
	if res.HeldUnread != "" {
		p.line("")
		p.line("what is held back could not be read: %s", escape(res.HeldUnread))
	}
	if next := hints(res.Nodes); len(next) > 0 {
		bullets(p, "Next", next)
	}
}

// driftCells are the table cells of one node after its name, escaped.
func driftCells(d observe.Drift) []string {
	var why []string
	for _, r := range d.Reasons {
		why = append(why, escape(r.Text))
	}
	for _, u := range d.Unread {
		why = append(why, "unread: "+escape(u))
	}
	for _, n := range d.Notes {
		why = append(why, "note: "+escape(n))
	}
	state := stateWord(d)
	if state != wordInSync {
		state = "**" + state + "**"
	}
	return []string{state, escape(talosWord(d)), "`" + words.Short(d.Build) + "`", strings.Join(why, "<br>")}
}

func talosWord(d observe.Drift) string {
	if d.Talos == "" {
		return "–"
	}
	return d.Talos
}
