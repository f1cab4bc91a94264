package simtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

var updateReports = flag.Bool("reports.update", false, "write the runs of which internal/report makes its golden files")

// logged is a client whose runs have a log, like those of recast.
func (l *Lab) logged(c *Client) *Client {
	tele, _, err := telemetry.Start(l.t.Context(), telemetry.Options{Command: "recast roll", Version: "devel", Warn: func(text string) { l.t.Errorf("warned of %q", text) }})
	must(l.t, err)
	c.Telemetry, c.Pulsed = tele, tele.Pulsed
	return c
}

// past reads a run as recast history --html does, and renders it.
func (l *Lab) past(id string) (past.Run, story.Story, string) {
	run := valueOf(valueOf(l.Client().Project())(l.t).Runs().Find(id, past.Options{Dead: l.isKilled}))(l.t)
	told := valueOf(story.ReadDirs(run.Dirs))(l.t)
	var b bytes.Buffer
	must(l.t, report.Write(&b, report.Run{Past: run, Story: told, Now: time.Now().UTC(), Version: "v0.0.0", Hide: redact.New(nil).Text}))
	l.canary.hear(b.String())
	return run, told, b.String()
}

// keepRun stores a run's files, without secrets and without most of the requests in its log.
func (l *Lab) keepRun(name string, run past.Run) {
	if !*updateReports {
		return
	}
	to := filepath.Join("../../../testdata/runs", name, run.ID)
	must(l.t, os.RemoveAll(filepath.Dir(to)))
	must(l.t, os.MkdirAll(to, 0o755))
	files := valueOf(os.ReadDir(run.Dirs[0]))(l.t)
	kept := []string{"RUN", "about.json", "plan.json", "plan~first.json", "fates.json", story.LogName}
	for _, f := range files {
		if !slices.Contains(kept, f.Name()) && !strings.Contains(f.Name(), "hooks") && !strings.HasSuffix(f.Name(), "~took.json") {
			continue
		}
		text := readFile(l.t, filepath.Join(run.Dirs[0], f.Name()))
		var b bytes.Buffer
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, `"msg":"request"`) || strings.Contains(line, "delete-vm") {
				b.WriteString(strings.ReplaceAll(line, l.Dir, "/home/ops/cluster"))
			}
		}
		must(l.t, os.WriteFile(filepath.Join(to, f.Name()), b.Bytes(), 0o644))
	}
}

// TestReportOfARoll: the report of a run matches what was done to its nodes.
func TestReportOfARoll(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 3, Hosts: 2}, func(t *testing.T, lab *Lab) {
		lab.setRoll("hooks: {beforeNode: [{description: silence the alerts, command: [h]}], afterRun: [{command: [h]}]}")
		lab.Patch(everywhere)
		c := lab.logged(lab.Client())
		c.Commands = &hooker{envs: map[string][]string{}}
		rep := c.mustRoll(planning.Policy{})
		c.Telemetry.End(t.Context(), 0, nil)
		run, told, page := lab.past("")
		lab.keepRun("roll", run)
		require(t, len(told.Turns) == 6 && run.Result == "done" && run.About.By.Host == "test" && len(run.Took) == 6 &&
			len(run.Fates.Done) == 6, "%d turns; %+v", len(told.Turns), run)
		for _, turn := range told.Turns {
			requireTurn(t, turn, run)
		}
		// A control plane that is down is reported, and everything is healthy in the end.
		members, ready := 3, 6
		for _, p := range told.Pulses {
			if p.Etcd {
				members = min(members, p.Well())
			}
			if p.Kubernetes {
				ready = min(ready, p.Ready())
			}
		}
		last := told.Pulses[len(told.Pulses)-1]
		require(t, members == 2 && ready == 5 && last.Kubernetes && last.Ready() == 6,
			"%d looks: etcd had %d healthy members at least, Kubernetes %d Ready nodes; in the end %+v", len(told.Pulses), members, ready, last)
		requireSays(t, page, `data-node="cp1"`, `data-node="wk3"`, "silence the alerts", "at beforeNode wk1", rep.Run, "6 of 6", "qemu-guest-agent")
	})
}

