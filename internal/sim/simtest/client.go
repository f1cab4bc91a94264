package simtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/recast-sh/recast/pipeline/past"

	"google.golang.org/grpc"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/kubeupgrade"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/directgrpc"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

// Client is one user of recast: a process that can be killed.
type Client struct {
	lab    *Lab
	dialer *network.Dialer
	Token  cluster.Secret // of Proxmox
	Emit   func(step.Event)

	Dir string // its working directory
	Run string // ID of the run that a roll starts

	Saved   *planning.Plan                    // for its roll; nil: none
	Begun   bool                              // a run of that has begun
	Runner  step.Runner                       // for its roll, with the client's Emit
	Confirm func(planning.Plan) (bool, error) // asked like a person; nil says yes
	// Upgrades is asked before an upgrade of Kubernetes; nil says yes.
	Upgrades  func(kubeupgrade.Plan) (bool, error)
	Elsewhere bool                     // on another machine, which can't see this one's processes
	Pod       cluster.OwnPod           // in which it runs, by its environment; zero: in none
	Reroute   func(addr string) string // redirects a connection; nil: no redirection

	// Rehearse is the flag of a roll; nil: not given.
	Rehearse *bool

	// MachineConfig is the user's files (talos.machineConfigs); nil: none.
	MachineConfig func(ctx context.Context, node string) (cluster.Secret, bool, error)

	// Commands runs the programs of gates and hooks; nil: on this machine.
	Commands cluster.CommandRunner
	// Notify gets notices of its runs; may be nil.
	Notify cluster.Notifier
	// Pulsed gets the cluster's state during a roll; may be nil.
	Pulsed func(planning.Pulse)
	// Telemetry records the next commands; may be nil.
	Telemetry *telemetry.Telemetry

	// Imager builds what no factory can; may be nil.
	Imager images.Imager

	// Asked is the questions of init so far.
	Asked []setup.Question

	pid int // PID of the simulated process

	// JournalSync is passed to the roll.
	JournalSync func(point string) error
}

// Client makes a client with the lab's own token. Its runs have the same ID in every lab,
// so that two worlds can be compared, and another one than every roll that is done: a VM
// that names a run was made by it.
func (l *Lab) Client() *Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients++
	return &Client{lab: l, Dir: l.Dir, dialer: l.Lab.Client(), Token: cluster.Secret(l.Token()), Run: fmt.Sprintf("20000101-0000-%04x", 0xfeed+l.rolled), MachineConfig: l.MachineConfig, pid: l.clients}
}

// Kill makes the world refuse every later call of this client. Other clients on the same
// machine see that its process is dead.
func (c *Client) Kill() {
	c.dialer.Cut()
	c.lab.mu.Lock()
	defer c.lab.mu.Unlock()
	c.lab.killed = append(c.lab.killed, c.pid)
}

// Cut cuts this client's network until Mend.
func (c *Client) Cut() { c.dialer.Cut() }

// Mend restores the network.
func (c *Client) Mend() { c.dialer.Mend() }

// Dials counts the client's connections.
func (c *Client) Dials() int { return c.dialer.Dials() }

// isKilled is what a process on the same machine knows about another one.
func (l *Lab) isKilled(h claim.Holder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.killed, h.PID)
}

// Project loads the working directory's configuration.
func (c *Client) Project() (pipeline.Project, error) {
	return c.load(filepath.Join(c.Dir, "recast.yaml"))
}

func (c *Client) load(file string) (pipeline.Project, error) {
	conf, err := config.Load(file, config.Options{Expr: expression.Check, Template: notify.CheckTemplate})
	if err != nil {
		return pipeline.Project{}, err
	}
	return pipeline.Open(conf)
}

// session is the server clients of one command.
type session struct {
	project  pipeline.Project
	images   pipeline.Images
	machines pipeline.Machines
	talos    *talos.Client
	close    []func()
}

func (s *session) end() {
	for _, f := range s.close {
		f()
	}
}

// connect connects the real adapters to the lab, as cmd does to the real world.
func (c *Client) connect(ctx context.Context) (*session, error) {
	p, err := c.Project()
	if err != nil {
		return nil, err
	}
	c.lab.canary.visit(c.Dir)
	s := &session{project: p}
	if err := errors.Join(c.connectImages(s), c.connectMachines(s)); err != nil {
		s.end()
		return nil, err
	}
	return s, ctx.Err()
}

