package telemetry

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// checkMetricsFile detects an unwritable metrics file before the command, which may take
// hours.
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
	requests *prometheus.CounterVec
	answers  *prometheus.SummaryVec
	steps    *prometheus.SummaryVec
	failed   *prometheus.CounterVec
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

// metrics collects all metrics so far.
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

// enter begins a step.
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

// fail marks a span as failed unless err is nil.
func fail(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}
