package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/web/frame/frametest"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

const secret = "PVEAPIToken=recast@pve!ui=5ec0ffee-1ab0-4000-8000-000000000001"

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

// Who may read a page: only the browser that has opened the first URL, at an address of this machine.
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
		must.Hold(t, c.want != 403 || len(w.Result().Cookies()) == 0 && !strings.Contains(w.Body.String(), v.site.frame.Base),
			"it gives something away: %s", w.Body)
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
		w := v.ask(r)
		must.Hold(t, w.Code >= 400 && len(v.site.readings.queue) == 0, "%s: %d", method, w.Code)
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
		now := s.readings.get(key)
		must.Hold(t, now.busy() || now.Value != nil, "%s is not read", key)
	}
	cancel()
	must.Pass(t, <-served)
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
		want := []string{"a", "b", "bad", "a"}
		must.Hold(t, slices.Equal(log, want), "read %v, want %v", log, want)
		if a := r.get("a"); a.Value != "a!" || a.busy() || time.Since(a.At) != 40*time.Second {
			t.Errorf("a %+v", a)
		}
		bad := r.get("bad")
		must.Hold(t, bad.Value == nil && bad.Err != nil && time.Since(bad.Failed) == 45*time.Second, "bad %+v", bad)
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
	must.Be(t, time.Since(read.At) <= time.Minute, "it did not sleep")
	must.Equal(t, "read", "8h0m ago", age(read.At))
	if r.askIfOlder("status", time.Minute); !r.get("status").busy() {
		t.Error("it is not read again")
	}
}

// The words of the commands are on the pages, and what was not read is said to be so.
func TestPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := open(t, options(t.TempDir(), "extension a → b"))
		for path, want := range map[string]string{"": "not read yet", "plan": "not read yet", "nodes/wk1": "Read</button>", "run": "no run was started on this machine"} {
			must.Contain(t, path, v.page(path), want)
		}
		for _, key := range []string{keyDrift, keyPlan, keyStatus, keyNode + "wk1"} {
			v.read(key)
		}
		time.Sleep(90 * time.Second)
		for path, words := range map[string][]string{
			"":          {"1m30s ago", "1 of 3 nodes could not be read, 1 stale: extension-digest 1", "extension a → b", "recast plan shows what a roll would do", "Read again", "not in recast.yaml"},
			"plan":      {"refused", "carried over:", "scsi1, fast:1", "will be lost:", "a roll refuses until every reason is gone", "recast plan --explain wk2", "warning: "},
			"run":       {"could not be read: extension a → b", "nobody holds it"},
			"nodes/wk1": {"stale", "recreate", "VM 9031 on pve1", "proven", "extension a → b"},
			"runbooks":  {"parked-half", "A replacement is unfinished"},
		} {
			page := v.page(path)
			must.Contain(t, path, page, words...)
		}
		if page := v.page(""); strings.Index(page, "wk1</a>") > strings.Index(page, "cp1</a>") {
			t.Error("a node that is in sync comes first")
		}
	})
}

// Text from elsewhere adds no markup, no control character and no secret to a page.
func TestForeignText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>' javascript:x \x1b[31m ` + "\x1b[31m\u202e " + secret
		v := open(t, options(t.TempDir(), hostile))
		for _, key := range []string{keyDrift, keyPlan, keyStatus, keyNode + hostile} {
			v.read(key)
		}
		for _, path := range []string{"", "plan", "run", "nodes/wk1", "nodes/" + "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"} {
			page := v.page(path)
			for _, wrong := range []string{"<script>", "<img", "\x1b", "\u202e", "5ec0ffee"} {
				must.Hold(t, !strings.Contains(page, wrong), "%q has %q:\n%s", path, wrong, page)
			}
			must.Hold(t, path == "nodes/wk1" || strings.Contains(page, "&lt;script&gt;"), "%q lacks the text", path)
		}
	})
}

