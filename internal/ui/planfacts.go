package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
)

// The labels of facts. All formats for people have the same facts.
const (
	factDiffers  = "" // from recast.lock; not printed
	factWhy      = "why"
	factStale    = "stale"
	factOnly     = "not changed by a roll"
	factUnread   = "unread"
	factRefused  = "refused"
	factLost     = "will be lost"
	factNote     = "note"
	factFile     = "its file changes"
	factCarried  = "carried over"
	factBack     = "comes back"
	factParked   = "stays parked"
	factSystem   = "system disk"
	factRenewed  = "Proxmox regenerates"
	factFrees    = "frees"
	talosIgnores = "; Talos ignores them"
)

// factsOf lists the facts of a node: why it is stale and why it gets its strategy, then what
// that costs, then what happens to its disks.
func factsOf(n planning.NodePlan) []Fact {
	var out []Fact
	add := func(label string, texts ...string) {
		for _, text := range texts {
			out = append(out, Fact{label, text})
		}
	}
	for _, r := range n.Drift.Reasons {
		if n.Strategy.From() == cluster.Nowhere {
			break // the same as why
		}
		if r.Code == kubernetesVersion || n.Strategy == "" && n.Paused == "" && len(n.Refused) == 0 {
			add(factOnly, foreign.Line(r.Text))
			continue
		}
		add(factStale, foreign.Line(r.Text))
	}
	add(factUnread, unreadOf(n)...)
	if why := strings.TrimPrefix(n.Why, string(n.Strategy)+": "); why != "" && acts(n) {
		add(factWhy, why)
	}
	add(factRefused, n.Refused...)
	for _, text := range n.WillLose {
		add(factLost, strings.TrimSuffix(text, " will be lost"))
	}
	out = append(out, fileFacts(n)...)
	add(factNote, n.Notes...)
	if len(n.Refused) == 0 {
		out = append(out, diskFacts(n)...)
	}
	return out
}

// unreadOf returns unread parts only for nodes that are checked again later: for others, no
// plan could be made.
func unreadOf(n planning.NodePlan) []string {
	if acts(n) {
		return nil
	}
	return n.Drift.Unread
}

func diskFacts(n planning.NodePlan) []Fact {
	var out []Fact
	carried := factCarried
	switch {
	case n.Strategy.From() == cluster.Halfway:
		carried = factBack
	case n.Strategy.VM() == cluster.VMGone:
		carried = factParked
		if n.Phase == planning.SurgeEnd {
			carried = factFrees
		}
	}
	for _, d := range n.Carried {
		out = append(out, Fact{carried, drawDisk(d)})
	}
	if what := n.Strategy.Words().System; n.System != nil && what != "" {
		if n.System.NewSize != "" {
			what += fmt.Sprintf(" (%s → %s)", n.System.Size, n.System.NewSize)
		}
		out = append(out, Fact{factSystem, drawDisk(*n.System) + ": " + what})
	}
	if len(n.Renewed) > 0 {
		out = append(out, Fact{factRenewed, strings.Join(n.Renewed, ", ") + talosIgnores})
	}
	for _, f := range n.Frees {
		out = append(out, Fact{factFrees, drawFree(f)})
	}
	return out
}

// sharedFacts takes the facts that all of several nodes have from the nodes: they are printed once.
func sharedFacts(nodes []NodeWords) []Fact {
	if len(nodes) < 2 {
		return nil
	}
	common := slices.DeleteFunc(slices.Clone(nodes[0].Facts), func(f Fact) bool {
		return slices.ContainsFunc(nodes, func(n NodeWords) bool { return !slices.Contains(n.Facts, f) })
	})
	for i, n := range nodes {
		nodes[i].Facts = slices.DeleteFunc(n.Facts, func(f Fact) bool { return slices.Contains(common, f) })
	}
	return common
}

func drawDisk(d planning.DiskPlan) string {
	parts := []string{d.Key}
	switch {
	case d.Volid == "":
		parts = append(parts, d.Where)
	case d.Where != "":
		parts = append(parts, d.Volid+", now "+d.Where)
	default:
		parts = append(parts, d.Volid)
	}
	if d.Size != "" {
		parts = append(parts, d.Size)
	}
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

// drawFree describes an old system disk that is freed at the end.
func drawFree(f parking.FreePlan) string {
	text := f.String()
	if f.Volid != "" {
		text += " (" + strings.Join(slices.DeleteFunc([]string{f.Volid, f.Size}, func(s string) bool { return s == "" }), ", ") + ")"
	}
	return text
}

// gateLines returns the gates of a plan that does something.
func gateLines(plan planning.Plan) []string {
	if !slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" }) {
		return nil
	}
	var lines []string
	for _, g := range plan.Gates {
		text := g.String()
		if text != g.About() {
			text += " (" + g.About() + ")"
		}
		if g.Objects != nil {
			text += ": " + strings.Join(strings.Fields(g.Objects.Expr), " ")
		}
		text += ", within " + minutes(time.Duration(g.TimeoutSeconds)*time.Second)
		if g.BeforeOnly {
			text += ", before only"
		}
		lines = append(lines, text)
	}
	return lines
}

const storageHeading = "storage: no node goes that has the only healthy replica of a volume; it is back once its volumes are whole"

// storageLines returns the storage systems of a plan that does something, and what they are held to.
func storageLines(plan planning.Plan) []string {
	var lines []string
	works := slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" })
	for _, s := range plan.Storage {
		if s.Held != "" {
			lines = append(lines, s.Held+": recast roll gives it back")
		}
		if !works {
			continue
		}
		var facts []string
		if s.Volumes > 0 {
			facts = append(facts, words.Counted(s.Volumes, "volume"))
		}
		if s.WaitSeconds > 0 {
			facts = append(facts, fmt.Sprintf("waits %s for a replica that is away", minutes(time.Duration(s.WaitSeconds)*time.Second)))
		}
		text := strings.TrimSuffix(s.Name+": "+strings.Join(facts, ", "), ": ")
		lines = append(lines, text)
	}
	return lines
}

// hookPoints says in words when the hooks of a point run.
var hookPoints = map[cluster.HookPoint]string{
	cluster.BeforeRun: "before the run", cluster.AfterRun: "after the run, with any result",
	cluster.BeforeBatch: "before each batch", cluster.AfterBatch: "after each batch",
	cluster.BeforeNode: "before each node", cluster.AfterNode: "when each node is back",
}

// hookLines returns the hooks of a plan that does something.
func hookLines(plan planning.Plan) []string {
	if !slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" }) {
		return nil
	}
	var lines []string
	for _, point := range cluster.HookPoints() {
		for _, h := range plan.Hooks.At(point) {
			text := hookPoints[point] + ": " + h.String()
			if h.Description != "" {
				text += " (" + h.About() + ")"
			}
			lines = append(lines, text+", within "+minutes(h.Timeout()))
		}
	}
	return lines
}
