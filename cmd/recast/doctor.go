package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/browser"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/watch"
	"github.com/recast-sh/recast/internal/web"
	"github.com/recast-sh/recast/internal/web/frame"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/pipeline/support"
)

func newDoctorCmd(s *streams, g *globals) *cobra.Command {
	var out, terraformPlan string
	c := &cobra.Command{
		Use: "doctor", Short: "Check what a roll needs, and say how to fix what is missing",
		Long: `Check everything that a roll needs, and continue if something can't be read:

  Proxmox      endpoints, certificate, versions, quorum, clocks, a leftover claim
  privileges   which privileges the API token needs, on which path and for what, and
               which are missing, with the pveum commands that grant exactly those
  storage      content types, free space, thin pools, the upload spool, the ISOs of the lock
  Talos        talosconfig, its certificate, every machine and its version, etcd
  Kubernetes   kubeconfig, its certificate, the API, versions
  gates        whether the objects in roll.gates exist and satisfy the gate now, and
               whether its programs can be run; they are not run
  hooks        whether the programs of roll.hooks can be run, and whether the environment
               variables for the webhooks of notify are set; nothing is run or sent
  images       the lock, the Image Factory, the registry of extensions
  nodes        for every node: its VM, what rules out recreate, reimage and in-place,
               and which of them a roll would use

A new token has no privileges: run doctor, paste its commands as root on a Proxmox
node, run doctor again. Changes nothing. Exits 0 if nothing prevents a roll, with or
without warnings; 1 if something could not be reached or read; 3 if the configuration
is wrong; 4 if privileges or space are missing or a node can't be rolled.

--terraform looks at nothing but a plan of Terraform or OpenTofu, and needs no server:
would it destroy, replace or stop the VM of a node, or remove, shrink or move a disk of
one? It names each such resource, what would be lost, and the block that prevents it,
and exits 4; also if it would reboot or upgrade two control planes, or more nodes than
roll.maxUnavailable.workers, in one apply. Fewer are a warning. Nodes are told by
nodes[].vmid.`,
		Example: `  recast doctor
  terraform show -json plan.out | recast doctor --terraform -
  recast doctor -o json | jq -r '.grants[]?'    # only the pveum commands`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := g.open()
			if err != nil {
				return err
			}
			if terraformPlan != "" {
				return checkTerraform(c.Context(), s, p, terraformPlan, out)
			}
			var cl closers
			defer cl.close()
			src := doctorSources(s, p, &cl)
			if src.Webhooks, err = webhooks(s, p, &cl); err != nil {
				return err
			}
			var progress slow
			src.Say = func(text string) { progress.say(s, text) }
			res := checkup.Run(c.Context(), p, src)
			progress.end()
			s.telemetry.Examined(res)
			if err := c.Context().Err(); err != nil {
				return err
			}
			if err := ui.WriteDoctor(s.out, out, res); err != nil {
				return err
			}
			return res.Err()
		},
	}
	c.Flags().StringVar(&terraformPlan, "terraform", "", "`file` with what terraform show -json prints of a plan; -: standard input")
	outputFlag(c, &out, "text", "json")
	return c
}

func checkTerraform(ctx context.Context, s *streams, p pipeline.Project, file, out string) error {
	doc, err := readTerraform(s, file)
	if err != nil {
		return err
	}
	read, err := machineConfigs(s, p)
	if err != nil {
		return err
	}
	v, err := adopt.Check(p.Config, doc, configs.Roles(ctx, p, read))
	if err != nil {
		return err
	}
	if err := ui.WriteVerdict(s.out, out, v); err != nil {
		return err
	}
	return v.Err()
}

func readTerraform(s *streams, file string) (*terraform.Document, error) {
	var text []byte
	var err error
	if file == "-" {
		file = "standard input"
		text, err = io.ReadAll(s.in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fault.WithHint(fault.Configf("read what terraform show -json printed: %w", err), "terraform show -json > show.json makes the file")
	}
	return terraform.Read(file, text)
}

// doctorSources opens what can be opened, and keeps the errors of the rest.
func doctorSources(s *streams, p pipeline.Project, cl *closers) checkup.Sources {
	var src checkup.Sources
	if px, err := connectProxmox(s, p, cl); err != nil {
		src.ErrProxmox = err
	} else {
		px.Remember()
		src.Proxmox, src.Endpoints = px, endpoints(s, p, cl)
	}
	if t, err := connectTalos(s, p, cl); err != nil {
		src.ErrTalos = err
	} else {
		src.Talos, src.Files = t, t
	}
	if b, err := os.ReadFile(p.Config.Talos.Config); err == nil {
		src.TalosExpires = talos.Expires(b)
	}
	if k, err := connectKube(s, p, cl); err != nil {
		src.ErrKube = err
	} else {
		src.Kube, src.Objects = k, k
	}
	if path, err := kubeconfigFile(); err == nil {
		if b, err := os.ReadFile(path); err == nil {
			src.KubeExpires = kube.Expires(b)
		}
	}
	src.Images, src.ErrImages = connectImages(s, p, cl)
	return src
}

func endpoints(s *streams, p pipeline.Project, cl *closers) []checkup.Endpoint {
	var out []checkup.Endpoint
	for _, url := range p.Config.Proxmox.Endpoints {
		conf := *p.Config
		conf.Proxmox.Endpoints = []string{url}
		px, err := connectProxmox(s, pipeline.Project{Config: &conf}, cl)
		out = append(out, checkup.Endpoint{URL: url, Hosts: func(ctx context.Context) ([]cluster.Host, error) {
			if err != nil {
				return nil, err
			}
			return px.HostList(ctx)
		}})
	}
	return out
}

// slow prints what is being checked once a check takes longer than a second.
type slow struct {
	mu    sync.Mutex
	timer *time.Timer
}

func (w *slow) say(s *streams, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(time.Second, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.timer != nil {
			fmt.Fprintf(s.err, "%s\n", text)
		}
	})
}