// An error has its hint and its runbook, and what was read before it stays, with its age.
func TestTrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := options(t.TempDir(), "text")
		good, down := o.Drift, false
		o.Drift = func(ctx context.Context) (pipeline.DriftResult, error) {
			if down {
				return pipeline.DriftResult{}, fault.WithHint(fault.Unreachable.Of(errDown), "is pve1 on?")
			}
			return good(ctx)
		}
		v := open(t, o)
		v.read(keyDrift)
		down = true
		time.Sleep(time.Hour)
		v.read(keyDrift)
		page := v.page("")
		must.Contain(t, "the page", page, "could not be read at 01:00:00", "is pve1 on?", v.site.frame.Base+`runbooks/unreachable"`, "&lt;script&gt;", "[redacted]", "1h0m ago", "wk1</a>")
		must.Contain(t, "the runbook", v.page("runbooks/unreachable"), "<h2>What it means</h2>")
		down = false
		v.read(keyDrift)
		if page := v.page(""); strings.Contains(page, "could not be read at") || !strings.Contains(page, ", 0s ago") {
			t.Errorf("the trouble stays:\n%s", page)
		}
	})
}

const fixedRun = "20000101-0000-feed"

// A run that has not ended is followed in its log; one that was killed is shown as it was then.
func TestRunPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bring(t, dir, "roll")
	runDir := filepath.Join(dir, ".recast", "runs", fixedRun)
	info, logFile := filepath.Join(runDir, "RUN"), filepath.Join(runDir, story.LogName)
	ended, lines := read(t, info), strings.SplitAfter(read(t, logFile), "\n")
	cut := func(n int) { write(t, logFile, strings.Join(lines[:n], "")) }
	began, _, _ := strings.Cut(ended, ",\n")
	write(t, info, began+"}")
	o := options(dir, "text")
	dead, stopped := false, false
	o.Past = past.Options{
		Holder: claim.Holder{Boot: "b"}, Dead: func(claim.Holder) bool { return dead },
		Suspended: func(claim.Holder) bool { return stopped },
	}
	v := open(t, o)
	require := func(words ...string) {
		t.Helper()
		page := v.page("run")
		must.Contain(t, "the page", page, words...)
	}
	cut(200)
	require(`badge open">running`, "Its report so far", "1 of 6 nodes done, 1 in progress, 4 to go", `<meta http-equiv="refresh" content="4">`, `data-live="2"`, "<progress")
	cut(400)
	require("3 of 6 nodes done, 1 in progress, 2 to go")
	if page := v.page("run"); strings.Contains(page, "suspended") {
		t.Errorf("a run that goes on:\n%s", page)
	}
	stopped = true
	require(`>suspended<`, "is suspended: fg in its terminal, or kill -CONT ", "resumes it", "3 of 6 nodes done")
	dead = true
	require(`badge bad">killed`, "3 of 6 nodes done")
	write(t, info, ended)
	require(`badge good">done`, "Its report</a>")
}

// The report of a run is the one that recast history --html writes.
func TestReportPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bring(t, dir, "killed")
	v := open(t, options(dir, "text"))
	for path, want := range map[string]int{fixedRun: 200, fixedRun[:9]: 404, "none": 404} {
		w := v.ask(httptest.NewRequest(http.MethodGet, "http://"+host+v.site.frame.Base+"history/"+path, nil))
		if w.Code != want || want == 200 && (w.Body.String() != "report of "+fixedRun || w.Header().Get("Content-Security-Policy") != reportPolicy) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// The history is read when someone looks at it.
func TestHistoryPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		v := open(t, options(dir, "text"))
		look := func() string {
			ctx, cancel := context.WithCancel(t.Context())
			go v.site.readings.run(ctx)
			v.page("history")
			synctest.Wait()
			cancel()
			return v.page("history")
		}
		must.Contain(t, "text", look(), "no run is known")
		bring(t, dir, "roll")
		time.Sleep(time.Minute)
		for range 2 { // read, and remembered
			if page := look(); !strings.Contains(page, "qemu-guest-agent 11.0.2, new digest") || !strings.Contains(page, `scope="row"><a href="`+v.site.frame.Base+"history/"+fixedRun) {
				t.Error(page)
			}
			time.Sleep(time.Minute)
		}
	})
}

