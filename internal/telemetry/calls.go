package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
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

type watched struct {
	t      *Telemetry
	server string
	inner  http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It adds no trace headers: these servers do not take part in a trace.
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

// Drifted records the state of every node.
func (t *Telemetry) Drifted(res pipeline.DriftResult) {
	if t == nil {
		return
	}
	t.answer(func(p *page) {
		nodes := p.gauge("recast_nodes", "Nodes by state: in-sync, stale, unread.", "state")
		stale := p.gauge("recast_node_stale", "1: the node differs from the lock.", "node")
		unread := p.gauge("recast_node_unread", "1: something of the node could not be read, so nothing is certain.", "node")
		info := p.gauge("recast_node_info", "The build that the node should run and the Talos version that it runs; always 1.", "node", "build", "talos")
		reasons := p.gauge("recast_stale_nodes", "Nodes by why they are stale.", "reason")
		count := map[string]float64{"in-sync": 0, "stale": 0, "unread": 0}
		why := map[string]float64{}
		for _, d := range res.Nodes {
			count[state(d)]++
			stale(number(d.Stale), d.Node)
			unread(number(len(d.Unread) > 0), d.Node)
			info(1, d.Node, d.Build, d.Talos)
			for code := range reasonsOf(d) {
				why[code]++
			}
		}
		for s, n := range count {
			nodes(n, s)
		}
		for code, n := range why {
			reasons(n, code)
		}
	})
}

func state(d observe.Drift) string {
	switch {
	case len(d.Unread) > 0:
		return "unread"
	case d.Stale:
		return "stale"
	}
	return "in-sync"
}

func reasonsOf(d observe.Drift) map[string]bool {
	out := map[string]bool{}
	for _, r := range d.Reasons {
		out[r.Code] = true
	}
	return out
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (t *Telemetry) Planned(plan planning.Plan) {
	if t != nil {
		t.answer(func(p *page) { planned(p, plan) })
	}
}

func planned(p *page, plan planning.Plan) {
	nodes := p.gauge("recast_plan_nodes", "Nodes of the plan by strategy: none if nothing is to be done, refused if it can't be done.", "strategy")
	outage := p.gauge("recast_plan_outage_seconds", "How long the node is expected to be away.", "node", "strategy")
	count := map[string]float64{"none": 0, "refused": 0}
	for _, n := range plan.Nodes {
		strategy := string(n.Strategy)
		switch {
		case len(n.Refused) > 0:
			strategy = "refused"
		case strategy == "":
			strategy = "none"
		default:
			outage(float64(n.OutageSeconds), n.Node, strategy)
		}
		count[strategy]++
	}
	for strategy, n := range count {
		nodes(n, strategy)
	}
}

// Rolled records a run's outcome and that of each of its nodes.
func (t *Telemetry) Rolled(rep pipeline.Report, fared ui.Fared) {
	if t == nil {
		return
	}
	outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error itself is not a label
	t.root.SetAttributes(attrOutcome.String(outcome))
	t.mu.Lock()
	took := maps.Clone(t.took)
	t.mu.Unlock()
	t.answer(func(p *page) {
		planned(p, rep.Plan)
		p.gauge("recast_run_info", "The run and how it ended: done, nothing to do, interrupted, failed; always 1.", "run", "outcome")(1, rep.Run, outcome)
		p.gauge("recast_run_duration_seconds", "How long the run took, building and asking included.")(seconds(rep.Ended.Sub(rep.Started)))
		p.gauge("recast_run_resumed", "Runs that had been left unfinished and were finished first.")(float64(len(rep.Resumed)))
		rolled(p, fared, took)
	})
}

func rolled(p *page, fared ui.Fared, took map[string]time.Duration) {
	labels := []string{"node", "phase", "strategy"}
	outcome := p.gauge("recast_node_roll_info", "How the node's turn ended: done, not needed, failed, stopped, not started; always 1.", append(labels, "outcome")...)
	total := p.gauge("recast_node_roll_seconds", "How long the node's turn took, its own waits included.", labels...)
	away := p.gauge("recast_node_outage_seconds", "From the end of the node's drain until it was back.", labels...)
	stages := p.gauge("recast_node_stage_seconds", "How long each stage of the node's turn took.", append(labels, "stage")...)
	for _, n := range fared.Nodes {
		of := func() []string { return []string{n.Node, n.Phase, n.Strategy} }
		outcome(1, append(of(), string(n.Outcome))...)
		away(float64(n.AwaySeconds), of()...)
		branch := "roll/" + n.Phase + "/" + n.Node
		if d, ran := took[branch]; ran {
			total(seconds(d), of()...)
		}
		for path, d := range took {
			if stage, below := strings.CutPrefix(path, branch+"/"); below {
				stages(seconds(d), append(of(), stage)...)
			}
		}
	}
}

func (t *Telemetry) Examined(res checkup.Result) {
	if t == nil {
		return
	}
	t.answer(func(p *page) {
		checks := p.gauge("recast_doctor_checks", "Checks by group and result: ok, warning, problem.", "group", "state")
		count := map[[2]string]float64{}
		for _, c := range res.Checks {
			count[[2]string{c.Group, string(c.State)}]++
		}
		for of, n := range count {
			checks(n, of[0], of[1])
		}
	})
}

func (t *Telemetry) GRPC(server string) []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(&rpcs{t, server})}
}

type rpcs struct {
	t      *Telemetry
	server string
}

var _ stats.Handler = (*rpcs)(nil)

type callKey struct{}

func (r *rpcs) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	method := strings.TrimPrefix(info.FullMethodName, "/")
	c := &call{server: r.server, method: method, change: !reads(method)}
	ctx = r.t.begin(ctx, c, method, attrRPCSystem.String("grpc"), attrRPCMethod.String(method))
	return context.WithValue(ctx, callKey{}, c)
}

func (r *rpcs) HandleRPC(ctx context.Context, s stats.RPCStats) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.OutHeader:
		if s.RemoteAddr != nil {
			c.remote.Store(new(s.RemoteAddr.String()))
			c.span.SetAttributes(attrAddress.String(s.RemoteAddr.String()))
		}
	case *stats.End:
		code := status.FromContextError(s.Error).Code() // for errors not made by gRPC
		if st, made := status.FromError(s.Error); made {
			code = st.Code()
		}
		if remote := c.remote.Load(); remote != nil {
			c.host = *remote
		}
		res := result{code: code.String(), class: code.String()}
		if code != grpccodes.OK {
			res.kind = code.String() // the message may quote the request
		}
		c.span.SetAttributes(attrRPCCode.String(res.code))
		r.t.answered(c, res)
		c.span.End()
	}
}

func (*rpcs) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*rpcs) HandleConn(context.Context, stats.ConnStats)                       {}

// reads says whether a method of Talos' API is read-only; unknown methods are not.
func reads(method string) bool {
	return slices.Contains([]string{
		"Get", "List", "Watch", // cosi.resource.State, and files and images of a machine
		"Version", "Read", "Copy", "Hostname", "Memory", "SystemStat", "Mounts", "Containers", "Processes",
		"Dmesg", "Logs", "Events", "ServiceList", "DiskUsage", "ImageList",
		"EtcdStatus", "EtcdMemberList", "EtcdAlarmList", "EtcdSnapshot",
	}, path.Base(method))
}
