// Package transport ends, resumes and repeats exchanges over HTTP. A limit for a whole request would interrupt large
// images on slow lines, and http.Transport has no limit for a body that stops midway. In this package each part of an
// exchange has its own limit. The limits, the requests that may be repeated and the meaning of answers depend on the
// server.
package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Stalled says that a part of an exchange took too long.
type Stalled struct {
	Text  string
	Again bool // a retry makes sense
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
	sent  bool // the request was answered or failed: the rest of it no longer matters
}

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

func (w *Watch) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

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

// Answer returns the body of an answer. A Read that takes longer than after ends with err; Close ends the exchange.
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

// sending starts the timer for the server: it has to accept what was read of the request's body, or to answer after
// the end of the body.
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

// preparing stops the timer while the body is read from its source, which has its own timer.
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

// Limits say how long each part of an exchange with a server may take, and how often a download is resumed.
type Limits struct {
	Server string        // "the registry"
	Answer time.Duration // for an answer, once the request is sent
	Stall  time.Duration // for the next byte of a body, in either direction

	Resumes int           // of one download
	Pause   time.Duration // before the first resume; each further resume doubles the pause
	// Resumable says which requests are answered with the same bytes each time, so that the answer may come in pieces.
	Resumable func(*http.Request) bool
}

func (l Limits) noAnswer() *Stalled { return &Stalled{Text: fmt.Sprintf("no answer for %s", l.Answer)} }

func (l Limits) noRoom() *Stalled {
	return &Stalled{Text: fmt.Sprintf("%s accepted no data for %s", l.Server, l.Stall), Again: true}
}

func (l Limits) noData() *Stalled {
	return &Stalled{Text: fmt.Sprintf("no data came for %s", l.Stall), Again: true}
}

// Limited sends requests, ends those that stall, and resumes interrupted downloads.
type Limited struct {
	Inner http.RoundTripper
	Limits
}

func (t Limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, w, err := t.send(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &download{Limited: t, req: req, watch: w, body: resp.Body, size: t.resumable(req, resp)}
	return resp, nil
}

// resumable returns the size of an answer that can be resumed; 0 if the answer cannot be resumed.
func (t Limited) resumable(req *http.Request, resp *http.Response) int64 {
	if req.Method != http.MethodGet || resp.StatusCode != http.StatusOK || resp.Uncompressed ||
		!t.Resumable(req) || req.Header.Get("Range") != "" {
		return 0
	}
	return max(resp.ContentLength, 0)
}

// send returns an answer whose body the watch may end.
func (t Limited) send(req *http.Request) (*http.Response, *Watch, error) {
	ctx, w := NewWatch(req.Context())
	w.Begin(t.Answer, t.noAnswer())
	watched := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		watched.Body = &upload{ReadCloser: req.Body, watch: w, limits: t.Limits}
	}
	if body := req.GetBody; body != nil {
		watched.GetBody = func() (io.ReadCloser, error) {
			again, err := body()
			return &upload{ReadCloser: again, watch: w, limits: t.Limits}, err
		}
	}
	resp, err := t.Inner.RoundTrip(watched)
	w.answered()
	if err != nil {
		err = w.explainStall(err)
		w.Close()
		return nil, nil, err
	}
	resp.Body = &answer{ReadCloser: resp.Body, watch: w, after: t.Stall, stalled: t.noData(), explain: w.explainStall}
	return resp, w, nil
}

type download struct {
	Limited
	req     *http.Request
	watch   *Watch
	body    io.ReadCloser
	size    int64 // 0: the download cannot be resumed
	done    int64
	resumes int
}

func (d *download) Read(p []byte) (int, error) {
	for {
		n, err := d.body.Read(p)
		d.done += int64(n)
		if err == nil || errors.Is(err, io.EOF) {
			return n, err
		}
		if n > 0 {
			// Read returns the received bytes first; the next Read meets the error again.
			return n, nil
		}
		if d.done >= d.size || d.req.Context().Err() != nil {
			return 0, err
		}
		if again := d.resume(); again != nil {
			return 0, fmt.Errorf("%w; asked for the rest: %w", err, again)
		}
	}
}

// resume requests the rest until the rest comes or a retry is pointless.
func (d *download) resume() error {
	d.watch.Close()
	// The error of closing an interrupted body means nothing.
	_ = d.body.Close()
	err := errors.New("it broke off too often")
	for d.resumes < d.Resumes {
		if err := Pause(d.req.Context(), d.Limits.Pause<<d.resumes); err != nil {
			return err
		}
		d.resumes++
		var again bool
		if again, err = d.rest(); !again {
			return err
		}
	}
	return err
}

// rest requests the rest once; again says that a retry makes sense.
func (d *download) rest() (again bool, err error) {
	req := d.req.Clone(d.req.Context())
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.done, d.size-1))
	resp, w, err := d.send(req)
	if err != nil {
		return d.req.Context().Err() == nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/%d", d.done, d.size-1, d.size)
	if got := resp.Header.Get("Content-Range"); resp.StatusCode != http.StatusPartialContent || got != want {
		w.Close()
		// The body is not the requested part, so its error does not matter.
		_ = resp.Body.Close()
		return resp.StatusCode >= http.StatusInternalServerError,
			fmt.Errorf("%s answers %q to the request for the rest, after %d of %d bytes", d.Server, resp.Status, d.done, d.size)
	}
	d.watch, d.body = w, resp.Body
	return false, nil
}

func (d *download) Close() error { return d.body.Close() }

func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// BoundedDial bounds each attempt to make a connection, and for how long the peer may accept no data. The second
// bound applies to a body of any size: sending an ISO may take an hour.
func BoundedDial(dial Dial, connect, stall time.Duration) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connect)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stallConn{Conn: conn, stall: stall}, nil
	}
}

// stallConn fails a write that makes no progress. Reads are not bounded here:
// net/http already reads the answer while a body is still being sent.
type stallConn struct {
	net.Conn
	stall time.Duration
	mu    sync.Mutex
	limit time.Time // set by the owner; zero: none
	dead  error     // why nothing more can be written
}

// SetWriteDeadline implements net.Conn. The deadline applies in addition to the bound.
func (c *stallConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *stallConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *stallConn) Write(p []byte) (written int, err error) {
	// Write sends pieces, each with the whole bound: one large write may take long on a slow line.
	const piece = 64 << 10
	for written < len(p) && err == nil {
		var n int
		if err = c.begin(); err != nil {
			break
		}
		n, err = c.Conn.Write(p[written:min(written+piece, len(p))])
		written += n
	}
	c.end(err)
	return written, err
}

// begin sets the deadline of one piece, unless the connection is dead.
func (c *stallConn) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return c.dead
	}
	deadline := time.Now().Add(c.stall)
	if !c.limit.IsZero() && c.limit.Before(deadline) {
		deadline = c.limit
	}
	return c.Conn.SetWriteDeadline(deadline)
}

// end records an error. TLS sends a close alert even on a failed connection; without the record, the alert would wait
// for the peer once more.
func (c *stallConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dead = err
	}
}
