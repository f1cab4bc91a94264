package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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

// answerBytes are as many as are read of an answer.
const answerBytes = 1 << 10

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
		return true, h.unreached(ctx, err)
	}
	defer res.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(res.Body, answerBytes)) // what there is of it
	switch {
	case res.StatusCode < 300:
		return false, nil
	case res.StatusCode < 400:
		return false, fmt.Errorf("it answers with a redirect%s, which is not followed: give the URL that it leads to", to(res))
	}
	again = res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests
	if line := h.redact(strings.Join(strings.Fields(string(said)), " ")); line != "" {
		return again, fmt.Errorf("it answers with %s: %.200s", res.Status, line)
	}
	return again, fmt.Errorf("it answers with %s", res.Status)
}

// unreached is the error of a request without the URL that http.Client puts in front.
func (h *webhook) unreached(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return errors.New(h.redact(err.Error()))
}

// to says to which host a redirect leads; its path may be a secret.
func to(res *http.Response) string {
	if u, err := res.Location(); err == nil {
		return " to " + u.Host
	}
	return ""
}

func (h *webhook) redact(text string) string {
	for _, secret := range h.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	return strings.ToValidUTF8(text, "")
}
