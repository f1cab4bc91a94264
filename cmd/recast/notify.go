package main

import (
	"fmt"
	"os"
	"os/user"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// connectNotify makes the client of webhooks; nil where none is configured.
func connectNotify(s *streams, p pipeline.Project, cl *closers) (*notify.Client, error) {
	if len(p.Config.Notify) == 0 {
		return nil, nil
	}
	o := notify.Options{Getenv: os.Getenv, Warn: s.warn}
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	for _, w := range p.Config.Notify {
		hook := notify.Webhook{
			URL: w.URL, URLEnv: w.URLEnv, On: w.On, ContentType: w.ContentType, Template: w.Template, CAFile: w.CAFile, Headers: map[string]string{},
		}
		for name, from := range w.Headers {
			hook.Headers[name] = from.Env
		}
		o.Webhooks = append(o.Webhooks, hook)
	}
	c, err := notify.New(o)
	if err != nil {
		return nil, err
	}
	cl.add(c.Close)
	return c, nil
}

// notifier is connectNotify for a run. It warns of webhooks that can't be used.
func notifier(s *streams, p pipeline.Project, cl *closers) (cluster.Notifier, error) {
	c, err := connectNotify(s, p, cl)
	if c == nil || err != nil {
		return nil, err
	}
	for _, state := range c.States() {
		if state.Err != nil {
			fmt.Fprintf(s.err, "warning: %v: this run is not reported to it\n", state.Err)
		}
	}
	return c, nil
}

// webhooks returns the state of each webhook, for doctor.
func webhooks(s *streams, p pipeline.Project, cl *closers) ([]checkup.Webhook, error) {
	c, err := connectNotify(s, p, cl)
	if c == nil || err != nil {
		return nil, err
	}
	var out []checkup.Webhook
	for _, state := range c.States() {
		out = append(out, checkup.Webhook(state))
	}
	return out, nil
}
