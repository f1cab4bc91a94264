package simtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

// Client is one user of recast: a process that can be killed.
type Client struct {
	*network.Dialer
	lab   *Lab
	Token cluster.Secret // of Proxmox
	Emit  func(step.Event)

	Dir string // its working directory
	Run string // ID of the run that a roll starts

	Saved   *planning.Plan                    // for its roll; nil: none
	Begun   bool                              // a run of that has begun
	Runner  step.Runner                       // for its roll, with the client's Emit
	Confirm func(planning.Plan) (bool, error) // asked like a person; nil says yes
	Vouch   func(planning.NodePlan) bool      // asked about a machine that can't prove who it is; nil: nobody can be asked
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

// Client makes a client with the lab's own token. Its runs have the same ID in every lab, so that two worlds can be
// compared, and another one than every roll that is done: a VM that names a run was made by it.
func (l *Lab) Client() *Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients++
	c := &Client{lab: l, Dir: l.Dir, Dialer: l.Lab.Client(), Token: cluster.Secret(l.Token()), Run: fmt.Sprintf("20000101-0000-%04x", 0xfeed+l.rolled), MachineConfig: l.MachineConfig, pid: l.clients}
	c.Runner.Emit = c.emit
	return c
}

// Kill makes the world refuse every later call of this client. Other clients on the same
// machine see that its process is dead.
func (c *Client) Kill() {
	c.Cut()
	c.lab.mu.Lock()
	defer c.lab.mu.Unlock()
	c.lab.killed = append(c.lab.killed, c.pid)
}

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

// unless ends a session that has failed.
func (s *session) unless(err error) (*session, error) {
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// connect connects the real adapters to the lab, as cmd does to the real world.
func (c *Client) connect(ctx context.Context) (*session, error) {
	s, err := c.connectImages()
	if err != nil {
		return nil, err
	}
	return s.unless(errors.Join(c.connectMachines(s), ctx.Err()))
}

// connectImages connects a command that needs no machines.
func (c *Client) connectImages() (*session, error) {
	p, err := c.Project()
	if err != nil {
		return nil, err
	}
	c.lab.canary.visit(c.Dir)
	s := &session{project: p}
	s.images, err = c.imagesOf(s, p)
	return s.unless(err)
}

// connectMachines connects to Proxmox, and to Talos and Kubernetes with the credentials in the
// lab's directory. In an empty lab there may be none yet.
func (c *Client) connectMachines(s *session) error {
	conf := s.project.Config
	px, err := pve.New(api.Options{
		Endpoints: conf.Proxmox.Endpoints, Token: c.Token, Fingerprint: conf.Proxmox.Fingerprint,
		Dial: c.dial, Poll: time.Duration(conf.Roll.Poll), Wrap: c.Telemetry.HTTP("proxmox"),
	})
	if err != nil {
		return err
	}
	px.Trust(s.project.Trust())
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
	t, err := talos.New(talos.Options{Talosconfig: talosconfig, Dial: c.dial, GRPC: c.Telemetry.GRPC("talos")})
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
	k, err := kube.New(kubeconfig, kube.Options{Dial: c.DialContext, Poll: time.Duration(s.project.Config.Roll.Poll), Wrap: c.Telemetry.HTTP("kubernetes"), Own: c.Pod, Skip: s.project.Config.Roll.Storage.Off()})
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

func (c *Client) dial(ctx context.Context, netw, addr string) (net.Conn, error) {
	if c.Reroute != nil {
		addr = c.Reroute(addr)
	}
	return c.DialContext(ctx, netw, addr)
}

// Lock is recast lock.
func (c *Client) Lock(ctx context.Context, o pipeline.LockOptions) (pipeline.LockResult, error) {
	s, err := c.connectImages()
	if err != nil {
		return pipeline.LockResult{}, err
	}
	defer s.end()
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
		return pipeline.Restore(ctx, s.project, s.machines, &c.Runner, pipeline.RestoreOptions{
			File: file, Node: node, Confirm: func(pipeline.RestoreReport) (bool, error) { return true, nil }, Claim: c.rollOptions(planning.Policy{}),
		})
	})
}

