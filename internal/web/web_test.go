package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/sim/must"
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
	s := must.Get(New(o))(t)
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
	must.Do(t, os.CopyFS(filepath.Join(dir, ".recast", "runs"), os.DirFS(filepath.Join("../../testdata/runs", name))))
}

func read(t testing.TB, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

var errDown = errors.New("read https://pve1:8006: " + secret + " was refused <script>alert(1)</script>")

// Who may read a page: only the browser that has opened the first URL, at an address of
// this machine.
func TestGuard(t *testing.T) {
	t.Parallel()
	v := open(t, options(t.TempDir(), "text"))
	type row struct {
		host, path, cookie string
		want               int
	}
	cases := map[string]row{
		"the user":                     {host, v.site.frame.Base, v.jar.Value, 200},
		"by name":                      {"localhost:8123", v.site.frame.Base, v.jar.Value, 200},
		"a name that resolves to here": {"evil.example:8123", v.site.frame.Base, v.jar.Value, 403},
		"that, with the token":         {"evil.example:8123", v.site.First(), "", 403},
		"another port":                 {"127.0.0.1:8124", v.site.frame.Base, v.jar.Value, 403},
		"no port":                      {"127.0.0.1", v.site.frame.Base, v.jar.Value, 403},
		"another address":              {"127.0.0.2:8123", v.site.frame.Base, v.jar.Value, 403},
		"no cookie":                    {host, v.site.frame.Base, "", 403},
		"a guessed cookie":             {host, v.site.frame.Base, strings.Repeat("A", len(v.jar.Value)), 403},
		"the token as a cookie":        {host, v.site.frame.Base, v.site.token, 403},
		"a guessed token":              {host, "/" + strings.Repeat("A", len(v.site.token)), "", 403},
		"the root":                     {host, "/", "", 403},
		"the style without a cookie":   {host, v.site.frame.Base + "style.css", "", 403},
		"the style":                    {host, v.site.frame.Base + "style.css", v.jar.Value, 200},
		"the script":                   {host, v.site.frame.Base + "live.js", v.jar.Value, 200},
		"no such page":                 {host, v.site.frame.Base + "etc/passwd", v.jar.Value, 404},
		"out of the pages":             {host, "/other/", v.jar.Value, 404},
		"no such run":                  {host, v.site.frame.Base + "history/..%2f..%2fx", v.jar.Value, 404},
		"no such runbook":              {host, v.site.frame.Base + "runbooks/README", v.jar.Value, 404},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		r := httptest.NewRequest(http.MethodGet, "http://"+c.host+c.path, nil)
		if c.cookie != "" {
			r.AddCookie(&http.Cookie{Name: cookie, Value: c.cookie})
		}
		w := httptest.NewRecorder()
		v.h.ServeHTTP(w, r)
		must.Equal(t, "status", c.want, w.Code)
		if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("policy %q", policy)
		}
		if c.want == 403 && (len(w.Result().Cookies()) > 0 || strings.Contains(w.Body.String(), v.site.frame.Base)) {
			t.Errorf("it gives something away: %s", w.Body)
		}
	})
}

// No script, and no server on another port of this machine, gets the cookie.
func TestCookie(t *testing.T) {
	t.Parallel()
	v := open(t, options(t.TempDir(), "text"))
	c := v.jar
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != v.site.frame.Base || len(v.site.frame.Base) < 20 || c.Domain != "" || c.MaxAge != 0 || !c.Expires.IsZero() {
		t.Errorf("cookie %+v", c)
	}
	if v.site.token == v.site.session || strings.Contains(v.site.frame.Base, v.site.token) || len(v.site.token) < 20 {
		t.Error("the token is in the address of every page, or short")
	}
}

