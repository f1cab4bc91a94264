package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/past"
)

// RunTold is one run with all details.
type RunTold struct {
	past.Run
	Turns  []TurnTold `json:"turns"`            // of its nodes, from its log
	Report string     `json:"report,omitempty"` // file, if there is one
}

// TurnTold is the turn of one node in a run.
type TurnTold struct {
	Node        string      `json:"node"`
	Phase       string      `json:"phase"`
	Strategy    string      `json:"strategy"`
	Status      string      `json:"status"` // "done", "failed", …; "cut off", "goes on"
	Began       time.Time   `json:"began"`
	Seconds     int         `json:"seconds"`
	AwaySeconds int         `json:"awaySeconds,omitempty"`
	NotBack     bool        `json:"notBack,omitempty"` // it was still down when its turn ended
	Error       string      `json:"error,omitempty"`
	Hints       []string    `json:"hints,omitempty"`
	Stages      []StageTold `json:"stages,omitempty"`
}

// StageTold is one stage of a turn.
type StageTold struct {
	Stage   string  `json:"stage"`
	Status  string  `json:"status"`
	Seconds float64 `json:"seconds"`
	Noted   string  `json:"seenLast,omitempty"`
	Error   string  `json:"error,omitempty"`

	open bool // it has not ended
}

// Tell combines the journal and the log of a run. Foreign text is passed through hide.
func Tell(r past.Run, s story.Story, report string, hide func(string) string) RunTold {
	told := RunTold{Run: r, Report: report, Turns: []TurnTold{}}
	told.Error, told.Problems = hide(told.Error), each(told.Problems, hide)
	told.Hooks = slices.Clone(told.Hooks)
	for i, h := range told.Hooks {
		h.Output, h.Error, h.Description, h.Command = hide(h.Output), hide(h.Error), hide(h.Description), each(h.Command, hide)
		told.Hooks[i] = h
	}
	if r.About != nil {
		about := *r.About
		about.Changes = slices.Clone(about.Changes)
		for i, c := range about.Changes {
			about.Changes[i].Reasons = each(c.Reasons, hide)
		}
		told.About = &about
	}
	for _, t := range s.Turns {
		if t.Began.IsZero() {
			continue
		}
		turn := TurnTold{
			Node: t.Node, Phase: t.Phase, Strategy: t.Strategy(), Status: t.Fate(r.Result), Began: t.Began,
			Seconds: whole(t.Until().Sub(t.Began)), Error: hide(t.Error), Hints: each(t.Hints, hide),
		}
		if !t.AwayFrom.IsZero() {
			turn.AwaySeconds, turn.NotBack = whole(cmp.Or(t.AwayTo, t.Until()).Sub(t.AwayFrom)), t.AwayTo.IsZero()
		}
		for _, g := range t.Stages {
			turn.Stages = append(turn.Stages, StageTold{
				Stage: g.Name, Status: g.Fate(r.Result), Seconds: cmp.Or(g.Ended, t.Until()).Sub(g.Began).Round(time.Millisecond).Seconds(),
				Noted: hide(g.Noted), Error: hide(g.Error), open: g.Ended.IsZero(),
			})
		}
		told.Turns = append(told.Turns, turn)
	}
	return told
}

func whole(d time.Duration) int { return int(d.Round(time.Second).Seconds()) }

// WriteRun prints one past run.
func WriteRun(w io.Writer, format string, r RunTold) error {
	return write(w, format, r, func(p *page) {
		p.line("run %s: %s", r.ID, p.paint(moodOfResult(r.Result), r.Result))
		drawAbout(p, r)
		for _, t := range r.Turns {
			drawTold(p, t)
		}
		if len(r.Turns) == 0 {
			for _, t := range r.Took {
				p.line("  %s  %s, away %s", t.Node, t.Strategy, orDash(t.OutageSeconds))
			}
		}
		if r.Error != "" && !slices.ContainsFunc(r.Turns, func(t TurnTold) bool { return t.Error == r.Error }) {
			p.wrapped("  "+p.paint(red, "error: "), "      ", r.Error)
		}
		drawHooked(p, r.Hooks)
		p.wrapped("  "+p.paint(red, "could not be read: "), "      ", r.Problems...)
		if r.Report != "" {
			p.line("report: %s", r.Report)
		} else {
			p.line("next: recast history %s --open shows its report", r.ID)
		}
	})
}

func drawAbout(p *page, r RunTold) {
	var text strings.Builder
	text.WriteString(r.Command())
	if a := r.About; a != nil {
		text.WriteString(" by " + a.By.String())
		if a.Who != "" {
			text.WriteString(", started by " + a.Who)
		}
		if a.Commit != "" {
			text.WriteString(", at commit " + a.Commit)
		}
		if a.Recast != "" {
			text.WriteString(", recast " + a.Recast)
		}
		if a.Elsewhere {
			text.WriteString(", which continued the run of another machine")
		}
		for _, h := range a.GoneOn {
			text.WriteString("; continued by " + h.String())
		}
	}
	p.line("  %s", text.String())
	when := "began " + clock(r.Started.Local())
	if !r.Finished.IsZero() {
		when += ", ended " + clock(r.Finished.Local()) + ", after " + inWords(r.Seconds())
	}
	p.line("  %s", when)
	if what := r.What(); what != "" {
		p.line("  %s", what)
	}
	if a := r.About; a != nil {
		for _, c := range a.Changes {
			p.line("  schematic %s: build %s → %s", c.Schematic, words.OrNone(words.Short(c.OldBuild)), words.OrNone(words.Short(c.NewBuild)))
			p.wrapped("    ", "      ", c.Reasons...)
		}
	}
	done, planned := r.Counted()
	p.line("  %d of %s done", done, words.Counted(planned, "node"))
}

func drawTold(p *page, t TurnTold) {
	mood := map[string]Mood{"done": green, "skipped": green, "failed": red}[t.Status]
	text := fmt.Sprintf("%s %s in %s", t.Strategy, p.paint(cmp.Or(mood, yellow), t.Status), inWords(t.Seconds))
	if t.AwaySeconds > 0 {
		text += ", away " + inWords(t.AwaySeconds)
	}
	if t.NotBack {
		text += ", and not seen back by then"
	}
	var parts []string
	for _, s := range t.Stages {
		if s.Seconds >= 1 || s.Error != "" || s.open {
			part := fmt.Sprintf("%s %s", s.Stage, inWords(int(s.Seconds+0.5)))
			if s.Status != "done" {
				part += " (" + s.Status + ")"
			}
			parts = append(parts, part)
		}
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	p.wrapped("  "+p.paint(bold, t.Node)+" ", "      ", text)
	if t.Error != "" && t.Status == "failed" {
		p.wrapped("      "+p.paint(red, "error: "), "        ", t.Error)
	}
	p.wrapped("      hint: ", "        ", t.Hints...)
}
