// Package ui prints what other packages return: a [Progress] prints events on stderr as they happen, and a Write
// function for each result prints it on stdout as text for people or JSON for scripts.
package ui

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// IsTerminal says whether f is a terminal: a file, or something with the Fd of one.
func IsTerminal(f any) bool {
	file, ok := f.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

func write(w io.Writer, format string, v any, draw func(*page)) error {
	if format == "json" {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return err
		}
		_, err := w.Write(foreign.JSON(text.Bytes()))
		return err
	}
	p := newPage(w)
	draw(p)
	return p.err
}

// page is text output that remembers its first error.
type page struct {
	w       io.Writer
	colour  bool
	columns int // where to break long lines; 0: nowhere
	err     error
}

func newPage(w io.Writer) *page {
	p := &page{w: w, colour: coloured(w), columns: columnsOf(w)}
	if c, ok := w.(interface{ Clean() io.Writer }); ok {
		p.w = c.Clean()
	}
	return p
}

// textOf is what draw prints, without colours.
func textOf(draw func(*page)) string {
	var text strings.Builder
	draw(&page{w: &text})
	return strings.TrimSpace(text.String())
}

// Mood is what the colour of a text says: "good", "open", "bad", or "" without one.
type Mood string

// The moods of words that matter, by the name of their colour, and two other ways to print a text.
const (
	red    Mood = "bad"  // what is lost, deleted or refused
	green  Mood = "good" // what is fine
	yellow Mood = "open" // what is stale and changes
	bold   Mood = "bold"
	dim    Mood = "dim"
)

var escapes = map[Mood]string{red: "31", green: "32", yellow: "33", bold: "1", dim: "2"}

// coloured says whether output to w has colours: on a terminal, unless NO_COLOR
// (no-color.org) is set; elsewhere only with CLICOLOR_FORCE (bixense.com/clicolors).
func coloured(w io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	if force := os.Getenv("CLICOLOR_FORCE"); force != "" && force != "0" {
		return true
	}
	return IsTerminal(w) && os.Getenv("TERM") != "dumb"
}

func (p *page) paint(m Mood, s string) string {
	if !p.colour || m == "" || s == "" {
		return s
	}
	return mark + escapes[m] + "m" + s + mark + "0m"
}

// mark stands for the start of a colour's escape sequence until foreign escape sequences
// are removed from the line. It is random, so foreign text can't contain it.
var mark = rand.Text()

var colours = regexp.MustCompile(mark + "[0-9]+m")

// columns is the width of a text on a terminal.
func columns(s string) int { return utf8.RuneCountInString(colours.ReplaceAllString(s, "")) }

// readable is the maximum width of text on a terminal. In a longer list of reasons, each reason gets its own line.
const readable = 110

// columnsOf is the width of a terminal, at most readable; 0 for anything else: a sentence
// in a log must stay on one line for grep.
func columnsOf(w any) int {
	file, ok := w.(interface{ Fd() uintptr })
	if !ok || !IsTerminal(file) {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return min(columns, readable)
}

// line prints exactly one line, even if foreign text in it has line breaks or escape
// sequences. Only paint adds colours.
func (p *page) line(format string, args ...any) {
	if p.err == nil {
		line := foreign.Line(fmt.Sprintf(format, args...))
		_, p.err = io.WriteString(p.w, strings.ReplaceAll(line, mark, "\x1b[")+"\n")
	}
}

func (p *page) lines(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		p.line("%s", line)
	}
}

// wrapped prints each text after a lead; on a terminal it breaks lines at spaces. Lines after
// the first of a text start with indent.
func (p *page) wrapped(lead, indent string, texts ...string) {
	for _, text := range texts {
		p.wrap(lead, indent, foreign.Lines(text)) // before measuring
	}
}

func (p *page) wrap(lead, indent, text string) {
	line, begun := lead, false
	next := func() {
		p.line("%s", line)
		line, begun = indent, false
	}
	for part := range strings.Lines(text) {
		if begun {
			next()
		}
		for word := range strings.FieldsSeq(part) {
			if begun && p.columns > 0 && columns(line+" "+word) > p.columns {
				next()
			}
			if begun {
				line += " "
			}
			line += word
			begun = true
		}
	}
	p.line("%s", strings.TrimRight(line, " "))
}