// requireTurn compares the log's facts about a node with the journal's.
func requireTurn(t *testing.T, turn *story.Turn, run past.Run) {
	names := some(turn.Stages, func(s *story.Stage) (string, bool) { return s.Name, s.Status == "done" })
	for _, s := range turn.Stages {
		require(t, !s.Ended.Before(s.Began) && !s.Ended.After(turn.Ended),
			"%s, %s: from %s to %s, its turn ended at %s", turn.Node, s.Name, s.Began, s.Ended, turn.Ended)
	}
	all := " " + strings.Join(names, " ") + " "
	requireSays(t, all, " drain ", " stop ", " park ", " delete-vm ", " create-vm ", " start ", " boot ", " configure ",
		" join ", " settle ", " finish ")
	for _, took := range run.Took {
		away := int(turn.AwayTo.Sub(turn.AwayFrom).Round(time.Second).Seconds())
		require(t, took.Node != turn.Node || took.OutageSeconds == away, "%s: %d s, %d", turn.Node, away, took.OutageSeconds)
	}
}

// TestReportOfAKilledRun: it has what is known, and after a resume the outcome.
func TestReportOfAKilledRun(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c := lab.logged(lab.Client())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := filepath.Join(lab.Dir, ".recast/runs", c.Run, story.LogName)
		var size int64
		c.Emit = whenStarted("wk1/bring-up", func() {
			c.Kill()
			cancel()
			size = valueOf(os.Stat(log))(t).Size()
		})
		mustBe(t, c.roll(planning.Policy{})(ctx) != nil, "it was not killed")
		// A dead process would not have written the end; its last line is unfinished.
		must(t, os.Truncate(log, size-10))
		dir := filepath.Join(lab.Dir, ".recast/runs", c.Run)
		must(t, os.Remove(filepath.Join(dir, "fates.json")))
		info := readFile(t, filepath.Join(dir, "RUN"))
		began, _, found := strings.Cut(string(info), `,`+"\n")
		mustBe(t, found, "RUN holds %s", info)
		must(t, os.WriteFile(filepath.Join(dir, "RUN"), []byte(began+"\n}\n"), 0o600))
		run, told, page := lab.past(c.Run)
		turn := told.Turns[0]
		require(t, run.Result == "killed" && turn.Status == "" && !turn.AwayFrom.IsZero() && turn.AwayTo.IsZero(),
			"%s; %+v", run.Result, turn)
		o, any := told.Longest()
		require(t, any && o.Open && strings.Contains(page, "recast roll continues where this one stopped"), "outage %+v", o)

		again := lab.logged(lab.second())
		again.mustRoll(planning.Policy{})
		again.Telemetry.End(t.Context(), 0, nil)
		run, told, _ = lab.past(c.Run)
		lab.keepRun("killed", run)
		require(t, len(told.Turns) == 2 && told.Turns[1].Phase == "unfinished" && told.Turns[1].Status == "done" && run.Result == "done" &&
			len(run.About.GoneOn) == 1, "%d turns; %s, resumed: %v", len(told.Turns), run.Result, run.About.GoneOn)
		outages := told.Outages()
		require(t, len(outages) == 1 && !outages[0].Open && outages[0].From.Equal(told.Turns[0].AwayFrom) &&
			outages[0].To.Equal(told.Turns[1].Ended), "outages %+v", outages)
	})
}

func inShort(run past.Run) string {
	done, planned := run.Counted()
	return fmt.Sprintf("%s, %d of %d, ended %t, wk2 because %s", run.Result, done, planned, !run.Finished.IsZero(), run.Plan.Nodes[1].Why)
}

// TestReportOfAResumedRun: a run's second worker failed and was finished in the morning. The report covers all of it:
// the purpose, how many nodes were done, and how long that worker was unavailable.
func TestReportOfAResumedRun(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.patch(sim.PatchedExtension, "canary: false")
		c := lab.logged(lab.Client())
		c.Emit = whenStarted("wk2/bring-up", func() { lab.World.FailNext("qmcreate", "no space left") })
		err := c.roll(planning.Policy{})(t.Context())
		mustBe(t, err != nil, "it did not fail")
		c.Telemetry.End(t.Context(), 1, err)
		first, told, _ := lab.past(c.Run)
		why := first.Plan.Nodes[1].Why
		requireSame(t, "failed, 1 of 2, ended true, wk2 because "+why, inShort(first), "it failed (-want +got)")
		requireSame(t, []string{"wk2"}, told.NotBack(), "not back (-want +got)")
		time.Sleep(8 * time.Hour)

		again := lab.logged(lab.second())
		must(t, errOf(again.Roll(t.Context(), planning.Policy{})))
		again.Telemetry.End(t.Context(), 0, nil)
		run, told, page := lab.past(c.Run)
		requireSame(t, "done, 2 of 2, ended true, wk2 because "+why, inShort(run), "it was finished (-want +got)")
		o, _ := told.Longest()
		require(t, o.Node == "wk2" && !o.Open && o.Seconds() >= 8*3600, "outage %+v", o)
		requireSays(t, page, "away 8h")
	})
}

