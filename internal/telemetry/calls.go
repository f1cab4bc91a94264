package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/recast-sh/recast/cluster/planning"
)

// call is one request to a server. Bodies, queries, headers and the text of answers are
// never recorded: they may be secret.
type call struct {
	server string // "proxmox", "talos", "kubernetes", "factory", "registry"
	method string // HTTP method, or full gRPC method name
	path   string // of the URL; "" for gRPC
	host   string
	change bool // it may change something
	step   string
	began  time.Time
	span   trace.Span
	// remote is host as gRPC reports it, maybe while another goroutine ends the call.
	remote atomic.Pointer[string]
}

// result is how a call ended.
type result struct {
	code  string // HTTP status or gRPC code; "": no answer
	class string // "2xx", gRPC code, or "none"
	kind  string // of failure, in one word; "": it succeeded
}

func (t *Telemetry) begin(ctx context.Context, c *call, name string, attrs ...attribute.KeyValue) context.Context {
	c.step, c.began, c.span = stepOf(ctx), time.Now(), noop.Span{}
	if t.tracing != nil {
		ctx, c.span = t.tracing.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(append(attrs, attrServer.String(c.server))...))
	}
	return ctx
}

// answered records the beginning of the answer. The span lasts until the answer was read.
func (t *Telemetry) answered(c *call, r result) {
	took := time.Since(c.began)
	if t.counts != nil {
		t.counts.call(c.server, r.class, took)
	}
	if r.kind != "" {
		c.span.SetAttributes(attrErrorType.String(r.kind))
		c.span.SetStatus(codes.Error, r.kind)
	}
	if !c.change {
		return
	}
	say := t.log.Info
	attrs := []any{"server", c.server, "host", c.host, "method", c.method}
	if c.path != "" {
		attrs = append(attrs, "path", c.path)
	}
	if r.code != "" {
		attrs = append(attrs, "code", r.code)
	}
	if r.kind != "" {
		say, attrs = t.log.Warn, append(attrs, "error", r.kind)
	}
	attrs = append(attrs, "seconds", seconds(took))
	if c.step != "" {
		attrs = append(attrs, "step", c.step)
	}
	if _, node, _ := planning.NodeOfStep(c.step); node != "" {
		attrs = append(attrs, "node", node)
	}
	say("request", attrs...)
}

// HTTP returns a wrapper for the transports of one kind of server; nil on a nil Telemetry.
func (t *Telemetry) HTTP(server string) func(http.RoundTripper) http.RoundTripper {
	if t == nil {
		return nil
	}
	return func(inner http.RoundTripper) http.RoundTripper { return &watched{t, server, inner} }
}

// watched records every request.
type watched struct {
	t      *Telemetry
	server string
	inner  http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It adds no trace headers: these servers do not
// take part in a trace.
func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	c := &call{
		server: w.server, method: req.Method, path: req.URL.Path, host: req.URL.Host,
		change: req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodOptions,
	}
	w.t.begin(req.Context(), c, c.method+" "+c.server,
		attrMethod.String(c.method), attrURLPath.String(c.path), attrAddress.String(c.host))
	resp, err := w.inner.RoundTrip(req)
	if err != nil {
		w.t.answered(c, result{class: "none", kind: kindOf(err)})
		c.span.End()
		return resp, err
	}
	r := result{code: strconv.Itoa(resp.StatusCode), class: strconv.Itoa(resp.StatusCode/100) + "xx"}
	if resp.StatusCode >= http.StatusBadRequest {
		r.kind = r.code
	}
	c.span.SetAttributes(attrHTTPStatus.Int(resp.StatusCode))
	w.t.answered(c, r)
	if resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		c.span.End()
		return resp, nil
	}
	if w.t.tracing != nil {
		resp.Body = &body{resp.Body, c.span}
	}
	return resp, nil
}

// CloseIdleConnections is called by http.Client.
func (w *watched) CloseIdleConnections() {
	if c, ok := w.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// body ends the span of a call when its answer was read or closed.
type body struct {
	io.ReadCloser
	span trace.Span // End may be called twice
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			b.span.SetAttributes(attrErrorType.String(kindOf(err)))
			b.span.SetStatus(codes.Error, kindOf(err))
		}
		b.span.End()
	}
	return n, err
}

func (b *body) Close() error {
	b.span.End()
	return b.ReadCloser.Close()
}

// kindOf is why no answer came, in one word: the error's own text may contain secrets.
func kindOf(err error) string {
	var certificate *tls.CertificateVerificationError
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "broken"
	case errors.As(err, &certificate):
		return "certificate"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "name"
	}
	return "other"
}
