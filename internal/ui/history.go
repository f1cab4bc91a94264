package ui

import (
	"fmt"
	"io"
	"time"

	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
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
	for _, r := range runs {
		h.Runs = append(h.Runs, inALine(r, log, hide))
	}
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

// historyColumns are the titles of Cells.
var historyColumns = []string{"RUN", "BEGAN", "COMMAND", "RESULT", "NODES", "TOOK", "AWAY", "WHAT"}

// Cells are the run's ID, beginning, command, result, finished nodes, duration, longest
// outage and target.
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

// Mood is that of the run's result.
func (r HistoryRun) Mood() Mood { return moodOfResult(r.Result) }

// WriteHistory prints the past runs.
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

// moodOfResult is the mood of a run's result.
func moodOfResult(result string) Mood {
	switch result {
	case "done":
		return green
	case "failed", "killed":
		return red
	}
	return yellow
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