func (c *Client) connectImages(s *session) (err error) {
	s.images, err = c.imagesOf(s, s.project)
	return err
}

// connectMachines connects to Proxmox, and to Talos and Kubernetes with the credentials in the
// lab's directory. In an empty lab there may be none yet.
func (c *Client) connectMachines(s *session) error {
	conf := s.project.Config
	px, err := pve.New(api.Options{
		Endpoints: conf.Proxmox.Endpoints, Token: c.Token, Fingerprint: conf.Proxmox.Fingerprint,
		Dial: c.dial, Poll: time.Duration(conf.Roll.Poll), Wrap: c.wrap("proxmox"),
	})
	if err != nil {
		return err
	}
	s.close = append(s.close, px.Close)
	s.machines = pipeline.Machines{Proxmox: px, Store: px, Commands: command.FromHere(), MachineConfig: c.MachineConfig}
	if c.Commands != nil {
		s.machines.Commands = c.Commands
	}
	return errors.Join(c.connectTalos(s), c.connectKubernetes(s))
}

func (c *Client) connectTalos(s *session) error {
	talosconfig, err := c.lab.credentials("talosconfig")
	if talosconfig == nil {
		return err
	}
	t, err := talos.New(talos.Options{Talosconfig: talosconfig, Dial: c.dial, GRPC: c.Telemetry.GRPC("talos"), Over: c.over})
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _ = t.Close() }) // connections for queries only
	s.talos = t
	s.machines.Talos, s.machines.Maintenance, s.machines.Files, s.machines.Claims = t, t, t, t
	return nil
}

func (c *Client) connectKubernetes(s *session) error {
	kubeconfig, err := c.lab.credentials("kubeconfig")
	if kubeconfig == nil {
		return err
	}
	k, err := kube.New(kubeconfig, kube.Options{Dial: c.dialer.DialContext, Poll: time.Duration(s.project.Config.Roll.Poll), Wrap: c.wrap("kubernetes"), Own: c.Pod, Skip: s.project.Config.Roll.Storage.Off()})
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _ = k.Close() }) // likewise
	s.machines.Kube, s.machines.Leases, s.machines.Objects = k, k, k
	return nil
}