// A roll whose last hook failed has failed, in the history too.
func TestHistoryOfAFailedHookAfterTheRun(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c, _ := withHooks(lab, failAt("afterRun"))
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "it did not fail")
		run, _, _ := lab.past(c.Run)
		require(t, run.Result == "failed" && strings.HasPrefix(run.Error, "every node is done: ") && len(run.Fates.Done) == 1,
			"%s, %s, %+v", run.Result, run.Error, run.Fates)
		requireDrift(t, lab)
	})
}

type chat struct {
	takes time.Duration
	err   error

	mu  sync.Mutex
	got []cluster.Notice
}

func (c *chat) Notify(ctx context.Context, n cluster.Notice) error {
	c.mu.Lock()
	c.got = append(c.got, n)
	c.mu.Unlock()
	select {
	case <-time.After(c.takes):
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *chat) require(t *testing.T, want ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []string
	for _, n := range c.got {
		text, _, _ := strings.Cut(n.Text, " after ")
		got = append(got, fmt.Sprintf("%s %s %s %s %q %q: %s", n.Event, n.Command, n.Run, n.Outcome, n.Nodes, n.Error, text))
		require(t, !n.Started.IsZero() && n.Ended.IsZero() == (n.Event == cluster.NoticeStart) && n.Host == "test",
			"started %s, ended %s on %s", n.Started, n.Ended, n.Host)
	}
	requireSame(t, want, got, "notices (-want +got)")
	c.got = nil
}

// A run sends notices when it begins and ends, and does not wait for those in between.
func TestNotices(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false")
		c, h := withHooks(lab, failAt("afterNode wk1"))
		told := &chat{takes: 5 * time.Minute}
		c.Notify = told
		var began, gone time.Time
		begins := whenStarted("before-run", func() { began = time.Now() })
		c.Emit = allOf(begins, whenStarted("wk1/take-down", func() { gone = time.Now() }))
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "no failure")
		took := gone.Sub(began)
		require(t, !gone.IsZero() && took <= time.Minute, "the first node went %s after the start", took)
		const err = `roll/workers/wk1/run-hooks-again: wk1 is done and takes pods, but no other node is to follow: hook \"h\": h ended with 3: at afterNode wk1`
		told.require(t, `start roll 20000101-0000-feed  {[] [] ["wk1" "wk2"]} "": recast roll of lab has started, to do: wk1, wk2`,
			`failure roll 20000101-0000-feed failed {[] ["wk1"] ["wk2"]} "`+err+`": recast roll of lab: failed`)

		h.do, told.takes = nil, 0
		again := h.next(lab)
		again.Notify = told
		must(t, again.roll(planning.Policy{})(t.Context()))
		told.require(t, `start roll `+again.Run+`  {[] [] ["wk2"]} "": recast roll of lab has started, to do: wk2`,
			`end roll `+again.Run+` done {["wk2"] [] []} "": recast roll of lab: done`)

		// With nothing to do there is no notice.
		idle := lab.second()
		idle.Notify = told
		must(t, idle.roll(planning.Policy{})(t.Context()))
		told.require(t)
	})
}

// An unreachable webhook does not fail a roll; the report says so.
func TestNoticesThatDoNotArrive(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Notify = &chat{err: errors.New("webhook h: notice: it answers with 500\nwebhook i: it is not set")}
		rep := valueOf(c.Roll(t.Context(), planning.Policy{}))(t)
		require(t, rep.Outcome == "done", "%q", rep.Outcome)
		const h, i = "webhook h: notice: it answers with 500", "webhook i: it is not set"
		requireSame(t, []string{h, i, h, i}, rep.Unsent, "unsent notices (-want +got)")
		requireDrift(t, lab)
	})
}

