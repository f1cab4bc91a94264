// Package telemetry reports a command to machines: a [Telemetry] writes a log in JSON
// lines, metrics for node_exporter's textfile collector, and traces over OTLP. A failure
// to report is warned of once; it does not fail the command.
package telemetry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

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

// Telemetry reports one command. Its methods may be called concurrently; on nil they do nothing.
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

// Start starts the telemetry. The returned context is for the whole command. A file that can't be written is an error
// of kind Config.
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

func (t *Telemetry) Cluster(name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cluster = name
	t.root.SetAttributes(attrCluster.String(name))
}

// Began opens the log of a run in its directory and writes what was logged before. It is pipeline.RollOptions.Began.
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

// Attributes of spans, besides OpenTelemetry's own conventions for HTTP and RPC.
const (
	attrCluster  = attribute.Key("recast.cluster")
	attrRun      = attribute.Key("recast.run")
	attrOutcome  = attribute.Key("recast.outcome")
	attrStep     = attribute.Key("recast.step")
	attrNode     = attribute.Key("recast.node")
	attrPhase    = attribute.Key("recast.phase")
	attrTitle    = attribute.Key("recast.title")
	attrRisk     = attribute.Key("recast.risk")
	attrStatus   = attribute.Key("recast.status")
	attrText     = attribute.Key("recast.text")
	attrServer   = attribute.Key("recast.server")
	attrExitCode = attribute.Key("process.exit.code")

	attrMethod     = attribute.Key("http.request.method")
	attrURLPath    = attribute.Key("url.path")
	attrHTTPStatus = attribute.Key("http.response.status_code")
	attrRPCSystem  = attribute.Key("rpc.system")
	attrRPCMethod  = attribute.Key("rpc.method")
	attrRPCCode    = attribute.Key("rpc.response.status_code")
	attrAddress    = attribute.Key("server.address")
	attrErrorType  = attribute.Key("error.type")

	serviceName    = attribute.Key("service.name")
	serviceVersion = attribute.Key("service.version")
)

// tracing sends spans to a collector.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	exporter *quietExporter
}

// startTracing returns nil if no traces are wanted.
func startTracing(ctx context.Context, o Options) (*tracing, error) {
	inner := o.Exporter
	if inner == nil {
		wanted, err := wantsTraces(o.Env)
		if err != nil || !wanted {
			return nil, err
		}
		inner, err = otlptracehttp.New(ctx, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: 30 * time.Second,
		}))
		if err != nil {
			return nil, err
		}
	}
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over our values.
	described, err := resource.Merge(
		resource.NewSchemaless(serviceName.String("recast"), serviceVersion.String(o.Version)), resource.Environment())
	if err != nil {
		return nil, err
	}
	e := &quietExporter{SpanExporter: inner, warn: o.Warn, over: make(chan struct{})}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(e, queue(o.Env)), sdktrace.WithResource(described))
	return &tracing{provider: p, tracer: p.Tracer("github.com/recast-sh/recast"), exporter: e}, nil
}

// queue sizes the queue for a drift over hundreds of nodes, whose spans come within
// seconds. It respects the environment, over which a plain option would take precedence.
func queue(env func(string) string) sdktrace.BatchSpanProcessorOption {
	return func(b *sdktrace.BatchSpanProcessorOptions) {
		if env == nil || env("OTEL_BSP_MAX_QUEUE_SIZE") == "" {
			b.MaxQueueSize = 1 << 14
		}
	}
}

// wantsTraces says whether the environment asks for traces, in the protocol that recast speaks.
func wantsTraces(env func(string) string) (bool, error) {
	const traces = "OTEL_EXPORTER_OTLP_TRACES_"
	switch {
	case env == nil, env("OTEL_SDK_DISABLED") == "true", env("OTEL_TRACES_EXPORTER") == "none":
		return false, nil
	case env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env(traces+"ENDPOINT") == "":
		return false, nil
	}
	protocol := cmp.Or(env(traces+"PROTOCOL"), env("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "http/protobuf" {
		return false, fmt.Errorf("the environment asks for OTLP over %s; recast speaks http/protobuf alone (port 4318, as a rule)", protocol)
	}
	return true, nil
}

// begin starts the span of the command, as a child of TRACEPARENT.
func (g *tracing) begin(ctx context.Context, o Options) (context.Context, trace.Span) {
	if o.Env != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
			"traceparent": o.Env("TRACEPARENT"), "tracestate": o.Env("TRACESTATE"),
		})
	}
	return g.tracer.Start(ctx, o.Command)
}

