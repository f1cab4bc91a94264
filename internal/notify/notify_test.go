package notify

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

// receiver is a web server that receives notices.
type receiver struct {
	answer http.HandlerFunc

	mu     sync.Mutex
	got    []string // method, path and body
	header http.Header
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.got, r.header = append(r.got, req.Method+" "+req.URL.Path+" "+string(body)), req.Header
	r.mu.Unlock()
	if r.answer != nil {
		r.answer(w, req)
	}
}

func (r *receiver) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// serve runs a real net/http server in memory.
func (r *receiver) serve(t *testing.T, answer http.HandlerFunc) *http.Transport {
	t.Helper()
	r.answer = answer
	n := network.Memory()
	l := must.Get(n.Listen("hook.example:80"))(t)
	// Handlers that still wait end with the connection.
	s := &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	transport := &http.Transport{DialContext: n.Dialer().DialContext}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Close()
		serving.Wait()
	})
	return transport
}

var aNotice = cluster.Notice{
	Event: cluster.NoticeFailure, Command: "roll", Cluster: "lab", Run: "r1", Outcome: "failed", Error: `it is "broken" <here>`, Hints: []string{"mend it"},
	Nodes:   cluster.Fates{Done: []string{"wk1"}, Failed: []string{"wk2"}, Left: []string{}},
	Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Ended: time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC), Host: "ci", Text: "recast roll of lab: failed",
}

var everyEvent = []string{"start", "failure", "end"}

// sends sends aNotice to one webhook and measures the time.
func sends(t *testing.T, transport http.RoundTripper, w Webhook, env map[string]string) (took time.Duration, warned []string, err error) {
	t.Helper()
	if w.URL == "" && w.URLEnv == "" {
		w.URL = "http://hook.example/s3cret/path"
	}
	if w.On == nil {
		w.On = everyEvent
	}
	c := must.Get(New(Options{
		Webhooks: []Webhook{w}, Getenv: func(name string) string { return env[name] }, User: "alice", Transport: transport,
		Warn: func(text string) { warned = append(warned, text) },
	}))(t)
	start := time.Now()
	err = c.Notify(t.Context(), aNotice)
	return time.Since(start), warned, err
}

func TestNotify(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var r receiver
		_, warned, err := sends(t, r.serve(t, nil), Webhook{}, nil)
		must.Equal(t, "warned, error", []any{[]string(nil), nil}, []any{warned, err})
		body, ok := strings.CutPrefix(r.requests()[0], "POST /s3cret/path ")
		const want = `{"event":"failure","command":"roll","cluster":"lab","run":"r1","outcome":"failed","nodes":{"done":["wk1"],"failed":["wk2"],"left":[]},` +
			`"error":"it is \"broken\" <here>","hints":["mend it"],"started":"2026-01-02T03:04:05Z","ended":"2026-01-02T03:05:05Z","host":"ci","user":"alice","text":"recast roll of lab: failed"}`
		must.Hold(t, ok && body == want && json.Valid([]byte(body)) && r.header.Get("Content-Type") == "application/json" && r.header.Get("User-Agent") == "recast",
			"it got %q with %v", r.requests(), r.header)
	})
}

func TestHeadersAndTemplate(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var r receiver
		_, _, err := sends(t, r.serve(t, nil), Webhook{
			Headers: map[string]string{"Authorization": "AUTH"}, ContentType: "text/x-test",
			Template: `{"text": {{json .Error}}, "of": "{{join .Nodes.Done ","}}{{.Ended.Sub .Started}}"}`,
		}, map[string]string{"AUTH": "Bearer s3cret"})
		must.Hold(t, err == nil && r.requests()[0] == `POST /s3cret/path {"text": "it is \"broken\" <here>", "of": "wk11m0s"}`,
			"%q, %v", r.requests(), err)
		must.Hold(t, r.header.Get("Authorization") == "Bearer s3cret" && r.header.Get("Content-Type") == "text/x-test",
			"headers %v", r.header)
	})
}