// reasons puts each reason of a long list on its own line.
func reasons(text string) string {
	if columns(text) <= readable {
		return text
	}
	return strings.ReplaceAll(text, "; ", ";\n")
}

func (p *page) heading(text string) { p.line("%s", p.paint(bold, text)) }

// list prints texts under a heading, and a blank line; nothing if there are none.
func (p *page) list(heading string, texts []string) {
	if len(texts) > 0 {
		p.wrapped("", "  ", p.paint(bold, heading))
		p.wrapped("  ", "    ", texts...)
		p.line("")
	}
}

func (p *page) next(texts ...string) { p.wrapped("next: ", "      ", texts...) }

func each[T, U any](list []T, f func(T) U) []U { return cluster.Each(list, f) }

// widest is the maximum width of a column: one long name must not push everything else off the screen.
const widest = 32

type table []int

// fit widens the columns for a row, up to a limit.
func (t *table) fit(limit int, row []string) {
	for i, cell := range row {
		if i == len(*t) {
			*t = append(*t, 0)
		}
		(*t)[i] = max((*t)[i], min(columns(cell), limit))
	}
}

// tableOf is the table of rows, whose columns are at most limit wide.
func tableOf(limit int, rows ...[]string) (t table) {
	for _, row := range rows {
		t.fit(limit, row)
	}
	return t
}

// joined is a line with the cells, each but the last as wide as its column.
func (t table) joined(indent string, cells []string) string {
	var line strings.Builder
	line.WriteString(indent)
	for i, cell := range cells {
		line.WriteString(cell)
		if i < len(cells)-1 {
			line.WriteString(strings.Repeat(" ", max(0, t[i]-columns(cell))+2))
		}
	}
	return line.String()
}

// row prints cells aligned with those of other rows. If that is too wide for the terminal, it prints them like words.
func (p *page) row(t table, indent string, cells ...string) {
	line := strings.TrimRight(t.joined(indent, cells), " ")
	if p.columns == 0 || columns(line) <= p.columns {
		p.line("%s", line)
		return
	}
	rest := cluster.Where(cells[1:], func(cell string) bool { return cell != "" })
	p.wrapped(indent+cells[0]+"  ", indent+"    ", strings.Join(rest, ", "))
}

// rows prints aligned rows; below, if there is one, prints what is below a row.
func (p *page) rows(indent string, rows [][]string, below func(row int)) {
	t := tableOf(widest, rows...)
	for i, row := range rows {
		p.row(t, indent, row...)
		if below != nil {
			below(i)
		}
	}
}

// pasted prints aligned rows whose cells are never wrapped, however wide they are: for pasting.
func (p *page) pasted(indent string, rows [][]string) {
	t := tableOf(math.MaxInt, rows...)
	for _, row := range rows {
		p.line("%s", t.joined(indent, row))
	}
}

// group holds texts, each once and in order, with the names of the nodes that have each text.
type group struct {
	texts []string
	names map[string][]string
}

func (g *group) add(text, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[text] == nil {
		g.texts = append(g.texts, text)
	}
	g.names[text] = append(g.names[text], name)
}

func (g *group) lines() []string {
	return cluster.Each(g.texts, func(text string) string { return together(g.names[text]) + ": " + text })
}

// together joins names; consecutive ones become a range: "cp1, wk003…wk499".
func together(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		end := i
		for end+1 < len(names) && names[end+1] == successor(names[end]) {
			end++
		}
		if end-i < 3 { // a range would not be shorter
			out = append(out, names[i])
			i++
			continue
		}
		out = append(out, names[i]+"…"+names[end])
		i = end + 1
	}
	return strings.Join(out, ", ")
}

// successor is the name with the next number: "wk010" after "wk009", "wk10" after "wk9"; ""
// if the name does not end with a number.
func successor(name string) string {
	prefix := strings.TrimRight(name, "0123456789")
	digits := name[len(prefix):]
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s%0*d", prefix, len(digits), n+1)
}

// A document holds what a command says to people. It is printed as text or Markdown; pages in a browser lay it out in
// another way, after hide has removed secrets.

// Fact is one thing about a node: "stale: extension …".
type Fact struct{ Label, Text string }

func (f Fact) Mood() Mood { return factMoods[f.Label] }

type NodeWords struct {
	Node, State string
	Mood        Mood
	Cells       []string // the rest of its row
	Facts       []Fact
}