// end sends the remaining spans until ctx ends.
func (g *tracing) end(ctx context.Context) {
	if err := g.provider.Shutdown(ctx); err != nil {
		g.exporter.report(fmt.Errorf("remaining spans: %w", err))
	}
	close(g.exporter.over)
}

// quietExporter is an exporter that reports only its first failure; OpenTelemetry would print
// each. Closing over cancels a running export and all later ones.
type quietExporter struct {
	sdktrace.SpanExporter
	warn func(string)
	once sync.Once
	over chan struct{}
}

func (f *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-f.over:
			cancel()
		case <-ctx.Done():
		}
	})
	if err := f.SpanExporter.ExportSpans(ctx, spans); err != nil {
		f.report(err)
	}
	return nil
}

func (f *quietExporter) report(err error) {
	f.once.Do(func() { f.warn("traces could not be sent; the command continues without: " + err.Error()) })
}

const (
	maxLog     = 8 << 20
	maxPending = 1 << 20
)

// openLog opens a log for appending; only its owner may read it.
func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// sink is where log lines go: the --log-file, and the log of the run.
type sink struct {
	warn func(string)

	mu      sync.Mutex
	file    *os.File // nil: not wanted, or writing has failed
	pending []byte   // lines from before the first run
	begun   bool     // a run has begun
	run     *os.File // nil: no run has begun, or writing has failed
	dir     string   // of the run
	size    int64    // of the run's log
}

// Write writes one line, as slog's handlers produce it. It never fails: when a log can't
// be written, it warns once and stops writing to it.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		if _, err := s.file.Write(line); err != nil {
			s.giveUp(&s.file, err)
		}
	}
	if !s.begun {
		s.keep(line)
	} else if s.run != nil {
		s.append(line)
	}
	return len(line), nil
}

// keep buffers a line until a run begins; if the buffer is full, it drops the oldest lines.
func (s *sink) keep(line []byte) {
	if len(s.pending)+len(line) > maxPending {
		_, newer, _ := bytes.Cut(s.pending[len(s.pending)/2:], []byte("\n"))
		s.pending = bytes.Clone(newer)
	}
	s.pending = append(s.pending, line...)
}

func (s *sink) append(line []byte) {
	if s.size+int64(len(line)) > maxLog {
		if err := s.rotate(); err != nil {
			s.giveUp(&s.run, err)
			return
		}
	}
	n, err := s.run.Write(line)
	s.size += int64(n)
	if err != nil {
		s.giveUp(&s.run, err)
	}
}

// rotate renames the log of the run and begins a new one.
func (s *sink) rotate() error {
	path := filepath.Join(s.dir, story.LogName)
	if err := errors.Join(s.run.Close(), os.Rename(path, filepath.Join(s.dir, story.OlderLogName))); err != nil {
		return err
	}
	return s.open()
}

func (s *sink) open() error {
	f, err := openLog(filepath.Join(s.dir, story.LogName))
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.run, s.size = f, info.Size()
	return nil
}

func (s *sink) begin(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun && s.dir == dir {
		return
	}
	if s.run != nil {
		_ = s.run.Close() // lines are written unbuffered
		s.run = nil
	}
	s.dir, s.begun = dir, true
	if err := s.open(); err != nil {
		s.warn("the run has no log: " + err.Error())
		return
	}
	if pending := s.pending; len(pending) > 0 {
		s.pending = nil
		s.append(pending)
	}
}

func (s *sink) giveUp(f **os.File, err error) {
	s.warn("logging stopped: " + err.Error())
	_ = (*f).Close() // writing has failed already
	*f = nil
}

func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range []**os.File{&s.file, &s.run} {
		if *f != nil {
			_ = (*f).Close() // lines are written unbuffered
			*f = nil
		}
	}
}

// checkMetricsFile detects an unwritable metrics file before the command, which may take hours.
func checkMetricsFile(path string) error {
	if isSpecial(path) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_ = f.Close() // nothing was written
	return os.Remove(f.Name())
}

