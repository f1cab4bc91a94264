package ui

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
)

// WriteExplanation prints the details of one node of a plan.
func WriteExplanation(w io.Writer, format string, e survey.Explanation) error {
	return write(w, format, e, func(p *page) { drawExplanation(p, e) })
}

func drawExplanation(p *page, e survey.Explanation) {
	drawTurn(p, e)
	drawComparison(p, e)
	drawFile(p, e.Plan)
	drawStrategies(p, e)
	drawFates(p, e)
	drawSteps(p, e)
	p.next(afterExplanation(e)...)
}

// drawTurn prints the node's row and facts from the plan, and its turn.
func drawTurn(p *page, e survey.Explanation) {
	n := e.Plan
	node := idleNode
	if acts(n) {
		node = changedNode
	}
	p.rows("", [][]string{node(n).row(p)}, nil)
	if e.Turn > 0 {
		turn := fmt.Sprintf("%d of %s to be rolled", e.Turn, words.Counted(e.Of, "node"))
		if b := e.Batch; b != nil {
			turn += fmt.Sprintf(", with the batch %s, %d at a time", strings.ReplaceAll(string(b.Phase), "-", " "), b.Limit)
		}
		p.wrapped("    turn: ", "      ", turn)
	}
	if len(n.Slots) > 0 {
		p.wrapped("    holds meanwhile: ", "      ", strings.Join(n.Slots, ", "))
	}
	for _, f := range factsOf(n) {
		switch f.Label {
		case factCarried, factBack, factParked, factSystem: // shown among the disks
		case factFile:
			if e.Plan.ConfigFile.Uncompared != "" { // otherwise drawFile lists all of them
				p.facts("    ", []Fact{f})
			}
		default:
			p.facts("    ", []Fact{f})
		}
	}
	p.line("")
}

func drawComparison(p *page, e survey.Explanation) {
	if len(e.Compared) == 0 {
		return
	}
	p.heading("wanted and found")
	var rows [][]string
	for _, c := range e.Compared {
		state, text := p.paint(green, "same"), foreign.Line(c.Found)
		if !c.Same {
			state = p.paint(yellow, "differs")
			text = shorter(cmp.Or(c.Found, "none known")) + " → " + shorter(cmp.Or(c.Wanted, "none"))
		}
		rows = append(rows, []string{state, c.What, shorter(text)})
	}
	p.rows("  ", rows, nil)
	p.line("")
}

// shorter shortens hashes and IDs, and leaves other text unchanged.
func shorter(text string) string {
	text = foreign.Line(text)
	if id := strings.TrimPrefix(text, "sha256-"); len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return words.Short(text)
	}
	return text
}

func drawStrategies(p *page, e survey.Explanation) {
	if len(e.Strategies) == 0 {
		return
	}
	heading := "strategies"
	if !acts(e.Plan) {
		heading += ", if there were anything to do"
	}
	if e.Asked == cluster.Auto {
		heading += ": auto uses the first one that is possible"
	} else {
		heading += fmt.Sprintf(": %s is configured", e.Asked)
	}
	p.heading(heading)
	var rows [][]string
	for _, s := range e.Strategies {
		rows = append(rows, strategyRow(p, s))
	}
	p.rows("  ", rows, func(row int) {
		s := e.Strategies[row]
		p.wrapped("      ", "        ", s.Against...)
		for _, text := range s.WillLose {
			p.wrapped("      ", "        ", p.paint(red, factLost+": "+strings.TrimSuffix(foreign.Line(text), " will be lost")))
		}
	})
	p.line("")
}

func strategyRow(p *page, s survey.StrategyChoice) []string {
	switch {
	case len(s.Against) > 0:
		return []string{p.paint(red, "impossible"), string(s.Strategy)}
	case s.Taken:
		return []string{p.paint(green, "taken"), string(s.Strategy)}
	}
	return []string{"possible", string(s.Strategy)}
}

func drawFates(p *page, e survey.Explanation) {
	if len(e.Disks) == 0 {
		return
	}
	p.heading("disks")
	var rows [][]string
	for _, d := range e.Disks {
		size := d.Size
		if d.NewSize != "" {
			size += " → " + d.NewSize
		}
		if d.Serial != "" {
			size = strings.TrimSpace(size + " serial " + d.Serial)
		}
		does := d.Does
		if d.Where != "" {
			does += "; now " + d.Where
		}
		rows = append(rows, []string{d.Key, d.Volid, size, p.paint(moodOfFate(d.Fate), does)})
	}
	p.rows("  ", rows, nil)
	p.line("")
}

func moodOfFate(f survey.Fate) Mood {
	switch f {
	case survey.FateReplaced:
		return yellow
	case survey.FateCarried, survey.FateDetached, survey.FateBack, survey.FateStays:
		return green
	}
	return ""
}

func drawSteps(p *page, e survey.Explanation) {
	if len(e.Steps) == 0 {
		return
	}
	p.heading("steps")
	var rows [][]string
	from := ""
	for i, s := range e.Steps {
		rows = append(rows, []string{fmt.Sprintf("%2d", i+1), p.paint(moodOfRisk(s.Risk), s.Path), s.Title + lasts(s)})
		from = cmp.Or(from, s.SecondsFrom)
	}
	p.rows("  ", rows, nil)
	if from != "" {
		p.wrapped("  ", "    ", "Times are those of "+from+"; a step without one took less than a second, or did not occur there.")
	} else {
		p.wrapped("  ", "    ", "The duration of each step is known after the first such roll from this machine.")
	}
	p.line("")
}

// lasts says how long a step took before, and its timeout.
func lasts(s survey.StepOutline) string {
	var parts []string
	if s.Seconds > 0 {
		parts = append(parts, "about "+(time.Duration(s.Seconds)*time.Second).String())
	}
	if s.TimeoutSeconds > 0 {
		parts = append(parts, "waits for "+minutes(time.Duration(s.TimeoutSeconds)*time.Second)+" at most")
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func moodOfRisk(risk string) Mood {
	if risk == "destructive" {
		return red
	}
	return ""
}

func afterExplanation(e survey.Explanation) []string {
	switch n := e.Plan; {
	case len(n.Refused) > 0:
		return []string{"fix what is refused, then run recast plan again; recast roll --exclude " + n.Node + " leaves it out"}
	case n.Resume:
		return []string{"recast roll finishes it first; recast status shows where every disk is"}
	case n.Strategy != "":
		return []string{"recast roll --only " + n.Node + " does this and nothing else"}
	}
	return nil
}
