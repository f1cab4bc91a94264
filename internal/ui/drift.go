package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// WriteDrift prints the drift of every node.
func WriteDrift(w io.Writer, format string, res pipeline.DriftResult) error {
	switch format {
	case "markdown":
		return write(w, format, res, func(p *page) { driftMarkdown(p, res) })
	case "junit":
		return writeJUnit(w, res)
	}
	return write(w, format, res, func(p *page) { drawDrifts(p, res) })
}

func drawDrifts(p *page, res pipeline.DriftResult) {
	var columns table
	alike := map[string][]string{}
	for _, d := range res.Nodes {
		columns.fit(widest, driftRow(p, d))
		if plain(d) {
			alike[runs(d)] = append(alike[runs(d)], d.Node)
		}
	}
	for _, d := range res.Nodes {
		switch names := alike[runs(d)]; {
		case !plain(d) || len(names) < several:
			p.row(columns, "", driftRow(p, d)...)
			drawDrift(p, d)
		case names[0] == d.Node:
			p.wrapped(stateOf(p, d)+"  ", "    ", fmt.Sprintf("%d nodes, each of them %s: %s", len(names), runs(d), together(names)))
		}
	}
	p.wrapped("", "  ", driftSum(res))
	if more := unlisted(res); more != "" {
		p.wrapped("", "  ", more)
	}
	for _, h := range res.Held {
		drawHeld(p, h)
	}
	if res.HeldUnread != "" {
		p.wrapped(p.paint(yellow, "what is held back could not be read: "), "  ", res.HeldUnread)
	}
	p.next(hints(res.Nodes)...)
}

// plain says whether a node is in sync without notes.
func plain(d observe.Drift) bool { return !d.Stale && len(d.Unread)+len(d.Notes) == 0 }

// runs is what a node runs and what it should run.
func runs(d observe.Drift) string { return talosOf(d) + ", wanted build " + words.Short(d.Build) }

func talosOf(d observe.Drift) string {
	if d.Talos == "" {
		return "no Talos was read"
	}
	return "Talos " + foreign.Line(d.Talos)
}

func driftRow(p *page, d observe.Drift) []string {
	return []string{stateOf(p, d), d.Node, talosOf(d), "wanted build " + words.Short(d.Build)}
}

// stateWord is the state of a node: "in sync", "stale" or "unread".
func stateWord(d observe.Drift) string {
	switch {
	case len(d.Unread) > 0:
		return "unread"
	case d.Stale:
		return "stale"
	}
	return wordInSync
}

func stateOf(p *page, d observe.Drift) string {
	word := stateWord(d)
	return p.paint(stateColours[word], word)
}

func drawDrift(p *page, d observe.Drift) {
	p.wrapped("    ", "      ", each(d.Reasons, func(r cluster.Reason) string { return foreign.Line(r.Text) })...)
	p.wrapped("    "+p.paint(red, "unread:")+" ", "      ", d.Unread...)
	p.wrapped("    note: ", "      ", d.Notes...)
}

// driftSum summarizes the states of the nodes.
func driftSum(res pipeline.DriftResult) string {
	switch {
	case res.Unread > 0 && res.Stale > 0:
		return fmt.Sprintf("%d of %d nodes could not be read, %d stale%s", res.Unread, len(res.Nodes), res.Stale, tally(res.Nodes))
	case res.Unread > 0:
		return fmt.Sprintf("%d of %d nodes could not be read", res.Unread, len(res.Nodes))
	case res.Stale > 0:
		return fmt.Sprintf("%d of %d nodes are stale%s", res.Stale, len(res.Nodes), tally(res.Nodes))
	}
	text := counted(len(res.Nodes), "node") + " in sync"
	if res.HeldLeft {
		text += ", but a setting of a storage system is left changed"
	}
	return text
}

// kubernetesVersion is the code of the only reason that a roll does not fix.
const kubernetesVersion = "kubernetes-version"

// extensionFile is the code of a reason that only drift --deep finds.
const extensionFile = "extension-file"

// onlyFiles says whether a node is in sync except for its files.
func onlyFiles(d observe.Drift) bool {
	return len(d.Reasons) > 0 && !slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool {
		return r.Code != extensionFile && r.Code != kubernetesVersion
	}) && slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool { return r.Code == extensionFile })
}

// codes lists the codes of all reasons, each once per node that has it.
func codes(nodes []observe.Drift) (order []string, count map[string]int) {
	count = map[string]int{}
	for _, d := range nodes {
		var mine []string
		for _, r := range d.Reasons {
			if !slices.Contains(mine, r.Code) {
				mine = append(mine, r.Code)
			}
		}
		for _, code := range mine {
			if count[code]++; count[code] == 1 {
				order = append(order, code)
			}
		}
	}
	return order, count
}

func tally(nodes []observe.Drift) string {
	order, count := codes(nodes)
	var parts []string
	for _, code := range order {
		parts = append(parts, fmt.Sprintf("%s %d", code, count[code]))
	}
	return ": " + strings.Join(parts, ", ")
}

// unlisted says which nodes recast leaves alone, as recast.yaml does not name them; "" if there are none.
func unlisted(res pipeline.DriftResult) string {
	if len(res.Unlisted) == 0 {
		return ""
	}
	return "not in recast.yaml, so recast leaves it alone: " + together(res.Unlisted)
}

// hints returns what to run next, by the result.
func hints(nodes []observe.Drift) []string {
	var out []string
	order, _ := codes(nodes)
	if slices.ContainsFunc(nodes, func(d observe.Drift) bool { return len(d.Unread) > 0 }) {
		out = append(out, "recast doctor checks every connection to the nodes; a node that could not be read is neither stale nor in sync")
	}
	if slices.Contains(order, "unfinished") || slices.Contains(order, "cordoned") {
		out = append(out, "recast status shows what is unfinished and where every disk is")
	}
	if slices.ContainsFunc(order, func(code string) bool { return code != kubernetesVersion && code != extensionFile }) {
		out = append(out, "recast plan shows what a roll would do, recast roll does it")
	}
	if slices.ContainsFunc(nodes, onlyFiles) {
		out = append(out, "if only files differ, the labels match and a roll finds nothing to do: talosctl upgrade --image with the locked installer (recast publish --only build verifies and records it, recast drift --explain shows it) brings the locked files")
	}
	var versions []string
	for _, d := range nodes {
		for _, r := range d.Reasons {
			if r.Code == kubernetesVersion && !slices.Contains(versions, r.New) {
				versions = append(versions, r.New)
			}
		}
	}
	for _, v := range versions {
		out = append(out, "recast upgrade-k8s --to "+v+" upgrades Kubernetes; a roll never changes it")
	}
	return out
}
