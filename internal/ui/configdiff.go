package ui

import (
	"fmt"
	"io"
	"slices"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/pipeline/configs"
)

// WriteConfigDiffs prints what the configurations in talos.machineConfigs would change.
func WriteConfigDiffs(w io.Writer, format string, res configs.Diffs) error {
	return write(w, format, res, func(p *page) {
		for _, d := range res.Nodes {
			drawConfigDiff(p, d)
		}
		p.wrapped("", "  ", configSum(res))
	})
}

func drawConfigDiff(p *page, d configs.Diff) {
	state, mood := "same", green
	switch {
	case len(d.Unread) > 0:
		state, mood = "unread", red
	case len(d.Refused) > 0:
		state, mood = "refused", red
	case len(d.Changes) > 0:
		state, mood = "differs", yellow
	case !d.Wanted:
		state, mood = "none", dim
	case d.New:
		state, mood = "new", yellow
	case d.Reset:
		state, mood = "reset", yellow
	}
	p.line("%s %s", p.paint(mood, fmt.Sprintf("%-7s", state)), d.Node)
	p.wrapped("    ", "      ", each(slices.Concat(d.Unread, d.Refused), foreign.Line)...)
	p.changes("    ", d.Changes)
	p.wrapped("    ", "      ", d.Notes...)
}

func configSum(res configs.Diffs) string {
	wanted := 0
	for _, d := range res.Nodes {
		if d.Wanted {
			wanted++
		}
	}
	sum := fmt.Sprintf("%d of %d configurations differ", res.Differ, wanted)
	if res.Unread > 0 {
		sum += fmt.Sprintf(", %d could not be compared", res.Unread)
	}
	if none := len(res.Nodes) - wanted; none > 0 {
		sum += fmt.Sprintf("; nodes without one in talos.machineConfigs: %d", none)
	}
	return sum
}

// mostChanges is how many changed fields of a node's file a plan shows.
const mostChanges = 8

// widestValue is how many characters of a value are shown.
const widestValue = 100

// fileFacts returns what the node's file in talos.machineConfigs changes.
func fileFacts(n planning.NodePlan) []Fact {
	file := n.ConfigFile
	switch {
	case file == nil || !file.Applied:
		return nil
	case file.Uncompared != "":
		return []Fact{{factFile, "not compared with what the node runs: " + file.Uncompared}}
	}
	var out []Fact
	for i, c := range file.Changes {
		if i == mostChanges {
			out = append(out, Fact{factFile, fmt.Sprintf("… and %d more: recast plan --explain %s", len(file.Changes)-i, n.Node)})
			break
		}
		out = append(out, Fact{factFile, drawChange(c)})
	}
	return out
}

// drawChange is one line about a field that differs between a file and the running configuration.
func drawChange(c config.Change) string {
	where := c.Document
	if c.Path != "" {
		where += " " + c.Path
	}
	switch {
	case c.Path == "":
		return where + ": the document is " + string(c.Kind)
	case c.Kind == config.Added:
		return where + ": added: " + cut(c.Wanted)
	case c.Kind == config.Removed:
		return where + ": removed: " + cut(c.Found)
	case c.Kind == config.Reordered:
		return where + ": in another order: " + cut(c.Found) + " → " + cut(c.Wanted)
	case c.Found == c.Wanted: // the difference is not shown
		return where + ": changed: " + cut(c.Found)
	}
	return where + ": " + cut(c.Found) + " → " + cut(c.Wanted)
}

// changes lists fields that differ, each in one line.
func (p *page) changes(indent string, list []config.Change) {
	p.wrapped(indent, indent+"  ", each(list, func(c config.Change) string { return foreign.Line(drawChange(c)) })...)
}

// cut shortens a value; recast plan -o json has the whole value.
func cut(text string) string {
	if r := []rune(text); len(r) > widestValue {
		return string(r[:widestValue]) + "…"
	}
	return text
}

// drawFile lists everything that a node's file changes, or would change.
func drawFile(p *page, n planning.NodePlan) {
	if n.ConfigFile == nil || len(n.ConfigFile.Changes) == 0 {
		return
	}
	heading := "what its file in talos.machineConfigs changes"
	if !n.ConfigFile.Applied {
		heading = "how its file in talos.machineConfigs differs; it is not applied"
	}
	p.heading(heading)
	p.changes("  ", n.ConfigFile.Changes)
	p.line("")
}

// reconfigured returns the nodes whose files change their configuration.
func reconfigured(plan planning.Plan) []string {
	var names []string
	for _, n := range plan.Nodes {
		if f := n.ConfigFile; f != nil && f.Applied && len(f.Changes) > 0 && len(n.Refused) == 0 {
			names = append(names, n.Node)
		}
	}
	return names
}