// Every runbook is drawn, and its links lead to another one, or to where the documentation is published.
func TestRunbookPages(t *testing.T) {
	t.Parallel()
	v := open(t, options(t.TempDir(), "text"))
	links := 0
	for _, code := range fault.AllCodes() {
		page := v.page("runbooks/" + string(code))
		_, article, found := strings.Cut(page, "<article")
		if !found || !strings.Contains(article, "<h2>") || strings.Contains(article, "```") || strings.Contains(article, "](") {
			t.Errorf("%s is not drawn:\n%s", code, page)
		}
		for _, link := range regexp.MustCompile(` href="([^"]*)"`).FindAllStringSubmatch(article, -1) {
			links++
			if _, here := runbooks.Page(link[1]); !here && !strings.HasPrefix(link[1], "https://") {
				t.Errorf("%s leads to %s", code, link[1])
			}
		}
	}
	must.Hold(t, links >= 20, "only %d links", links)
}

// A run of another machine is looked at again now and then, one that is followed here is not.
func TestARunElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := options(t.TempDir(), "text")
		o.Project.Config.Nodes = make([]config.Node, 60)
		var claimed *pipeline.ClaimHeld
		reads := 0
		o.Status = func(context.Context) (pipeline.StatusResult, error) {
			reads++
			return pipeline.StatusResult{Claim: claimed}, nil
		}
		v := open(t, o)
		go v.site.readings.run(t.Context())
		look := func(within time.Duration) int {
			reads = 0
			for range int(within / time.Second) {
				time.Sleep(time.Second)
				v.page("run")
				synctest.Wait()
			}
			return reads
		}
		v.read(keyStatus)
		must.Equal(t, "how often it was read while no run is active", 0, look(10*time.Minute))
		claimed = &pipeline.ClaimHeld{VMID: 9000, State: claim.State{Since: time.Now()}}
		v.read(keyStatus)
		n := look(10 * time.Minute)
		must.Hold(t, n >= 4 && n <= 5, "read %d times in 10 minutes, with 60 nodes", n)
	})
}

type noVMs struct{ cluster.Inventory }

func (noVMs) VMs(context.Context) ([]cluster.VM, error) { return nil, nil }

// TestTheLastRunIsTheSameEverywhere: of two runs of one minute, the one that started last has the ID that sorts first;
// and only the other one was on this machine. history, report, status, undo and ui mean the same one.
func TestTheLastRunIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := options(t.TempDir(), "text")
		runs := o.Project.Runs()
		const first, last = "20261121-0421-ffff", "20261121-0421-0000"
		at := time.Date(2026, 11, 21, 4, 21, 10, 0, time.UTC)
		for i, dir := range []string{filepath.Join(runs.Dir, first), filepath.Join(runs.Elsewhere, "first", last)} {
			began := at.Add(time.Duration(i) * 20 * time.Millisecond)
			text := fmt.Sprintf(`{"started":%q,"finished":%q,"outcome":"done"}`, began.Format(time.RFC3339Nano), began.Add(time.Millisecond).Format(time.RFC3339Nano))
			for name, content := range map[string]string{"RUN": text, "about.json": `{"command":"roll","by":{"host":"h"}}`} {
				must.Do(t, os.MkdirAll(dir, 0o700))
				must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
			}
		}
		all, problems := runs.All(past.Options{})
		must.Be(t, len(problems) == 0, "%v", problems)
		must.Equal(t, "history", last, ui.HistoryOf(all, nil, 0, o.Log, o.Hide).Runs[0].ID)
		if run, err := runs.Find("", past.Options{}); err != nil || run.ID != last {
			t.Errorf("report: %s, %v", run.ID, err)
		}
		status, err := pipeline.Status(t.Context(), o.Project, pipeline.StatusSources{Proxmox: noVMs{}})
		must.Hold(t, err == nil && status.LastRun != nil && status.LastRun.ID == last && status.LastRun.Elsewhere,
			"status: %+v, %v", status.LastRun, err)
		if order, sure := runs.Order([]planning.Replacing{{Run: first}, {Run: last}}); order[0].Run != last || !sure {
			t.Errorf("undo: %v, %t", order, sure)
		}
		page := open(t, o).page("run")
		must.Hold(t, strings.Contains(page, last) && !strings.Contains(page, first), "ui:\n%s", page)
	})
}

