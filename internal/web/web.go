// Package web shows a cluster in a browser on this machine: its nodes, the plan, the active
// run and past ones. A [Site] has no way to change anything: it only gets functions that read.
package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

// Options is what a site shows.
type Options struct {
	Version string
	Project pipeline.Project
	Past    past.Options
	// These ask the servers of the cluster, which takes seconds.
	Drift  func(context.Context) (pipeline.DriftResult, error)
	Plan   func(context.Context) (planning.Plan, error)
	Status func(context.Context) (pipeline.StatusResult, error)
	Trace  func(ctx context.Context, node string) (provenance.Provenance, error)
	// These read files of this machine.
	Log    func(past.Run) story.Story
	Report func(io.Writer, past.Run) error
	// Fetch copies runs of other machines to this one; nil: nothing does.
	Fetch func(context.Context)
	// Hide removes secrets from foreign text.
	Hide func(string) string
}

// Site is the pages of one cluster.
type Site struct {
	Options
	readings             *readings
	pages                map[string]*template.Template
	base, token, session string // base: the path of all pages, "/…/"
	board                board
	past                 map[string]ui.HistoryRun // that have ended, by ID; only the reader uses it
	fetched              time.Time                // when runs of other machines were, as past
}

//go:embed pages
var files embed.FS

// pageNames are the templates of pages, beside the layout.
var pageNames = []string{"enter", "nodes", "node", "plan", "run", "history", "runbooks", "runbook", "missing"}

// New makes a site.
func New(o Options) (*Site, error) {
	s := &Site{Options: o, pages: map[string]*template.Template{}, base: "/" + rand.Text() + "/", token: rand.Text(), session: rand.Text(), past: map[string]ui.HistoryRun{}}
	s.readings = newReadings(s.read)
	layout, err := template.New("layout").Funcs(template.FuncMap{
		"base": func() string { return s.base },
		"hide": o.Hide,
		"path": url.PathEscape,
	}).ParseFS(files, "pages/layout.gohtml")
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	for _, name := range pageNames {
		page, err := layout.Clone()
		if err == nil {
			page, err = page.ParseFS(files, "pages/"+name+".gohtml")
		}
		if err != nil {
			return nil, fmt.Errorf("web: %w", err)
		}
		s.pages[name] = page
	}
	return s, nil
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
	server := &http.Server{Handler: s.Handler(port), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing is lost with a page
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages: %w", err)
	}
	return nil
}

// Handler answers the requests to a port.
func (s *Site) Handler(port string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.nodesPage)
	mux.HandleFunc("GET /nodes/{node}", s.nodePage)
	mux.HandleFunc("GET /plan", s.planPage)
	mux.HandleFunc("GET /run", s.runPage)
	mux.HandleFunc("GET /history", s.historyPage)
	mux.HandleFunc("GET /history/{run}", s.reportPage)
	mux.HandleFunc("GET /runbooks", s.runbooksPage)
	mux.HandleFunc("GET /runbooks/{code}", s.runbookPage)
	mux.HandleFunc("POST /read", s.readAgain)
	mux.HandleFunc("GET /style.css", s.style)
	mux.HandleFunc("GET /live.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "pages/live.js") })
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { s.missing(w, "there is no such page") })
	return s.guard(port, http.StripPrefix(strings.TrimSuffix(s.base, "/"), mux))
}

// The keys of readings. That of a node's provenance is keyNode and its name.
const (
	keyDrift   = "drift"
	keyPlan    = "plan"
	keyStatus  = "status"
	keyHistory = "history"
	keyNode    = "node/"
)

// read reads what a key stands for, in words.
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
	http.Redirect(w, r, s.base+page, http.StatusSeeOther)
}

// view is the data of a page.
type view struct {
	Title string // of a tab: it is that tab
	Again int    // seconds after which a browser without scripts loads it again; 0: never
	Body  any
	Site  *Site
}

// tab is a page that all others link to.
type tab struct{ Path, Name string }

// Tabs are the pages that all others link to.
func (v view) Tabs() []tab {
	return []tab{{"", "Nodes"}, {"plan", "Plan"}, {"run", "Run"}, {"history", "History"}, {"runbooks", "Runbooks"}}
}

// Cluster is the cluster's name.
func (v view) Cluster() string { return v.Site.Project.Config.Cluster }

// render answers with a page, or with an error and nothing of it.
func (s *Site) render(w http.ResponseWriter, status int, name string, v view) {
	v.Site = s
	var page bytes.Buffer
	if err := s.pages[name].ExecuteTemplate(&page, "layout", v); err != nil {
		http.Error(w, s.Hide("this page can't be drawn: "+err.Error()), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, foreign.Lines(page.String())) // the browser has gone away otherwise
}

func (s *Site) missing(w http.ResponseWriter, why string) {
	s.render(w, http.StatusNotFound, "missing", view{Title: "Not found", Body: why})
}

// style is that of reports, and what pages add to it.
func (s *Site) style(w http.ResponseWriter, _ *http.Request) {
	shared, err := report.Style()
	own, errOwn := files.ReadFile("pages/site.css")
	if err := errors.Join(err, errOwn); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	_, _ = w.Write(append(shared, own...)) // the browser has gone away otherwise
}
