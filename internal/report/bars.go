package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/story"
)

// wide is the width of drawings in their own units; they scale to the page.
const wide = 1000

type axis struct {
	From, Middle, To time.Time
}

func newAxis(from, to time.Time) axis {
	if !to.After(from) {
		to = from.Add(time.Second)
	}
	return axis{from, from.Add(to.Sub(from) / 2), to}
}

func (a axis) x(t time.Time) float64 {
	at := wide * float64(t.Sub(a.From)) / float64(a.To.Sub(a.From))
	return float64(int(min(max(at, 0), wide)*10)) / 10
}

type bar struct {
	X, W  float64
	Kind  string
	Label string
}

// thinnest is the minimum width of a bar, so that it is visible.
const thinnest = 2

func (a axis) bar(from, to time.Time, kind, label string) bar {
	b := bar{X: a.x(from), Kind: kind, Label: label + " " + took(to.Sub(from))}
	b.W = max(thinnest, float64(int((a.x(to)-b.X)*10))/10)
	b.X = min(b.X, wide-b.W)
	return b
}

// row is one node in the drawing of the run.
type row struct {
	Node, Mood, Text string
	Bars             []bar
}

func (r row) Label() string { return r.Node + ": " + r.Text }

// rows returns the nodes in the order of their turns, each with its turns and outages.
func (v view) rows() []row {
	var rows []row
	by := map[string]int{}
	find := func(node string) *row {
		i, known := by[node]
		if !known {
			i = len(rows)
			rows, by[node] = append(rows, row{Node: node}), i
		}
		return &rows[i]
	}
	fates := map[string]string{}
	for _, t := range v.Story.Turns {
		if t.Began.IsZero() {
			continue // it had no turn
		}
		r := find(t.Node)
		r.Mood, fates[t.Node] = moodOf(t.Status), t.Fate(v.Past.Result)
		kind := "turn"
		switch t.Status {
		case "not started":
			continue
		case "failed":
			kind = "failed"
		}
		r.Bars = append(r.Bars, v.Axis.bar(t.Began, t.Until(), kind, t.Strategy()))
	}
	for _, o := range v.Story.Outages() {
		r := find(o.Node)
		r.Bars = append(r.Bars, v.Axis.bar(o.From, o.To, "away", "away"))
		text := "away " + seconds(o.Seconds())
		if o.Open {
			text += ", not seen back"
		}
		r.Text = strings.TrimPrefix(r.Text+", "+text, ", ")
	}
	for _, t := range v.Story.Turns { // over the outage, which would hide it
		if t.Status == "failed" {
			r := find(t.Node)
			end := v.Axis.bar(t.Until(), t.Until(), "failed", t.Strategy()+" failed")
			end.X, end.W = min(end.X, wide-3*thinnest), 3*thinnest
			r.Bars = append(r.Bars, end)
		}
	}
	for i, r := range rows {
		rows[i].Text = cmp.Or(r.Text, "not away")
		if fate := fates[r.Node]; moodOf(fate) != "good" {
			rows[i].Text = fate + "; " + rows[i].Text
		}
	}
	return rows
}

func moodOf(status string) string {
	switch status {
	case "done", "skipped":
		return "good"
	case "failed":
		return "bad"
	}
	return "open"
}

type card struct {
	ID, Node, Title, Mood, Status, Away, Expected string
	Took, Text                                    string
	Began, Ended                                  time.Time
	Bars                                          []bar
	Stages                                        []stage
}

// Label is the drawing in words.
func (c card) Label() string {
	var parts []string
	for _, s := range c.Stages {
		if s.Shown {
			parts = append(parts, s.Name+" "+s.Took)
		}
	}
	return c.Node + ": " + strings.Join(parts, ", ")
}

type stage struct {
	*story.Stage
	Kind, Took, Ends string
	Shown            bool // it has a bar
}

