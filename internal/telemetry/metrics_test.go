package telemetry

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// parse reads a metrics file: values, or counts of summaries, by name and labels without
// cluster and command.
func parse(t *testing.T, path string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var key strings.Builder
			key.WriteString(strings.TrimPrefix(name, "recast_"))
			for _, l := range m.Label {
				if l.GetName() != "cluster" && l.GetName() != "command" {
					key.WriteString(" " + l.GetValue())
				}
			}
			got[key.String()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetSummary().GetSampleCount())
		}
	}
	return got
}

// A pipe is written to and stays a pipe.
func TestMetricsIntoAPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDWR, 0) // keeps the writer from blocking in open
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tele, ctx := start(t, Options{MetricsFile: path})
	tele.End(ctx, 0, nil)
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("it is %v now, %v", info.Mode(), err)
	}
	got := make([]byte, 64<<10)
	if n, err := r.Read(got); err != nil || !strings.Contains(string(got[:n]), "# TYPE recast_") {
		t.Errorf("it holds %q, %v", got[:n], err)
	}
}

// TestStepsAreCountedByKind: neither branches nor names of nodes are kinds.
func TestStepsAreCountedByKind(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "roll.prom")
	tele, ctx := start(t, Options{MetricsFile: path})
	run := &step.Runner{}
	tele.Watch(run)
	work := func(context.Context) error { return nil }
	branch := func(id string, steps ...step.Step) step.Step {
		return step.Step{ID: id, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
	}
	err := run.Run(ctx, branch("roll",
		branch("rehearse", branch("pve1", step.Step{ID: "ovmf-base", Kind: "try-boot", Do: work}, step.Step{ID: "seabios-base", Kind: "try-boot", Do: work})),
		branch("workers",
			branch("wk1", branch("take-down", step.Step{ID: "drain", Do: work})),
			branch("wk2", branch("take-down", step.Step{ID: "drain", Do: func(context.Context) error { return errors.New("broken") }})))))
	tele.End(ctx, 1, err)
	got := map[string]float64{}
	for key, v := range parse(t, path) {
		if strings.HasPrefix(key, "step") {
			got[key] = v
		}
	}
	want := map[string]float64{"step_duration_seconds try-boot": 2, "step_duration_seconds drain": 2, "steps_failed_total drain": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics of steps (-want +got):\n%s", diff)
	}
}

// TestRulesOfTheNotes: an alert fires for every result of a drift except all in sync; the
// second rule also when none has run for long.
func TestRulesOfTheNotes(t *testing.T) {
	t.Parallel()
	notes := read(t, "../../docs/notes/observability.md")
	rules := regexp.MustCompile(`(?m)^  expr: (.*)$`).FindAllStringSubmatch(notes, -1)
	if len(rules) != 2 {
		t.Fatalf("the notes have %q", rules)
	}
	for name, c := range map[string]struct {
		exit  int
		nodes []observe.Drift // nil: it failed before reading nodes
		old   bool
		want  [2]bool
	}{
		"in sync":           {0, []observe.Drift{{Node: "wk1"}}, false, [2]bool{false, false}},
		"stale":             {2, []observe.Drift{{Node: "wk1", Stale: true}}, false, [2]bool{true, false}},
		"unread":            {1, []observe.Drift{{Node: "wk1", Unread: []string{"Talos"}}}, false, [2]bool{true, true}},
		"failed":            {1, nil, false, [2]bool{false, true}},
		"bad configuration": {3, nil, false, [2]bool{false, true}},
		"refused":           {4, nil, false, [2]bool{false, true}},
		"claimed":           {5, nil, false, [2]bool{false, true}},
		"interrupted":       {130, nil, false, [2]bool{false, true}},
		"long ago":          {0, []observe.Drift{{Node: "wk1"}}, true, [2]bool{false, true}},
	} {
		path := filepath.Join(t.TempDir(), "drift.prom")
		tele, ctx := start(t, Options{MetricsFile: path})
		if c.nodes != nil {
			tele.Drifted(pipeline.DriftResult{Nodes: c.nodes})
		}
		tele.End(ctx, c.exit, nil)
		now := time.Now()
		if c.old {
			now = now.Add(37 * time.Hour)
		}
		got := [2]bool{fires(t, rules[0][1], parse(t, path), now), fires(t, rules[1][1], parse(t, path), now)}
		if got != c.want {
			t.Errorf("%s: the rules fire: %t, want %t", name, got, c.want)
		}
	}
}

// comparison is the only form of expression in the notes' rules.
var comparison = regexp.MustCompile(`^(time\(\) - )?recast_([a-z_]+)\{command="drift"(?:,state=~"([a-z|]+)")?\} (>|!=|==) (\d+)( \* 3600)?$`)

// fires evaluates a rule as Prometheus does: "and" binds closer than "or".
func fires(t *testing.T, expr string, metrics map[string]float64, now time.Time) bool {
	t.Helper()
	holds := func(text string) bool {
		m := comparison.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%q is not a comparison that this test knows", text)
		}
		limit, _ := strconv.ParseFloat(m[5], 64) // digits
		if m[6] != "" {
			limit *= 3600
		}
		for state := range strings.SplitSeq(m[3], "|") {
			v, found := metrics[strings.TrimSpace(m[2]+" "+state)]
			if m[1] != "" {
				v = stamp(now) - v
			}
			if found && (m[4] == ">" && v > limit || m[4] == "!=" && v != limit || m[4] == "==" && v == limit) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(strings.Split(expr, " or "), func(all string) bool {
		return !slices.ContainsFunc(strings.Split(all, " and "), func(one string) bool { return !holds(one) })
	})
}

// The printed metrics equal those of the file, whether there is one or not.
func TestMetricsArePrinted(t *testing.T) {
	t.Parallel()
	res := pipeline.DriftResult{Nodes: []observe.Drift{{Node: "wk1", Stale: true, Reasons: []cluster.Reason{{Code: "talos-version"}}}, {Node: "wk2"}}}
	path := filepath.Join(t.TempDir(), "drift.prom")
	tele, ctx := start(t, Options{MetricsFile: path})
	tele.Drifted(res)
	tele.End(ctx, 2, nil)
	plain, _ := start(t, Options{})
	plain.Drifted(res)
	var out bytes.Buffer
	if err := plain.WriteMetrics(&out, 2); err != nil {
		t.Fatal(err)
	}
	times := regexp.MustCompile(`(?m)^(recast_command_[a-z]+_timestamp_seconds.*) .*$`)
	still := func(text string) string { return times.ReplaceAllString(text, "$1 now") }
	if diff := cmp.Diff(still(read(t, path)), still(out.String())); diff != "" {
		t.Errorf("printed (-file +printed):\n%s", diff)
	}
	var none *Telemetry
	if err := none.WriteMetrics(&out, 0); err != nil {
		t.Error(err)
	}
}
