// Package web shows a cluster in a browser on this machine: its nodes, the plan, the active
// run and past ones. A [Site] has no way to change anything: it only gets functions that read.
package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/web/frame"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

type Options struct {
	Version string
	Project pipeline.Project
	Past    past.Options
	// These functions ask the servers of the cluster, which takes seconds.
	Drift  func(context.Context) (pipeline.DriftResult, error)
	Plan   func(context.Context) (planning.Plan, error)
	Status func(context.Context) (pipeline.StatusResult, error)
	Trace  func(ctx context.Context, node string) (observe.Provenance, error)
	// These functions read files of this machine.
	Log    func(past.Run) story.Story
	Report func(io.Writer, past.Run) error
	// Fetch copies runs of other machines to this machine; nil: they are not copied.
	Fetch func(context.Context)
	// Hide removes secrets from foreign text.
	Hide func(string) string
}

type Site struct {
	Options
	frame          *frame.Frame
	readings       *readings
	token, session string
	board          board
	past           map[string]ui.HistoryRun // runs that have ended, by ID; only the reader uses the map
	fetched        time.Time                // when other machines' runs were fetched; only the reader uses it
}

//go:embed pages
var files embed.FS

func New(o Options) (*Site, error) {
	f, err := frame.New(frame.Options{
		Name: o.Project.Config.Cluster, Of: "cluster " + o.Project.Config.Cluster, Ends: "recast ui", Where: "recast " + o.Version + ", on this machine only",
		Base: "/" + rand.Text() + "/", Hide: o.Hide,
		Tabs:  [][2]string{{"", "Nodes"}, {"plan", "Plan"}, {"run", "Run"}, {"history", "History"}, {"runbooks", "Runbooks"}},
		Pages: files, Names: []string{"enter", "nodes", "node", "plan", "run", "history"},
	})
	s := &Site{Options: o, frame: f, token: rand.Text(), session: rand.Text(), past: map[string]ui.HistoryRun{}}
	s.readings = newReadings(s.read)
	return s, err
}

// First is the path of the first page, with the token that no one else may see.
func (s *Site) First() string { return "/" + s.token }

// Serve answers on l, and reads the cluster once, until ctx ends.
func (s *Site) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel()
	reader.Go(func() { s.readings.run(ctx) })
	for _, key := range []string{keyDrift, keyPlan, keyStatus} {
		s.readings.ask(key)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	return frame.Serve(ctx, l, s.Handler(port))
}

func (s *Site) Handler(port string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.readingPage("nodes", "Nodes", keyDrift))
	mux.HandleFunc("GET /nodes/{node}", s.nodePage)
	mux.HandleFunc("GET /plan", s.readingPage("plan", "Plan", keyPlan))
	mux.HandleFunc("GET /run", s.runPage)
	mux.HandleFunc("GET /history", s.readingPage("history", "History", keyHistory))
	mux.HandleFunc("GET /history/{run}", s.reportPage)
	mux.HandleFunc("POST /read", s.readAgain)
	s.frame.Handle(mux)
	return s.guard(port, http.StripPrefix(strings.TrimSuffix(s.frame.Base, "/"), mux))
}

// The keys of readings. The key of a node's provenance is keyNode and the node's name.
const (
	keyDrift   = "drift"
	keyPlan    = "plan"
	keyStatus  = "status"
	keyHistory = "history"
	keyNode    = "node/"
)

func (s *Site) read(ctx context.Context, key string) (any, error) {
	switch key {
	case keyDrift:
		res, err := s.Drift(ctx)
		return ui.DriftInWords(res, s.Hide), err
	case keyPlan:
		plan, err := s.Plan(ctx)
		return ui.PlanInWords(plan, s.Hide), err
	case keyStatus:
		res, err := s.Status(ctx)
		return ui.StatusInWords(res, s.Hide), err
	case keyHistory:
		return s.history(ctx), nil
	}
	res, err := s.Trace(ctx, strings.TrimPrefix(key, keyNode))
	return ui.ProvenanceInWords(res, s.Hide), err
}

// readAgain is the only request that is not a plain read: it asks the cluster again.
func (s *Site) readAgain(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<10)
	key := r.PostFormValue("what")
	node, ofNode := strings.CutPrefix(key, keyNode)
	back := map[string]string{keyDrift: "", keyPlan: "plan", keyStatus: "run"}
	page, known := back[key]
	switch {
	case ofNode && node != "":
		page = "nodes/" + url.PathEscape(node)
	case !known:
		http.Error(w, "there is nothing of that name to be read", http.StatusBadRequest)
		return
	}
	s.readings.ask(key)
	http.Redirect(w, r, s.frame.Base+page, http.StatusSeeOther)
}

