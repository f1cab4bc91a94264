package telemetry

import (
	"context"
	"path"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
