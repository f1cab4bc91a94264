// Package notify tells webhooks what becomes of a run.
package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"text/template"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/trust"
)

// Webhook is one URL that is told.
type Webhook struct {
	URL         string
	URLEnv      string            // the variable that holds it, instead
	Headers     map[string]string // by name, the variables that hold their values
	On          []string          // events
	ContentType string
	Template    string // "": the notice as JSON
	CAFile      string
}

// Options of New.
type Options struct {
	Webhooks []Webhook
	Getenv   func(string) string
	User     string // that recast runs as
	// Transport carries every request. Nil: one per webhook, with the system's
	// proxy and root certificates and its CAFile.
	Transport http.RoundTripper
	// Warn is told what did not arrive; nil: nobody is.
	Warn func(text string)
}

// Client sends notices to webhooks.
type Client struct {
	hooks []*webhook
	user  string
	warn  func(string)
}

var _ cluster.Notifier = (*Client)(nil)

// State is what is known of a webhook before anything is sent.
type State struct {
	Name string   // its host; never its path, which may be a secret
	On   []string // events
	Err  error    // why nothing can be sent to it; nil: it can be tried
}

// New sends nothing yet. What the environment lacks is no error: it is the
// State of that webhook, whose notices don't arrive.
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

// States says how each webhook stands.
func (c *Client) States() []State {
	var out []State
	for _, h := range c.hooks {
		out = append(out, State{Name: h.name, On: h.on, Err: h.unset})
	}
	return out
}

// Close closes idle connections.
func (c *Client) Close() error {
	for _, h := range c.hooks {
		h.http.CloseIdleConnections()
	}
	return nil
}

// Notify sends a notice to every webhook that wants it, all at the same time.
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
		if err != nil && c.hooks[i].unset == nil { // that is told before
			c.warn(err.Error())
		}
	}
	return errors.Join(errs...)
}

// webhook is one of them, with what it took from the environment.
type webhook struct {
	name    string
	url     string
	headers http.Header
	on      []string
	body    *template.Template // nil: JSON
	http    *http.Client
	unset   error // what the environment lacks
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

// resolve reads what comes from the environment. Where that is missing nothing
// is sent: without its secret a notice would only be refused.
func (h *webhook) resolve(w Webhook, getenv func(string) string) {
	if w.URLEnv != "" {
		h.name, h.url = "$"+w.URLEnv, strings.TrimSpace(getenv(w.URLEnv))
	}
	u, err := url.Parse(h.url)
	switch {
	case w.URLEnv != "" && h.url == "":
		h.unset = fmt.Errorf("webhook %s: the environment variable is not set", h.name)
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && (w.URLEnv != "" || u.Scheme != "http"):
		h.unset = fmt.Errorf("webhook %s: what it holds is not an https URL", h.name)
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