func (n NodeWords) row(p *page) []string {
	return append([]string{p.paint(n.Mood, n.State), n.Node}, n.Cells...)
}

func (n NodeWords) said() string { return strings.Join(n.Cells, ", ") }

func (n NodeWords) hidden(hide func(string) string) NodeWords {
	n.Cells, n.Facts = each(n.Cells, hide), hiddenFacts(n.Facts, hide)
	return n
}

func hiddenFacts(facts []Fact, hide func(string) string) []Fact {
	return each(facts, func(f Fact) Fact { return Fact{f.Label, hide(f.Text)} })
}

// several is the size of the smallest group of equal nodes that shares a line.
const several = 10

// equalNodes prints a row for each node, and its facts below. If several or more nodes have no facts and the same
// row, they share a line, which begins with their number and word.
func (p *page) equalNodes(word, below string, nodes []NodeWords) {
	var columns table
	var equal group
	for _, n := range nodes {
		columns.fit(widest, n.row(p))
		if len(n.Facts) == 0 {
			equal.add(n.said(), n.Node)
		}
	}
	for _, n := range nodes {
		switch names := equal.names[n.said()]; {
		case len(n.Facts) > 0 || len(names) < several:
			p.row(columns, "", n.row(p)...)
			p.facts(below, n.Facts)
		case names[0] == n.Node:
			text := fmt.Sprintf("%d nodes, %s %s: %s", len(names), word, n.said(), together(names))
			p.wrapped(p.paint(n.Mood, n.State)+"  ", "    ", text)
		}
	}
}

func (p *page) facts(indent string, facts []Fact) {
	for _, f := range facts {
		switch f.Label {
		case factDiffers:
			p.wrapped(indent, indent+"  ", f.Text)
		case factLost:
			p.wrapped(indent, indent+"  ", p.paint(red, f.Label+": "+f.Text))
		case factWhy:
			p.wrapped(indent+f.Label+": ", indent+"  ", reasons(f.Text))
		default:
			p.wrapped(indent+p.paint(f.Mood(), f.Label+":")+" ", indent+"  ", f.Text)
		}
	}
}

// Progress prints the events of a run as plain lines, and records the result of each node.
type Progress struct {
	p     *page
	start time.Time
	noted map[string]string // by path, the last note
	width int               // of the column of nodes, as wide as the longest name so far
	run   story.Fold
}

// NewProgress draws on w, which the caller keeps.
func NewProgress(w io.Writer) *Progress {
	return &Progress{p: newPage(w), start: time.Now(), noted: map[string]string{}}
}

// Fared returns the results of the nodes that the run has started, in order. Call it after the run has ended.
func (p *Progress) Fared() Fared { return faredOf(p.run.Story) }

// Emit prints one event; the step engine calls it with one event at a time.
func (p *Progress) Emit(e step.Event) {
	s, _ := p.run.See(time.Now(), e)
	switch e.Status {
	case step.Started:
		p.line(e.Path, yellow, "▸", e.Title)
	case step.Note:
		if p.noted[e.Path] == e.Text {
			return // printed already
		}
		p.noted[e.Path] = e.Text
		p.line(e.Path, dim, "·", e.Text)
	case step.Skipped:
		p.line(e.Path, green, "✓", e.Title+": "+e.Text)
	case step.Done:
		// A step that ended at once has its line already.
		if took := s.Ended.Sub(s.Began).Round(time.Second); took > 0 {
			p.line(e.Path, green, "✓", fmt.Sprintf("%s (%s)", e.Title, took))
		}
	case step.Failed:
		// The whole error is printed once, at the end, with its hints.
		p.line(e.Path, red, "✗", e.Title)
	case step.Stopped:
		p.line(e.Path, yellow, "✗", e.Title+": stopped before it was done")
	case step.NotStarted:
		p.line(e.Path, dim, "-", e.Title+": not started")
	}
}

