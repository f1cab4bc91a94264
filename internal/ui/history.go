package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

// History is the list of runs, newest first.
type History struct {
	Runs     []HistoryRun `json:"runs"`
	Earlier  int          `json:"earlier,omitempty"` // how many older ones there are
	Problems []string     `json:"problems,omitempty"`
}

// HistoryRun is one run in a line.
type HistoryRun struct {
	ID            string    `json:"id"`
	Command       string    `json:"command"`
	By            string    `json:"by,omitempty"`
	Started       time.Time `json:"started"`
	Finished      time.Time `json:"finished,omitzero"`
	Seconds       int       `json:"seconds,omitempty"`
	Result        string    `json:"result"`
	Error         string    `json:"error,omitempty"`
	What          string    `json:"what,omitempty"` // in words, its target
	TalosBefore   string    `json:"talosBefore,omitempty"`
	Talos         string    `json:"talos,omitempty"`
	LockBefore    string    `json:"lockBefore,omitempty"`
	Lock          string    `json:"lock,omitempty"`
	Planned       int       `json:"nodesPlanned"`
	Done          int       `json:"nodesDone"`
	OutageNode    string    `json:"longestOutageNode,omitempty"`
	OutageSeconds int       `json:"longestOutageSeconds,omitempty"`
	OutageOpen    bool      `json:"longestOutageOpen,omitempty"` // a node was not seen back: the outage was that long or longer
}

// HistoryOf converts runs to lines, at most limit; 0: all. log reads the log of a run;
// foreign text is passed through hide.
func HistoryOf(runs []past.Run, problems []string, limit int, log func(past.Run) story.Story, hide func(string) string) History {
	h := History{Runs: []HistoryRun{}, Problems: each(problems, hide)}
	if limit > 0 && len(runs) > limit {
		h.Earlier, runs = len(runs)-limit, runs[:limit]
	}
	h.Runs = append(h.Runs, cluster.Each(runs, func(r past.Run) HistoryRun { return inALine(r, log, hide) })...)
	return h
}

func inALine(r past.Run, log func(past.Run) story.Story, hide func(string) string) HistoryRun {
	l := HistoryRun{
		ID: r.ID, Command: r.Command(), Started: r.Started, Finished: r.Finished, Seconds: r.Seconds(),
		Result: r.Result, Error: hide(r.Error), What: r.What(),
	}
	l.Done, l.Planned = r.Counted()
	l.OutageNode, l.OutageSeconds = r.Longest()
	// Only nodes that were finished without interruption have their time in the journal.
	if r.Result != "done" || len(r.Took) < l.Done {
		told := log(r)
		if o, any := told.Longest(); any && o.Seconds() > l.OutageSeconds {
			l.OutageNode, l.OutageSeconds = o.Node, o.Seconds()
		}
		l.OutageOpen = len(told.NotBack()) > 0
	}
	if a := r.About; a != nil {
		l.By, l.TalosBefore, l.Talos, l.LockBefore, l.Lock = a.By.String(), a.Was, a.Talos, a.Before, a.Lock
	}
	return l
}

var historyColumns = []string{"RUN", "BEGAN", "COMMAND", "RESULT", "NODES", "TOOK", "AWAY", "WHAT"}

// Cells are the run's ID, beginning, command, result, finished nodes, duration, longest outage and target.
func (r HistoryRun) Cells() []string {
	took := "-"
	if !r.Finished.IsZero() {
		took = inWords(r.Seconds)
	}
	return []string{
		r.ID, r.Started.Local().Format("2006-01-02 15:04"), r.Command, r.Result, fmt.Sprintf("%d/%d", r.Done, r.Planned),
		took, mostAway(r), r.What,
	}
}

func (r HistoryRun) Mood() Mood { return moodOfResult(r.Result) }

