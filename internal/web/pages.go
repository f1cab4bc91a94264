package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/web/frame"
	"github.com/recast-sh/recast/pipeline/past"
)

// The times after which a page is fetched again: while something is being read, on the page of
// the run, otherwise.
const (
	soon    = 1
	running = 2
	seldom  = 15
)

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

type trouble struct {
	At, Text    string
	Safe, Hints []string
	Codes       []fault.Code
}

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

// board is the run that has not ended, from its log on this machine, which is read on
// where the last request stopped.
type board struct {
	mu      sync.Mutex
	run     string
	planned bool
	drawn   *live.Board
	follow  *live.Follower
}

// at is the run as it is now, or as it was when it was killed.
func (b *board) at(r past.Running, killed bool) (live.Now, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.ID != b.run || b.planned != (r.Plan != nil) {
		b.run, b.planned = r.ID, r.Plan != nil
		b.drawn = live.NewBoard("", r.Started)
		if b.planned {
			b.drawn.Plan(r.Started, *r.Plan)
		}
		b.follow = &live.Follower{Path: filepath.Join(r.Dir, story.LogName), Older: filepath.Join(r.Dir, story.OlderLogName)}
	}
	err := b.follow.Read(b.drawn)
	now := time.Now()
	if killed {
		now = cmp.Or(b.follow.Written, r.Started)
	}
	return b.drawn.Now(now), err
}

type runView struct {
	Every   int
	Now     *live.Now      // nil: no run of this machine is unfinished
	Stopped string         // how a run that is suspended on this machine goes on; "": it is not
	Last    *ui.HistoryRun // the run that was started last on this machine; nil: none was
	Status  shown
	Trouble *trouble
}

func (s *Site) runPage(w http.ResponseWriter, _ *http.Request) {
	v := runView{Every: running, Status: s.shown(keyStatus)}
	if err := s.look(&v); err != nil {
		v.Trouble = s.trouble(err, time.Now())
	}
	again := v.Status.again()
	if v.Now != nil {
		again = 2 * running
	} else if status, read := v.Status.Value.(ui.StatusWords); read && status.Active {
		s.readings.askIfOlder(keyStatus, s.pace())
	}
	s.frame.Render(w, http.StatusOK, "run", frame.View{Title: "Run", Again: again, Body: v})
}

// pace is how often the run of another machine is looked at, while someone has the page
// open: as recast status --watch, with a request every two seconds on average.
func (s *Site) pace() time.Duration {
	return max(30*time.Second, time.Duration(len(s.Project.Config.Nodes))*2*time.Second)
}

// look reads the run that was started last.
func (s *Site) look(v *runView) error {
	runs := s.Project.Runs()
	known, unread := runs.List()
	if len(known) == 0 {
		return unread
	}
	last, err := runs.Find(known[0].ID, s.Past)
	if err != nil {
		return err
	}
	active, found, err := runs.Running()
	log := s.Log
	if found {
		log = func(past.Run) story.Story { return story.Story{} } // the board has it
	}
	v.Last = &ui.HistoryOf([]past.Run{last}, nil, 0, log, s.Hide).Runs[0]
	if !found || err != nil {
		return errors.Join(unread, err)
	}
	standing := runs.Read(active.ID, s.Past)
	now, err := s.board.at(active, standing.Result == "killed")
	v.Now, v.Stopped = &now, standing.Suspended()
	return errors.Join(unread, err)
}

// history is what recast history lists. A run that has ended is read once.
func (s *Site) history(ctx context.Context) ui.History {
	if s.Fetch != nil && wait.Elapsed(s.fetched) > time.Minute {
		s.Fetch(ctx)
		s.fetched = time.Now()
	}
	runs := s.Project.Runs()
	known, err := runs.List()
	out := ui.HistoryOf(nil, nil, 0, s.Log, s.Hide)
	if err != nil {
		out.Problems = strings.Split(s.Hide(err.Error()), "\n")
	}
	for _, info := range known {
		line, read := s.past[info.ID]
		if !read || !line.Finished.Equal(info.Finished) {
			line = ui.HistoryOf([]past.Run{runs.Read(info.ID, s.Past)}, nil, 0, s.Log, s.Hide).Runs[0]
		}
		if !line.Finished.IsZero() {
			s.past[info.ID] = line
		}
		out.Runs = append(out.Runs, line)
	}
	return out
}
