package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/pipeline/past"
)

func TestMain(m *testing.M) {
	if os.Getenv("RECAST_TEST_MAIN") != "" {
		main()
	}
	if os.Getenv("RECAST_TEST_HOLDER") != "" {
		tellHolder()
	}
	syscall.Umask(0o022) // some stories bring a .recast, which others must not be able to write to
	// Most of a story is waiting for the lab, so that more of them fit than there
	// are processors. A flag on the command line still wins.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"recast": main})
}

// noNap is for GORACE: with the race detector every process waits a second before it
// ends (atexit_sleep_ms), and the scripts start hundreds of them.
const noNap = "atexit_sleep_ms=0"

// TestScript runs every script of testdata/script, with the commands of a user.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("NO_COLOR", "1")
			env.Setenv("GORACE", noNap)
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "long": // testscript's own, [short], does not tell make stories that something is left out here
				return !testing.Short(), nil
			case "mounts": // whether this user may mount in a namespace of their own
				return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "rejects": rejects, "awaits": awaits, "sources": sources, "replaces": replaces, "hears": hears, "conforms": conforms, "visits": visits, "presses": presses,
		},
	})
}

// exits CODE PROGRAM ARG… runs a program and requires that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [arg…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// rejects recast ARG… has recast refuse arguments before it reads a file: in this process, a hundred times as fast.
func rejects(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[0] != "recast" {
		ts.Fatalf("usage: rejects recast arg…")
	}
	if code := run(args[1:], nil, ts.Stdout(), ts.Stderr()); code != exitConfig {
		ts.Fatalf("exit code %d, want %d", code, exitConfig)
	}
}

// awaits FILE TEXT waits until the output file of a background command contains a text.
func awaits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: awaits file text")
	}
	deadline := time.Now().Add(3 * time.Minute)
	for time.Now().Before(deadline) {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && strings.Contains(string(b), args[1]) {
			return
		}
		<-time.After(50 * time.Millisecond) // another process is waited for
	}
	ts.Fatalf("%s never held %q", args[0], args[1])
}

// sources FILE sets the variables of an env file, as the shell's dot does.
func sources(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sources file")
	}
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		setting, exported := strings.CutPrefix(strings.TrimSpace(line), "export ")
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			ts.Fatalf("%s: %q sets nothing", args[0], line)
		}
		if !exported {
			continue // PATH: the stories have it
		}
		ts.Setenv(name, strings.Trim(value, "'"))
	}
}

// replaces FILE OLD NEW edits a file; OLD must be in it.
func replaces(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replaces file old new")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o600))
}

// hears FILE runs a web server that appends each request to a file, one per line, and sets HEARD_URL.
func hears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hears file")
	}
	path := ts.MkAbs(args[0])
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = appendLine(path, body)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	ts.Defer(s.Close)
	ts.Setenv("HEARD_URL", s.URL)
}

func appendLine(path string, line []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// conforms SCHEMA checks the output of the last command against a schema of docs/schemas.
func conforms(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: conforms schema")
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "docs", "schemas", args[0]+".schema.json"))
	ts.Check(err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(ts.ReadFile("stdout")))
	ts.Check(err)
	ts.Check(schema.Validate(doc))
}

// pages are those of recast ui, as a browser that has opened its URL sees them.
type pages struct {
	base   string // http://127.0.0.1:1234/…/
	cookie *http.Cookie
}

// enterPages opens the URL that recast ui has printed.
func enterPages(text string) (pages, error) {
	first, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return pages{}, err
	}
	answer, err := http.Get(first.String())
	if err != nil {
		return pages{}, err
	}
	defer answer.Body.Close()
	if len(answer.Cookies()) != 1 {
		return pages{}, fmt.Errorf("%s: %s, and no cookie", first, answer.Status)
	}
	c := answer.Cookies()[0]
	return pages{"http://" + first.Host + c.Path, c}, nil
}

func (p pages) ask(method, path string, form url.Values) (text string, err error) {
	r, err := http.NewRequest(method, p.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.AddCookie(p.cookie)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+r.Host)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if answer.StatusCode >= http.StatusBadRequest {
		return string(body), fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, body)
	}
	return string(body), err
}