func WriteHistory(w io.Writer, format string, h History) error {
	return write(w, format, h, func(p *page) {
		var rows [][]string
		if len(h.Runs) > 0 {
			rows = append(rows, each(historyColumns, func(title string) string { return p.paint(bold, title) }))
		}
		for _, r := range h.Runs {
			row := r.Cells()
			row[3] = p.paint(moodOfResult(r.Result), row[3])
			if r.What == "" {
				row = row[:len(row)-1]
			}
			rows = append(rows, row)
		}
		p.pasted("", rows)
		p.wrapped(p.paint(red, "could not be read: "), "  ", h.Problems...)
		switch {
		case len(h.Runs) == 0:
			p.line("no run is known: recast status shows what others have left in Proxmox")
		case h.Earlier > 0:
			p.line("%s before those: recast history --limit 0", words.Counted(h.Earlier, "run"))
			fallthrough
		default:
			p.line("next: recast history RUN shows details, recast history RUN --open its report")
		}
	})
}

func moodOfResult(result string) Mood {
	return cmp.Or(map[string]Mood{"done": green, "failed": red, "killed": red}[result], yellow)
}

func mostAway(r HistoryRun) string {
	if r.OutageOpen {
		return inWords(r.OutageSeconds) + " or more"
	}
	return orDash(r.OutageSeconds)
}

func orDash(seconds int) string {
	if seconds == 0 {
		return "-"
	}
	return inWords(seconds)
}

func inWords(seconds int) string { return (time.Duration(seconds) * time.Second).String() }

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

// Report is the result of a command that changes nodes.
type Report struct {
	pipeline.Report
	Fared
}

func WriteReport(w io.Writer, format string, rep pipeline.Report, fared Fared) error {
	place := func(n NodeFared) int { // in the plan: nodes that are rolled together send their events in any order
		i := slices.IndexFunc(rep.Plan.Nodes, func(p planning.NodePlan) bool { return p.Node == n.Node })
		if i < 0 {
			return len(rep.Plan.Nodes)
		}
		return i
	}
	slices.SortStableFunc(fared.Nodes, func(a, b NodeFared) int { return cmp.Compare(place(a), place(b)) })
	return write(w, format, Report{rep, fared}, func(p *page) {
		took := rep.Ended.Sub(rep.Started).Round(time.Second)
		outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
		switch {
		case rep.Run == "" && rep.Outcome == "nothing to do":
			p.line("nothing to do: %s checked in %s", words.Counted(len(rep.Plan.Nodes), "node"), took)
			return
		case rep.Run == "":
			p.line("%s after %s", outcome, took)
		default:
			p.line("run %s: %s after %s", rep.Run, outcome, took)
		}
		for _, id := range rep.Resumed {
			p.line("  first finished run %s, which had not ended", id)
		}
		if fared.Snapshot != "" {
			p.line("  etcd was saved to %s", fared.Snapshot)
		}
		for _, r := range rep.Rehearsed {
			p.wrapped("  ", "      ", fmt.Sprintf("rehearsed on %s with %s, %s: %s", r.Host, r.Firmware, r.Medium, r))
		}
		for _, n := range fared.Nodes {
			drawFared(p, n, rep.Plan)
		}
		drawHooked(p, rep.Hooks)
		drawAfterwards(p, rep.Afterwards)
		p.wrapped(p.paint(yellow, "  not notified: "), "      ", rep.Unsent...)
		if rep.Outcome != "done" && rep.Outcome != "nothing to do" {
			p.line("next: recast status shows where every disk is; recast roll continues where this one stopped")
		}
		for _, file := range rep.Pages {
			p.line("report: %s", file)
		}
	})
}

func drawFared(p *page, n NodeFared, plan planning.Plan) {
	parts := []string{fate(p, n, plan)}
	if n.AwaySeconds > 0 {
		lead := "away for "
		if cluster.Strategy(n.Strategy).From() == cluster.Nowhere {
			lead = "in "
		}
		parts = append(parts, lead+(time.Duration(n.AwaySeconds)*time.Second).String()+expected(n, plan))
	}
	if n.Kept != "" {
		parts = append(parts, n.Kept)
	}
	p.wrapped("  "+n.Node+" ", "      ", strings.Join(parts, ", "))
}

