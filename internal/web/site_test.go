package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/web/frame/frametest"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

const secret = "PVEAPIToken=recast@pve!ui=5ec0ffee-1ab0-4000-8000-000000000001"

// options are those of a cluster in which every text from elsewhere is text.
func options(dir, text string) Options {
	drift := observe.Drift{Node: "wk1", Stale: true, Build: "b1", Talos: "v1.13.9", Reasons: []cluster.Reason{{Code: "extension-digest", Text: text}}, Notes: []string{text}}
	return Options{
		Version: "v0.0.0", Project: pipeline.Project{Config: &config.Config{Cluster: "lab", Dir: dir}}, Hide: redact.New(nil).Text,
		Drift: func(context.Context) (pipeline.DriftResult, error) {
			return pipeline.DriftResult{Cluster: "lab", Stale: 1, Unread: 1, Unlisted: []string{text}, Nodes: []observe.Drift{
				{Node: "cp1", Build: "b0", Talos: "v1.13.9"}, drift, {Node: strings.TrimSuffix(text, secret), Unread: []string{text}, Build: "b1"},
			}}, nil
		},
		Plan: func(context.Context) (planning.Plan, error) {
			return planning.Plan{Cluster: "lab", Warn: []string{text}, Nodes: []planning.NodePlan{
				{Node: "wk1", Phase: planning.Workers, Role: "worker", VMID: 9031, Host: "pve1", Strategy: cluster.Recreate, Why: "recreate: " + text, Drift: drift, WillLose: []string{text}, Carried: []planning.DiskPlan{{Key: "scsi1", Volid: "fast:1", Serial: text}}},
				{Node: "wk2", Phase: planning.Workers, Role: "worker", VMID: 9032, Host: "pve1", Strategy: cluster.Recreate, Why: "recreate: " + text, Refused: []string{text}},
				{Node: "cp1", Role: "control-plane", Why: text},
			}}, nil
		},
		Status: func(context.Context) (pipeline.StatusResult, error) {
			return pipeline.StatusResult{Cluster: "lab", Problems: []string{text}}, nil
		},
		Trace: func(_ context.Context, node string) (observe.Provenance, error) {
			return observe.Provenance{Node: node, VM: "VM 9031", Links: []observe.ProvenanceLink{{Name: "lock", Certainty: observe.Proven, Text: text, Details: []string{text}}}, Summary: []string{text}}, nil
		},
		Log: func(r past.Run) story.Story { s, _ := story.ReadDirs(r.Dirs); return s },
		Report: func(w io.Writer, r past.Run) error {
			_, err := io.WriteString(w, "report of "+r.ID)
			return err
		},
	}
}

// visit is a browser that has opened the first URL of a site on port 8123.
type visit struct {
	t    testing.TB
	site *Site
	h    http.Handler
	jar  *http.Cookie
}

const host = "127.0.0.1:8123"

func open(t testing.TB, o Options) *visit {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	v := &visit{t: t, site: s, h: s.Handler("8123")}
	first := v.ask(httptest.NewRequest(http.MethodGet, "http://"+host+s.First(), nil))
	v.jar = first.Result().Cookies()[0]
	return v
}

func (v *visit) ask(r *http.Request) *httptest.ResponseRecorder {
	if v.jar != nil {
		r.AddCookie(v.jar)
	}
	w := httptest.NewRecorder()
	v.h.ServeHTTP(w, r)
	return w
}

// page gets a page, which must be whole.
func (v *visit) page(path string) string {
	v.t.Helper()
	text := v.get(path)
	frametest.RequireSound(v.t, text, secret)
	return text
}

func (v *visit) get(path string) string {
	v.t.Helper()
	w := v.ask(httptest.NewRequest(http.MethodGet, "http://"+host+v.site.frame.Base+path, nil))
	if w.Code != http.StatusOK {
		v.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// read presses a button, and waits for the reading; it needs a synctest bubble.
func (v *visit) read(what string) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	go v.site.readings.run(ctx)
	if w := v.post(what, "http://"+host); w.Code != http.StatusSeeOther {
		v.t.Fatalf("read %s: %d %s", what, w.Code, w.Body)
	}
	synctest.Wait()
	cancel()
	synctest.Wait()
}

func (v *visit) post(what, origin string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://"+host+v.site.frame.Base+"read", strings.NewReader(url.Values{"what": {what}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	return v.ask(r)
}

// bring copies a run of testdata below dir.
func bring(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, ".recast", "runs"), os.DirFS(filepath.Join("../../testdata/runs", name))); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var errDown = errors.New("read https://pve1:8006: " + secret + " was refused <script>alert(1)</script>")
