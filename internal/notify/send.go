package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"text/template"
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

// render makes the request body.
func (h *webhook) render(n cluster.Notice) ([]byte, error) {
	if h.body == nil {
		return toJSON(n)
	}
	var b bytes.Buffer
	if err := h.body.Execute(&b, n); err != nil {
		return nil, fmt.Errorf("its template: %w", err)
	}
	return b.Bytes(), nil
}

func toJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

func parse(text string) (*template.Template, error) {
	return template.New("template").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { b, err := toJSON(v); return string(b), err },
		"join": func(list []string, separator string) string { return strings.Join(list, separator) },
	}).Parse(text)
}

// CheckTemplate says what is wrong with a template. It executes it with sample notices.
func CheckTemplate(text string) error {
	t, err := parse(text)
	if err != nil {
		return fmt.Errorf("not a valid template: %w", err)
	}
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	none := cluster.Fates{Done: []string{}, Failed: []string{}, Left: []string{}}
	for _, n := range []cluster.Notice{
		{Event: cluster.NoticeStart, Command: "roll", Cluster: "c", Run: "r", Nodes: none, Hints: []string{}, Started: begun},
		{
			Event: cluster.NoticeFailure, Command: "roll", Cluster: "c", Run: "r", Outcome: "failed", Error: `it is "broken"`, Hints: []string{"mend it"},
			Nodes: cluster.Fates{Done: []string{"a"}, Failed: []string{"b"}, Left: []string{"c"}}, Started: begun, Ended: begun.Add(time.Hour),
		},
	} {
		var b bytes.Buffer
		if err := t.Execute(&b, n); err != nil {
			return fmt.Errorf("not a valid template: %w", err)
		}
	}
	return nil
}

// noAnswer is why no answer came. It passes on only transport errors that contain nothing
// but names, addresses and certificates: others quote the URL, what the server or a proxy
// said, or the address of a proxy with its password.
func noAnswer(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e
	}
	if e, ok := errors.AsType[tls.AlertError](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	for _, known := range []error{http.ErrSchemeMismatch, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errNoAnswer
}

var errNoAnswer = errors.New("it can't be reached, or its answer is not HTTP")
