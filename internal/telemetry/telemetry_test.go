package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

func start(t *testing.T, o Options) (*Telemetry, context.Context) {
	t.Helper()
	o.Command = "recast drift"
	if o.Warn == nil {
		o.Warn = func(text string) { t.Errorf("warned: %s", text) }
	}
	tele, ctx, err := Start(t.Context(), o)
	must.Do(t, err)
	return tele, ctx
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(path))(t))
}

func TestTheLogOfARunHoldsWhatCameBefore(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	tele, ctx := start(t, Options{})
	tele.log.Info("before")
	tele.Began("one", dirs[0])
	tele.log.Info("in one")
	tele.Began("one", dirs[0])
	tele.Began("two", dirs[1])
	tele.log.Info("in two")
	tele.End(ctx, 0, nil)
	want := []string{"command, before, run, in one, run", "run, in two, command"}
	for i, dir := range dirs {
		var got []string
		for line := range strings.Lines(read(t, filepath.Join(dir, story.LogName))) {
			var l struct{ Msg string }
			must.Do(t, json.Unmarshal([]byte(line), &l))
			got = append(got, l.Msg)
		}
		must.Equal(t, fmt.Sprintf("log of run %d", i), want[i], strings.Join(got, ", "))
	}
}

func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &sink{warn: func(text string) { t.Errorf("warned: %s", text) }}
	line := func(n int) []byte { return fmt.Appendf(nil, "%08d%s\n", n, strings.Repeat(".", 1015)) }
	write := func(from, to int) {
		for n := from; n < to; n++ {
			must.Get(s.Write(line(n)))(t)
		}
	}
	write(0, 3000)
	must.Hold(t, len(s.pending) <= maxPending && bytes.HasSuffix(s.pending, line(2999)) && len(s.pending)%len(line(0)) == 0,
		"%d bytes wait for a run", len(s.pending))
	s.begin(dir)
	write(3000, 30000)
	s.close()
	older, newest := read(t, filepath.Join(dir, story.OlderLogName)), read(t, filepath.Join(dir, story.LogName))
	must.Hold(t, len(older) <= maxLog && len(newest) <= maxLog && strings.HasSuffix(newest, string(line(29999))),
		"logs of %d and %d bytes", len(older), len(newest))
	all := older + newest
	first := 30000 - len(all)/len(line(0))
	must.Hold(t, first >= 3000 && strings.HasPrefix(all, string(line(first))),
		"the logs begin with %.8s and have %d lines", all, len(all)/len(line(0)))
}

// TestALogThatCanNotBeWritten: there is one warning, and nothing fails.
func TestALogThatCanNotBeWritten(t *testing.T) {
	t.Parallel()
	var warned []string
	tele, ctx := start(t, Options{LogFile: "/dev/full", Warn: func(text string) { warned = append(warned, text) }})
	tele.Began("run", filepath.Join(t.TempDir(), "gone"))
	tele.log.Info("a line")
	tele.End(ctx, 0, nil)
	must.Hold(t, len(warned) == 2 && strings.HasPrefix(warned[0], "logging stopped: ") && strings.HasPrefix(warned[1], "the run has no log: "),
		"warned of %q", warned)
	for _, o := range []Options{{LogFile: t.TempDir() + "/no/log"}, {MetricsFile: t.TempDir() + "/no/metrics"}} {
		_, _, err := Start(t.Context(), o)
		must.Hold(t, fault.KindOf(err) == fault.Config, "%+v: %v", o, err)
	}
}