// visits FILE PATH TEXT… looks at a page of recast ui, whose URL is in a file, until it holds all texts.
func visits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: visits file path text…")
	}
	p, err := enterPages(ts.ReadFile(args[0]))
	ts.Check(err)
	var page, missing string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) { // another process is waited for
		var err error
		page, err = p.ask(http.MethodGet, args[1], nil)
		ts.Check(err)
		missing = ""
		for _, text := range args[2:] {
			if !strings.Contains(page, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
	}
	ts.Fatalf("the page %q never held %q:\n%s", args[1], missing, page)
}

// presses FILE WHAT presses the button of recast ui that reads something again.
func presses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: presses file what")
	}
	p, err := enterPages(ts.ReadFile(args[0]))
	ts.Check(err)
	_, err = p.ask(http.MethodPost, "read", url.Values{"what": {args[1]}})
	ts.Check(err)
}

// typedWith runs recast as a separate process with an environment.
func typedWith(t *testing.T, env []string, args ...string) (stdout, stderr string) {
	t.Helper()
	self := must.Get(os.Executable())(t)
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(append(os.Environ(), "RECAST_TEST_MAIN=1", "GORACE="+noNap), env...)
	var out, story bytes.Buffer
	c.Stdout, c.Stderr = &out, &story
	err := c.Run()
	must.Be(t, err == nil, "recast %q: %v\n%s", args, err, &story)
	return out.String(), story.String()
}

// TestTracesAreSent: the environment sets the destination, the parent trace and the service name.
func TestTracesAreSent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []*tracepb.ResourceSpans
	var header string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collectorpb.ExportTraceServiceRequest
		must.Hold(t, err == nil && proto.Unmarshal(body, &request) == nil && r.URL.Path == "/v1/traces",
			"%s %s: %v", r.Method, r.URL, err)
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
	must.Be(t, len(got) == 1 && len(got[0].ScopeSpans) == 1 && len(got[0].ScopeSpans[0].Spans) == 1 && header == "lab",
		"the collector got %v, header %q", got, header)
	span := got[0].ScopeSpans[0].Spans[0]
	if span.Name != "recast version" || hex.EncodeToString(span.TraceId) != "0af7651916cd43dd8448eb211c80319c" || hex.EncodeToString(span.ParentSpanId) != "b7ad6b7169203331" {
		t.Errorf("span %v", span)
	}
	must.Contain(t, "resource", got[0].Resource.String(), `"nightly"`)
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
		must.Hold(t, strings.HasPrefix(out, "recast ") && strings.HasPrefix(story, c.want) && strings.Count(story, "\n") == 1,
			"%s: printed %q and said %q", name, out, story)
	}
}

// TestCtrlCEndsTheLastCopy: a mirror that does not answer holds nobody who wants to go.
func TestCtrlCEndsTheLastCopy(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	mirror := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer mirror.Close()
	p := pipeline.Project{Config: &config.Config{Cluster: "c", Dir: t.TempDir()}}
	p.Config.Images.Mirror = strings.TrimPrefix(mirror.URL, "http://") + "/acme/talos"
	p.Config.History.Share = config.ShareAlways
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
	defer j.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	var cl closers
	shareRuns(ctx, &streams{err: &console{Writer: io.Discard}}, p, &cl)("r", j.Dir())
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		cl.close()
		close(ended)
	}()
	<-asked
	interrupt()
	<-ended
	took := time.Since(began)
	must.Hold(t, took <= shareWait/2, "it took %s", took)
}

// TestSecretsAreNotShared: what this machine keeps secret is removed from a log that quotes it, however plain it looks.
func TestSecretsAreNotShared(t *testing.T) {
	t.Parallel()
	mirror := httptest.NewServer(factoryapi.NewRegistry(record.New()))
	defer mirror.Close()
	p := pipeline.Project{Config: &config.Config{Cluster: "c", Dir: t.TempDir()}}
	p.Config.Images.Mirror = strings.TrimPrefix(mirror.URL, "http://") + "/acme/talos"
	p.Config.History.Share = config.ShareAuto
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
	defer j.Close()
	s := &streams{err: &console{Writer: io.Discard}}
	var cl closers
	shareRuns(t.Context(), s, p, &cl)("r", j.Dir())
	must.Do(t, j.PutSecret("wk1/config", []byte("machine: {token: plainly-a-word}\n")))
	there := p
	there.Config = &config.Config{Cluster: "c", Dir: t.TempDir(), Images: p.Config.Images, History: p.Config.History}
	fetch := func() { fetchRuns(t.Context(), s, there, 0, func(text string) { t.Error(text) }) }
	for began := time.Now(); ; fetch() { // until the first copy
		if known, err := there.Runs().List(); err != nil || time.Since(began) > 10*shareSoon {
			t.Fatalf("it was not shared: %v", err)
		} else if len(known) > 0 {
			break
		}
		time.Sleep(shareSoon / 10)
	}
	err := errors.Join(
		j.Delete("wk1/config"), // as of a node that is done
		os.WriteFile(filepath.Join(j.Dir(), story.LogName), []byte(`{"msg":"Talos said: plainly-a-word"}`+"\n"), 0o600),
	)
	must.Do(t, err)
	cl.close()
	fetch()
	run := must.Get(there.Runs().Find("r", past.Options{}))(t)
	log, err := os.ReadFile(filepath.Join(run.Dirs[0], story.LogName))
	want := `{"msg":"Talos said: [redacted]"}` + "\n"
	must.Hold(t, string(log) == want && err == nil, "%s, %v", log, err)
}