func (c *Client) rollOptions(policy planning.Policy) pipeline.RollOptions {
	o := pipeline.RollOptions{
		Policy: policy, Rehearse: c.Rehearse, Saved: c.Saved, Begun: c.Begun, Confirm: c.Confirm, Vouch: c.Vouch,
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

// Undo is recast undo --yes.
func (c *Client) Undo(ctx context.Context, policy planning.Policy, u planning.Undone) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		o := c.rollOptions(policy)
		o.Undo = u
		return pipeline.Undo(ctx, s.project, s.machines, &c.Runner, o)
	})
}

// Recover is recast undo NODE --cancel --yes.
func (c *Client) Recover(ctx context.Context, node string) (pipeline.Report, error) {
	return c.Undo(ctx, planning.Policy{Only: []string{node}}, planning.Undone{Way: planning.Cancel})
}

// Rollback is recast undo --previous --yes: of the nodes that the policy names, or --all.
func (c *Client) Rollback(ctx context.Context, policy planning.Policy) (pipeline.Report, error) {
	return c.Undo(ctx, policy, planning.Undone{Way: planning.Previous})
}

// Init is recast init --yes in dir, by a user with the lab's talosconfig, its kubeconfig and the client's token, who
// trusts the certificate. Afterwards dir is the client's working directory.
func (c *Client) Init(ctx context.Context, dir string, o setup.InitOptions) (setup.InitResult, error) {
	s, err := c.connectWithoutFile()
	if err != nil {
		return setup.InitResult{}, err
	}
	defer s.end()
	src := c.initSources(s, dir)
	src.Talos, src.Addrs, src.Kube = s.talos, s.talos.Addrs(), s.machines.Kube
	o.Dir, o.Context = dir, s.talos.Context()
	o.TalosConfig = filepath.Join(c.lab.Dir, "talosconfig")
	o.Endpoints, o.Fingerprint, o.Extensions = c.lab.Endpoints(), c.lab.Fingerprint(), c.lab.Extensions()
	return checked[setup.InitResult](c.lab)(setup.Init(ctx, src, o))
}

// InitNew is recast init --new --yes in dir, by a user with the client's token, who trusts the
// certificate. Nothing encrypts the secrets.
func (c *Client) InitNew(ctx context.Context, dir string, o setup.InitOptions, n setup.NewOptions) (setup.InitResult, error) {
	s, err := c.connectWithoutFile()
	if err != nil {
		return setup.InitResult{}, err
	}
	defer s.end()
	labs, err := config.Load(filepath.Join(c.lab.Dir, "recast.yaml"), config.Options{})
	if err != nil {
		return setup.InitResult{}, err
	}
	o.Dir, o.Endpoints, o.Fingerprint, o.Extensions, o.Factory = dir, c.lab.Endpoints(), c.lab.Fingerprint(), labs.Images.Extensions, labs.Images.Factory
	n.Bridge, n.Cores, n.Memory, n.SystemDisk = cmp.Or(n.Bridge, "vmbr0"), cmp.Or(n.Cores, 2), cmp.Or(n.Memory, "4G"), cmp.Or(n.SystemDisk, "20G")
	return setup.New(ctx, c.initSources(s, dir), setup.NewSources{
		Talos: machineconfig.NewestTalos(), Kubernetes: machineconfig.KubernetesFor, Secrets: machineconfig.NewSecrets,
		Protect: func(_ context.Context, _ string, _ []string, text cluster.Secret) ([]byte, string, error) {
			return text, "", nil
		},
	}, o, n)
}

// connectWithoutFile connects a client that has no recast.yaml yet.
func (c *Client) connectWithoutFile() (*session, error) {
	s := &session{project: pipeline.Project{Config: &config.Config{}}}
	s.project.Config.Proxmox.Endpoints, s.project.Config.Proxmox.Fingerprint = c.lab.Endpoints(), c.lab.Fingerprint()
	return s.unless(c.connectMachines(s))
}

// initSources makes dir the client's working directory.
func (c *Client) initSources(s *session, dir string) setup.InitSources {
	c.Dir = dir
	return setup.InitSources{
		Proxmox: s.machines.Proxmox.(pipeline.Hypervisor),
		Say:     func(string) {},
		Load:    c.load,
		Images:  func(p pipeline.Project) (pipeline.Images, error) { return c.imagesOf(s, p) },
		Ask: func(_ context.Context, q setup.Question) (string, error) {
			c.Asked = append(c.Asked, q)
			if q.Default == "" {
				return "", fault.Configf("%s There is no safe default", q.Text)
			}
			return q.Default, nil
		},
	}
}