// expected is the plan's estimate of a node's outage; "" if there is none.
func expected(n NodeFared, plan planning.Plan) string {
	i := slices.IndexFunc(plan.Work(), func(w planning.NodePlan) bool { return w.Node == n.Node && string(w.Phase) == n.Phase })
	if i < 0 || plan.Work()[i].OutageFrom == "" {
		return ""
	}
	return " (" + (time.Duration(plan.Work()[i].OutageSeconds) * time.Second).String() + " expected)"
}

func fate(p *page, n NodeFared, plan planning.Plan) string {
	mood, gates, hooks := red, "its gates do not hold", "a hook failed"
	if n.Outcome == NodeStopped || n.Outcome == NodeNotStarted {
		mood, gates, hooks = yellow, "stopped while its gates were checked", "stopped while its hooks ran"
	}
	switch {
	case n.Gates == "before":
		return p.paint(mood, "not touched: "+gates)
	case n.Gates == "after":
		return achieved(n, plan) + ", " + p.paint(mood, gates)
	case n.Hooks == "before" && n.Phase == string(planning.Unfinished):
		return p.paint(mood, "as it was left: "+hooks)
	case n.Hooks == "before":
		return p.paint(mood, "not touched: "+hooks)
	case n.Hooks == "after":
		return achieved(n, plan) + ", " + p.paint(mood, hooks)
	case n.Outcome == NodeDone:
		return achieved(n, plan)
	case n.Outcome == NodeNotNeeded:
		return "nothing was left to do: " + n.Now
	}
	return p.paint(mood, n.Strategy+" "+string(n.Outcome))
}

// achieved includes the build if the plan has it: not for unfinished nodes of an earlier
// run, which are finished with that run's build.
func achieved(n NodeFared, plan planning.Plan) string {
	text := cluster.Strategy(n.Strategy).Words().Done
	i := slices.IndexFunc(plan.Work(), func(w planning.NodePlan) bool { return w.Node == n.Node })
	if i < 0 || n.Phase == string(planning.Unfinished) {
		return text
	}
	switch w := plan.Work()[i]; {
	case w.Strategy.Replaces():
		disks := map[bool]string{true: "disk", false: "disks"}[len(w.Carried) == 1]
		return fmt.Sprintf("%s as build %s, %d %s carried over", text, words.Short(w.Drift.Build), len(w.Carried), disks)
	case w.Strategy.Upgrades():
		return fmt.Sprintf("%s to build %s", text, words.Short(w.Drift.Build))
	}
	return text
}

func drawHooked(p *page, hooks []planning.HookRun) {
	if len(hooks) == 0 {
		return
	}
	var took float64
	for _, h := range hooks {
		took += h.Seconds
	}
	p.line("  %s ran, for %s in all", words.Counted(len(hooks), "hook"), time.Duration(took*float64(time.Second)).Round(time.Second))
	for _, h := range hooks {
		if h.Error == "" {
			continue
		}
		what := string(h.Point)
		if h.Node != "" {
			what += " of " + h.Node
		} else if h.Batch != "" {
			what += " of " + string(h.Batch)
		}
		p.wrapped(p.paint(red, "  hook failed: "), "      ", what+": "+h.Error)
	}
}

// Trouble describes a failed command.
type Trouble struct {
	Err  error
	Safe string // what is safe, if the error itself does not say it
	// Runbook returns how to read the page of a code: command and URL.
	Runbook func(fault.Code) string
}

// WriteTrouble prints what happened, what is safe, what to type next, and where to read more.
func WriteTrouble(w io.Writer, t Trouble) error {
	p := newPage(w)
	p.lines(p.paint(red, "error:") + " " + t.Err.Error())
	safe := fault.Safe(t.Err)
	if len(safe) == 0 && t.Safe != "" {
		safe = []string{t.Safe}
	}
	p.wrapped(p.paint(green, "safe:")+" ", "  ", safe...)
	codes, hints := fault.Codes(t.Err), fault.Hints(t.Err)
	if len(hints) == 0 {
		hints = []string{codes[0].Next()}
	}
	for _, hint := range hints {
		p.lines(p.paint(yellow, "hint:") + " " + hint)
	}
	for _, code := range codes {
		p.line("%s %s", p.paint(dim, "runbook:"), t.Runbook(code))
	}
	return p.err
}