// isSpecial says whether path is a pipe, a device or the like. Such a file is written in
// place: root could replace /dev/stdout by renaming a file over it.
func isSpecial(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && !info.Mode().IsRegular()
}

// counts are the metrics that accumulate during a command.
type counts struct {
	requests       *prometheus.CounterVec
	answers, steps *prometheus.SummaryVec
	failed         *prometheus.CounterVec
}

func newCounts() *counts {
	return &counts{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recast_requests_total",
			Help: "Requests that the command sent, by kind of server and answer: class of the HTTP status, gRPC code, or none.",
		}, []string{"server", "class"}),
		answers: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "recast_request_duration_seconds",
			Help: "How long answers took to begin, by kind of server; a gRPC call until its end.",
		}, []string{"server"}),
		steps: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "recast_step_duration_seconds",
			Help: "How long steps took that were not skipped, by kind; stop, drain, configure and wait-healthy mostly wait.",
		}, []string{"step"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recast_steps_failed_total",
			Help: "Steps that failed, by kind.",
		}, []string{"step"}),
	}
}

func (c *counts) call(server, class string, took time.Duration) {
	c.requests.WithLabelValues(server, class).Inc()
	c.answers.WithLabelValues(server).Observe(took.Seconds())
}

// step counts a step by its kind. Branches are not counted: their time and failures are the time and failures of
// their steps.
func (c *counts) step(e step.Event, took time.Duration) {
	if e.Kind == "" {
		return
	}
	c.steps.WithLabelValues(e.Kind).Observe(took.Seconds())
	if e.Status == step.Failed {
		c.failed.WithLabelValues(e.Kind).Inc()
	}
}

// page is a metrics file under construction. Every metric has the labels cluster and
// command, because the files of several commands are scraped together.
type page struct {
	reg prometheus.Registerer
	err error
}

// gauge adds a metric and returns a function that sets it for label values.
func (p *page) gauge(name, help string, labels ...string) func(v float64, values ...string) {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	p.add(g)
	return func(v float64, values ...string) {
		for i, value := range values {
			values[i] = strings.ToValidUTF8(value, "\uFFFD")
		}
		g.WithLabelValues(values...).Set(v)
	}
}

func (p *page) add(c prometheus.Collector) {
	if err := p.reg.Register(c); err != nil && p.err == nil {
		p.err = err
	}
}

// answer adds a result of the command to the metrics.
func (t *Telemetry) answer(tell func(*page)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers = append(t.answers, tell)
}

