package main

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// typedWith runs recast as a separate process with an environment.
func typedWith(t *testing.T, env []string, args ...string) (stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(append(os.Environ(), "RECAST_TEST_MAIN=1", "GORACE="+noNap), env...)
	var out, story bytes.Buffer
	c.Stdout, c.Stderr = &out, &story
	if err := c.Run(); err != nil {
		t.Fatalf("recast %q: %v\n%s", args, err, &story)
	}
	return out.String(), story.String()
}

// TestTracesAreSent: the environment sets the destination, the parent trace and the
// service name.
func TestTracesAreSent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []*tracepb.ResourceSpans
	var header string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collectorpb.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(body, &request) != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		mu.Lock()
		defer mu.Unlock()
		header, got = r.Header.Get("X-Tenant"), append(got, request.ResourceSpans...)
	}))
	defer collector.Close()
	env := []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_EXPORTER_OTLP_HEADERS=x-tenant=lab", "OTEL_SERVICE_NAME=nightly",
		"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if out, story := typedWith(t, env, "version"); !strings.HasPrefix(out, "recast ") || story != "" {
		t.Errorf("recast version printed %q and said %q", out, story)
	}
	if len(got) != 1 || len(got[0].ScopeSpans) != 1 || len(got[0].ScopeSpans[0].Spans) != 1 || header != "lab" {
		t.Fatalf("the collector got %v, header %q", got, header)
	}
	span := got[0].ScopeSpans[0].Spans[0]
	if span.Name != "recast version" || hex.EncodeToString(span.TraceId) != "0af7651916cd43dd8448eb211c80319c" || hex.EncodeToString(span.ParentSpanId) != "b7ad6b7169203331" {
		t.Errorf("span %v", span)
	}
	if !strings.Contains(got[0].Resource.String(), `"nightly"`) {
		t.Errorf("resource %v", got[0].Resource)
	}
	if _, story := typedWith(t, append(env, "OTEL_SDK_DISABLED=true"), "version"); len(got) != 1 || story != "" {
		t.Errorf("disabled, and still sent: %v, said %q", got, story)
	}
}

// TestTracesThatNobodyTakes: the command works as usual, and reports the problem once.
func TestTracesThatNobodyTakes(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, c := range map[string]struct{ env, want string }{
		"no collector":   {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + gone.URL, "warning: traces could not be sent; the command continues without: "},
		"other protocol": {"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "warning: no traces: the environment asks for OTLP over grpc; recast speaks http/protobuf alone"},
	} {
		out, story := typedWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + gone.URL, c.env}, "version")
		if !strings.HasPrefix(out, "recast ") || !strings.HasPrefix(story, c.want) || strings.Count(story, "\n") != 1 {
			t.Errorf("%s: printed %q and said %q", name, out, story)
		}
	}
}