// TestTrouble: a failing webhook delays nobody for long, and no message contains a secret.
func TestTrouble(t *testing.T) {
	t.Parallel()
	const who = "webhook hook.example: notice of failure: "
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	first := func(n int, h http.HandlerFunc) http.HandlerFunc { // h for the first n requests, then success
		return func(w http.ResponseWriter, req *http.Request) {
			if n--; n >= 0 {
				h(w, req)
			}
		}
	}
	lasts := func(d time.Duration) http.HandlerFunc {
		return func(_ http.ResponseWriter, req *http.Request) {
			select {
			case <-time.After(d):
			case <-req.Context().Done():
			}
		}
	}
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	type row struct {
		answer http.HandlerFunc
		err    string
		asked  int
		took   time.Duration
	}
	must.Bubbles(t, map[string]row{
		"slow":              {lasts(9 * time.Second), "", 1, 9 * time.Second},
		"hangs":             {lasts(time.Hour), "no answer within 10s", 3, 34 * time.Second},
		"fails once":        {first(1, status(500, "oops")), "", 2, time.Second},
		"fails for good":    {status(503, "come back\nlater"), "it answers with 503 Service Unavailable", 3, 4 * time.Second},
		"too often":         {first(2, status(429, "")), "", 3, 4 * time.Second},
		"not let in":        {status(403, "Bearer s3cret is bad"), "it answers with 403 Forbidden", 1, 0},
		"a long complaint":  {status(400, strings.Repeat("x", 5000)), "it answers with 400 Bad Request", 1, 0},
		"connection is cut": {cut, "EOF", 3, 4 * time.Second},
		"answer never ends": {func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}, "", 1, 0},
		"a code of its own": {status(599, "s3cret"), "it answers with 599", 3, 4 * time.Second},
		"moved": {func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "http://evil.example/path", http.StatusTemporaryRedirect)
		}, "it answers with 307, a redirect to another host, which is not followed: give the URL that it leads to", 1, 0},
		"moved on the same host":  {func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/other", http.StatusFound) }, "it answers with 302, a redirect on the same host, which is not followed: give the URL that it leads to", 1, 0},
		"moved to nobody knows":   {status(304, ""), "it answers with 304, a redirect, which is not followed: give the URL that it leads to", 1, 0},
		"accepted, without a 200": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "", 1, 0},
	}, func(t *testing.T, c row) {
		var r receiver
		took, warned, err := sends(t, r.serve(t, c.answer), Webhook{Headers: map[string]string{"Authorization": "AUTH"}}, map[string]string{"AUTH": "Bearer s3cret"})
		got, want := must.Text(err), c.err
		if want != "" {
			want = who + want
		}
		must.Hold(t, got == want && (len(warned) == 1) == (want != ""), "%q, want %q; warned %q", got, want, warned)
		must.Equal(t, "asked, took", []any{c.asked, c.took}, []any{len(r.requests()), took})
	})
}

// Nothing listens.
func TestUnreachable(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var r receiver
		_, _, err := sends(t, r.serve(t, nil), Webhook{URL: "http://other.example/s3cret"}, nil)
		must.Hold(t, err != nil && strings.HasPrefix(err.Error(), "webhook other.example: notice of failure: ") && !strings.Contains(err.Error(), "s3cret"),
			"err = %v", err)
	})
}

// Ctrl-C cancels the wait for the next attempt.
func TestCancelled(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var r receiver
		c := must.Get(New(Options{
			Webhooks: []Webhook{{URL: "http://hook.example/", On: everyEvent}}, Getenv: func(string) string { return "" },
			Transport: r.serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }),
		}))(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		time.AfterFunc(500*time.Millisecond, func() { cancel(errors.New("stopped")) })
		start := time.Now()
		must.Hold(t, c.Notify(ctx, aNotice) != nil && len(r.requests()) == 1, "no error, or asked %d times", len(r.requests()))
		must.Take(t, start, 500*time.Millisecond, 500*time.Millisecond)
	})
}