func (t *Telemetry) writeMetrics(exitCode int) error {
	reg, err := t.metrics(exitCode)
	if err != nil {
		return err
	}
	if isSpecial(t.o.MetricsFile) {
		f, err := os.OpenFile(t.o.MetricsFile, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		return errors.Join(t.WriteMetrics(f, exitCode), f.Close())
	}
	// Writes beside the file and renames, with mode 0644.
	return prometheus.WriteToTextfile(t.o.MetricsFile, reg)
}

// WriteMetrics writes the metrics as of now, with that exit code. Requests and steps are
// included only if the command writes a metrics file.
func (t *Telemetry) WriteMetrics(w io.Writer, exitCode int) error {
	if t == nil {
		return nil
	}
	reg, err := t.metrics(exitCode)
	if err != nil {
		return err
	}
	families, err := reg.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

func (t *Telemetry) metrics(exitCode int) (*prometheus.Registry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	reg := prometheus.NewRegistry()
	p := &page{reg: prometheus.WrapRegistererWith(prometheus.Labels{
		"cluster": t.cluster, "command": strings.TrimPrefix(t.o.Command, "recast "),
	}, reg)}
	p.gauge("recast_info", "The version of recast; always 1.", "version")(1, t.o.Version)
	p.gauge("recast_command_start_timestamp_seconds", "When the command began.")(stamp(t.began))
	p.gauge("recast_command_end_timestamp_seconds", "When the command ended.")(stamp(time.Now()))
	p.gauge("recast_command_exit_code", "How it ended: 0 done or in sync, 1 failed, 2 drift or changes, 3 configuration, 4 refused as unsafe, 5 another run holds the claim, 130 interrupted.")(float64(exitCode))
	if t.counts != nil {
		for _, c := range []prometheus.Collector{t.counts.requests, t.counts.answers, t.counts.steps, t.counts.failed} {
			p.add(c)
		}
	}
	for _, tell := range t.answers {
		tell(p)
	}
	return reg, p.err
}

func stamp(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }

// running is a step from its first check to its end.
type running struct {
	began time.Time
	span  trace.Span
}

// stepKey is the context key of the running step's path, with which requests are recorded.
type stepKey struct{}

func stepOf(ctx context.Context) string {
	at, _ := ctx.Value(stepKey{}).(string)
	return at
}

// Watch records the events of run's steps and passes them on to run.Emit as before.
func (t *Telemetry) Watch(run *step.Runner) {
	if t == nil {
		return
	}
	next := run.Emit
	run.Emit = func(e step.Event) {
		t.emit(e)
		if next != nil {
			next(e)
		}
	}
	run.Context = t.enter
}

func (t *Telemetry) enter(ctx context.Context, at string) context.Context {
	ctx = context.WithValue(ctx, stepKey{}, at)
	r := &running{began: time.Now(), span: noop.Span{}}
	if t.tracing != nil {
		ctx, r.span = t.tracing.tracer.Start(ctx, path.Base(at), trace.WithAttributes(stepAttributes(at)...))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps[at] = r
	return ctx
}

func stepAttributes(at string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attrStep.String(at)}
	if phase, node, _ := planning.NodeOfStep(at); node != "" {
		attrs = append(attrs, attrNode.String(node), attrPhase.String(string(phase)))
	}
	return attrs
}

func (t *Telemetry) emit(e step.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Status == step.Note {
		if t.noted[e.Path] == e.Text {
			return // already recorded
		}
		t.noted[e.Path] = e.Text
	}
	r := t.steps[e.Path]
	t.logStep(e, r)
	if r == nil {
		return // a step that never ran, or a note without a step
	}
	switch e.Status {
	case step.Started:
		r.span.SetAttributes(attrTitle.String(e.Title), attrRisk.String(e.Risk.String()))
	case step.Note:
		r.span.AddEvent("note", trace.WithAttributes(attrText.String(e.Text)))
	case step.Skipped, step.Done, step.Failed, step.NotStarted, step.Stopped:
		t.ended(e, r)
	}
}

func (t *Telemetry) ended(e step.Event, r *running) {
	delete(t.steps, e.Path)
	r.span.SetAttributes(attrStatus.String(e.Status.String()))
	if e.Text != "" {
		r.span.SetAttributes(attrText.String(e.Text))
	}
	fail(r.span, e.Err)
	r.span.End()
	took := time.Since(r.began)
	if _, node, below := planning.NodeOfStep(e.Path); node != "" && len(below) <= 1 {
		t.took[e.Path] += took
	}
	if t.counts != nil && e.Status != step.Skipped && e.Status != step.NotStarted {
		t.counts.step(e, took)
	}
}

func (t *Telemetry) logStep(e step.Event, r *running) {
	say := t.log.Info
	attrs := []any{"step", e.Path, "status", e.Status.String()}
	if _, node, _ := planning.NodeOfStep(e.Path); node != "" {
		attrs = append(attrs, "node", node)
	}
	if e.Title != "" && e.Status != step.Note {
		attrs = append(attrs, "title", e.Title)
	}
	if e.Text != "" {
		attrs = append(attrs, "text", e.Text)
	}
	switch e.Status {
	case step.Started:
		attrs = append(attrs, "risk", e.Risk.String())
	case step.NotStarted, step.Stopped:
		say = t.log.Warn
	case step.Failed:
		say = t.log.Error
	case step.Skipped, step.Note, step.Done:
	}
	if e.Err != nil {
		attrs = append(attrs, "error", e.Err.Error(), "code", fault.CodeOf(e.Err))
		if hints := fault.Hints(e.Err); len(hints) > 0 {
			attrs = append(attrs, "hints", hints)
		}
	}
	if r != nil && e.Status != step.Started && e.Status != step.Note {
		attrs = append(attrs, "seconds", seconds(time.Since(r.began)))
	}
	say("step", attrs...)
}

func fail(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}