// line prints one line: time, node, indentation, text. Several nodes may be in progress at
// the same time, so every line starts with the node's name.
func (p *Progress) line(path string, mood Mood, mark, text string) {
	at := time.Since(p.start).Round(time.Second)
	_, node, below := planning.NodeOfStep(path)
	if strings.HasPrefix(path, "roll") {
		p.width = max(p.width, nodeColumn, utf8.RuneCountInString(node))
	}
	depth := strings.Count(path, "/")
	if node != "" {
		depth = len(below)
	}
	lead := fmt.Sprintf("%6s  ", at)
	if p.width > 0 {
		lead += fmt.Sprintf("%-*s  ", p.width, node)
	}
	// One event is one line, even if a foreign message contains line breaks.
	p.p.line("%s%s%s %s", lead, strings.Repeat("  ", depth), p.p.paint(mood, mark), strings.Join(strings.Fields(text), " "))
}

const nodeColumn = 8

// Fared is the result of a run, collected from its events.
type Fared struct {
	Nodes    []NodeFared `json:"nodes,omitempty"`
	Snapshot string      `json:"etcdSnapshot,omitempty"` // where etcd was saved
}

// NodeFared is the result of one node in a run.
type NodeFared struct {
	Node     string      `json:"node"`
	Phase    string      `json:"phase"`
	Strategy string      `json:"strategy"`
	Outcome  NodeOutcome `json:"outcome"`
	Now      string      `json:"now,omitempty"`  // in words, its state at the end
	Kept     string      `json:"kept,omitempty"` // in words, where its old system disk is
	// Gates says at which of the user's gates it ended: "before" the node was touched, or
	// "after" it was back and finished.
	Gates string `json:"gates,omitempty"`
	// Hooks is the same for a hook that failed or was interrupted.
	Hooks string `json:"hooks,omitempty"`
	// AwaySeconds is the time from the end of its drain until it was back, or its branch ended; 0 if it was never down.
	AwaySeconds int `json:"awaySeconds,omitempty"`
}

// NodeOutcome is the result of a node's branch.
type NodeOutcome string

// The outcomes of a node.
const (
	NodeDone       NodeOutcome = "done"
	NodeNotNeeded  NodeOutcome = "not needed" // it was up to date when its turn came
	NodeFailed     NodeOutcome = "failed"
	NodeStopped    NodeOutcome = "stopped" // started, but not finished
	NodeNotStarted NodeOutcome = "not started"
)

func faredOf(run story.Story) (fared Fared) {
	for _, s := range run.Steps {
		if s.Path == "roll/snapshot-etcd" && isReached(s) {
			fared.Snapshot = strings.TrimPrefix(s.Text, "saved as ")
		}
	}
	for _, t := range run.Turns {
		if t.Began.IsZero() {
			continue // the node has only pulled something ahead of its turn
		}
		n := NodeFared{
			Node: t.Node, Phase: t.Phase, Strategy: t.Strategy(), Outcome: outcomeOf(t),
			AwaySeconds: int(t.Away().Round(time.Second).Seconds()),
		}
		if n.Outcome == NodeDone || n.Outcome == NodeNotNeeded {
			n.Now = t.Text
		}
		for _, s := range t.Steps {
			n.see(s, t.Below(s))
		}
		fared.Nodes = append(fared.Nodes, n)
	}
	return fared
}

func (n *NodeFared) see(s *story.Stage, below string) {
	if s.Status == step.Failed.String() {
		switch first, _, _ := strings.Cut(below, "/"); first {
		case "ask-gates", "await-storage", "await-served":
			n.Gates = "before"
		case "ask-gates-again", "await-storage-again", "await-served-again":
			n.Gates = "after"
		case "run-hooks":
			n.Hooks = "before"
		case "run-hooks-again":
			n.Hooks = "after"
		}
	}
	strategy := cluster.Strategy(n.Strategy)
	switch path.Base(below) {
	case "keep":
		if isReached(s) && !strategy.ParksNothing() {
			n.Kept = s.Text
		}
	case "free-disk":
		if isReached(s) && strategy.VM() == cluster.VMGone {
			n.Kept = s.Text
		}
	}
}

func isReached(s *story.Stage) bool {
	return s.Status == step.Done.String() || s.Status == step.Skipped.String()
}

func outcomeOf(t *story.Turn) NodeOutcome {
	switch t.Status {
	case step.Done.String():
		return NodeDone
	case step.Skipped.String():
		return NodeNotNeeded
	case step.NotStarted.String():
		return NodeNotStarted
	case step.Failed.String():
		if !t.Interrupted {
			return NodeFailed
		}
	}
	return NodeStopped
}
