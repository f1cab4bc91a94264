package main

import (
	"context"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/recast-sh/recast/pipeline/past"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/browser"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/web"
	"github.com/recast-sh/recast/internal/web/frame"
	"github.com/recast-sh/recast/pipeline"
)

func newUICmd(s *streams, g *globals) *cobra.Command {
	var listen string
	var open bool
	c := &cobra.Command{
		Use: "ui", Short: "Look at nodes, plan, active run and history in a browser",
		Long: `Serve pages on this machine that show what recast drift, plan, status, history and
drift --explain know: the nodes and what differs, what a roll would do, the active run
live, past runs with their reports, where the image of a node comes from. Errors have
their hints and runbooks. It changes nothing, and the pages have no way to.

A page is answered at once, from the last reading of the cluster, with its age; a button
reads it again, in the background. A run that was started on this machine is followed in
its log, others with what Proxmox knows.

It listens on 127.0.0.1 only, and the URL that it prints has a token: nobody else on this
machine sees the pages without it. From another machine: ssh -L 8090:127.0.0.1:8090 HOST,
and recast ui --listen 127.0.0.1:8090 there. Ctrl-C ends it.`,
		Example: `  recast ui
  recast ui --open=false --listen 127.0.0.1:8090`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			address, err := localAddress(listen)
			if err != nil {
				return err
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			site, err := web.New(shownBy(s, g, p))
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", address.String())
			if err != nil {
				return fault.WithHint(fmt.Errorf("listen for a browser: %w", err), "--listen 127.0.0.1:0 takes any free port")
			}
			defer l.Close()
			url := "http://" + l.Addr().String() + site.First()
			if _, err := fmt.Fprintf(s.out, "%s\n", url); err != nil {
				return err
			}
			s.say("only this URL opens the pages; Ctrl-C ends them")
			ctx, end := context.WithCancel(c.Context())
			var opening sync.WaitGroup
			defer opening.Wait()
			defer end()
			if open && (browser.Here() || c.Flags().Changed("open")) {
				opening.Go(func() { s.openPages(ctx, p, url) })
			}
			return site.Serve(ctx, l)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "`address` and port to listen on; port 0: any free one")
	c.Flags().BoolVar(&open, "open", true, "open it in a browser, in a graphical session")
	return c
}

func localAddress(text string) (netip.AddrPort, error) {
	address, err := frame.Local(text)
	if err == nil {
		return address, nil
	}
	return address, fault.WithHint(errUsage{fmt.Errorf("--listen %w", err)}, "from another machine: ssh -L 8090:127.0.0.1:8090 HOST, and recast ui --listen 127.0.0.1:8090 there")
}

// shownBy opens the project anew for each reading: git may have moved on.
func shownBy(s *streams, g *globals, p pipeline.Project) web.Options {
	warned := map[string]bool{} // once each
	return web.Options{
		Version: version, Project: p, Past: thisProcess(), Log: logOf, Hide: redact.New(secretsHere()).Text,
		Fetch: func(ctx context.Context) {
			fetchRuns(ctx, s, p, 0, func(text string) {
				if !warned[text] {
					warned[text] = true
					s.warn(text)
				}
			})
		},
		Report: func(w io.Writer, run past.Run) error { return report.Write(w, drawn(run)) },
		Drift: func(ctx context.Context) (pipeline.DriftResult, error) {
			return read(ctx, s, g, pipeline.Drift)
		},
		Plan: func(ctx context.Context) (planning.Plan, error) {
			return read(ctx, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) (planning.Plan, error) {
				return pipeline.Plan(ctx, p, m, planning.Policy{}, nil)
			})
		},
		Trace: func(ctx context.Context, node string) (observe.Provenance, error) {
			return read(ctx, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) (observe.Provenance, error) {
				return pipeline.Provenance(ctx, p, m, nil, node, s.say)
			})
		},
		Status: func(ctx context.Context) (pipeline.StatusResult, error) {
			p, err := g.open()
			if err != nil {
				return pipeline.StatusResult{}, err
			}
			var cl closers
			defer cl.close()
			_, src, err := statusSources(s, p, &cl)
			if err != nil {
				return pipeline.StatusResult{}, err
			}
			return pipeline.Status(ctx, p, src)
		},
	}
}

// read calls f with the machines of the project.
func read[T any](ctx context.Context, s *streams, g *globals, f func(context.Context, pipeline.Project, pipeline.Machines) (T, error)) (res T, err error) {
	err = g.withMachines(ctx, s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		res, err = f(ctx, p, m)
		return err
	})
	return res, err
}

// openPages opens a file that leads to the URL: if the URL were an argument of the browser,
// every user of this machine could read its token. The file stays until ctx ends.
func (s *streams) openPages(ctx context.Context, p pipeline.Project, url string) {
	file := filepath.Join(p.State(), "ui.html")
	page, err := template.New("ui.html").Parse(leadsTo)
	if err == nil {
		err = os.MkdirAll(p.State(), 0o700)
	}
	if err == nil {
		err = savefile.Write(file, func(w io.Writer) error { return page.Execute(w, url) })
	}
	if err == nil {
		err = browser.Show(ctx, browser.Opener(), file)
	}
	if err != nil {
		fmt.Fprintf(s.err, "warning: %v; open the URL above by hand\n", err)
	}
	<-ctx.Done()
	_ = os.Remove(file) // the token is of no use any more
}

const leadsTo = `<!DOCTYPE html><meta charset="utf-8"><title>recast ui</title><meta http-equiv="refresh" content="0; url={{.}}"><a href="{{.}}">recast ui</a>
`
