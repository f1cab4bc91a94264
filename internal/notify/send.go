package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// Limits of the attempts to send a notice. POST is retried although it is not idempotent:
// a duplicate notice is better than none.
const (
	attempts    = 3
	attemptTime = 10 * time.Second
)

// pauses are those after the first attempt, the second, …
var pauses = [attempts - 1]time.Duration{time.Second, 3 * time.Second}

func (h *webhook) notify(ctx context.Context, n cluster.Notice) error {
	if h.unset != nil {
		return h.unset
	}
	body, err := h.render(n)
	if err == nil {
		err = h.send(ctx, body)
	}
	if err != nil {
		return fmt.Errorf("webhook %s: notice of %s: %w", h.name, n.Event, err)
	}
	return nil
}

func (h *webhook) send(ctx context.Context, body []byte) error {
	for i := 0; ; i++ {
		retry, err := h.post(ctx, body)
		if err == nil || !retry || i == len(pauses) {
			return err
		}
		select {
		case <-time.After(pauses[i]):
		case <-ctx.Done():
			return err
		}
	}
}

// post sends the body once. retry says whether another attempt may succeed.
func (h *webhook) post(ctx context.Context, body []byte) (retry bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, fmt.Errorf("no answer within %s", attemptTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("it is not a valid URL") // the URL error quotes the URL
	}
	req.Header = h.headers.Clone()
	res, err := h.http.Do(req)
	if err != nil {
		return true, noAnswer(ctx, err)
	}
	_ = res.Body.Close() // unread: it may quote the request
	if code := res.StatusCode; code >= 300 {
		return code >= 500 || code == http.StatusTooManyRequests, refused(res)
	}
	return false, nil
}

// refused is an error of the status code alone: the status line and the body are the
// server's own words.
func refused(res *http.Response) error {
	code := res.StatusCode
	if code < 400 {
		return fmt.Errorf("it answers with %d, a redirect%s, which is not followed: give the URL that it leads to", code, redirectTarget(res))
	}
	return fmt.Errorf("it answers with %s", strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))))
}

// redirectTarget says where a redirect leads, without the server's own words.
func redirectTarget(res *http.Response) string {
	u, err := res.Location()
	switch {
	case err != nil:
		return ""
	case u.Host == res.Request.URL.Host:
		return " on the same host"
	}
	return " to another host"
}