// Reading again needs a page of ours; nothing else is sent to the site.
func TestReadingAgain(t *testing.T) {
	t.Parallel()
	type row struct {
		what, origin string
		want         int
	}
	cases := map[string]row{
		"a button":          {keyDrift, "http://" + host, 303},
		"another site":      {keyDrift, "https://evil.example", 403},
		"another port":      {keyDrift, "http://127.0.0.1:9999", 403},
		"a sandboxed frame": {keyDrift, "null", 403},
		"no origin":         {keyDrift, "", 403},
		"nothing":           {"", "http://" + host, 400},
		"something else":    {"roll", "http://" + host, 400},
		"no node":           {keyNode, "http://" + host, 400},
		"too much":          {keyNode + strings.Repeat("a", 2000), "http://" + host, 400},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		v := open(t, options(t.TempDir(), "text"))
		must.Equal(t, "status", c.want, v.post(c.what, c.origin).Code)
		must.Equal(t, "something is read", c.want == 303, len(v.site.readings.queue) > 0)
	})
	v := open(t, options(t.TempDir(), "text"))
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		r := httptest.NewRequest(method, "http://"+host+v.site.frame.Base+"read?what=drift", nil)
		r.Header.Set("Origin", "http://"+host)
		if w := v.ask(r); w.Code < 400 || len(v.site.readings.queue) > 0 {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

// Serve answers on its port only, reads the cluster at once, and ends with ctx.
func TestServe(t *testing.T) {
	t.Parallel()
	s := must.Get(New(options(t.TempDir(), "text")))(t)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	answer := must.Get(http.Get("http://" + l.Addr().String() + s.First()))(t)
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		t.Errorf("%s, %v", answer.Status, answer.Cookies())
	}
	for _, key := range []string{keyDrift, keyPlan, keyStatus} {
		if now := s.readings.get(key); !now.busy() && now.Value == nil {
			t.Errorf("%s is not read", key)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// One is read at a time, in the order in which they were asked for, each at most once more.
func TestReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log []string
		active := 0
		r := newReadings(func(ctx context.Context, key string) (any, error) {
			if active++; active > 1 {
				t.Error("two at once")
			}
			defer func() { active-- }()
			log = append(log, key)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(5 * time.Second):
			}
			if key == "bad" {
				return nil, errors.New("down")
			}
			return key + "!", nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { r.run(ctx); close(done) }()
		for _, key := range []string{"a", "b", "bad"} {
			r.ask(key)
		}
		synctest.Wait()
		if a, b := r.get("a"), r.get("b"); !a.busy() || a.Began.IsZero() || !b.Waits || !b.Began.IsZero() {
			t.Errorf("a %+v, b %+v", a, b)
		}
		for range 9 {
			r.ask("a") // it changed while it was being read
			r.ask("b")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"a", "b", "bad", "a"}; !slices.Equal(log, want) {
			t.Errorf("read %v, want %v", log, want)
		}
		if a := r.get("a"); a.Value != "a!" || a.busy() || time.Since(a.At) != 40*time.Second {
			t.Errorf("a %+v", a)
		}
		if bad := r.get("bad"); bad.Value != nil || bad.Err == nil || time.Since(bad.Failed) != 45*time.Second {
			t.Errorf("bad %+v", bad)
		}
		if r.askIfOlder("a", time.Hour); r.get("a").busy() {
			t.Error("it is young")
		}
		r.askIfOlder("a", time.Second)
		synctest.Wait()
		cancel()
		<-done
		if a := r.get("a"); a.Value != "a!" || !errors.Is(a.Err, context.Canceled) {
			t.Errorf("cancelled: %+v", a)
		}
	})
}

// TestReadingsAfterSleep: what was read before this machine slept is as old as it is, and is read again.
func TestReadingsAfterSleep(t *testing.T) {
	t.Parallel()
	r := newReadings(nil)
	r.done("status", "old", nil)
	// The monotonic clock stands still while a machine sleeps: only the wall clock shows when that was.
	read := r.of("status")
	read.At = read.At.Add(-8 * time.Hour)
	(*struct { // time.Time
		wall uint64
		ext  time.Duration
		loc  *time.Location
	})(unsafe.Pointer(&read.At)).ext += 8 * time.Hour
	if time.Since(read.At) > time.Minute {
		t.Fatal("it did not sleep")
	}
	must.Equal(t, "read", "8h0m ago", age(read.At))
	if r.askIfOlder("status", time.Minute); !r.get("status").busy() {
		t.Error("it is not read again")
	}
}
