package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/web/frame"
	"github.com/recast-sh/recast/pipeline/past"
)

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

// runView is the active run, or the last one.
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
