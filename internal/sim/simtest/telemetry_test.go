package simtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
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

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

// collector takes spans, and searches them for secrets.
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

// exporterTo is an exporter to a collector that dial connects to.
func exporterTo(t *testing.T, dial func(context.Context) (net.Conn, error)) sdktrace.SpanExporter {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	t.Cleanup(transport.CloseIdleConnections)
	return valueOf(otlptracehttp.New(t.Context(), otlptracehttp.WithEndpoint("127.42.7.200:4318"), otlptracehttp.WithInsecure(), otlptracehttp.WithHTTPClient(&http.Client{Transport: transport})))(t)
}

// observed is a client with telemetry, and its warnings.
func (l *Lab) observed(t *testing.T, e sdktrace.SpanExporter) (c *Client, ctx context.Context, warned *[]string) {
	t.Helper()
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

// TestTelemetryOfARoll: the collector sees run → node → step → call, the metrics match the
// report, and the log has every change that the servers saw.
func TestTelemetryOfARoll(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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

// lineage is the names of a span and of its ancestors, outermost first.
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
	t.Helper()
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

// requireLog compares the log with the servers' requests since a call.
func requireLog(t *testing.T, lab *Lab, since int) {
	t.Helper()
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
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := valueOf(parser.TextToMetricFamilies(bytes.NewReader(lab.Read("roll.prom"))))(t)
	value := func(name string, labels ...string) float64 {
		t.Helper()
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
		require(t, value("recast_requests_total", "server="+server, "class=2xx") != 0,
			"no request to %s was answered", server)
	}
	value("recast_requests_total", "server=talos", "class=OK")
	value("recast_run_info", "run=20000101-0000-feed", "outcome=done")
	value("recast_node_roll_info", append(of, "outcome=done")...)
	require(t, value("recast_command_exit_code") == 0 && value("recast_step_duration_seconds", "step=drain") != 0,
		"the exit code, or the time of drains, is not what it was")
}

// TestTelemetryWithoutACollector: a collector that refuses, hangs or fails costs a roll no
// time, and there is one warning.
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

// TestTelemetryKeepsSecrets: a machine quotes the configuration that it rejects, in whole or
// in part. No secret is in the message, and of that call the telemetry has only its code.
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
