// Package telemetry tells machines how a command goes: a log in JSON lines,
// metrics for node_exporter's textfile collector, traces over OTLP. What it can't
// tell is warned of once; no command fails for it.
package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Options say of what command to tell, and where.
type Options struct {
	Command string // as typed: "recast roll"
	Version string // of recast
	LogFile string // appended to; "": only runs have a log, beside their journals
	// MetricsFile is replaced when the command has ended; "": none.
	MetricsFile string
	// Env is os.Getenv: what OTEL_* says of traces, and TRACEPARENT whose part this command is.
	Env func(string) string
	// Exporter takes the spans; nil: OTLP over HTTP where Env has an endpoint, else nothing.
	Exporter sdktrace.SpanExporter
	Warn     func(text string)
}

// Telemetry is that of one command. Its methods may be called concurrently, and
// on nil, where they do nothing.
type Telemetry struct {
	o       Options
	sink    *sink
	log     *slog.Logger
	tracing *tracing // nil: nobody takes spans
	root    trace.Span
	began   time.Time
	counts  *counts // nil: no metrics are written

	mu      sync.Mutex
	cluster string
	steps   map[string]*running      // by path
	noted   map[string]string        // by path, the last note
	took    map[string]time.Duration // by path, of nodes and their stages
	answers []func(*page)            // what the command has found out, for the metrics
}

// Start begins to tell. The context that it returns is that of the whole command.
// A file that can't be written is an error of kind Config.
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

// Began puts the log of a run into its directory, what was logged before included.
// It is pipeline.RollOptions.Began.
func (t *Telemetry) Began(run, dir string) {
	if t == nil {
		return
	}
	t.sink.begin(dir)
	t.root.SetAttributes(attrRun.String(run))
	t.log.Info("run", "run", run, "status", "began")
}

// Pulsed notes how the cluster stands. It is pipeline.RollOptions.Pulsed.
func (t *Telemetry) Pulsed(p cluster.Pulse) {
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

// listed is a list that is empty rather than null.
func listed(names []string) []string { return append([]string{}, names...) }

// endTimeout bounds what is still to be sent once the command has ended.
const endTimeout = 5 * time.Second

// End completes everything: the command has ended with an exit code, err its
// reason. It takes no longer than endTimeout, after Ctrl-C as well.
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

// seconds is a duration as logs and metrics have it, to the millisecond.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