func (v view) cards() []card {
	var cards []card
	for i, t := range v.Story.Turns {
		if t.Began.IsZero() {
			continue
		}
		c := card{
			ID: fmt.Sprintf("turn-%d", i+1), Node: t.Node, Title: t.Title, Mood: moodOf(t.Status), Status: t.Fate(v.Past.Result),
			Began: t.Began, Ended: t.Until(), Took: took(t.Until().Sub(t.Began)), Text: t.Text,
		}
		if !t.AwayFrom.IsZero() {
			c.Away = "away for " + took(cmp.Or(t.AwayTo, t.Until()).Sub(t.AwayFrom))
			if t.AwayTo.IsZero() {
				c.Away += ", and not seen back by then"
			}
			c.Expected = v.expected(t)
		}
		c.Stages, c.Bars = v.stages(t)
		cards = append(cards, c)
	}
	return cards
}

// expected is the plan's estimate of an outage; "" if there is none.
func (v view) expected(t *story.Turn) string {
	if v.Past.Plan == nil {
		return ""
	}
	for _, n := range v.Past.Plan.Work() {
		if n.Node == t.Node && string(n.Phase) == t.Phase && n.OutageFrom != "" {
			return seconds(n.OutageSeconds) + " expected"
		}
	}
	return ""
}

func (v view) stages(t *story.Turn) (stages []stage, bars []bar) {
	a := newAxis(t.Began, t.Until())
	for _, s := range t.Stages {
		end := cmp.Or(s.Ended, t.Until())
		g := stage{Stage: s, Kind: kindOf(s), Took: took(end.Sub(s.Began)), Ends: s.Fate(v.Past.Result)}
		g.Shown = s.Status != "skipped" && s.Status != "not started" && !s.Began.Before(t.Began) &&
			(end.Sub(s.Began) >= t.Until().Sub(t.Began)/200 || s.Error != "" || s.Ended.IsZero())
		if g.Shown {
			bars = append(bars, a.bar(s.Began, end, g.Kind, s.Name))
		}
		stages = append(stages, g)
	}
	return stages, bars
}

// others are the steps that belong to no node.
func (v view) others() (out []stage) {
	for _, s := range v.Story.Steps {
		g := stage{Stage: s, Took: took(cmp.Or(s.Ended, v.Story.To).Sub(s.Began)), Ends: s.Fate(v.Past.Result)}
		out = append(out, g)
	}
	return out
}

// legend is a kind of stage and its meaning.
type legend struct{ Kind, Text string }

// kinds are the kinds of stages, in the order of a node's turn.
var kinds = []struct {
	legend
	stages []string
}{
	{legend{"ready", "looks first"}, []string{"ask-gates", "await-storage", "await-served", "run-hooks", "gate", "pull", "remember", "keep-off", "unprotect"}},
	{legend{"drain", "drain, leave etcd"}, []string{"drain", "leave-etcd"}},
	{legend{"stop", "stop, delete"}, []string{"stop", "delete-vm", "give-up"}},
	{legend{"disks", "disks: park, attach"}, []string{"park", "attach", "blank-disk", "restore-disk", "renew-disk", "free-blank", "park-new", "hand-over", "detach"}},
	{legend{"boot", "create, install, boot"}, []string{"create-vm", "set-up", "start", "boot", "install", "reboot", "boot-entry", "fallback"}},
	{legend{"join", "configure, join"}, []string{"configure", "join"}},
	{legend{"finish", "settle, finish"}, nil},
}

// kindOf is the kind of a stage, which decides its colour.
func kindOf(s *story.Stage) string {
	if s.Status == "failed" {
		return "failed"
	}
	for _, k := range kinds {
		if slices.Contains(k.stages, s.Name) {
			return k.Kind
		}
	}
	return "finish"
}

// legendOf explains the kinds that are drawn.
func legendOf(cards []card) []legend {
	drawn := map[string]bool{}
	for _, c := range cards {
		for _, b := range c.Bars {
			drawn[b.Kind] = true
		}
	}
	var out []legend
	for _, k := range kinds {
		if drawn[k.Kind] {
			out = append(out, k.legend)
		}
	}
	if drawn["failed"] {
		out = append(out, legend{"failed", "failed"})
	}
	return out
}

// outageOf is the expected outage of a node, for the plan.
func outageOf(n planning.NodePlan) string {
	if n.OutageSeconds == 0 {
		return ""
	}
	return seconds(n.OutageSeconds)
}

