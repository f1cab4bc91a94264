package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

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
				if strings.Contains(page, wrong) {
					t.Errorf("%q has %q:\n%s", path, wrong, page)
				}
			}
			if path != "nodes/wk1" && !strings.Contains(page, "&lt;script&gt;") {
				t.Errorf("%q lacks the text", path)
			}
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

// fixedRun is the ID of every run of testdata.
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
	require(`>suspended<`, "is suspended: fg in its terminal, or kill -CONT ", "lets it go on", "3 of 6 nodes done")
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

// Every runbook is drawn, and its links lead to another one, or to where the documentation
// is published.
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
	if links < 20 {
		t.Errorf("only %d links", links)
	}
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
		if n := look(10 * time.Minute); n < 4 || n > 5 {
			t.Errorf("read %d times in 10 minutes, with 60 nodes", n)
		}
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
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		must.Equal(t, "history", last, ui.HistoryOf(all, nil, 0, o.Log, o.Hide).Runs[0].ID)
		if run, err := runs.Find("", past.Options{}); err != nil || run.ID != last {
			t.Errorf("report: %s, %v", run.ID, err)
		}
		status, err := pipeline.Status(t.Context(), o.Project, pipeline.StatusSources{Proxmox: noVMs{}})
		if err != nil || status.LastRun == nil || status.LastRun.ID != last || !status.LastRun.Elsewhere {
			t.Errorf("status: %+v, %v", status.LastRun, err)
		}
		if order, sure := runs.Order([]planning.Replacing{{Run: first}, {Run: last}}); order[0].Run != last || !sure {
			t.Errorf("undo: %v, %t", order, sure)
		}
		if page := open(t, o).page("run"); !strings.Contains(page, last) || strings.Contains(page, first) {
			t.Errorf("ui:\n%s", page)
		}
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

// BenchmarkPages draws each page of a large cluster with a long history, while a run of all
// its nodes is active.
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
	if got > mostMiB {
		b.Errorf("it allocates %.1f MiB, more than %.0f", got, mostMiB)
	}
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