func TestWantsTraces(t *testing.T) {
	t.Parallel()
	const to = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c "
	type example struct {
		env          string
		want, failed bool
	}
	cases := map[string]example{
		"nothing":         {"", false, false},
		"endpoint":        {to, true, false},
		"of traces":       {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c", true, false},
		"of logs":         {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://c", false, false},
		"disabled":        {to + "OTEL_SDK_DISABLED=true", false, false},
		"no exporter":     {to + "OTEL_TRACES_EXPORTER=none", false, false},
		"our protocol":    {to + "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, false},
		"gRPC":            {to + "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, true},
		"gRPC for others": {to + "OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", true, false},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		env := map[string]string{}
		for set := range strings.FieldsSeq(c.env) {
			key, value, _ := strings.Cut(set, "=")
			env[key] = value
		}
		got, err := wantsTraces(func(key string) string { return env[key] })
		must.Hold(t, got == c.want && (err != nil) == c.failed, "%t, %v", got, err)
	})
}

// TestSpansAreSentAfterCtrlC: spans are sent even if the context has ended.
func TestSpansAreSentAfterCtrlC(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	kept := &keeping{InMemoryExporter: spans}
	parent, cancel := context.WithCancelCause(t.Context())
	tele, ctx, err := Start(parent, Options{Command: "recast roll", Exporter: kept, Warn: func(text string) { t.Errorf("warned: %s", text) }})
	must.Do(t, err)
	run := &step.Runner{}
	tele.Watch(run)
	stopped := errors.New("Ctrl-C")
	err = run.Run(ctx, step.Step{ID: "roll", Do: func(ctx context.Context) error { cancel(stopped); return context.Cause(ctx) }})
	tele.End(ctx, 130, err)
	got := cluster.Each(kept.spans, func(s tracetest.SpanStub) string { return s.Name + ": " + s.Status.Description })
	must.Equal(t, "spans", []string{"roll: roll: Ctrl-C", "recast roll: roll: Ctrl-C"}, got)
}

// keeping is an exporter that keeps its spans for tests.
type keeping struct {
	*tracetest.InMemoryExporter
	spans tracetest.SpanStubs
}

func (k *keeping) Shutdown(ctx context.Context) error {
	k.spans = k.GetSpans()
	return k.InMemoryExporter.Shutdown(ctx)
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestChangesAreLogged without possible secrets: queries, headers, bodies, and error texts.
func TestChangesAreLogged(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	path := filepath.Join(t.TempDir(), "log")
	tele, ctx := start(t, Options{LogFile: path})
	ctx = tele.enter(ctx, "roll/workers/wk1/take-down")
	client := &http.Client{Transport: tele.HTTP("proxmox")(answers(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodDelete {
			return nil, fmt.Errorf("%s: %w", secret, syscall.ECONNREFUSED)
		}
		return &http.Response{StatusCode: 500, Status: "500 " + secret, Body: io.NopCloser(strings.NewReader(secret)), Request: r}, nil
	}))}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		req := must.Get(http.NewRequestWithContext(ctx, method, "https://user:"+secret+"@pve1:8006/a/b?c="+secret, strings.NewReader(secret)))(t)
		req.Header.Set("Authorization", secret)
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close() // it is in memory
		}
	}
	tele.End(ctx, 0, nil)
	text := read(t, path)
	must.Hold(t, !strings.Contains(text, secret), "a secret is logged:\n%s", text)
	var got []string
	for line := range strings.Lines(text) {
		var l map[string]any
		must.Do(t, json.Unmarshal([]byte(line), &l))
		if l["msg"] == "request" {
			got = append(got, fmt.Sprintln(l["level"], l["server"], l["host"], l["method"], l["path"], l["code"], l["error"], l["step"], l["node"]))
		}
	}
	want := []string{
		"WARN proxmox pve1:8006 POST /a/b 500 500 roll/workers/wk1/take-down wk1\n",
		"WARN proxmox pve1:8006 DELETE /a/b <nil> refused roll/workers/wk1/take-down wk1\n",
	}
	must.Equal(t, "logged requests", want, got)
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"cancelled": fmt.Errorf("x: %w", context.Canceled), "timeout": context.DeadlineExceeded, "broken": io.ErrUnexpectedEOF,
		"refused": &net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "name": &net.DNSError{}, "other": errors.New("x"),
	} {
		must.Equal(t, err.Error(), want, kindOf(err))
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"machine.MachineService/Version": true, "cosi.resource.State/Watch": true, "machine.MachineService/EtcdSnapshot": true,
		"machine.MachineService/Reboot": false, "machine.LifecycleService/Upgrade": false, "cosi.resource.State/Update": false, "new.Service/Unknown": false,
	} {
		must.Equal(t, method+" only reads", want, reads(method))
	}
}

