package telemetry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

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

// wantsTraces says whether the environment asks for traces, in the protocol that recast
// speaks.
func wantsTraces(env func(string) string) (bool, error) {
	const traces = "OTEL_EXPORTER_OTLP_TRACES_"
	switch {
	case env == nil, env("OTEL_SDK_DISABLED") == "true", env("OTEL_TRACES_EXPORTER") == "none":
		return false, nil
	case env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env(traces+"ENDPOINT") == "":
		return false, nil
	}
	protocol := env(traces + "PROTOCOL")
	if protocol == "" {
		protocol = env("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
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
