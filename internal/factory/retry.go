package factory

import (
	"context"
	"io"
	"net/http"
	"time"
)

// retry sends GET requests again when the factory, or a proxy before it, is
// briefly away. Nothing else is sent twice.
type retry struct {
	next http.RoundTripper
}

const attempts = 3

func (r *retry) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := r.next.RoundTrip(req)
		if req.Method != http.MethodGet || attempt == attempts || req.Context().Err() != nil || !passing(resp, err) {
			return resp, err
		}
		if err == nil {
			// Reading to the end lets the connection be used again; if that fails, a new one is made.
			_, _ = io.CopyN(io.Discard, resp.Body, maxErrorText)
			_ = resp.Body.Close()
		}
		if err := pause(req.Context(), time.Duration(attempt)*time.Second); err != nil {
			return nil, err
		}
	}
}

// passing says whether the trouble may go away by itself.
func passing(resp *http.Response, err error) bool {
	if err != nil {
		return true
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// CloseIdleConnections lets http.Client reach the transport behind.
func (r *retry) CloseIdleConnections() {
	if t, ok := r.next.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
