// Package notify sends notices of a run to webhooks: a [Client] posts the start and the
// end of a run to each [Webhook], in the form that its template gives.
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

// Webhook is the configuration of one webhook.
type Webhook struct {
	URL         string
	URLEnv      string            // variable that holds it, instead
	Headers     map[string]string // header name to the variable that holds its value
	On          []string          // events
	ContentType string
	Template    string // "": the notice as JSON
	CAFile      string
}

// Options are those of New.
type Options struct {
	Webhooks []Webhook
	Getenv   func(string) string
	User     string // whose account recast runs under
	// Transport carries every request. Nil: one per webhook, with the system's
	// proxy and root certificates and its CAFile.
	Transport http.RoundTripper
	// Warn gets each failed delivery; may be nil.
	Warn func(text string)
}

// Client sends notices to webhooks.
type Client struct {
	hooks []*webhook
	user  string
	warn  func(string)
}

var _ cluster.Notifier = (*Client)(nil)

// State is a webhook's state before anything is sent.
type State struct {
	Name string   // its host; never its path, which may be a secret
	On   []string // events
	Err  error    // why notices can't be sent; nil: they can be tried
}

// New makes a client and sends nothing. Missing environment variables are no error: they
// are in the webhook's State, and its notices are not sent.
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

// States lists the state of each webhook.
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

// Notify sends a notice to all webhooks that want it, in parallel.
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

// webhook is a Webhook with its values from the environment.
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

// resolve reads the values from the environment. If one is missing nothing is sent:
// without its secret a notice would be rejected.
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