var (
	driftNodes = flag.Int("drift.nodes", 500, "how many nodes the lab of BenchmarkDrift and BenchmarkPlan has")
	driftRuns  = flag.Int("drift.runs", 5, "how often each of them types its command, at least")
)

const (
	benchLatency = "20ms"
	maxDriftMiB  = 250
)

// BenchmarkDrift runs recast drift as a process on a large cluster, with each answer of every server 20 ms late.
func BenchmarkDrift(b *testing.B) { benchObserving(b, openLargeLab(b), "drift", "-o", "json") }

// BenchmarkDriftOfConfigs is BenchmarkDrift where git has the configuration of every node.
func BenchmarkDriftOfConfigs(b *testing.B) {
	term := openLargeLab(b)
	must.Get(term.recast("config", "render", "--to", "git", "--running", "--secrets").Output())(b)
	b.Run("without", func(b *testing.B) { benchObserving(b, term, "drift", "-o", "json") })
	term.replace("recast.yaml", "talos:\n", "talos:\n  machineConfigs: git\n")
	b.Run("with", func(b *testing.B) { benchObserving(b, term, "drift", "-o", "json") })
}

// BenchmarkPlan runs recast plan on a cluster of the same size, which also reads what would be lost with each node.
func BenchmarkPlan(b *testing.B) { benchObserving(b, openLargeLab(b), "plan", "-o", "json") }

func openLargeLab(b *testing.B) *terminal {
	b.Helper()
	return openLab(b, "--control-planes", "3", "--workers", strconv.Itoa(*driftNodes-3), "--proxmox-nodes", "3", "--latency", benchLatency, "--speed", "5")
}

