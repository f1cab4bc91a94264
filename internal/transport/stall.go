// Package transport ends, resumes and repeats exchanges over HTTP. A limit for a whole request would interrupt large
// images on slow lines, and http.Transport has none for a body that stops midway: here each part of an exchange has its
// own. What the limits are, which requests may be repeated and what answers mean is each server's.
package transport

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// Stalled says that a part of an exchange took too long.
type Stalled struct {
	Text  string
	Again bool // it is worth a retry
}

func (e *Stalled) Error() string { return e.Text }
func (e *Stalled) Timeout() bool { return true }

// Temporary lets go-containerregistry retry an upload.
func (e *Stalled) Temporary() bool { return e.Again }

// Watch ends an exchange that takes too long. It is safe for concurrent use.
type Watch struct {
	cause  func() error // why the exchange was ended
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	sent  bool // the rest of the request no longer matters
}

// NewWatch returns a watch, and the context of the exchange that the watch ends.
func NewWatch(ctx context.Context) (context.Context, *Watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(time.Hour, func() {})
	timer.Stop()
	return ctx, &Watch{cause: func() error { return context.Cause(ctx) }, cancel: cancel, timer: timer}
}

// Begin ends the exchange with err unless Pause is called, or Begin again, before that time has passed.
func (w *Watch) Begin(after time.Duration, err *Stalled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restart(after, err)
}

func (w *Watch) restart(after time.Duration, err *Stalled) {
	w.timer.Stop()
	w.timer = time.AfterFunc(after, func() { w.cancel(err) })
}

// Pause stops the clock.
func (w *Watch) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

// Close ends the exchange.
func (w *Watch) Close() {
	w.Pause()
	w.cancel(nil)
}

// Explain returns why the exchange was ended, by the watch or by its caller, or else err.
func (w *Watch) Explain(err error) error {
	if cause := w.cause(); cause != nil {
		return cause
	}
	return err
}

// explainStall returns the *Stalled with which the watch ended the exchange, or else err.
func (w *Watch) explainStall(err error) error {
	if stalled, ok := errors.AsType[*Stalled](w.cause()); ok {
		return stalled
	}
	return err
}

// Answer returns the body of an answer. A Read that takes longer ends with err; Close ends the exchange.
func (w *Watch) Answer(body io.ReadCloser, after time.Duration, err *Stalled) io.ReadCloser {
	return &answer{ReadCloser: body, watch: w, after: after, stalled: err, explain: w.Explain}
}

type answer struct {
	io.ReadCloser
	watch   *Watch
	after   time.Duration
	stalled *Stalled
	explain func(error) error
}

func (a *answer) Read(p []byte) (int, error) {
	a.watch.Begin(a.after, a.stalled) // only the time during a Read counts
	n, err := a.ReadCloser.Read(p)
	a.watch.Pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = a.explain(err)
	}
	return n, err
}

func (a *answer) Close() error {
	defer a.watch.Close()
	return a.ReadCloser.Close()
}

// upload is the body of a request.
type upload struct {
	io.ReadCloser
	watch  *Watch
	limits Limits
}

func (u *upload) Read(p []byte) (int, error) {
	u.watch.preparing()
	n, err := u.ReadCloser.Read(p)
	u.watch.sending(err == nil, u.limits)
	return n, err
}

// sending watches the server accept what was read of the request's body.
func (w *Watch) sending(more bool, l Limits) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sent:
	case more:
		w.restart(l.Stall, l.noRoom())
	default:
		w.restart(l.Answer, l.noAnswer())
	}
}

// preparing stops the timer: the source that is read has its own.
func (w *Watch) preparing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent {
		w.timer.Stop()
	}
}

func (w *Watch) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.sent = true
}
