// Package telemetry reports a command to machines: a [Telemetry] writes a log in JSON
// lines, metrics for node_exporter's textfile collector, and traces over OTLP. A failure
// to report is warned of once; it does not fail the command.
package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

// Options describe the command, and where to write its telemetry.
type Options struct {
	Command string // as typed: "recast roll"
	Version string // of recast
	LogFile string // appended to; "": only runs have a log, in their journal's directory
	// MetricsFile is replaced when the command ends; "": none.
	MetricsFile string
	// Env is os.Getenv: it reads the OTEL_* variables and TRACEPARENT, the parent span.
	Env func(string) string
	// Exporter takes the spans; nil: OTLP over HTTP if Env has an endpoint, else none.
	Exporter sdktrace.SpanExporter
	Warn     func(text string)
}

// Telemetry is that of one command. Its methods may be called concurrently; on nil they do
// nothing.
type Telemetry struct {
	o       Options
	sink    *sink
	log     *slog.Logger
	tracing *tracing // nil: no traces
	root    trace.Span
	began   time.Time
	counts  *counts // nil: no metrics

	mu      sync.Mutex
	cluster string
	steps   map[string]*running      // by path
	noted   map[string]string        // last note by path
	took    map[string]time.Duration // by path, of nodes and their stages
	answers []func(*page)            // results of the command, for the metrics
}

// Start starts the telemetry. The returned context is that of the whole command. A file
// that can't be written is an error of kind Config.
func Start(ctx context.Context, o Options) (*Telemetry, context.Context, error) {
	if o.MetricsFile != "" {
		if err := checkMetricsFile(o.MetricsFile); err != nil {
			return nil, ctx, fault.Configf("--metrics-file: %w", err)
		}
	}
	t := &Telemetry{
		o: o, sink: &sink{warn: o.Warn}, began: time.Now(), root: noop.Span{},
		steps: map[string]*running{}, noted: map[string]string{}, took: map[string]time.Duration{},
	}
	if o.LogFile != "" {
		f, err := openLog(o.LogFile)
		if err != nil {
			return nil, ctx, fault.Configf("--log-file: %w", err)
		}
		t.sink.file = f
	}
	t.log = slog.New(slog.NewJSONHandler(t.sink, nil))
	if o.MetricsFile != "" {
		t.counts = newCounts()
	}
	tracing, err := startTracing(ctx, o)
	if err != nil {
		o.Warn("no traces: " + err.Error())
	}
	if t.tracing = tracing; tracing != nil {
		ctx, t.root = tracing.begin(ctx, o)
	}
	t.log.InfoContext(ctx, "command", "status", "started", "command", o.Command, "version", o.Version)
	return t, ctx, nil
}

// Cluster says which cluster the command is about.
func (t *Telemetry) Cluster(name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cluster = name
	t.root.SetAttributes(attrCluster.String(name))
}

// Began opens the log of a run in its directory and writes what was logged before. It is
// pipeline.RollOptions.Began.
func (t *Telemetry) Began(run, dir string) {
	if t == nil {
		return
	}
	t.sink.begin(dir)
	t.root.SetAttributes(attrRun.String(run))
	t.log.Info("run", "run", run, "status", "began")
}

// Pulsed logs the cluster's state. It is pipeline.RollOptions.Pulsed.
func (t *Telemetry) Pulsed(p planning.Pulse) {
	if t == nil {
		return
	}
	attrs := []any{"kubernetes", p.Kubernetes}
	if p.Kubernetes {
		attrs = append(attrs, "nodes", p.Nodes, "notReady", listed(p.NotReady))
	}
	attrs = append(attrs, "etcd", p.Etcd)
	if p.Etcd {
		attrs = append(attrs, "members", p.Members, "unwell", listed(p.Unwell))
	}
	t.log.Info("pulse", attrs...)
}

// listed is names, but never null in JSON.
func listed(names []string) []string { return append([]string{}, names...) }

// endTimeout bounds the sending of spans after the command has ended.
const endTimeout = 5 * time.Second

// End completes everything after the command has ended with exitCode because of err. It
// takes at most endTimeout, also after Ctrl-C.
func (t *Telemetry) End(ctx context.Context, exitCode int, err error) {
	if t == nil {
		return
	}
	took := time.Since(t.began)
	attrs := []any{"status", "ended", "command", t.o.Command, "exitCode", exitCode, "seconds", seconds(took)}
	if err != nil {
		attrs = append(attrs, "error", err.Error(), "code", fault.CodeOf(err))
	}
	t.log.InfoContext(ctx, "command", attrs...)
	t.sink.close()
	if t.o.MetricsFile != "" {
		if err := t.writeMetrics(exitCode); err != nil {
			t.o.Warn("metrics are not written: " + err.Error())
		}
	}
	if t.tracing != nil {
		t.root.SetAttributes(attrExitCode.Int(exitCode))
		fail(t.root, err)
		t.root.End()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		t.tracing.end(ctx)
	}
}

// seconds is a duration in seconds, to the millisecond, for logs and metrics.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
