// Package notify sends notices of a run to webhooks: a [Client] posts the start and the end of a run to each
// [Webhook], in the form of the webhook's template.
package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/trust"
)

type Webhook struct {
	URL         string
	URLEnv      string            // variable that holds the URL, instead of URL
	Headers     map[string]string // name of a header to the variable that holds its value
	On          []string          // events
	ContentType string
	Template    string // "": the notice as JSON
	CAFile      string
}

type Options struct {
	Webhooks []Webhook
	Getenv   func(string) string
	User     string // the account under which recast runs
	// Transport carries every request. If nil, each webhook has its own transport, with the system's proxy and root
	// certificates and the webhook's CAFile.
	Transport http.RoundTripper
	// Warn is called with each failed delivery; may be nil.
	Warn func(text string)
}

type Client struct {
	hooks []*webhook
	user  string
	warn  func(string)
}

var _ cluster.Notifier = (*Client)(nil)

type State struct {
	Name string   // the webhook's host; never the path, which may be a secret
	On   []string // events
	Err  error    // why notices can't be sent; nil: recast will try
}

// New makes a client and sends nothing. A missing environment variable is no error of New: the webhook's State has
// it, and the webhook's notices are not sent.
func New(o Options) (*Client, error) {
	c := &Client{user: o.User, warn: o.Warn}
	if c.warn == nil {
		c.warn = func(string) {}
	}
	for _, w := range o.Webhooks {
		h, err := newWebhook(w, o)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.hooks = append(c.hooks, h)
	}
	return c, nil
}

func (c *Client) States() []State {
	return cluster.Each(c.hooks, func(h *webhook) State { return State{Name: h.name, On: h.on, Err: h.unset} })
}

func (c *Client) Close() error {
	for _, h := range c.hooks {
		h.http.CloseIdleConnections()
	}
	return nil
}

// Notify sends a notice to all webhooks that ask for its event, in parallel.
func (c *Client) Notify(ctx context.Context, n cluster.Notice) error {
	n.User = cmp.Or(n.User, c.user)
	errs := make([]error, len(c.hooks))
	var all sync.WaitGroup
	for i, h := range c.hooks {
		if h.wants(n.Event) {
			all.Go(func() { errs[i] = h.notify(ctx, n) })
		}
	}
	all.Wait()
	for i, err := range errs {
		if err != nil && c.hooks[i].unset == nil { // States reports h.unset
			c.warn(err.Error())
		}
	}
	return errors.Join(errs...)
}

type webhook struct {
	name, url string
	headers   http.Header
	on        []string
	body      *template.Template // nil: JSON
	http      *http.Client
	unset     error // what the environment lacks, or a value that is no https URL
}

func newWebhook(w Webhook, o Options) (*webhook, error) {
	h := &webhook{url: w.URL, on: w.On, headers: http.Header{"Content-Type": {cmp.Or(w.ContentType, "application/json")}, "User-Agent": {"recast"}}}
	h.resolve(w, o.Getenv)
	if w.Template != "" {
		var err error
		if h.body, err = parse(w.Template); err != nil {
			return nil, fault.Configf("webhook %s: %w", h.name, err)
		}
	}
	transport := o.Transport
	if transport == nil {
		var err error
		if transport, err = trust.Transport(w.CAFile); err != nil {
			return nil, fault.Configf("webhook %s: %w", h.name, err)
		}
	}
	h.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return h, nil
}

// resolve reads the values from the environment. If a value is missing, no notice is sent: the server would reject a
// notice without its secret.
func (h *webhook) resolve(w Webhook, getenv func(string) string) {
	if w.URLEnv != "" {
		h.name, h.url = "$"+w.URLEnv, strings.TrimSpace(getenv(w.URLEnv))
	}
	u, err := url.Parse(h.url)
	switch {
	case w.URLEnv != "" && h.url == "":
		h.unset = fmt.Errorf("webhook %s: the environment variable is not set", h.name)
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && (w.URLEnv != "" || u.Scheme != "http"):
		h.unset = fmt.Errorf("webhook %s: its value is not an https URL", h.name)
	default:
		h.name = u.Hostname()
	}
	for name, variable := range w.Headers {
		value := strings.TrimSpace(getenv(variable))
		if value == "" {
			h.unset = cmp.Or(h.unset, fmt.Errorf("webhook %s: the environment variable %s, for its header %s, is not set", h.name, variable, name))
			continue
		}
		h.headers.Set(name, value)
	}
}

func (h *webhook) wants(e cluster.NoticeEvent) bool {
	return slices.Contains(h.on, string(e)) || e == cluster.NoticeFailure && slices.Contains(h.on, string(cluster.NoticeEnd))
}

// Limits of the attempts to send a notice. POST is repeated although it is not idempotent: a duplicate notice is
// better than none.
const (
	attempts    = 3
	attemptTime = 10 * time.Second
)

var pauses = [attempts - 1]time.Duration{time.Second, 3 * time.Second}

func (h *webhook) notify(ctx context.Context, n cluster.Notice) error {
	if h.unset != nil {
		return h.unset
	}
	body, err := h.render(n)
	if err == nil {
		err = h.send(ctx, body)
	}
	return fault.Prefix(fmt.Sprintf("webhook %s: notice of %s", h.name, n.Event), err)
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
	_ = res.Body.Close() // the body stays unread: it may quote the request
	if code := res.StatusCode; code >= 300 {
		return code >= 500 || code == http.StatusTooManyRequests, refused(res)
	}
	return false, nil
}

// refused returns an error with only the status code: the status line and the body are the server's own words.
func refused(res *http.Response) error {
	code := res.StatusCode
	if code < 400 {
		return fmt.Errorf("it answers with %d, a redirect%s, which is not followed: give the URL that it leads to", code, redirectTarget(res))
	}
	return fmt.Errorf("it answers with %s", strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))))
}

// redirectTarget returns where a redirect leads, without the server's own words.
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

// CheckTemplate returns what is wrong with a template. It executes the template with sample notices.
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

// noAnswer returns why no answer came. It passes on only transport errors that contain nothing but names, addresses
// and certificates. Other errors quote the URL, the words of the server or a proxy, or the address of a proxy with
// its password.
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