func TestWants(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, on := range everyEvent {
		for _, e := range everyEvent {
			if (&webhook{on: []string{on}}).wants(cluster.NoticeEvent(e)) {
				got[on] += e + " "
			}
		}
	}
	must.Equal(t, "value", map[string]string{"start": "start ", "failure": "failure ", "end": "failure end "}, got)
}

// Missing variables are reported beforehand, and nothing is sent.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	type row struct {
		w         Webhook
		env       map[string]string
		name, err string
	}
	must.Each(t, map[string]row{
		"all there":      {Webhook{URLEnv: "U", Headers: map[string]string{"A": "B"}}, map[string]string{"U": "https://h.example/s3cret?sig=1\n", "B": "x"}, "h.example", ""},
		"no URL":         {Webhook{URLEnv: "U"}, nil, "$U", "webhook $U: the environment variable is not set"},
		"no header":      {Webhook{URL: "https://h.example/", Headers: map[string]string{"Authorization": "B"}}, nil, "h.example", "webhook h.example: the environment variable B, for its header Authorization, is not set"},
		"in the clear":   {Webhook{URLEnv: "U"}, map[string]string{"U": "http://h.example/s3cret"}, "$U", "webhook $U: its value is not an https URL"},
		"not a URL":      {Webhook{URLEnv: "U"}, map[string]string{"U": "s3cret"}, "$U", "webhook $U: its value is not an https URL"},
		"not even close": {Webhook{URLEnv: "U"}, map[string]string{"U": "https://h:s3cret\x00"}, "$U", "webhook $U: its value is not an https URL"},
	}, func(t *testing.T, c row) {
		refuse := roundTrip(func(*http.Request) (*http.Response, error) { t.Error("something was sent"); return nil, io.EOF })
		client := must.Get(New(Options{Webhooks: []Webhook{c.w}, Getenv: func(name string) string { return c.env[name] }, Transport: refuse, Warn: func(text string) { t.Errorf("warned of %s", text) }}))(t)
		got := client.States()[0]
		said := must.Text(got.Err)
		if got.Err != nil {
			client.hooks[0].on = everyEvent
			must.Equal(t, "error", said, fmt.Sprint(client.Notify(t.Context(), aNotice)))
		}
		must.Equal(t, "name, error", []string{c.name, c.err}, []string{got.Name, said})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCheckTemplate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"text": {{json .Text}}}`:        "",
		`{{range .Hints}}{{.}}{{end}}`:    "",
		`{{.Ended.Format "15:04"}}`:       "",
		`{{.Txt}}`:                        "not a valid template: template: template:1:2: executing \"template\" at <.Txt>: can't evaluate field Txt in type cluster.Notice",
		`{{.Text`:                         "not a valid template: template: template:1: unclosed action",
		`{{env "PROXMOX_VE_API_TOKEN"}}`:  `not a valid template: template: template:1: function "env" not defined`,
		`{{index .Nodes.Failed 0}} is it`: "not a valid template: template: template:1:2: executing \"template\" at <index .Nodes.Failed 0>: error calling index: reflect: slice index out of range",
	} {
		err := CheckTemplate(text)
		got := must.Text(err)
		must.Hold(t, (want != "" || err == nil) && strings.HasPrefix(got, want), "%s: %q, want %q", text, got, want)
	}
}

// The templates in the notes make JSON of any text, except those that are not for JSON.
func TestTemplatesOfTheNotes(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../../docs/notes/notify.md"))(t)
	found := regexp.MustCompile(`template: '([^']+)'`).FindAllSubmatch(text, -1)
	must.Hold(t, len(found) >= 5, "found %q", found)
	n := aNotice
	n.Text = "a \"b\"\n\\ <c>"
	for _, f := range found {
		must.Do(t, CheckTemplate(string(f[1])))
		body := must.Get(parse(string(f[1])))(t)
		got, err := (&webhook{body: body}).render(n)
		must.Hold(t, err == nil && (json.Valid(got) || string(got) == n.Text), "%s: %s, %v", f[1], got, err)
	}
}