func (w *slow) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

func newStatusCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var watch bool
	var ours int
	var byHand string
	c := &cobra.Command{
		Use: "status", Short: "Show the active run, what is unfinished and where every disk is",
		Long: `Show who holds the claim of the cluster, how the last run that was started here ended
and, for every unfinished replacement, the state of the VM, where each of its disks is,
and which command to run next. Then list the old system disks that are kept.

Nearly all of that is stored in Proxmox, so it works on any machine, and while Talos
and Kubernetes are down. Changes nothing. Exits 0 if Proxmox could be read, whatever
the result.

A VM that says it is a parking VM of this cluster, and that nothing proves to be one, is
named and left alone. --ours remembers that it is one: look at who made it first.

With --watch it shows the active run live, and then the next one, until you press
Ctrl-C. On the machine where the run was started it looks as in recast roll, drawn from the log beside
the journal; elsewhere it shows what Proxmox knows about the run, with at most one
request every two seconds on average. It needs a terminal.`,
		Example: `  recast status
  recast status --watch
  recast status -o json        # for a script: claim, open, marked, kept`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch && c.Flags().Changed("output") {
				return errUsage{errors.New("--watch draws live, --output writes once: choose one")}
			}
			if watch {
				if err := canWatch(s); err != nil {
					return err
				}
			}
			if byHand != "" {
				p, err := g.open()
				if err != nil {
					return err
				}
				lines, err := pipeline.ByHand(p, byHand)
				fmt.Fprint(s.out, lines)
				return err
			}
			return using(s, g, connectProxmox, func(p pipeline.Project, px *pve.Client, cl *closers) error {
				if ours != 0 {
					if err := px.Confirm(c.Context(), cluster.VMID(ours)); err != nil {
						return err
					}
				}
				src := statusFrom(s, p, px, cl)
				if watch {
					return watchStatus(c.Context(), s, p, px, src)
				}
				res, err := pipeline.Status(c.Context(), p, src)
				if err != nil {
					return err
				}
				return ui.WriteStatus(s.out, out, res)
			})
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the active run live, and then the next one")
	c.Flags().StringVar(&byHand, "by-hand", "", "print the commands that undo this node's last replacement without recast, from the journal")
	c.Flags().IntVar(&ours, "ours", 0, "remember that this VM is a parking VM of the cluster, whoever made it")
	return c
}

func statusFrom(s *streams, p pipeline.Project, px *pve.Client, cl *closers) pipeline.StatusSources {
	src := pipeline.StatusSources{
		Proxmox: px, Nodes: fromKube(s, p, cl, (*kube.Client).Nodes), Lease: fromKube(s, p, cl, (*kube.Client).Lease),
		Holds: fromKube(s, p, cl, (*kube.Client).Holds), Dead: holder.Dead, Suspended: holder.Suspended,
	}
	src.MachineConfig, _ = machineConfigs(s, p) // an error means that this machine has none
	return src
}

// canWatch says why status can't be drawn; nil if it can.
func canWatch(s *streams) error {
	if out, ok := s.out.(*os.File); ok && ui.IsTerminal(out) && live.Able(out, os.Getenv("TERM")) {
		return nil
	}
	return fault.WithHint(errUsage{errors.New("--watch needs a terminal, and standard output is not one")}, "for a script: recast status -o json")
}