// TestDriftAsMetrics: the file is replaced at the end and is readable by all.
func TestDriftAsMetrics(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "drift.prom")
	tele, ctx := start(t, Options{MetricsFile: path, Version: "v1"})
	tele.Cluster("prod")
	tele.Drifted(pipeline.DriftResult{Nodes: []observe.Drift{
		{Node: "cp1", Build: "b", Talos: "v1.13.9"},
		{Node: "wk1", Stale: true, Reasons: []cluster.Reason{{Code: "extension-digest"}, {Code: "extension-digest"}}},
		{Node: "wk\"2", Unread: []string{"Talos"}},
	}})
	must.FailIs(t, must.Err(os.Stat(path)), os.ErrNotExist)
	tele.End(ctx, 2, nil)
	must.Equal(t, "mode", os.FileMode(0o644), must.Get(os.Stat(path))(t).Mode().Perm())
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := must.Get(parser.TextToMetricFamilies(strings.NewReader(read(t, path))))(t)
	got := map[string]float64{}
	for name, f := range families {
		if strings.Contains(name, "timestamp") {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetName() != "cluster" && l.GetName() != "command" {
					labels = append(labels, l.GetValue())
				} else if l.GetValue() != "prod" && l.GetValue() != "drift" {
					t.Errorf("label %v", l)
				}
			}
			got[strings.TrimPrefix(name, "recast_")+" "+strings.Join(labels, " ")] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"info v1": 1, "command_exit_code ": 2, "nodes in-sync": 1, "nodes stale": 1, "nodes unread": 1, "stale_nodes extension-digest": 1,
		"node_stale cp1": 0, "node_stale wk1": 1, `node_stale wk"2`: 0, "node_unread cp1": 0, "node_unread wk1": 0, `node_unread wk"2`: 1,
		"node_info b cp1 v1.13.9": 1, "node_info  wk1 ": 1, `node_info  wk"2 `: 1,
	}
	must.Equal(t, "metrics", want, got)
}

// TestNilTelemetry: all methods work on a nil Telemetry.
func TestNilTelemetry(t *testing.T) {
	t.Parallel()
	var tele *Telemetry
	run := &step.Runner{}
	tele.Watch(run)
	tele.Cluster("x")
	tele.Began("x", "/nowhere")
	tele.Drifted(pipeline.DriftResult{})
	tele.Planned(planning.Plan{})
	tele.Rolled(pipeline.Report{}, ui.Fared{})
	tele.Examined(checkup.Result{})
	tele.End(t.Context(), 0, nil)
	must.Hold(t, run.Emit == nil && run.Context == nil && tele.HTTP("x") == nil && tele.GRPC("x") == nil,
		"something is wrapped")
}

// parse reads a metrics file: values, or counts of summaries, by name and labels without cluster and command.
func parse(t *testing.T, path string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := must.Get(parser.TextToMetricFamilies(strings.NewReader(read(t, path))))(t)
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
	must.Do(t, syscall.Mkfifo(path, 0o600))
	r, err := os.OpenFile(path, os.O_RDWR, 0) // keeps the writer from blocking in open
	must.Do(t, err)
	defer r.Close()
	tele, ctx := start(t, Options{MetricsFile: path})
	tele.End(ctx, 0, nil)
	must.Equal(t, "type", os.ModeNamedPipe, must.Get(os.Lstat(path))(t).Mode().Type())
	got := make([]byte, 64<<10)
	n, err := r.Read(got)
	must.Hold(t, err == nil && strings.Contains(string(got[:n]), "# TYPE recast_"), "it holds %q, %v", got[:n], err)
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
	got := parse(t, path)
	maps.DeleteFunc(got, func(key string, _ float64) bool { return !strings.HasPrefix(key, "step") })
	want := map[string]float64{"step_duration_seconds try-boot": 2, "step_duration_seconds drain": 2, "steps_failed_total drain": 1}
	must.Equal(t, "metrics of steps", want, got)
}

// TestRulesOfTheNotes: an alert fires for every result of a drift except all in sync; the
// second rule also when none has run for long.
func TestRulesOfTheNotes(t *testing.T) {
	t.Parallel()
	notes := read(t, "../../docs/notes/observability.md")
	rules := regexp.MustCompile(`(?m)^  expr: (.*)$`).FindAllStringSubmatch(notes, -1)
	must.Equal(t, "rules in the notes", 2, len(rules))
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
		must.Equal(t, name+": the rules fire", c.want, got)
	}
}

// comparison is the only form of expression in the notes' rules.
var comparison = regexp.MustCompile(`^(time\(\) - )?recast_([a-z_]+)\{command="drift"(?:,state=~"([a-z|]+)")?\} (>|!=|==) (\d+)( \* 3600)?$`)

// fires evaluates a rule as Prometheus does: "and" binds closer than "or".
func fires(t *testing.T, expr string, metrics map[string]float64, now time.Time) bool {
	t.Helper()
	holds := func(text string) bool {
		m := comparison.FindStringSubmatch(text)
		must.Be(t, m != nil, "%q is not a comparison that this test knows", text)
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
	must.Do(t, plain.WriteMetrics(&out, 2))
	times := regexp.MustCompile(`(?m)^(recast_command_[a-z]+_timestamp_seconds.*) .*$`)
	still := func(text string) string { return times.ReplaceAllString(text, "$1 now") }
	must.Equal(t, "printed", still(read(t, path)), still(out.String()))
	var none *Telemetry
	must.Do(t, none.WriteMetrics(&out, 0))
}