// credentials reads a file of the lab's directory; nil if it is not there.
func (l *Lab) credentials(name string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(l.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// wrap wraps the transports to a server.
func (c *Client) wrap(server string) func(http.RoundTripper) http.RoundTripper {
	telemetry := c.Telemetry.HTTP(server)
	if !c.lab.direct || c.Reroute != nil {
		return telemetry
	}
	return func(inner http.RoundTripper) http.RoundTripper {
		if inner = c.dialer.Direct(inner); telemetry != nil {
			inner = telemetry(inner)
		}
		return inner
	}
}

// over makes direct calls to machines possible.
func (c *Client) over(config *tls.Config) []grpc.DialOption {
	if !c.lab.direct || c.Reroute != nil {
		return nil
	}
	return directgrpc.NewClient(c.dialer, config).Options()
}

func (c *Client) dial(ctx context.Context, netw, addr string) (net.Conn, error) {
	if c.Reroute != nil {
		addr = c.Reroute(addr)
	}
	return c.dialer.DialContext(ctx, netw, addr)
}

// Lock is recast lock.
func (c *Client) Lock(ctx context.Context, o pipeline.LockOptions) (pipeline.LockResult, error) {
	p, err := c.Project()
	if err != nil {
		return pipeline.LockResult{}, err
	}
	s := &session{project: p}
	defer s.end()
	if err := c.connectImages(s); err != nil {
		return pipeline.LockResult{}, err
	}
	return checked[pipeline.LockResult](c.lab)(pipeline.Lock(ctx, s.project, s.images, o))
}

// connected runs a command with the clients that it needs, and checks its result for secrets.
func connected[T any](ctx context.Context, c *Client, command func(s *session) (T, error)) (res T, err error) {
	s, err := c.connect(ctx)
	if err != nil {
		return res, err
	}
	defer s.end()
	return checked[T](c.lab)(command(s))
}

// Drift is recast drift.
func (c *Client) Drift(ctx context.Context) (pipeline.DriftResult, error) {
	return connected(ctx, c, func(s *session) (pipeline.DriftResult, error) { return pipeline.Drift(ctx, s.project, s.machines) })
}

// DeepDrift is recast drift --deep.
func (c *Client) DeepDrift(ctx context.Context) (pipeline.DriftResult, error) {
	return connected(ctx, c, func(s *session) (pipeline.DriftResult, error) {
		return pipeline.DeepDrift(ctx, s.project, s.machines, s.images.Registry, func(string) {})
	})
}

// Provenance is recast drift --explain NODE --deep.
func (c *Client) Provenance(ctx context.Context, node string) (observe.Provenance, error) {
	return connected(ctx, c, func(s *session) (observe.Provenance, error) {
		return pipeline.Provenance(ctx, s.project, s.machines, s.images.Registry, node, func(string) {})
	})
}

// Plan is recast plan.
func (c *Client) Plan(ctx context.Context, policy planning.Policy) (planning.Plan, error) {
	return connected(ctx, c, func(s *session) (planning.Plan, error) {
		return pipeline.Plan(ctx, s.project, s.machines, policy, c.Rehearse)
	})
}

// Publish is recast publish.
func (c *Client) Publish(ctx context.Context) error {
	_, err := connected(ctx, c, func(s *session) (schematics.Lock, error) {
		src := pipeline.PublishSources{Proxmox: s.machines.Proxmox.(*pve.Client)}
		if s.machines.Kube != nil {
			src.Nodes = s.machines.Kube.Nodes
		}
		return pipeline.Publish(ctx, s.project, s.images, src, &step.Runner{Emit: c.emit})
	})
	return err
}

// Status is recast status.
func (c *Client) Status(ctx context.Context) (pipeline.StatusResult, error) {
	return connected(ctx, c, func(s *session) (pipeline.StatusResult, error) {
		return pipeline.Status(ctx, s.project, pipeline.StatusSources{Proxmox: s.machines.Proxmox, Nodes: s.machines.Kube.Nodes, Lease: s.machines.Leases.Lease, Holds: s.machines.Kube.Holds, Dead: c.lab.isKilled})
	})
}

// Roll is recast roll --yes.
func (c *Client) Roll(ctx context.Context, policy planning.Policy) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		c.Telemetry.Watch(&c.Runner)
		rep, err := pipeline.Roll(ctx, s.project, s.images, s.machines, &c.Runner, c.rollOptions(policy))
		if err == nil {
			c.lab.mu.Lock()
			c.lab.rolled++
			c.lab.mu.Unlock()
		}
		return rep, err
	})
}

// Bootstrap is recast bootstrap NODE --yes, with the credentials in the lab's directory.
func (c *Client) Bootstrap(ctx context.Context, first string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		return pipeline.Bootstrap(ctx, s.project, s.images, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), first)
	})
}

// Backup is recast backup.
func (c *Client) Backup(ctx context.Context, o pipeline.BackupOptions) (pipeline.BackupResult, error) {
	return connected(ctx, c, func(s *session) (pipeline.BackupResult, error) {
		return pipeline.Backup(ctx, s.project, s.talos, o, func(string) {})
	})
}

// Restore is recast restore FILE --node NODE --yes.
func (c *Client) Restore(ctx context.Context, file, node string) (pipeline.RestoreReport, error) {
	return connected(ctx, c, func(s *session) (pipeline.RestoreReport, error) {
		c.Runner.Emit = c.emit
		return pipeline.Restore(ctx, s.project, s.machines, &c.Runner, pipeline.RestoreOptions{
			File: file, Node: node, Confirm: func(pipeline.RestoreReport) (bool, error) { return true, nil }, Claim: c.rollOptions(planning.Policy{}),
		})
	})
}

func (c *Client) rollOptions(policy planning.Policy) pipeline.RollOptions {
	o := pipeline.RollOptions{
		Policy: policy, Rehearse: c.Rehearse, Saved: c.Saved, Begun: c.Begun, Confirm: c.Confirm,
		RunID: func() (string, error) { return c.Run, nil }, JournalSync: c.JournalSync, Notify: c.Notify,
		Holder: claim.Holder{Host: "test", Boot: "b", PID: c.pid, Start: "s"}, Dead: c.lab.isKilled,
		Began: c.Telemetry.Began, Pulsed: c.Pulsed, Origin: past.Origin{Recast: "devel"},
	}
	if o.Confirm == nil {
		o.Confirm = func(planning.Plan) (bool, error) { return true, nil }
	}
	if c.Elsewhere {
		o.Holder.Host, o.Dead = "elsewhere", nil
	}
	return o
}