const (
	benchNodes = 500
	benchRuns  = 100
	// maxPageMiB is how much a page or the words of a reading may allocate, maxPastMiB the
	// first look at all past runs, with their plans.
	maxPageMiB = 30
	maxPastMiB = 1000
)

// BenchmarkPages draws each page of a large cluster with a long history, while a run of all its nodes is active.
func BenchmarkPages(b *testing.B) {
	dir := b.TempDir()
	o := large(b, dir)
	s := must.Get(New(o))(b)
	b.Run("read history first", func(b *testing.B) {
		limited(b, maxPastMiB, func() {
			clear(s.past)
			s.history(b.Context())
		})
	})
	for _, key := range []string{keyDrift, keyPlan, keyStatus, keyHistory, keyNode + "wk1"} {
		b.Run("read "+key, func(b *testing.B) {
			limited(b, maxPageMiB, func() {
				value := must.Get(s.read(b.Context(), key))(b)
				s.readings.done(key, value, nil)
			})
		})
	}
	v := open(b, o)
	v.site.readings = s.readings
	for _, path := range []string{"", "plan", "run", "history", "nodes/wk1", "runbooks"} {
		b.Run("page "+path, func(b *testing.B) {
			size := 0
			limited(b, maxPageMiB, func() { size = len(v.get(path)) })
			b.ReportMetric(float64(size)/1024, "KiB")
		})
	}
}

// limited measures f, which may allocate no more than that.
func limited(b *testing.B, mostMiB float64, f func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	for b.Loop() {
		f()
		n++
	}
	runtime.ReadMemStats(&after)
	got := float64(after.TotalAlloc-before.TotalAlloc) / float64(n) / (1 << 20)
	b.ReportMetric(got, "MiB")
	must.Hold(b, got <= mostMiB, "it allocates %.1f MiB, more than %.0f", got, mostMiB)
}

// large are the options of a cluster with many nodes, all of them stale, and many runs.
func large(b *testing.B, dir string) Options {
	b.Helper()
	o := options(dir, "extension iscsi-tools v0.2.0: sha256:a92069d1a15d → sha256:71830b79c290")
	drift := must.Get(o.Drift(b.Context()))(b)
	plan := must.Get(o.Plan(b.Context()))(b)
	stale, work := drift.Nodes[1], plan.Nodes[0]
	drift.Nodes, plan.Nodes = []observe.Drift{}, []planning.NodePlan{}
	for i := range benchNodes {
		stale.Node = fmt.Sprintf("wk%d", i)
		work.Node, work.VMID, work.Drift = stale.Node, 9000+cluster.VMID(i), stale
		work.Why = "recreate: possible for " + stale.Node
		drift.Nodes, plan.Nodes = append(drift.Nodes, stale), append(plan.Nodes, work)
	}
	drift.Stale = benchNodes
	o.Drift = func(context.Context) (pipeline.DriftResult, error) { return drift, nil }
	o.Plan = func(context.Context) (planning.Plan, error) { return plan, nil }
	text := must.Get(json.Marshal(plan))(b)
	for i := range benchRuns {
		at := filepath.Join(dir, ".recast", "runs", fmt.Sprintf("200001%02d-%02d00-feed", i/4+1, i%4))
		must.Do(b, os.CopyFS(at, os.DirFS(filepath.Join("../../testdata/runs/roll", fixedRun))))
		write(b, filepath.Join(at, "plan.json"), string(text))
		if i == benchRuns-1 {
			began, _, _ := strings.Cut(read(b, filepath.Join(at, "RUN")), ",\n")
			began = strings.Replace(began, "2000-01-01", "2000-02-01", 1)
			log := strings.SplitAfter(read(b, filepath.Join(at, story.LogName)), "\n")
			write(b, filepath.Join(at, "RUN"), began+"}")
			write(b, filepath.Join(at, story.LogName), strings.Join(log[:300], ""))
		}
	}
	return o
}
