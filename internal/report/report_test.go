package report_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

var update = flag.Bool("update", false, "write the golden files")

// runs are those that recast did in the lab, and their reports.
const runs = "../../testdata/runs"

func fixed(t *testing.T, name string) report.Run {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.CopyFS(filepath.Join(dir, ".recast", "runs"), os.DirFS(filepath.Join(runs, name))))
	p := pipeline.Project{Config: &config.Config{Dir: dir}}
	run := must.Get(p.Runs().Find("", past.Options{}))(t)
	told := must.Get(story.ReadDirs(run.Dirs))(t)
	return report.Run{Past: run, Story: told, Now: time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC), Version: "v0.0.0", Hide: redact.New(nil).Text}
}

func draw(t *testing.T, r report.Run) string {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, report.Write(&b, r))
	return b.String()
}

// TestGolden draws fixed runs: go test ./internal/report -update updates them, go test
// ./internal/sim/simtest -run TestReportOf -reports.update updates the runs.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"roll", "killed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := draw(t, fixed(t, name))
			requireSound(t, got)
			file := filepath.Join(runs, name+".html")
			if *update {
				must.Do(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want := must.Get(os.ReadFile(file))(t)
			must.Equal(t, file, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		})
	}
}

// fetches matches everything with which a page makes a browser send a request.
var fetches = regexp.MustCompile(`(?i)<(script|iframe|object|embed|img|video|audio|form|base)\b|@import|url\(|\b(src|href|srcset|action)="[^"#d]`)

// requireSound: a page sends no requests, and each element that has to be closed is closed.
func requireSound(t *testing.T, page string) {
	t.Helper()
	found := fetches.FindAllString(page, -1)
	must.Hold(t, len(found) == 0, "the page fetches something: %q", found)
	for _, wrong := range []string{"ZgotmplZ", "<no value>", "%!", "0001-01-01"} {
		must.Hold(t, !strings.Contains(page, wrong), "the page holds %q", wrong)
	}
	for _, tag := range []string{"html", "head", "body", "main", "section", "article", "details", "table", "tbody", "tr", "td", "ul", "li", "dl", "svg", "div", "header"} {
		opened := len(regexp.MustCompile(`<`+tag+`[ >]`).FindAllString(page, -1))
		closed := strings.Count(page, "</"+tag+">")
		must.Hold(t, opened == closed, "%d <%s>, %d </%s>", opened, tag, closed, tag)
	}
}

// failed is a run with text from others in every place that can have it.
func failed(text string) report.Run {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	return report.Run{
		Past: past.Run{
			ID: "20261121-0400-3f2a", Started: at, Finished: at.Add(time.Hour), Result: "failed", Error: text,
			Plan:  &planning.Plan{Cluster: text, Warn: []string{text}, Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate, Why: text, WillLose: []string{text}, Notes: []string{text}}}},
			Hooks: []planning.HookRun{{Point: cluster.BeforeRun, Command: []string{text}, Description: text, Output: text, Error: text}},
			About: &past.About{Command: "roll", Talos: "v1.13.9"},
		},
		Story: story.Story{
			From: at, To: at.Add(time.Hour), Begins: true,
			Turns: []*story.Turn{{
				Node: "wk1", Phase: "workers", Title: text, Began: at, Ended: at.Add(time.Minute), Status: "failed", Error: text, Hints: []string{text}, Text: text,
				Stages: []*story.Stage{{Name: "drain", Title: text, Began: at, Ended: at.Add(time.Minute), Status: "failed", Error: text, Hints: []string{text}, Noted: text}},
			}},
			Said: []story.Said{{At: at, Text: text}},
		},
		Now: at, Version: "v0.0.0", Hide: redact.New(nil).Text,
	}
}

// TestTextOfOthers: it stays text, whatever it contains, and no secret is shown.
func TestTextOfOthers(t *testing.T) {
	t.Parallel()
	page := draw(t, failed(`<script>alert("x")</script>"'><img src=x onerror=y>`))
	requireSound(t, page)
	page = draw(t, failed("token: 5ec0ffee-1ab0-4000-8000-000000000001"))
	n := strings.Count(page, "5ec0ffee")
	must.Hold(t, n <= 0, "a secret is there %d times", n)
}

// TestResults: every result has its next step.
func TestResults(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		"done": "recast drift checks", "failed": "recast roll continues", "interrupted": "recast roll continues", "killed": "recast status shows", "running": "the run is active", "running or killed": "recast roll continues",
	} {
		r := failed("no quorum")
		r.Past.Result = result
		if result != "failed" {
			r.Story = story.Story{}
		}
		must.Contain(t, result, draw(t, r), want)
	}
	draw(t, report.Run{Past: past.Run{ID: "a"}, Hide: strings.Clone}) // of nothing
}

// TestLargeRuns: a run of two hundred nodes makes a page that a phone can load.
func TestLargeRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	r := fixed(t, "roll")
	turns := r.Story.Turns
	r.Story.Turns = nil
	for n := range 200 {
		turn := *turns[n%len(turns)]
		turn.Node = fmt.Sprintf("node-%d", n)
		r.Story.Turns = append(r.Story.Turns, &turn)
	}
	page := draw(t, r)
	requireSound(t, page)
	must.Hold(t, len(page) <= 2<<20, "%d bytes", len(page))
}

