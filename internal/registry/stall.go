package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// How long to wait for a registry.
const (
	stallAfter = time.Minute // for the next byte of a body, in either direction
	// answerAfter bounds the wait for an answer. A factory answers for an installer
	// when it has built it, which may take 20 minutes (image-factory,
	// internal/asset/asset.go); a registry for a blob when it has assembled it.
	answerAfter = 25 * time.Minute
)

// stalledError says that a registry took too long.
type stalledError struct {
	what  string
	after time.Duration
	again bool
}

func (e *stalledError) Error() string { return fmt.Sprintf("%s for %s", e.what, e.after) }
func (e *stalledError) Timeout() bool { return true }

// Temporary lets go-containerregistry retry an upload.
func (e *stalledError) Temporary() bool { return e.again }

// stallGuard sends requests and ends those that stall. http.Transport has no limit for
// a body that stops midway, and a limit for a whole request would interrupt large
// images on slow lines.
type stallGuard struct{ inner http.RoundTripper }

func (p stallGuard) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, w, err := p.send(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &download{stallGuard: p, req: req, watch: w, body: resp.Body, size: resumable(req, resp)}
	return resp, nil
}

// send returns an answer whose body the watch may end.
func (p stallGuard) send(req *http.Request) (*http.Response, *watch, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{cancel: cancel}
	w.begin(answerAfter, &stalledError{what: "no answer", after: answerAfter})
	watched := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		watched.Body = &upload{ReadCloser: req.Body, watch: w}
	}
	if body := req.GetBody; body != nil {
		watched.GetBody = func() (io.ReadCloser, error) {
			again, err := body()
			return &upload{ReadCloser: again, watch: w}, err
		}
	}
	resp, err := p.inner.RoundTrip(watched)
	w.answered()
	if err != nil {
		err = w.explain(ctx, err)
		cancel(nil)
		return nil, nil, err
	}
	w.ctx = ctx
	return resp, w, nil
}

// watch ends an exchange that takes too long.
type watch struct {
	ctx    context.Context // of an exchange whose answer has begun; it ends with the body
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	sent  bool // the rest of the request no longer matters
}

func (w *watch) begin(after time.Duration, err *stalledError) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restart(after, err)
}

func (w *watch) restart(after time.Duration, err *stalledError) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(after, func() { w.cancel(err) })
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

func (w *watch) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.sent = true
}

// sending watches the registry accept what was read of the request's body.
func (w *watch) sending(more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sent:
	case more:
		w.restart(stallAfter, &stalledError{what: "the registry accepted no data", after: stallAfter, again: true})
	default:
		w.restart(answerAfter, &stalledError{what: "no answer", after: answerAfter})
	}
}

// preparing stops the timer: the source that is read has its own.
func (w *watch) preparing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent {
		w.timer.Stop()
	}
}

// explain returns why an exchange ended.
func (w *watch) explain(ctx context.Context, err error) error {
	if stalled, ok := errors.AsType[*stalledError](context.Cause(ctx)); ok {
		return stalled
	}
	return err
}

// upload is the body of a request.
type upload struct {
	io.ReadCloser
	watch *watch
}

func (u *upload) Read(p []byte) (int, error) {
	u.watch.preparing()
	n, err := u.ReadCloser.Read(p)
	u.watch.sending(err == nil)
	return n, err
}