// imagesOf makes the clients of factory and registry for a configuration.
func (c *Client) imagesOf(s *session, p pipeline.Project) (pipeline.Images, error) {
	transport := &http.Transport{DialContext: c.DialContext}
	s.close = append(s.close, transport.CloseIdleConnections)
	f, err := factory.New(factory.Options{URL: p.Config.Images.Factory, Transport: transport, Wrap: c.Telemetry.HTTP("factory")})
	if err != nil {
		return pipeline.Images{}, err
	}
	r, err := registry.New(registry.Options{Extensions: p.Config.Images.Extensions + "/extensions", Insecure: p.Config.Images.Insecure, Transport: transport, Wrap: c.Telemetry.HTTP("registry")})
	if err != nil {
		return pipeline.Images{}, err
	}
	s.close = append(s.close, func() { _ = f.Close(); _ = r.Close() }) // idle connections only
	return pipeline.Images{Factory: f, Registry: r, Imager: c.Imager, Catalog: r}, nil
}

var vmidsLine = regexp.MustCompile(`(?m)^( *vmids:).*$`)

// WithRange is another process with its own recast.yaml in dir for the same cluster, with
// other proxmox.vmids, or the same if vmids is "". It has no journal of earlier runs.
func (l *Lab) WithRange(dir, vmids string) (*Client, error) {
	c := l.Client()
	c.Run, c.Dir = "20000101-0000-beef", dir
	err := os.CopyFS(dir, os.DirFS(l.Dir))
	return c, errors.Join(err, os.RemoveAll(filepath.Join(dir, ".recast")), c.setRange(vmids))
}

func (c *Client) setRange(vmids string) error {
	if vmids == "" {
		return nil
	}
	file := filepath.Join(c.Dir, "recast.yaml")
	b, err := os.ReadFile(file)
	if err == nil && !vmidsLine.Match(b) {
		err = errors.New("recast.yaml has no proxmox.vmids")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, vmidsLine.ReplaceAll(b, []byte("${1} "+vmids)), 0o600)
}

// canary searches everything that recast outputs in a lab for secrets.
type canary struct {
	secrets []secret

	mu    sync.Mutex
	heard bytes.Buffer
	dirs  map[string]bool // working directories
}

// secret is the text of a secret, or a piece of it, and what it is of.
type secret struct {
	text []byte
	of   string
}

func (c *canary) hear(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.WriteString(text)
	c.heard.WriteByte('\n')
}

func (c *canary) visit(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirs[dir] = true
}

// checked searches a command's result, all of which could be printed.
func checked[T any](l *Lab) func(T, error) (T, error) {
	return func(res T, err error) (T, error) {
		text, errJSON := json.Marshal(res)
		if errJSON != nil {
			l.t.Errorf("what a command returns can't be written down: %v", errJSON)
		}
		l.canary.hear(fmt.Sprintf("%s\n%v\n%s", text, err, strings.Join(fault.Hints(err), "\n")))
		return res, err
	}
}

// emit searches an event and passes it to Emit.
func (c *Client) emit(e step.Event) {
	c.lab.canary.hear(fmt.Sprintf("%+v", e))
	if c.Emit != nil {
		c.Emit(e)
	}
}

// newCanary makes a canary of the lab's secrets.
func newCanary(l *sim.Lab, files map[string][]byte) *canary {
	c := &canary{dirs: map[string]bool{}}
	c.addBundle(l.Talos.Secrets)
	for _, file := range []string{"talosconfig", "kubeconfig"} {
		if content := files[file]; content != nil {
			c.addKey("the "+file+"'s key", keyOf(content))
		}
	}
	_, token, _ := strings.Cut(l.Token(), "=")
	_, poor, _ := strings.Cut(sim.PoorToken, "=")
	c.addAll(map[string]string{"the Proxmox token": token, "the poor token": poor})
	return c
}