// guard lets only the user's own browser through, besides what frame.Guard does.
//
//   - The first URL has a token and sets a cookie, since every user of this machine can
//     connect. Its path is random: a browser sends cookies to all ports of a host, so
//     another user's server on this machine would get a cookie with the path "/".
//   - A request that is not a plain read must come from a page of ours.
func (s *Site) guard(port string, next http.Handler) http.Handler {
	return frame.Guard(port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && same(r.URL.Path, "/"+s.token):
			s.enter(w)
		case !s.entered(r):
			frame.Refuse(w, "open the URL that recast ui has printed")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("Origin") != "http://"+r.Host:
			frame.Refuse(w, "this request does not come from a page of recast ui")
		default:
			next.ServeHTTP(w, r)
		}
	}))
}

// reportPolicy is the policy for reports, whose style is within the page.
const reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

const cookie = "recast"

// enter sets the cookie. A redirect is not enough: a browser that came here from another site sends a strict cookie
// with the next request only if a page of ours makes that request.
func (s *Site) enter(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: s.session, Path: s.frame.Base, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	s.frame.Render(w, http.StatusOK, "enter", frame.View{Title: "recast"})
}

func (s *Site) entered(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && same(c.Value, s.session)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// readings holds the latest results of reads that take seconds. One read runs at a time, so that many open pages ask
// the servers no more than one command does.
type readings struct {
	read func(ctx context.Context, key string) (any, error)
	wake chan struct{} // holds a value if the queue may not be empty

	mu    sync.Mutex
	known map[string]*reading
	queue []string // keys that wait, without the key that is being read
}

// reading is the latest result for a key, and the state of the next read.
type reading struct {
	Value  any       // the last that succeeded; nil: none
	At     time.Time // of Value
	Err    error     // why the last attempt failed; nil: it succeeded
	Failed time.Time // when that was
	Began  time.Time // of the attempt in progress; zero: there is none
	Waits  bool      // in the queue
}

// busy says whether a newer result is to be expected.
func (r reading) busy() bool { return r.Waits || !r.Began.IsZero() }

func newReadings(read func(context.Context, string) (any, error)) *readings {
	return &readings{read: read, wake: make(chan struct{}, 1), known: map[string]*reading{}}
}

// ask queues a reading, unless it waits already. A reading that is in progress is read again: the user asks because
// something has changed.
func (r *readings) ask(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.queue, key) {
		return
	}
	r.queue = append(r.queue, key)
	r.of(key).Waits = true
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// askIfOlder queues a reading that is older than age, and neither waits nor is in progress.
func (r *readings) askIfOlder(key string, age time.Duration) {
	if now := r.get(key); !now.busy() && wait.Elapsed(now.At) > age && wait.Elapsed(now.Failed) > age {
		r.ask(key)
	}
}

// of returns the reading of a key. The caller holds the lock.
func (r *readings) of(key string) *reading {
	if r.known[key] == nil {
		r.known[key] = &reading{}
	}
	return r.known[key]
}

// get returns a copy, or an empty reading.
func (r *readings) get(key string) reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[key]; known != nil {
		return *known
	}
	return reading{}
}

// run reads what is asked for until ctx ends.
func (r *readings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for key := r.next(); key != "" && ctx.Err() == nil; key = r.next() {
			value, err := r.read(ctx, key)
			r.done(key, value, err)
		}
	}
}

// next takes the first key of the queue; "" if it is empty.
func (r *readings) next() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return ""
	}
	key := r.queue[0]
	r.queue = r.queue[1:]
	of := r.of(key)
	of.Waits, of.Began = false, time.Now()
	return key
}

func (r *readings) done(key string, value any, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of(key)
	of.Began, of.Err = time.Time{}, err
	if err != nil {
		of.Failed = time.Now()
		return
	}
	of.Value, of.At = value, time.Now()
}

// The times after which a page is fetched again: while something is being read, on the page of the run, otherwise.
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

// again returns when a browser without scripts loads the page again: only while something is being read.
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

func (s *Site) readingPage(template, title, key string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if key == keyHistory {
			s.readings.askIfOlder(key, 5*time.Second) // only files
		}
		read := s.shown(key)
		s.frame.Render(w, http.StatusOK, template, frame.View{Title: title, Again: read.again(), Body: read})
	}
}

type nodeView struct {
	Node        string
	Trace       shown
	Drift, Plan *ui.NodeWords // nil: not read, or the node is not in it
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
	if i := slices.IndexFunc(nodes, func(n ui.NodeWords) bool { return n.Node == name }); i >= 0 {
		return &nodes[i]
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

// board is the run that has not ended, from its log on this machine. Each request continues to read the log where the
// last request stopped.
type board struct {
	mu      sync.Mutex
	run     string
	planned bool
	drawn   *live.Board
	follow  *live.Follower
}

// at returns the run as it is now, or, for a killed run, as it was when it was killed.
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
	Stopped string         // how to continue a run that is suspended on this machine; "": none is
	Last    *ui.HistoryRun // the run that was started last; nil: there was none
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

// pace returns how often the run of another machine is read while someone has the page open: like recast status
// --watch, with a request every two seconds on average.
func (s *Site) pace() time.Duration {
	return max(30*time.Second, time.Duration(len(s.Project.Config.Nodes))*2*time.Second)
}

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
		log = func(past.Run) story.Story { return story.Story{} } // the board has the log
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

// history returns what recast history lists. It reads a run that has ended only once.
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
