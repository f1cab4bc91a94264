package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Limits say how long each part of an exchange with a server may take, and how often a download is resumed.
type Limits struct {
	Server string        // "the registry"
	Answer time.Duration // for an answer, once the request is sent
	Stall  time.Duration // for the next byte of a body, in either direction

	Resumes int           // of one download
	Pause   time.Duration // before the first of them; the next ones double it
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

// RoundTrip implements http.RoundTripper.
func (t Limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, w, err := t.send(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &download{Limited: t, req: req, watch: w, body: resp.Body, size: t.resumable(req, resp)}
	return resp, nil
}

// resumable is the size of an answer that can be resumed; 0 if it cannot.
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

// download is the body of an answer.
type download struct {
	Limited
	req     *http.Request
	watch   *Watch
	body    io.ReadCloser
	size    int64 // 0: it cannot be resumed
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
			// What has come is returned first; the next Read meets the error again.
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

// resume asks for the rest, until it comes or a retry is pointless.
func (d *download) resume() error {
	d.watch.Close()
	// An interrupted body has nothing more to say.
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

// rest asks once; again says that a retry makes sense.
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
		// It is not what was requested, whatever it says.
		_ = resp.Body.Close()
		return resp.StatusCode >= http.StatusInternalServerError,
			fmt.Errorf("%s answers %q to the request for the rest, after %d of %d bytes", d.Server, resp.Status, d.done, d.size)
	}
	d.watch, d.body = w, resp.Body
	return false, nil
}

func (d *download) Close() error { return d.body.Close() }

// Pause waits, or returns the error of ctx when that ends before.
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