// chart is a number over time.
type chart struct {
	Name, Text    string
	Line          string // of the drawing
	Gaps          []bar  // without an answer
	Top, Bottom   int    // values at its edges
	Lowest, Least string // label and value of the figure for the lowest value
	Changes       []change
	Well          bool // it was never lower than at the end
}

type change struct {
	At   time.Time
	Text string
}

type reading struct {
	at      time.Time
	known   bool
	is, of  int
	lacking []string
}

// tall is the height of a chart in its own units, with some space at both edges.
const (
	tall = 100
	edge = 6
)

// fewNodes is the number up to which a chart starts at 0; above it, it starts at the lowest value.
const fewNodes = 12

func (v view) charts() []chart {
	var out []chart
	for _, c := range []struct {
		name, lowest, lack string
		read               func(planning.Pulse) reading
	}{
		{"Ready nodes", "fewest Ready nodes", "not Ready", func(p planning.Pulse) reading {
			return reading{known: p.Kubernetes, is: p.Ready(), of: p.Nodes, lacking: p.NotReady}
		}},
		{"healthy members of etcd", "fewest healthy members of etcd", "not healthy", func(p planning.Pulse) reading {
			return reading{known: p.Etcd && p.Members > 0, is: p.Well(), of: p.Members, lacking: p.Unwell}
		}},
	} {
		var readings []reading
		for _, p := range v.Story.Pulses {
			r := c.read(p.Pulse)
			r.at = p.At
			readings = append(readings, r)
		}
		if drawn, any := v.chart(readings, c.lack); any {
			drawn.Name, drawn.Lowest = c.name, c.lowest
			out = append(out, drawn)
		}
	}
	return out
}

// chart draws readings: each holds until the next.
func (v view) chart(readings []reading, lack string) (c chart, any bool) {
	known := slices.DeleteFunc(slices.Clone(readings), func(r reading) bool { return !r.known })
	if len(known) == 0 {
		return c, false
	}
	least := slices.MinFunc(known, func(a, b reading) int { return a.is - b.is })
	c.Least = fmt.Sprintf("%d of %d", least.is, slices.MaxFunc(known, func(a, b reading) int { return a.of - b.of }).of)
	for _, r := range known {
		c.Top = max(c.Top, r.of)
	}
	c.Top = max(c.Top, 1)
	if c.Top > fewNodes {
		c.Bottom = max(0, least.is-2)
	}
	last := known[len(known)-1]
	c.Well = least.is == last.is
	c.Text = fmt.Sprintf("lowest %d, at the end %d of %d", least.is, last.is, last.of)
	c.Line, c.Gaps = v.line(readings, c)
	c.Changes = changes(readings, lack)
	return c, true
}

func (v view) line(readings []reading, c chart) (line string, gaps []bar) {
	var b strings.Builder
	y := func(is int) float64 {
		return tall - edge - float64(tall-2*edge)*float64(max(is-c.Bottom, 0))/float64(max(1, c.Top-c.Bottom))
	}
	drawing := false
	for i, r := range readings {
		until := v.Axis.To
		if i+1 < len(readings) {
			until = readings[i+1].at
		}
		if !r.known {
			gaps, drawing = append(gaps, v.Axis.bar(r.at, until, "gap", "no answer for")), false
			continue
		}
		command := "M"
		if drawing {
			command = "L"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", command, v.Axis.x(r.at), y(r.is))
		fmt.Fprintf(&b, "H%.1f", v.Axis.x(until))
		drawing = true
	}
	return b.String(), gaps
}

// changes lists the readings that differ from the one before.
func changes(readings []reading, lack string) (out []change) {
	last := ""
	for _, r := range readings {
		text := "no answer"
		if r.known {
			text = fmt.Sprintf("%d of %d", r.is, r.of)
		}
		if r.known && len(r.lacking) > 0 {
			text += "; " + lack + ": " + strings.Join(r.lacking, ", ")
		}
		if text != last {
			out, last = append(out, change{r.at, text}), text
		}
	}
	return out
}