// A refused roll sends notices too; a declined one does not, and after a second Ctrl-C recast waits for no webhook.
func TestNoticesOfARunThatDidNotBegin(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		told := &chat{}
		c := lab.Client()
		c.Notify = told
		c.Confirm = func(planning.Plan) (bool, error) { return false, nil }
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "it was confirmed")
		told.require(t)
		mustBe(t, c.roll(policyFor("wk9"))(t.Context()) != nil, "there is a wk9")
		told.require(t, `failure roll  failed {[] [] []} "no node \"wk9\" in the configuration, did you mean \"wk1\"?": recast roll of lab: failed`)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c = lab.second()
		told.takes = time.Hour
		c.Notify = told
		var pressed time.Time
		c.Emit = whenStarted("wk1/bring-up", func() { pressed = time.Now(); cancel() })
		mustBe(t, c.roll(planning.Policy{})(ctx) != nil, "it was not interrupted")
		took := time.Since(pressed)
		require(t, took <= time.Minute, "it took %s to end", took)
		require(t, len(told.got) == 2 && told.got[1].Outcome == "interrupted" && told.got[1].Event == cluster.NoticeFailure,
			"told %+v", told.got)
	})
}

type collector struct {
	canary *canary

	mu    sync.Mutex
	spans map[trace.SpanID]sdktrace.ReadOnlySpan
}

func (c *collector) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range spans {
		c.canary.hear(fmt.Sprintf("%+v", tracetest.SpanStubFromReadOnlySpan(s)))
		c.spans[s.SpanContext().SpanID()] = s
	}
	return nil
}

func (*collector) Shutdown(context.Context) error { return nil }

func newCollector(lab *Lab) *collector {
	return &collector{canary: lab.canary, spans: map[trace.SpanID]sdktrace.ReadOnlySpan{}}
}

func exporterTo(t *testing.T, dial func(context.Context) (net.Conn, error)) sdktrace.SpanExporter {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	t.Cleanup(transport.CloseIdleConnections)
	return valueOf(otlptracehttp.New(t.Context(), otlptracehttp.WithEndpoint("127.42.7.200:4318"), otlptracehttp.WithInsecure(), otlptracehttp.WithHTTPClient(&http.Client{Transport: transport})))(t)
}

// observed is a client with telemetry, and its warnings.
func (l *Lab) observed(t *testing.T, e sdktrace.SpanExporter) (c *Client, ctx context.Context, warned *[]string) {
	warned = new([]string)
	tele, ctx, err := telemetry.Start(t.Context(), telemetry.Options{
		Command: "recast roll", Version: "devel", Exporter: e, Warn: func(text string) { *warned = append(*warned, text) },
		LogFile: filepath.Join(l.Dir, "log.jsonl"), MetricsFile: filepath.Join(l.Dir, "roll.prom"),
	})
	must(t, err)
	c = l.Client()
	c.Telemetry = tele
	return c, ctx, warned
}

// TestTelemetryOfARoll: spans are run → node → step → call, metrics match the report, the log has every change.
func TestTelemetryOfARoll(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		received := newCollector(lab)
		c, ctx, warned := lab.observed(t, received)
		progress := ui.NewProgress(io.Discard)
		c.Emit = progress.Emit
		calls := len(lab.Recorder.Calls())
		rep := valueOf(c.Roll(ctx, planning.Policy{}))(t)
		c.Telemetry.Cluster("lab")
		c.Telemetry.Rolled(rep, progress.Fared())
		c.Telemetry.End(ctx, 0, nil)
		requireNone(t, *warned, "warned of")
		requireTree(t, received)
		requireLog(t, lab, calls)
		requireMetrics(t, lab, rep, progress.Fared())
	})
}

func (c *collector) lineage(s sdktrace.ReadOnlySpan) string {
	if !s.Parent().IsValid() {
		return s.Name()
	}
	parent := c.spans[s.Parent().SpanID()]
	if parent == nil {
		return "? / " + s.Name()
	}
	return c.lineage(parent) + " / " + s.Name()
}

