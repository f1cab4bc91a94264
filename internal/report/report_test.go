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

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
)

var update = flag.Bool("update", false, "write the golden files")

// fixed is a run that recast made in the lab, as testdata has it.
func fixed(t *testing.T, name string) report.Run {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, ".recast", "runs"), os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	p := pipeline.Project{Config: &config.Config{Dir: dir}}
	run, err := p.PastRun("", pipeline.PastOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told, err := story.Read(os.DirFS(run.Dir))
	if err != nil {
		t.Fatal(err)
	}
	return report.Run{Past: run, Story: told, Now: time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC), Version: "v0.0.0", Hide: redact.New(nil).Text}
}

func draw(t *testing.T, r report.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGolden draws fixed runs: go test ./internal/report -update writes them anew,
// go test ./internal/sim/simtest -run TestReportOf -reports.update the runs.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"roll", "killed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := draw(t, fixed(t, name))
			requireSound(t, got)
			file := filepath.Join("testdata", name+".html")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// fetches are ways in which a page makes a browser ask somebody for something.
var fetches = regexp.MustCompile(`(?i)<(script|iframe|object|embed|img|video|audio|form|base)\b|@import|url\(|\b(src|href|srcset|action)="[^"#d]`)

// requireSound: a page fetches nothing, and each element that has to be closed is.
func requireSound(t *testing.T, page string) {
	t.Helper()
	if found := fetches.FindAllString(page, -1); len(found) > 0 {
		t.Errorf("the page fetches something: %q", found)
	}
	for _, wrong := range []string{"ZgotmplZ", "<no value>", "%!", "0001-01-01"} {
		if strings.Contains(page, wrong) {
			t.Errorf("the page holds %q", wrong)
		}
	}
	for _, tag := range []string{"html", "head", "body", "main", "section", "article", "details", "table", "tbody", "tr", "td", "ul", "li", "dl", "svg", "div", "header"} {
		opened := len(regexp.MustCompile(`<`+tag+`[ >]`).FindAllString(page, -1))
		if closed := strings.Count(page, "</"+tag+">"); opened != closed {
			t.Errorf("%d <%s>, %d </%s>", opened, tag, closed, tag)
		}
	}
}

// failed is a run with everything in it that others have written.
func failed(text string) report.Run {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	return report.Run{
		Past: pipeline.PastRun{
			ID: "20261121-0400-3f2a", Started: at, Finished: at.Add(time.Hour), Result: "failed", Error: text,
			Plan:  &cluster.Plan{Cluster: text, Warn: []string{text}, Nodes: []cluster.NodePlan{{Node: "wk1", Strategy: cluster.Recreate, Why: text, WillLose: []string{text}, Notes: []string{text}}}},
			Hooks: []cluster.HookRun{{Point: cluster.BeforeRun, Command: []string{text}, Description: text, Output: text, Error: text}},
			About: &pipeline.About{Command: "roll", Talos: "v1.13.9"},
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

// TestWhatOthersHaveWritten: it is text, whatever it holds, and no secret.
func TestWhatOthersHaveWritten(t *testing.T) {
	t.Parallel()
	page := draw(t, failed(`<script>alert("x")</script>"'><img src=x onerror=y>`))
	requireSound(t, page)
	page = draw(t, failed("token: 5ec0ffee-1ab0-4000-8000-000000000001"))
	if n := strings.Count(page, "5ec0ffee"); n > 0 {
		t.Errorf("a secret is there %d times", n)
	}
}

// TestResults: every result has its next step.
func TestResults(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		"done": "recast drift says", "failed": "recast roll goes on", "interrupted": "recast roll goes on", "killed": "recast status says", "running": "it goes on", "running or killed": "recast roll goes on",
	} {
		r := failed("no quorum")
		r.Past.Result = result
		if result != "failed" {
			r.Story = story.Story{}
		}
		if page := draw(t, r); !strings.Contains(page, want) {
			t.Errorf("%s: no %q", result, want)
		}
	}
	draw(t, report.Run{Past: pipeline.PastRun{ID: "a"}, Hide: strings.Clone}) // of nothing
}

// TestLargeRuns: two hundred nodes make a page that a phone can load.
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
	if len(page) > 2<<20 {
		t.Errorf("%d bytes", len(page))
	}
}
