package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	bounds "github.com/recast-sh/recast/internal/transport"
)

// line is the server side of a connection: each answer in turn.
type line struct {
	answers []answer
	asked   []string // the requested ranges
}

// answer is the answer to one request. Bodies end with their request's context.
type answer struct {
	status  int
	header  http.Header
	sends   string        // this much, and then:
	breaks  error         // nil: no more bytes come
	whole   bool          // what is sent is complete
	size    int64         // as announced
	silence time.Duration // before the answer
}

func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	a := l.answers[0]
	l.answers = l.answers[1:]
	l.asked = append(l.asked, req.Header.Get("Range"))
	if req.Body != nil {
		defer req.Body.Close()
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(a.silence):
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	return &http.Response{
		Status: fmt.Sprint(a.status), StatusCode: a.status, Header: a.header, ContentLength: a.size, Request: req,
		Body: &lineBody{ctx: req.Context(), rest: a.sends, answer: a},
	}, nil
}

type lineBody struct {
	ctx  context.Context
	rest string
	answer
}

func (b *lineBody) Read(p []byte) (int, error) {
	if n := copy(p, b.rest); n > 0 {
		b.rest = b.rest[n:]
		return n, nil
	}
	switch {
	case b.whole:
		return 0, io.EOF
	case b.breaks != nil:
		return 0, b.breaks
	}
	<-b.ctx.Done()
	return 0, context.Canceled // as http.Transport does
}

func (b *lineBody) Close() error { return nil }

var errReset = errors.New("connection reset by peer")

func part(status int, from, to, of int64, a answer) answer {
	a.status, a.size = status, to-from+1
	a.header = http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", from, to, of)}}
	return a
}

func TestDownloadsGoOn(t *testing.T) {
	t.Parallel()
	stalls := "no data came for 1m0s"
	broken := func(n int) (list []answer) {
		for range n {
			list = append(list, part(206, 3, 9, 10, answer{breaks: errReset}))
		}
		return list
	}
	type row struct {
		path    string
		answers []answer
		want    string
		asked   []string
		err     string
		took    time.Duration
	}
	eachInBubble(t, map[string]row{
		"whole": {answers: []answer{{status: 200, size: 10, sends: "0123456789", whole: true}}, want: "0123456789", asked: []string{""}},
		"it stalls": {
			answers: []answer{{status: 200, size: 10, sends: "012"}, part(206, 3, 9, 10, answer{sends: "3456789", whole: true})},
			want:    "0123456789", asked: []string{"", "bytes=3-9"}, took: limits.Stall + time.Second,
		},
		"it breaks off twice": {
			answers: []answer{
				{status: 200, size: 10, sends: "012", breaks: io.ErrUnexpectedEOF},
				part(206, 3, 9, 10, answer{sends: "34", breaks: errReset}), part(206, 5, 9, 10, answer{sends: "56789", whole: true}),
			},
			want: "0123456789", asked: []string{"", "bytes=3-9", "bytes=5-9"}, took: 3 * time.Second,
		},
		"a busy server": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, {status: 503}, part(206, 3, 9, 10, answer{sends: "3456789", whole: true})},
			want:    "0123456789", asked: []string{"", "bytes=3-9", "bytes=3-9"}, took: 3 * time.Second,
		},
		"a server that knows no ranges": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, {status: 200, size: 10, sends: "0123456789", whole: true}},
			want:    "012", asked: []string{"", "bytes=3-9"}, took: time.Second,
			err: `connection reset by peer; asked for the rest: the registry answers "200" to the request for the rest, after 3 of 10 bytes`,
		},
		"another range": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, part(206, 2, 9, 10, answer{sends: "23456789", whole: true})},
			want:    "012", asked: []string{"", "bytes=3-9"}, took: time.Second,
			err: `connection reset by peer; asked for the rest: the registry answers "206" to the request for the rest, after 3 of 10 bytes`,
		},
		"for ever": {
			answers: append([]answer{{status: 200, size: 10, sends: "012", breaks: errReset}}, broken(limits.Resumes)...),
			want:    "012", asked: append([]string{""}, strings.Split(strings.Repeat("bytes=3-9 ", limits.Resumes), " ")[:limits.Resumes]...),
			took: 63 * time.Second, err: "connection reset by peer; asked for the rest: it broke off too often",
		},
		"of unknown size": {answers: []answer{{status: 200, size: -1, sends: "012"}}, want: "012", asked: []string{""}, took: limits.Stall, err: stalls},
		"a manifest":      {path: "/v2/a/manifests/v1", answers: []answer{{status: 200, size: 10, sends: "012"}}, want: "012", asked: []string{""}, took: limits.Stall, err: stalls},
		"no answer": {
			answers: []answer{{status: 200, silence: time.Hour}}, asked: []string{""}, took: limits.Answer, err: "no answer for 25m0s",
		},
	}, func(t *testing.T, tc row) {
		l := &line{answers: tc.answers}
		if tc.path == "" {
			tc.path = "/v2/a/blobs/sha256:0"
		}
		begun := time.Now()
		got, err := fetch(t.Context(), t, l, tc.path)
		must.Equal(t, "body", tc.want, got)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Equal(t, "ranges", tc.asked, l.asked)
		must.Equal(t, "it", tc.took, time.Since(begun))
	})
}

func fetch(ctx context.Context, t *testing.T, from http.RoundTripper, path string) (string, error) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil))(t)
	resp, err := limited(from).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestDownloadIsCancelled(t *testing.T) {
	t.Parallel()
	cases := map[string]time.Duration{"while it stalls": time.Second, "while it pauses": limits.Stall + time.Second/2}
	eachInBubble(t, cases, func(t *testing.T, at time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), at)
		defer cancel()
		begun := time.Now()
		l := &line{answers: []answer{{status: 200, size: 10, sends: "012"}}}
		if _, err := fetch(ctx, t, l, "/v2/a/blobs/sha256:0"); err == nil {
			t.Error("no error")
		}
		must.Equal(t, "it took", at, time.Since(begun))
	})
}