// benchObserving reports what one run of a read-only command costs. Its memory and
// requests don't depend on the machine.
func benchObserving(b *testing.B, term *terminal, args ...string) {
	var took []float64
	var cpu time.Duration
	peakMiB := 0.0
	before := term.requests()
	observe := func() {
		c := term.recast(args...)
		began := time.Now()
		answer, err := c.Output()
		took = append(took, time.Since(began).Seconds())
		must.Be(b, err == nil, "recast %v: %v\n%s", args, err, answer)
		term.requireAll(answer, args[0])
		usage := c.ProcessState.SysUsage().(*syscall.Rusage) // Linux counts in KiB
		peakMiB = max(peakMiB, float64(usage.Maxrss)/1024)
		cpu += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	for b.Loop() {
		observe()
	}
	for len(took) < *driftRuns {
		observe()
	}
	after := term.requests()
	slices.Sort(took)
	b.ReportMetric(took[0], "s-min")
	b.ReportMetric(took[len(took)/2], "s-median")
	b.ReportMetric(took[len(took)-1], "s-max")
	b.ReportMetric(cpu.Seconds()/float64(len(took)), "cpu-s")
	b.ReportMetric(peakMiB, "peak-MiB")
	for _, proto := range []string{"proxmox", "talos", "kubernetes"} {
		b.ReportMetric(float64(after[proto]-before[proto])/float64(len(took)**driftNodes), proto+"-requests/node")
	}
	must.Hold(b, peakMiB <= maxDriftMiB, "%.0f MiB at its peak, more than %d", peakMiB, maxDriftMiB)
}

// requests returns how many requests the lab's servers have received, by protocol.
func (term *terminal) requests() map[string]int {
	term.t.Helper()
	_, now, err := sim.AskState(term.t.Context(), term.dir)
	must.Do(term.t, err)
	return now.Requests
}

func (term *terminal) requireAll(answer []byte, command string) {
	term.t.Helper()
	var res struct {
		pipeline.DriftResult
		Nodes []json.RawMessage `json:"nodes"`
	}
	must.Do(term.t, json.Unmarshal(answer, &res))
	if len(res.Nodes) != *driftNodes || command == "drift" && !res.InSync {
		term.t.Fatalf("%d nodes, in sync: %t", len(res.Nodes), res.InSync)
	}
}

var (
	startupOf      = flag.String("startup.recast", "", "a stripped recast for BenchmarkStartup (default: it builds one)")
	startupAgainst = flag.String("startup.talosctl", "../../bin/e2e/talosctl", "a stripped talosctl to compare with, if it is there: make e2e-talosctl builds it")
)

// BenchmarkStartup runs the version commands of recast and talosctl in turn: the cost of
// starting a process, and the size of its file.
func BenchmarkStartup(b *testing.B) {
	programs := []program{{name: "recast", file: strippedRecast(b), args: []string{"version"}}}
	if _, err := os.Stat(*startupAgainst); err == nil {
		programs = append(programs, program{name: "talosctl", file: *startupAgainst, args: []string{"version", "--client"}})
	}
	for i := range programs {
		programs[i].run(b) // from now on its file is in memory
		programs[i].wall, programs[i].cpu = nil, nil
	}
	for b.Loop() {
		for i := range programs {
			programs[i].run(b)
		}
	}
	for i := range programs {
		p := &programs[i]
		b.ReportMetric(p.median(p.wall), p.name+"-ms")
		b.ReportMetric(p.median(p.cpu), p.name+"-cpu-ms")
		b.ReportMetric(p.mib(b), p.name+"-MiB")
	}
	if len(programs) == 2 {
		ours, theirs := &programs[0], &programs[1]
		b.ReportMetric(ours.median(ours.wall)/theirs.median(theirs.wall), "ratio")
		b.ReportMetric(ours.median(ours.cpu)/theirs.median(theirs.cpu), "cpu-ratio")
		b.ReportMetric(ours.mib(b)/theirs.mib(b), "size-ratio")
	}
	b.ReportMetric(0, "ns/op") // of both, which says nothing
}

func strippedRecast(b *testing.B) string {
	b.Helper()
	if *startupOf != "" {
		return *startupOf
	}
	file := filepath.Join(b.TempDir(), "recast")
	c := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", file, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

// program is one of the two, with the durations of its runs in milliseconds.
type program struct {
	name, file string
	args       []string
	wall, cpu  []float64
}

func (p *program) run(b *testing.B) {
	b.Helper()
	c := exec.CommandContext(b.Context(), p.file, p.args...)
	began := time.Now()
	if out, err := c.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", p.name, err, out)
	}
	p.wall = append(p.wall, time.Since(began).Seconds()*1e3)
	usage := c.ProcessState.SysUsage().(*syscall.Rusage)
	p.cpu = append(p.cpu, float64(usage.Utime.Nano()+usage.Stime.Nano())/1e6)
}

func (p *program) median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

func (p *program) mib(b *testing.B) float64 {
	b.Helper()
	info := must.Get(os.Stat(p.file))(b)
	return float64(info.Size()) / (1 << 20)
}

// slowly puts a proxy in front of the lab's registry that holds the list of official
// extensions back from keepsBack until release.
func slowly(t *testing.T, term *terminal) (keepsBack func() (release func())) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  extensions: (\S+)/siderolabs$`).FindStringSubmatch(term.read("recast.yaml"))
	if m == nil {
		t.Fatalf("recast.yaml names no registry of extensions:\n%s", term.read("recast.yaml"))
	}
	quiet := log.New(io.Discard, "", 0) // it is asked by TLS first
	answer := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: m[1]})
	answer.ErrorLog = quiet
	var list atomic.Value // of a channel, closed: the list is answered
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.URL.Path, "/siderolabs/extensions/manifests/") {
			select {
			case <-list.Load().(chan struct{}):
			case <-req.Context().Done():
				return
			}
		}
		answer.ServeHTTP(w, req)
	}))
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	term.replace("recast.yaml", m[1]+"/siderolabs", strings.TrimPrefix(s.URL, "http://")+"/siderolabs")
	return func() (release func()) {
		held := make(chan struct{})
		list.Store(held)
		return sync.OnceFunc(func() { close(held) })
	}
}

// TestLockSaysWhatItWaitsFor: while a registry is slow, lock says what it waits for, on
// a terminal and in a pipe, separately from its answer.
func TestLockSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	term := openLab(t)
	keepsBack := slowly(t, term)
	const looks, answer = "looking at the registry's list of official extensions for Talos v1.13.9", "recast.lock is up to date"

	release := keepsBack()
	defer release() // before the server is closed, which waits for its requests
	story := must.Get(os.Create(filepath.Join(term.dir, "lock.err")))(t)
	defer story.Close()
	var out strings.Builder
	c := term.recast("lock", "--check")
	c.Stdout, c.Stderr = &out, story
	must.Do(t, c.Start())
	term.await("lock.err", looks+"\n")
	release()
	if err := c.Wait(); err != nil || out.String() != answer+"\n" {
		t.Errorf("in a pipe: %v, answer %q, story:\n%s", err, out.String(), term.read("lock.err"))
	}
	must.Equal(t, "how often it is said", 1, strings.Count(term.read("lock.err"), looks))

	release = keepsBack()
	defer release()
	s := term.onScreen("lock", "--check")
	s.await(looks + "\r\n")
	if strings.Contains(s.seen(), answer) {
		t.Errorf("answered before the registry was:\n%s", s.seen())
	}
	release()
	must.Equal(t, "exit code", exitDone, s.end())
	if seen := s.seen(); !strings.HasSuffix(seen, answer+"\r\n") || strings.Count(seen, looks) != 1 {
		t.Errorf("on a terminal:\n%q", seen)
	}
}

// TestGitThatHangs: what git has started, such as ssh, may outlive it.
func TestGitThatHangs(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\nsleep 20 &\nwait\n"), 0o700)) //nolint:gosec // it is a program
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := askedGit(ctx, dir, "", "log"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

// TestRenderFollowsNoLink: secrets go to no place that another user has chosen.
func TestRenderFollowsNoLink(t *testing.T) {
	t.Parallel()
	all := []configs.Config{{Node: "wk1", Text: cluster.Secret("machine: {}\n")}}
	type row struct {
		prepare func(t *testing.T, dir, target string)       // before recast looks
		between func(t *testing.T, dir, target string) error // after it has looked
		clear   bool                                         // secrets are written as they are
		refused string
	}
	link := func(t *testing.T, to, from string) { must.Do(t, os.Symlink(to, from)) }
	must.Each(t, map[string]row{
		"a directory of its own": {clear: true},
		"a link to a file": {prepare: func(t *testing.T, dir, target string) {
			must.Do(t, os.Mkdir(dir, 0o700))
			link(t, target, filepath.Join(dir, "wk1.yaml"))
		}, refused: "already exists"},
		"a link made meanwhile": {between: func(t *testing.T, dir, target string) error {
			return os.Symlink(target, filepath.Join(dir, "wk1.yaml"))
		}, refused: "file exists"},
		"a link to a directory": {clear: true, prepare: func(t *testing.T, dir, target string) { must.Do(t, os.Mkdir(target, 0o700)); link(t, target, dir) }, refused: "is a symbolic link"},
		"others may write":      {clear: true, prepare: func(t *testing.T, dir, _ string) { must.Do(t, os.Mkdir(dir, 0o700)); must.Do(t, os.Chmod(dir, 0o777)) }, refused: "other users may write to"},
		"nothing secret":        {prepare: func(t *testing.T, dir, _ string) { must.Do(t, os.Mkdir(dir, 0o700)); must.Do(t, os.Chmod(dir, 0o777)) }},
	}, func(t *testing.T, tc row) {
		dir, target := filepath.Join(t.TempDir(), "to"), filepath.Join(t.TempDir(), "target")
		if tc.prepare != nil {
			tc.prepare(t, dir, target)
		}
		err := renderConfigs(&streams{out: io.Discard}, dir, tc.clear, all, func(c configs.Config) ([]byte, error) {
			if tc.between != nil {
				must.Do(t, tc.between(t, dir, target))
			}
			return c.Text, nil
		})
		if tc.refused == "" {
			must.Do(t, err)
			must.Equal(t, "text", "machine: {}\n", string(must.Get(os.ReadFile(filepath.Join(dir, "wk1.yaml")))(t)))
			return
		}
		must.Hold(t, err != nil && strings.Contains(err.Error(), tc.refused), "%v", err)
		for _, path := range []string{target, filepath.Join(target, "wk1.yaml")} {
			b, _ := os.ReadFile(path)
			must.Equal(t, "what was written to "+path, 0, len(b))
		}
	})
}
