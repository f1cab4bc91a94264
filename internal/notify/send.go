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

// How often and how long a webhook is tried. A notice is worth telling twice,
// which is why a POST is sent again at all.
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
		again, err := h.post(ctx, body)
		if err == nil || !again || i == len(pauses) {
			return err
		}
		select {
		case <-time.After(pauses[i]):
		case <-ctx.Done():
			return err
		}
	}
}

// post sends it once. again says that another attempt may do better.
func (h *webhook) post(ctx context.Context, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, fmt.Errorf("no answer within %s", attemptTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("it is no URL to send to") // the error holds it
	}
	req.Header = h.headers.Clone()
	res, err := h.http.Do(req)
	if err != nil {
		return true, unreached(ctx, err)
	}
	_ = res.Body.Close() // nobody reads it: it may quote what was sent
	if code := res.StatusCode; code >= 300 {
		return code >= 500 || code == http.StatusTooManyRequests, refused(res)
	}
	return false, nil
}

// refused tells of an answer by its code alone: the rest of it, its status line
// too, is the server's own words.
func refused(res *http.Response) error {
	code := res.StatusCode
	if code < 400 {
		return fmt.Errorf("it answers with %d, a redirect%s, which is not followed: give the URL that it leads to", code, to(res))
	}
	return fmt.Errorf("it answers with %s", strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))))
}

// to says where a redirect leads, without the name: the server has made it.
func to(res *http.Response) string {
	u, err := res.Location()
	switch {
	case err != nil:
		return ""
	case u.Host == res.Request.URL.Host:
		return " on the same host"
	}
	return " to another host"
}