// slow is a body that is read slowly.
type slow struct {
	io.Reader
	each time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(s.each)
	return s.Reader.Read(p)
}

// stuck reads a part of a request's body and then stops.
type stuck struct{ takes int64 }

func (s stuck) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	if _, err := io.CopyN(io.Discard, req.Body, s.takes); err != nil {
		return nil, err
	}
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func TestUploads(t *testing.T) {
	t.Parallel()
	type row struct {
		to        http.RoundTripper
		each      time.Duration // our side's time for each byte
		err       string
		temporary bool
		took      time.Duration
	}
	eachInBubble(t, map[string]row{
		"it stalls":                 {to: stuck{5}, err: "the registry accepted no data for 1m0s", temporary: true, took: limits.Stall},
		"our side is slow":          {to: &line{answers: []answer{{status: 202}}}, each: 2 * limits.Stall, took: 22 * limits.Stall},
		"the answer takes its time": {to: &line{answers: []answer{{status: 202, silence: limits.Answer - 1}}}, took: limits.Answer - 1},
	}, func(t *testing.T, tc row) {
		body := io.NopCloser(slow{Reader: oneByte{strings.NewReader("0123456789")}, each: tc.each})
		req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://r/v2/a/blobs/uploads/1", body))(t)
		begun := time.Now()
		resp, err := limited(tc.to).RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		if stalled, ok := errors.AsType[*bounds.Stalled](err); ok && (stalled.Temporary() != tc.temporary || !stalled.Timeout()) {
			t.Errorf("temporary = %t", stalled.Temporary())
		}
		must.Equal(t, "it", tc.took, time.Since(begun))
	})
}

type oneByte struct{ io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.Reader.Read(p[:min(1, len(p))]) }

// TestCutBlobIsReadToItsEnd: over a real connection, and its digest is still checked.
func TestCutBlobIsReadToItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it waits for seconds")
	}
	t.Parallel()
	c := newCopier(t)
	content := strings.Repeat("0123456789abcdef", 1<<12)
	sum := sha256.Sum256([]byte(content))
	layer := tarOf(t, "a="+content)
	push(t, http.DefaultTransport, c.from.host+"/acme/frr:1", imageOf(t, "amd64", layer))
	cut := 0
	c.from.cut = func(r *http.Request) int64 {
		if strings.Contains(r.URL.Path, must.Get(layer.Digest())(t).Hex) && cut < 2 {
			cut++
			return 10_000
		}
		return -1
	}
	archive := must.Get(c.Extract(t.Context(), c.from.host+"/acme/frr:1", "amd64"))(t)
	files, err := filesOf(t, archive)
	must.Do(t, errors.Join(err, archive.Close()))
	got := sha256.Sum256([]byte(files["a"]))
	if cut != 2 || hex.EncodeToString(got[:]) != hex.EncodeToString(sum[:]) {
		t.Errorf("after %d cuts: %x, want %x", cut, got, sum)
	}
}

// over lets a test talk HTTP to a handler in a bubble.
func over(t *testing.T, h http.Handler, test func(http.RoundTripper)) {
	t.Helper()
	net := network.Memory()
	l := must.Get(net.Listen(host))(t)
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	transport := &http.Transport{DialContext: net.Dialer().DialContext}
	test(transport)
	transport.CloseIdleConnections()
	must.Do(t, server.Close())
	time.Sleep(time.Second) // the bubble's time: a server lingers if a body was not read to its end
}

// TestStallsOverHTTP: http.Transport releases a body that a watch ends.
func TestStallsOverHTTP(t *testing.T) {
	t.Parallel()
	t.Run("a download", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			content := bytes.Repeat([]byte("0123456789"), 10_000)
			ranges := 0
			over(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					ranges++
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
					return
				}
				w.Header().Set("Content-Length", "100000")
				_, _ = w.Write(content[:50_000])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}), func(transport http.RoundTripper) {
				begun := time.Now()
				got, err := fetch(t.Context(), t, transport, "/v2/a/blobs/sha256:0")
				if err != nil || got != string(content) || ranges != 1 {
					t.Errorf("%d bytes, %d ranges, %v", len(got), ranges, err)
				}
				must.Equal(t, "it took", limits.Stall+limits.Pause, time.Since(begun))
			})
		})
	})
	t.Run("an upload", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			tested := make(chan struct{})
			over(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1000)
				<-tested // a server does not notice a lost client before it has read the body
			}), func(transport http.RoundTripper) {
				defer close(tested)
				req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+host+"/v2/a/blobs/uploads/1", bytes.NewReader(make([]byte, 10<<20))))(t)
				begun := time.Now()
				resp, err := limited(transport).RoundTrip(req)
				if err == nil {
					t.Fatal(resp.Body.Close())
				}
				if stalled, ok := errors.AsType[*bounds.Stalled](err); !ok || !stalled.Temporary() {
					t.Errorf("error is %v", err)
				}
				must.Equal(t, "it took", limits.Stall, time.Since(begun))
			})
		})
	})
}

func TestUsualLogins(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GITHUB_ACTOR", "octocat")
	t.Setenv("GITHUB_TOKEN", "secret")
	c := must.Get(New(Options{}))(t)
	for registry, want := range map[string]string{"ghcr.io": "octocat", "registry.example": ""} {
		auth := must.Get(c.keychain.Resolve(must.Get(name.NewRegistry(registry))(t)))(t)
		must.Equal(t, registry, want, must.Get(authn.Authorization(t.Context(), auth))(t).Username)
	}
}