func requireTree(t *testing.T, c *collector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for _, s := range c.spans {
		line := c.lineage(s)
		seen[line] = true
		require(t, strings.HasPrefix(line, "recast roll"), "a span that is not of the run: %s", line)
		if parent := c.spans[s.Parent().SpanID()]; parent != nil && (s.StartTime().Before(parent.StartTime()) || s.StartTime().After(parent.EndTime())) {
			t.Errorf("%s does not begin within the span that it is in", line)
		}
		for _, a := range s.Attributes() {
			require(t, a.Key != "url.path" || !strings.Contains(a.Value.AsString(), "?"), "a query is recorded: %v", a)
		}
	}
	const node = "recast roll / roll / workers / wk1"
	for _, want := range []string{
		"recast roll", node,
		node + " / take-down / drain / POST kubernetes", node + " / take-down / delete-vm / DELETE proxmox",
		node + " / bring-up / create-vm / POST proxmox", node + " / bring-up / configure / machine.MachineService/ApplyConfiguration",
	} {
		require(t, seen[want], "no span %s", want)
	}
	if t.Failed() {
		t.Log(strings.Join(slices.Sorted(maps.Keys(seen)), "\n"))
	}
}

func requireLog(t *testing.T, lab *Lab, since int) {
	asked := lab.Read("log.jsonl")
	run := lab.Read(".recast/runs/20000101-0000-feed/" + story.LogName)
	require(t, bytes.HasPrefix(asked, run), "the log of the run is not that which was asked for")
	got := map[string]int{}
	status := map[string]int{}
	for line := range bytes.Lines(asked) {
		var l struct{ Msg, Status, Server, Method, Path, Node, Step string }
		must(t, json.Unmarshal(line, &l))
		switch l.Msg {
		case "request":
			got[strings.TrimPrefix(l.Server+" "+l.Method+" "+strings.TrimPrefix(l.Path, "/api2/json"), "/")]++
		case "step":
			status[l.Status]++
		}
	}
	want := map[string]int{}
	for _, call := range lab.Recorder.Calls()[since:] {
		if call.Mutation {
			path, _, _ := strings.Cut(call.Path, "?")
			want[call.Proto+" "+strings.TrimPrefix(call.Method, "/")+" "+strings.TrimPrefix(path, "/api2/json")]++
		}
	}
	requireSame(t, want, got, "changes (-servers +log)")
	require(t, status["started"] != 0 && status["started"] == status["done"] && status["note"] != 0 &&
		status["failed"] == 0, "events of steps: %v", status)
	requireMode(t, lab.Dir, ".recast/runs/20000101-0000-feed/"+story.LogName, 0o600)
}

func requireMetrics(t *testing.T, lab *Lab, rep pipeline.Report, fared ui.Fared) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := valueOf(parser.TextToMetricFamilies(bytes.NewReader(lab.Read("roll.prom"))))(t)
	value := func(name string, labels ...string) float64 {
		f := families[name]
		mustBe(t, f != nil && f.GetHelp() != "", "no metric %s", name)
		for _, m := range f.Metric {
			has := ofEach(m.Label, func(l *dto.LabelPair) string { return l.GetName() + "=" + l.GetValue() })
			if slices.ContainsFunc(append(labels, "cluster=lab", "command=roll"), func(l string) bool { return !slices.Contains(has, l) }) {
				continue
			}
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetSummary().GetSampleSum()
		}
		t.Fatalf("%s has none with %q: %v", name, labels, f.Metric)
		return 0
	}
	n := fared.Nodes[0]
	of := []string{"node=wk1", "phase=workers", "strategy=recreate"}
	got := value("recast_node_outage_seconds", of...)
	require(t, got == float64(n.AwaySeconds) && got != 0, "outage %v, the report says %d", got, n.AwaySeconds)
	for _, m := range families["recast_step_duration_seconds"].Metric {
		for _, l := range m.Label {
			if slices.Contains([]string{"roll", "workers", "wk1", "take-down", "scsi1", "build", "base"}, l.GetValue()) && l.GetName() == "step" {
				t.Errorf("%s is counted as a kind of step", l.GetValue())
			}
		}
	}
	total, stages := value("recast_node_roll_seconds", of...), 0.0
	for _, m := range families["recast_node_stage_seconds"].Metric {
		if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == "pull" }) { // before its turn
			stages += m.GetGauge().GetValue()
		}
	}
	require(t, total >= float64(n.AwaySeconds) && stages <= total+0.1 && stages >= 0.9*total,
		"the turn of wk1 took %v, its stages %v, away %d", total, stages, n.AwaySeconds)
	ran, want := value("recast_run_duration_seconds"), rep.Ended.Sub(rep.Started).Seconds()
	require(t, ran >= want-0.01 && ran <= want+0.01, "the run took %v, the report says %v", ran, want)
	for _, server := range []string{"proxmox", "kubernetes", "registry", "factory"} {
		require(t, value("recast_requests_total", "server="+server, "class=2xx") != 0, "%s answered nothing", server)
	}
	value("recast_requests_total", "server=talos", "class=OK")
	value("recast_run_info", "run=20000101-0000-feed", "outcome=done")
	value("recast_node_roll_info", append(of, "outcome=done")...)
	require(t, value("recast_command_exit_code") == 0 && value("recast_step_duration_seconds", "step=drain") != 0,
		"the exit code, or the time of drains, is not what it was")
}