// watchStatus draws one run after the other, until the user presses Ctrl-C.
func watchStatus(ctx context.Context, s *streams, p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources) error {
	defer s.err.to(nil)
	for {
		if err := watchRun(ctx, s, p, px, src); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

func watchRun(ctx context.Context, s *streams, p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources) error {
	out := s.out.(*os.File) // canWatch has checked that
	view := live.NewView(out, "recast status --watch", os.Getenv("NO_COLOR") == "")
	w := watch.New(p, px, src, view)
	s.err.to(func(p []byte) bool { return view.Print(string(p)) })
	view.Start()
	last, err := w.Until(ctx)
	if last != "" {
		view.Close()
	} else if view.Pause(); err == nil { // the run itself goes on
		last = w.Leaving()
	}
	if last != "" {
		fmt.Fprintln(s.out, last)
	}
	return err
}

func newSupportBundleCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "support-bundle", Short: "Collect what is needed to get help, without secrets",
		Long: `Write a tar.gz with recast.yaml, recast.lock, the logs and plans of the last runs on
this machine, the output of recast status and recast doctor, and what Proxmox, Talos,
Kubernetes and etcd report about the nodes. If something can't be read, the bundle says
why. So it works while no server can be reached, and with a broken recast.yaml: then it
has the harmless parts of that file and its errors, but no logs and no cluster data.

Only fields on a fixed list are included. Never included: the Proxmox token,
talosconfig, kubeconfig, machine configurations, commands and output of hooks and
gates, cloud-init users, passwords and keys. What looks like a secret is removed from
the rest. Names and addresses of nodes and hosts are included: review the bundle
before you share it. Changes nothing.`,
		Example: `  recast support-bundle
  recast support-bundle -o - | tar tz`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return g.supportBundle(c.Context(), s, out) },
	}
	c.Flags().StringVarP(&out, "output", "o", "", "`file` to write, - for standard output (default: recast-support-CLUSTER-TIME.tar.gz)")
	return c
}

func (g *globals) supportBundle(ctx context.Context, s *streams, out string) error {
	var cl closers
	defer cl.close()
	now := time.Now()
	p, src := g.bundleSources(ctx, s, &cl)
	fmt.Fprintln(s.err, "reading everything; servers that do not answer are skipped after two minutes at most")
	b := support.Bundle(ctx, p, src, now)
	if ctx.Err() != nil {
		return fmt.Errorf("gather the bundle: %w", context.Cause(ctx))
	}
	if out == "-" {
		return b.Write(s.out)
	}
	out = cmp.Or(out, fmt.Sprintf("%s-%s.tar.gz", b.Dir, now.UTC().Format("20060102-150405")))
	if err := savefile.Write(out, b.Write); err != nil {
		return fault.WithHint(fmt.Errorf("write the bundle: %w", err), "choose another file with --output FILE, or - for standard output")
	}
	_, err := fmt.Fprintf(s.out, "%s: %d files; review the bundle before you share it: tar xzf %s\n", out, len(b.Files()), out)
	return err
}

// bundleSources opens what can be opened; doctor's part has the errors of the rest.
func (g *globals) bundleSources(ctx context.Context, s *streams, cl *closers) (*pipeline.Project, support.Sources) {
	src := support.Sources{Version: map[string]string{
		"recast": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
	}, Secrets: secretsHere()}
	src.Config, _ = os.ReadFile(g.config) // g.open reports the error
	p, err := g.open()
	if err != nil {
		src.Invalid = err
		return nil, src
	}
	if configs, err := machineConfigs(s, p); err == nil && configs != nil {
		for _, n := range p.Config.Nodes {
			text, _, _ := configs(ctx, n.Name) // without it, there is nothing to redact
			src.Secrets = append(src.Secrets, redact.YAML(text)...)
		}
	}
	src.Doctor = func(ctx context.Context) checkup.Result {
		return checkup.Run(ctx, p, doctorSources(s, p, cl))
	}
	if px, err := connectProxmox(s, p, cl); err == nil {
		src.VMs = px.VMs
		src.Status = func(ctx context.Context) (pipeline.StatusResult, error) {
			var opened closers
			defer opened.close()
			return pipeline.Status(ctx, p, statusFrom(s, p, px, &opened))
		}
	}
	if m, err := connectMachines(s, p, cl); err == nil {
		src.Etcd = m.Talos
		src.Observe = func(ctx context.Context) (observe.Observation, error) { return pipeline.ObserveNodes(ctx, p, m) }
	}
	return &p, src
}

// secretsHere returns the secrets in the environment and in the files that it names.
func secretsHere() []string {
	out := redact.Environ(os.Environ())
	files := []string{filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")}
	if path, err := kubeconfigFile(); err == nil {
		files = append(files, path)
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil { // the file itself is never included
			out = append(out, redact.YAML(b)...)
		}
	}
	return out
}

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
		Status: func(ctx context.Context) (res pipeline.StatusResult, err error) {
			err = using(s, g, connectProxmox, func(p pipeline.Project, px *pve.Client, cl *closers) error {
				res, err = pipeline.Status(ctx, p, statusFrom(s, p, px, cl))
				return err
			})
			return res, err
		},
	}
}

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