// addBundle adds the secrets of a Talos cluster.
func (c *canary) addBundle(b *secrets.Bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, key := range map[string][]byte{
		"Talos' CA": b.Certs.OS.Key, "etcd's CA": b.Certs.Etcd.Key, "Kubernetes' CA": b.Certs.K8s.Key,
		"the aggregator's CA": b.Certs.K8sAggregator.Key, "the service accounts' key": b.Certs.K8sServiceAccount.Key,
	} {
		c.addKey(what, key)
	}
	c.addAll(map[string]string{
		"the cluster's secret": b.Cluster.Secret, "the bootstrap token": b.Secrets.BootstrapToken, "the secretbox secret": b.Secrets.SecretboxEncryptionSecret,
		"the AES-CBC secret": b.Secrets.AESCBCEncryptionSecret, "trustd's token": b.TrustdInfo.Token,
	})
}

func (c *canary) addAll(secrets map[string]string) {
	for what, secret := range secrets {
		if secret != "" { // only one of the two encryption secrets of Kubernetes is set
			c.add(what, secret)
			c.add(what, base64.StdEncoding.EncodeToString([]byte(secret)))
		}
	}
}

var keyLine = regexp.MustCompile(`(?m)^\s*(?:client-key-data|key): (\S+)$`)

// keyOf is the private key in a talosconfig or kubeconfig.
func keyOf(file []byte) []byte {
	m := keyLine.FindSubmatch(file)
	if m == nil {
		return nil
	}
	key, err := base64.StdEncoding.DecodeString(string(m[1]))
	if err != nil {
		return nil
	}
	return key
}

func (c *canary) add(what, text string) { c.secrets = append(c.secrets, secret{[]byte(text), what}) }

// addKey makes a key recognizable by each line of its PEM, by its bytes, and by pieces of
// the PEM in base64, as in configurations.
func (c *canary) addKey(what string, key []byte) {
	const piece = 48
	block, _ := pem.Decode(key)
	if block == nil {
		panic(what + " is not in PEM")
	}
	c.add(what, string(block.Bytes))
	for line := range strings.Lines(string(key)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && len(line) >= piece/2 {
			c.add(what, line)
		}
	}
	twice := base64.StdEncoding.EncodeToString(key)
	for at := piece; at+piece <= len(twice); at += piece { // the first piece is the same for any key
		c.add(what, twice[at:at+piece])
	}
}

// in lists the secrets in a text.
func (c *canary) in(text []byte) []string {
	found := cluster.Where(c.secrets, func(s secret) bool { return bytes.Contains(text, s.text) })
	return slices.Compact(slices.Sorted(slices.Values(cluster.Each(found, func(s secret) string { return s.of }))))
}

// leaks lists the secrets in recast's output and files.
func (l *Lab) leaks() (out []string) {
	look := func(where string, text []byte) {
		for _, what := range l.canary.in(text) {
			out = append(out, where+" has "+what)
		}
	}
	l.canary.mu.Lock()
	defer l.canary.mu.Unlock()
	look("what recast said", l.canary.heard.Bytes())
	for _, vm := range l.World.VMs() {
		look(fmt.Sprintf("VM %d", vm.ID), fmt.Append(nil, vm.Config))
	}
	for _, call := range l.Recorder.Calls() {
		if call.Proto == "proxmox" {
			look(call.Method+" "+call.Path, fmt.Append(nil, call.Path, call.Params))
		}
	}
	for _, n := range l.Nodes {
		if k, err := l.Kube.Node(context.WithoutCancel(l.t.Context()), n.Name); err == nil {
			look("Node "+n.Name, fmt.Append(nil, k.ObjectMeta))
		}
	}
	for dir := range l.canary.dirs {
		if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || given(path) {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			if isSecret(path) {
				if info.Mode().Perm() != 0o600 {
					out = append(out, fmt.Sprintf("%s has mode %s", path, info.Mode()))
				}
				return nil
			}
			content, err := os.ReadFile(path)
			look(path, content)
			return err
		}); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// given are the files that a user provides.
func given(path string) bool {
	return slices.Contains([]string{"talosconfig", "kubeconfig", "env"}, filepath.Base(path))
}

// isSecret are the files in which recast keeps secrets: the journal's, with machine
// configurations, and snapshots of etcd.
func isSecret(path string) bool {
	return strings.HasSuffix(path, ".secret") || strings.HasSuffix(path, ".db")
}
