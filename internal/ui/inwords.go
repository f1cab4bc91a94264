package ui

import (
	"slices"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// The texts of these types are those of the text output, after hide: for pages that lay
// them out in another way.

// Mood is what the colour of a text says: "good", "open", "bad", or "" without one.
type Mood string

const (
	moodGood Mood = "good"
	moodOpen Mood = "open"
	moodBad  Mood = "bad"
)

func moodOf(colour string) Mood {
	return map[string]Mood{green: moodGood, yellow: moodOpen, red: moodBad}[colour]
}

// FactWords is one thing about a node: "stale: extension …".
type FactWords struct {
	Mood        Mood
	Label, Text string
}

// NodeWords is one node.
type NodeWords struct {
	Node, State string
	Mood        Mood
	Cells       []string // the rest of its row
	Facts       []FactWords
}

// DriftWords is the drift of all nodes.
type DriftWords struct {
	Sum                   string
	InSync, Stale, Unread int
	Nodes                 []NodeWords // unread ones first, then stale ones
	Unlisted              string      // nodes that recast.yaml does not name
	Next                  []string
}

// DriftInWords returns what WriteDrift prints.
func DriftInWords(res pipeline.DriftResult, hide func(string) string) DriftWords {
	out := DriftWords{Sum: hide(driftSum(res)), Stale: res.Stale, Unread: res.Unread, Unlisted: hide(unlisted(res)), Next: each(hints(res.Nodes), hide)}
	for _, d := range res.Nodes {
		if stateWord(d) == wordInSync {
			out.InSync++
		}
		n := NodeWords{Node: d.Node, State: stateWord(d), Mood: moodOf(stateColours[stateWord(d)]), Cells: []string{hide(talosOf(d)), words.Short(d.Build)}}
		for _, r := range d.Reasons {
			n.Facts = append(n.Facts, FactWords{moodOpen, "", hide(foreign.Line(r.Text))})
		}
		for _, text := range d.Unread {
			n.Facts = append(n.Facts, FactWords{moodBad, "unread", hide(text)})
		}
		for _, text := range d.Notes {
			n.Facts = append(n.Facts, FactWords{"", "note", hide(text)})
		}
		out.Nodes = append(out.Nodes, n)
	}
	rank := func(n NodeWords) int { return slices.Index([]Mood{moodBad, moodOpen, moodGood}, n.Mood) }
	slices.SortStableFunc(out.Nodes, func(a, b NodeWords) int { return rank(a) - rank(b) })
	return out
}

// PlanWords is a plan.
type PlanWords struct {
	Before   string // the first node: rehearsals
	Phases   []PhaseWords
	Idle     []NodeWords
	Checks   string // surge, gates, storage, hooks
	Warnings string
	Sum      string
	Recreate string // what would let more nodes be recreated
	Next     []string
}

// PhaseWords are the nodes of one phase.
type PhaseWords struct {
	Heading string
	Each    []FactWords // that all of its nodes have
	Nodes   []NodeWords
}

// PlanInWords returns what WritePlan and AdvisePlan print.
func PlanInWords(plan planning.Plan, hide func(string) string) PlanWords {
	text := func(draw func(*page, planning.Plan)) string { return hide(textOf(func(p *page) { draw(p, plan) })) }
	out := PlanWords{
		Before: text(drawRehearsal), Checks: text(drawChecks), Warnings: text(drawPlanWarnings), Sum: text(drawSum),
		Recreate: text(drawPlanToRecreate), Next: each(afterPlan(plan), hide),
	}
	p := &page{} // without colours
	for _, phase := range phases(plan) {
		nodes := ofPhase(plan, phase)
		common := shared(nodes)
		group := PhaseWords{Heading: hide(heading(plan, phase, len(nodes))), Each: factWords(common, hide)}
		for _, n := range nodes {
			row := nodeRow(p, n)
			facts := slices.DeleteFunc(factsOf(n), func(f fact) bool { return slices.Contains(common, f) })
			mood := moodOpen
			if len(n.Refused) > 0 {
				mood = moodBad
			}
			group.Nodes = append(group.Nodes, NodeWords{Node: n.Node, State: row[0], Mood: mood, Cells: each(row[2:], hide), Facts: factWords(facts, hide)})
		}
		out.Phases = append(out.Phases, group)
	}
	for _, n := range plan.Nodes {
		if !acts(n) {
			node := NodeWords{Node: n.Node, State: idleState(p, n), Mood: moodOpen, Cells: []string{hide(idleWhy(n))}, Facts: factWords(factsOf(n), hide)}
			if node.State == wordInSync {
				node.Mood = moodGood
			}
			out.Idle = append(out.Idle, node)
		}
	}
	return out
}

func factWords(facts []fact, hide func(string) string) (out []FactWords) {
	for _, f := range facts {
		out = append(out, FactWords{moodOf(f.colour()), f.label, hide(f.text)})
	}
	return out
}

// StatusWords is the status of a cluster.
type StatusWords struct {
	Text   string
	Active bool // somebody holds the claim
}

// StatusInWords returns what WriteStatus prints.
func StatusInWords(res pipeline.StatusResult, hide func(string) string) StatusWords {
	return StatusWords{hide(textOf(func(p *page) { drawStatus(p, res) })), res.Claim != nil}
}

// ProvenanceWords is the chain from a lock to a running node.
type ProvenanceWords struct {
	Title   string
	Links   []LinkWords
	Summary []string
}

// LinkWords is one link of it.
type LinkWords struct {
	Certainty string
	Mood      Mood
	Name      string
	Text      string
	Details   []string
}

// ProvenanceInWords returns what WriteProvenance prints.
func ProvenanceInWords(res observe.Provenance, hide func(string) string) ProvenanceWords {
	out := ProvenanceWords{Title: hide(provenanceTitle(res)), Summary: each(res.Summary, hide)}
	for _, l := range res.Links {
		out.Links = append(out.Links, LinkWords{string(l.Certainty), moodOf(certain(l.Certainty)), l.Name, hide(foreign.Line(l.Text)), each(l.Details, hide)})
	}
	return out
}

// wordInSync is the state of a node of which nothing differs.
const wordInSync = "in sync"

// stateColours are the colours of the states of nodes.
var stateColours = map[string]string{"unread": red, "stale": yellow, wordInSync: green}