// A server's certificate is checked against the system's CAs, and against a given CA file.
func TestCertificates(t *testing.T) {
	t.Parallel()
	var r receiver
	s := httptest.NewUnstartedServer(&r)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	_, _, err := sends(t, nil, Webhook{URL: s.URL + "/h", CAFile: ca}, nil)
	must.Hold(t, err == nil && len(r.requests()) == 1, "%v; it got %q", err, r.requests())
	h := must.Get(newWebhook(Webhook{URL: s.URL}, Options{}))(t)
	must.Fail(t, must.Err(h.post(t.Context(), nil)), "certificate signed by unknown authority")
	must.Equal(t, "requests", 1, len(r.requests()))
	must.Fail(t, must.Err(New(Options{Webhooks: []Webhook{{URL: s.URL, CAFile: "notify_test.go"}}})), "notify_test.go holds no PEM certificate")
}

// quotes are answers that quote the request, in every place where a server can.
var quotes = map[string]func(said string) string{
	"body": func(said string) string {
		return "HTTP/1.1 404 Not Found\r\nContent-Length: " + fmt.Sprint(len(said)) + "\r\n\r\n" + said
	},
	"status line": func(said string) string { return "HTTP/1.1 403 " + said + "\r\nContent-Length: 0\r\n\r\n" },
	"redirect": func(said string) string {
		return "HTTP/1.1 302 Found\r\nLocation: https://" + said + ".example/" + said + "?" + said + "\r\nContent-Length: 0\r\n\r\n"
	},
	"header": func(said string) string {
		return "HTTP/1.1 500 Oops\r\nServer: " + said + "\r\nContent-Length: 0\r\n\r\n"
	},
	"header that is none": func(said string) string { return "HTTP/1.1 500 Oops\r\n" + said + "\r\n\r\n" },
	"no HTTP at all":      func(said string) string { return said + "\r\n\r\n" },
	"no status":           func(said string) string { return "HTTP/1.1 " + said + "\r\n\r\n" },
	"no length":           func(said string) string { return "HTTP/1.1 400 Bad Request\r\nContent-Length: " + said + "\r\n\r\n" },
	"unknown encoding":    func(said string) string { return "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: " + said + "\r\n\r\n" },
}

// TestSecrets: whatever a server answers, no message contains the path or query of the
// URL, wherever it is configured, or any part of a header.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const address, env = "https://hook.example/services/T0/PATHTOKEN", "https://hook.example/services/T0/PATHTOKEN?sig=QUERYTOKEN"
	for name, answer := range quotes {
		for _, said := range []string{env, "PATHTOKEN", "QUERYTOKEN", "sig=QUERYTOKEN", "/services/T0/PATHTOKEN", "Bearer HEADERTOKEN", "HEADERTOKEN"} {
			for _, w := range []Webhook{{URL: address}, {URLEnv: "URL"}} {
				w.Headers = map[string]string{"Authorization": "AUTH"}
				t.Run(name+" with "+said+" "+w.URLEnv, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						_, warned, err := sends(t, echo(t, answer(said)), w, map[string]string{"AUTH": "Bearer HEADERTOKEN", "URL": env})
						text := must.Text(err) + strings.Join(warned, "\n")
						if err == nil || len(warned) != 1 || regexp.MustCompile(`(?i)TOKEN|services|Bearer|sig=`).MatchString(text) {
							t.Errorf("it says %q", text)
						}
					})
				})
			}
		}
	}
}

// echo is a connection to a server that always sends the same answer.
func echo(t *testing.T, answer string) *http.Transport {
	t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = http.ReadRequest(bufio.NewReader(there))
			_, _ = io.WriteString(there, answer)
			_ = there.Close()
		}()
		return here, nil
	}
	transport := &http.Transport{DialContext: dial, DialTLSContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// A proxy's password must not reach the report.
func TestProxyIsNotQuoted(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		transport := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) {
			return nil, errors.New(`invalid proxy address "http://u:s3cret@p"`)
		}}
		_, _, err := sends(t, transport, Webhook{}, nil)
		must.Equal(t, "error", "webhook hook.example: notice of failure: "+errNoAnswer.Error(), must.Text(err))
	})
}
