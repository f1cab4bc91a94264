package web

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/web/frame"
)

// The times after which a page is fetched again: while something is being read, on the page of
// the run, otherwise.
const (
	soon    = 1
	running = 2
	seldom  = 15
)

// shown is a reading on a page.
type shown struct {
	Key     string
	Value   any // nil: none yet
	Age     string
	Busy    string // "": it is not being read
	Every   int    // seconds after which the page is fetched again
	Trouble *trouble
}

// again is for a browser without scripts, which loads a page only while something changes.
func (s shown) again() int {
	if s.Busy == "" {
		return 0
	}
	return 2 * soon
}

func (s *Site) shown(key string) shown {
	r := s.readings.get(key)
	out := shown{Key: key, Value: r.Value, Age: "not read yet", Every: seldom}
	if r.Value != nil {
		out.Age = "read at " + clock(r.At) + ", " + age(r.At)
	}
	switch {
	case !r.Began.IsZero():
		out.Busy, out.Every = "being read now", soon
	case r.Waits:
		out.Busy, out.Every = "will be read next", soon
	}
	if r.Err != nil {
		out.Trouble = s.trouble(r.Err, r.Failed)
	}
	return out
}

// trouble is an error, what is safe, and what to do.
type trouble struct {
	At, Text    string
	Safe, Hints []string
	Codes       []fault.Code
}

// Title is that of the runbook of a code.
func (trouble) Title(code fault.Code) string { return runbooks.Title(string(code)) }

func (s *Site) trouble(err error, at time.Time) *trouble {
	t := &trouble{At: clock(at), Text: s.Hide(err.Error()), Codes: fault.Codes(err)}
	for _, text := range fault.Safe(err) {
		t.Safe = append(t.Safe, s.Hide(text))
	}
	for _, text := range fault.Hints(err) {
		t.Hints = append(t.Hints, s.Hide(text))
	}
	if len(t.Hints) == 0 {
		t.Hints = []string{t.Codes[0].Next()}
	}
	return t
}

// clock is a time on this machine, with the day if it is not today.
func clock(t time.Time) string {
	if t.Local().Format(time.DateOnly) != time.Now().Format(time.DateOnly) {
		return t.Local().Format("2006-01-02 15:04:05")
	}
	return t.Local().Format("15:04:05")
}

// age is how long ago something was.
func age(t time.Time) string {
	d := max(0, wait.Elapsed(t)).Round(time.Second)
	if d >= time.Hour {
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s") + " ago"
	}
	return d.String() + " ago"
}

func (s *Site) nodesPage(w http.ResponseWriter, _ *http.Request) {
	drift := s.shown(keyDrift)
	s.frame.Render(w, http.StatusOK, "nodes", frame.View{Title: "Nodes", Again: drift.again(), Body: drift})
}

func (s *Site) planPage(w http.ResponseWriter, _ *http.Request) {
	plan := s.shown(keyPlan)
	s.frame.Render(w, http.StatusOK, "plan", frame.View{Title: "Plan", Again: plan.again(), Body: plan})
}

func (s *Site) historyPage(w http.ResponseWriter, _ *http.Request) {
	s.readings.askIfOlder(keyHistory, 5*time.Second) // only files
	past := s.shown(keyHistory)
	s.frame.Render(w, http.StatusOK, "history", frame.View{Title: "History", Again: past.again(), Body: past})
}

// nodeView is what is known about one node.
type nodeView struct {
	Node        string
	Trace       shown
	Drift, Plan *ui.NodeWords // nil: not read, or it is not in there
	Each        []ui.Fact
	Phase       string

	DriftAge, PlanAge string
}

func (s *Site) nodePage(w http.ResponseWriter, r *http.Request) {
	v := nodeView{Node: r.PathValue("node"), DriftAge: s.shown(keyDrift).Age, PlanAge: s.shown(keyPlan).Age}
	v.Trace = s.shown(keyNode + v.Node)
	if drift, read := s.readings.get(keyDrift).Value.(ui.DriftWords); read {
		v.Drift = find(drift.Nodes, v.Node)
	}
	if plan, read := s.readings.get(keyPlan).Value.(ui.PlanWords); read {
		v.Plan = find(plan.Idle, v.Node)
		for _, p := range plan.Phases {
			if n := find(p.Nodes, v.Node); n != nil {
				v.Plan, v.Each, v.Phase = n, p.Each, p.Heading
			}
		}
	}
	s.frame.Render(w, http.StatusOK, "node", frame.View{Title: v.Node, Again: v.Trace.again(), Body: v})
}

func find(nodes []ui.NodeWords, name string) *ui.NodeWords {
	for i := range nodes {
		if nodes[i].Node == name {
			return &nodes[i]
		}
	}
	return nil
}

// reportPage is the report of one run, as recast history --html writes it.
func (s *Site) reportPage(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("run")
	run, err := s.Project.Runs().Find(id, s.Past)
	if err != nil || run.ID != id {
		s.frame.Missing(w, fmt.Sprintf("no run %q is known", id))
		return
	}
	var page bytes.Buffer
	if err := s.Report(&page, run); err != nil {
		http.Error(w, s.Hide(err.Error()), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", reportPolicy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w) // the browser has gone away otherwise
}