// TestNext: the suggested commands have arguments that these commands accept.
func TestNext(t *testing.T) {
	t.Parallel()
	const again = " continues where this one stopped; nothing has to be undone by hand first"
	const status = "recast status shows where every disk is, and what is unfinished"
	for name, c := range map[string]struct {
		change func(*report.Run)
		result string
		want   []string
	}{
		"roll":           {nil, "failed", []string{status, "recast roll" + again}},
		"roll done":      {nil, "done", []string{"recast drift checks whether every node still runs the lock"}},
		"cancel":         {command("undo --cancel"), "killed", []string{status, "recast undo wk1" + again}},
		"cancel done":    {command("undo --cancel"), "done", []string{"recast plan shows what a roll would do: by the lock wk1 is as stale as before"}},
		"restore":        {func(r *report.Run) { r.Past.About, r.Past.Restored = nil, true }, "running or killed", []string{"recast restore FILE --node NODE, the same command," + again}},
		"restore, later": {func(r *report.Run) { r.Past.About, r.Past.Restored = nil, true }, "given up", []string{"nothing: another run replaced it, see recast history"}},
		"upgrade-k8s":    {func(r *report.Run) { r.Past.About, r.Past.Upgrade = nil, &kubeupgrade.Plan{} }, "failed", []string{"recast upgrade-k8s" + again}},
		"rollback": {func(r *report.Run) {
			command("undo --previous")(r)
			r.Past.Fates = &cluster.Fates{Failed: []string{}, Left: []string{"wk1", "wk2", "wk3"}} // wk1 was stopped on its way
		}, "interrupted", []string{
			status, "recast roll finishes an unfinished node, which must come first: before that, restore the previous recast.lock, or it brings the other nodes forward",
			"recast undo wk2 wk3 rolls back the nodes that were not started",
		}},
		"rollback, the last failed": {func(r *report.Run) {
			command("undo --previous")(r)
			r.Past.Fates = &cluster.Fates{Failed: []string{"wk1"}}
		}, "failed", []string{
			status, "recast roll finishes an unfinished node, which must come first: before that, restore the previous recast.lock, or it brings the other nodes forward",
		}},
		"rollback done": {command("undo --previous"), "done", []string{"restore the previous recast.lock: by the current one these nodes are stale, and recast roll brings them forward again"}},
	} {
		r := failed("no quorum")
		if c.change != nil {
			c.change(&r)
		}
		r.Past.Result = c.result
		_, page, _ := strings.Cut(draw(t, r), `<h2 id="next">`)
		page, _, _ = strings.Cut(page, "</section>")
		items := regexp.MustCompile(`<li>(.*)</li>`).FindAllStringSubmatch(page, -1)
		got := cluster.Each(items, func(item []string) string { return item[1] })
		must.Equal(t, name, c.want, got)
	}
}

func command(name string) func(*report.Run) {
	return func(r *report.Run) { r.Past.About.Command = name }
}

// TestDays: if a run lasts several days, a time includes the day.
func TestDays(t *testing.T) {
	t.Parallel()
	r := failed("no quorum")
	must.Contain(t, "a run of one day", draw(t, r), `<td class="time">04:00:00</td>`)
	r.Past.Finished = r.Past.Finished.Add(24 * time.Hour)
	must.Contain(t, "a run of two days", draw(t, r), `<td class="time">11-21 04:00:00</td>`)
	r = failed("no quorum")
	r.Now = r.Now.In(time.FixedZone("", -5*3600+1800)) // where it is half past eleven
	must.Contain(t, "the midnight of who reads it", draw(t, r), `<td class="time">11-20 23:30:00</td>`)
}

// TestActiveSteps: steps that another process left are not shown as active.
func TestActiveSteps(t *testing.T) {
	t.Parallel()
	r := failed("")
	first := *r.Story.Turns[0]
	first.Title, first.Status, first.Ended, first.Heard = "recreate wk1", "", time.Time{}, first.Began.Add(time.Minute)
	first.Stages = []*story.Stage{{Name: "drain", Began: first.Began}}
	second := first
	first.CutOff, first.Stages = true, []*story.Stage{{Name: "drain", Began: first.Began, CutOff: true}}
	r.Story.Turns = []*story.Turn{&first, &second}
	for result, want := range map[string]string{
		// Of each turn its badge, its stage, and that in the table; the row is that of the last.
		"running": "cut off 3, >goes on< 2, , goes on< 1, goes on; 2",
		"killed":  "cut off 8, >goes on< 0, , goes on< 0, goes on; 0",
	} {
		r.Past.Result = result
		page := draw(t, r)
		got := cluster.Each([]string{"cut off", ">goes on<", ", goes on<", "goes on;"}, func(text string) string {
			return fmt.Sprint(text, " ", strings.Count(page, text))
		})
		must.Equal(t, result, want, strings.Join(got, ", "))
	}
}

// Text from others can't add markup or change the direction of the page's text.
func TestForeignTextInThePage(t *testing.T) {
	t.Parallel()
	page := draw(t, failed("bad\x1b[31m <script>alert(1)</script>\u202e\u009b1A \u2028fake line"))
	if foreign.Lines(page) != page || strings.Contains(page, "<script") || !strings.Contains(page, "bad &lt;script&gt;") {
		t.Errorf("%q", page)
	}
}