// TestTelemetryWithoutACollector: one that refuses, hangs or fails costs no time, and there is one warning.
func TestTelemetryWithoutACollector(t *testing.T) {
	long(t)
	took := map[string]time.Duration{}
	const nobody = "nobody wants traces"
	for name, dial := range map[string]func(ctx context.Context) (net.Conn, error){
		nobody:      nil,
		"refuses":   func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") },
		"is silent": func(context.Context) (net.Conn, error) { here, _ := net.Pipe(); return here, nil },
	} {
		inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) {
			lab.Patch(sim.PatchedExtension)
			var e sdktrace.SpanExporter
			if dial != nil {
				e = exporterTo(t, dial)
			}
			c, ctx, warned := lab.observed(t, e)
			began := time.Now()
			must(t, errOf(c.Roll(ctx, planning.Policy{})))
			took[name] = time.Since(began)
			began = time.Now()
			c.Telemetry.End(ctx, 0, nil)
			end := time.Since(began)
			require(t, end <= 5*time.Second, "%s: the end took %s", name, end)
			require(t, (len(*warned) == 1) == (dial != nil), "%s: warned of %q", name, *warned)
		})
	}
	for name, d := range took {
		require(t, d == took[nobody], "%s: the roll took %s, without traces %s", name, d, took[nobody])
	}
}

// TestTelemetryKeepsSecrets: a machine quotes the configuration that it rejects, in whole or in part.
func TestTelemetryKeepsSecrets(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		b := lab.Talos.Secrets
		lab.Patch(everywhere)
		must(t, lab.Trouble("wk1", talosapi.Trouble{Refuses: "yaml: unmarshal errors:\n  line 4: cannot unmarshal !!str `" + b.TrustdInfo.Token + "` into []string\n" +
			"unknown keys found during decoding:\ncluster:\n    sercet: " + b.Cluster.Secret + "\n    token: " + b.Secrets.BootstrapToken + "\n"}))
		c, ctx, _ := lab.observed(t, newCollector(lab))
		_, err := c.Roll(ctx, onlyWorker)
		c.Telemetry.End(ctx, 1, err)
		requireSays(t, message(err), "the machine rejects the configuration: ")
		requireSays(t, string(lab.Read("log.jsonl")),
			`"method":"machine.MachineService/ApplyConfiguration","code":"InvalidArgument"`)
	})
}

// TestCanarySees leaks secrets on purpose: the check at the end of every story must detect them.
func TestCanarySees(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		leaks := lab.leaks()
		mustBe(t, leaks == nil, "leaks at the beginning: %q", leaks)
		b := lab.Talos.Secrets
		lines := strings.Split(string(b.Certs.K8s.Key), "\n")
		checked[int](lab)(0, errors.New("line 7: cannot unmarshal `"+lines[1]+"`"))
		checked[string](lab)("token: "+b.TrustdInfo.Token, nil)
		lab.Write(".recast/note", []byte("key: "+base64.StdEncoding.EncodeToString(b.Certs.OS.Key)))
		lab.Write(".recast/runs/x/config.secret", b.Certs.Etcd.Key)
		lab.Write("env", []byte(lab.Token()))
		lab.EditVM(9031, "description", lab.Token())
		must(t, os.Chmod(filepath.Join(lab.Dir, ".recast/runs/x/config.secret"), 0o644))
		want := []string{
			"what recast said has Kubernetes' CA", "what recast said has trustd's token", "VM 9031 has the Proxmox token",
			filepath.Join(lab.Dir, ".recast/note") + " has Talos' CA",
			filepath.Join(lab.Dir, ".recast/runs/x/config.secret") + " has mode -rw-r--r--",
		}
		requireSame(t, want, lab.leaks(), "leaks (-want +got)")
		lab.canary.heard.Reset()
		lab.EditVM(9031, "description", "")
		must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast/note")))
		must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast/runs/x")))
	})
}
