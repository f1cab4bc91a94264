package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/spf13/cobra"
)

type initFlags struct {
	setup.InitOptions
	talosconfig string
	yes         bool
	out         string

	fresh bool // --new
	made  newFlags
}

func newInitCmd(s *streams) *cobra.Command {
	var f initFlags
	c := &cobra.Command{
		Use: "init", Short: "Write recast.yaml, schematics and recast.lock",
		Long: `Find a Talos cluster and its VMs, and write the files that recast needs:

  recast.yaml        which node is which VM, where Proxmox and its storages are; with comments
  schematics/*.yaml  what the images of the nodes contain, one file for each kind
  recast.lock        the digest of every extension, as registries have them now

A talosconfig and a Proxmox API token are enough. Nodes are found through Talos'
discovery and through Kubernetes, and matched to their VMs by SMBIOS UUID. Versions,
schematics, extensions, roles and disks are read from the nodes. The system disk is
proven, never guessed; a data VM is recognized by the disks that it owns.

Either all of these files are written or none, and existing files are replaced only
with --force. Proxmox, Talos and Kubernetes are only read: the role PVEAuditor is
enough for the token. The talosconfig needs os:admin, as for a roll.

On a terminal, init asks for what it can't find. --yes takes safe defaults and refuses
if there is none; every question has a flag.

With --new there is no cluster yet, and recast bootstrap makes it of what is written:

  recast.yaml        which VMs there will be, on which hosts, with which addresses
  schematics/default.yaml  what their images contain: qemu-guest-agent, and --install
  secrets.yaml       all keys of the cluster, as talosctl gen secrets makes them
  recast.lock        the digest of every extension

It needs unused addresses, one for each node, and no talosconfig. The nodes are called
cp1, cp2 … and wk1, wk2 …, and take turns on the Proxmox nodes. With several control
planes, --vip is one more unused address, which they share for the Kubernetes API; or
--kubernetes-endpoint is the URL of your load balancer.

secrets.yaml is encrypted by age for --age, or else by sops if a .sops.yaml in the
directory or above has a rule for it. It is never replaced, not even with --force.
Everything else in these files can be changed until recast bootstrap.`,
		Example: `  export PROXMOX_VE_API_TOKEN='recast@pve!init=…'
  recast init --endpoint https://pve1.example:8006
  recast init --endpoint https://pve1.example:8006 --ca-file pve-root-ca.pem --yes
  recast init --new --endpoint https://pve1.example:8006
  recast init --new --yes --endpoint https://pve1.example:8006 --ca-file pve-root-ca.pem \
    --cluster home --control-planes 3 --workers 5 --addresses 10.0.0.11-10.0.0.18/24 \
    --gateway 10.0.0.1 --vip 10.0.0.10 --storage fast --iso-storage local`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("config") {
				return errUsage{errors.New("--config is for an existing recast.yaml: --dir says where to write a new one")}
			}
			if err := f.made.check(c, f.fresh); err != nil {
				return err
			}
			if f.fresh {
				return f.runNew(c.Context(), s)
			}
			return f.run(c.Context(), s)
		},
	}
	f.register(c)
	return c
}

func (f *initFlags) register(c *cobra.Command) {
	c.Flags().BoolVar(&f.fresh, "new", false, "there is no cluster yet: write what recast bootstrap makes one of")
	f.made.register(c)
	c.Flags().StringVar(&f.Dir, "dir", ".", "`directory` to write to")
	c.Flags().BoolVar(&f.Force, "force", false, "replace existing files")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask; take safe defaults")
	outputFlag(c, &f.out, "text", "json")
	c.Flags().StringSliceVar(&f.Endpoints, "endpoint", nil, "`URLs` of the Proxmox API, of one or more nodes of a cluster (default: $PROXMOX_VE_ENDPOINT)")
	c.Flags().StringVar(&f.Fingerprint, "fingerprint", "", "SHA-256 `fingerprint` of the API's certificate")
	c.Flags().StringVar(&f.CAFile, "ca-file", "", "PEM `file` with the CA of the API's certificate, such as pve-root-ca.pem")
	c.Flags().StringVar(&f.talosconfig, "talosconfig", "", "talosconfig `file` (default: $TALOSCONFIG, else ~/.talos/config)")
	c.Flags().StringVar(&f.Cluster, "cluster", "", "`name` of the cluster (default: the talosconfig's context; with --new there is none)")
	c.Flags().StringVar(&f.Talos, "talos-version", "", "Talos `version` that every node should run (default: the one that they run; with --new the newest that this recast knows)")
	c.Flags().StringVar(&f.Factory, "factory", "", "`URL` of the Image Factory (default: the one that the nodes were installed from, or https://factory.talos.dev)")
	c.Flags().StringVar(&f.Extensions, "extensions", "", "`registry` that lists the official extensions (default: ghcr.io/siderolabs)")
	c.Flags().StringSliceVar(&f.ISOStorage, "iso-storage", nil, "Proxmox `storages` for boot ISOs (default: the only one that accepts ISOs)")
	c.Flags().StringVar(&f.VMIDs, "vmids", "", "`range` of VMIDs for recast's own VMs, such as 9000-9099 (default: a free range, if recast has not run here before)")
	c.Flags().StringSliceVar(&f.Exclude, "exclude", nil, "`nodes` to leave out, for example because they have no VM on this Proxmox cluster")
}

func (f *initFlags) run(ctx context.Context, s *streams) error {
	if err := setup.Vacant(f.Dir, f.Force); err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	ask := newAsker(s, f.yes)
	src := f.sources(s, ask, &cl)
	p, err := f.project(ctx, ask)
	if err != nil {
		return err
	}
	t, err := connectTalos(s, p, &cl)
	if err != nil {
		return err
	}
	src.Talos, src.Addrs, f.Context = t, t.Addrs(), t.Context()
	px, err := f.trusted(ctx, s, p, ask, &cl)
	if err != nil {
		return err
	}
	src.Proxmox = px
	if k, err := connectKube(s, p, &cl); err == nil {
		src.Kube = k
	} else {
		fmt.Fprintf(s.err, "warning: Kubernetes is not asked: %v\n", err)
		fmt.Fprintln(s.err, "hint: nodes are found by Talos' discovery; talosctl kubeconfig writes the kubeconfig that other commands need")
	}
	if err := f.relative(p.Config.Talos.Config); err != nil {
		return err
	}
	res, err := setup.Init(ctx, src, f.InitOptions)
	if err != nil {
		return err
	}
	return ui.WriteInit(s.out, f.out, res)
}

func (f *initFlags) sources(s *streams, ask *asker, cl *closers) setup.InitSources {
	return setup.InitSources{
		Ask: ask.ask, Say: s.say,
		Load:   func(file string) (pipeline.Project, error) { return (&globals{config: file}).open() },
		Images: func(p pipeline.Project) (pipeline.Images, error) { return connectImages(s, p, cl) },
	}
}

// project returns a project whose configuration has only endpoints and credentials. It reports everything that is
// missing at once.
func (f *initFlags) project(ctx context.Context, ask *asker) (pipeline.Project, error) {
	conf := &config.Config{}
	var problems []error
	if !f.fresh {
		conf.Talos.Config = cmp.Or(f.talosconfig, os.Getenv("TALOSCONFIG"))
		if home, err := os.UserHomeDir(); conf.Talos.Config == "" && err == nil {
			conf.Talos.Config = filepath.Join(home, ".talos", "config")
		}
		_, err := os.Stat(conf.Talos.Config)
		problems = append(problems, fault.WithHint(fault.As(fault.Config, fault.Prefix("read the talosconfig", err)), "--talosconfig or TALOSCONFIG names it: the file that talosctl uses; with no cluster yet: --new"))
	}
	if os.Getenv("PROXMOX_VE_API_TOKEN") == "" {
		problems = append(problems, fault.WithHint(fault.Configf("PROXMOX_VE_API_TOKEN is not set"),
			"as root on a Proxmox node: pveum user add recast@pve; pveum user token add recast@pve init; "+
				"pveum acl modify / --users recast@pve --tokens 'recast@pve!init' --roles PVEAuditor; then here: export PROXMOX_VE_API_TOKEN='recast@pve!init=…'"))
	}
	if f.Fingerprint != "" && f.CAFile != "" {
		problems = append(problems, errUsage{errors.New("--fingerprint or --ca-file: choose one")})
	}
	if env := os.Getenv("PROXMOX_VE_ENDPOINT"); len(f.Endpoints) == 0 && env != "" {
		f.Endpoints = []string{env}
	}
	if err := errors.Join(problems...); err != nil {
		return pipeline.Project{}, err
	}
	if len(f.Endpoints) == 0 {
		url, err := ask.ask(ctx, setup.Question{Text: "Where is the Proxmox API, such as https://pve1.example:8006?", Flag: "--endpoint"})
		if err != nil {
			return pipeline.Project{}, err
		}
		f.Endpoints = []string{url}
	}
	for i, e := range f.Endpoints {
		if !strings.Contains(e, "://") {
			e = "https://" + e
		}
		f.Endpoints[i] = strings.TrimRight(e, "/")
	}
	f.Fingerprint = withColons(f.Fingerprint)
	conf.Proxmox.Endpoints, conf.Proxmox.Fingerprint, conf.Proxmox.CAFile = f.Endpoints, f.Fingerprint, f.CAFile
	return pipeline.Project{Config: conf}, nil
}

// withColons formats a fingerprint as in recast.yaml; some tools print it without colons.
func withColons(fingerprint string) string {
	if strings.Contains(fingerprint, ":") {
		return strings.ToUpper(fingerprint)
	}
	pairs := slices.Collect(slices.Chunk([]byte(strings.ToUpper(fingerprint)), 2))
	return string(bytes.Join(pairs, []byte(":")))
}

// trusted connects to Proxmox. If the certificate's issuer is not trusted, a person may confirm the fingerprint. A
// certificate for another name can't be confirmed, since the user can use that name.
func (f *initFlags) trusted(ctx context.Context, s *streams, p pipeline.Project, ask *asker, cl *closers) (*pve.Client, error) {
	px, err := connectProxmox(s, p, cl)
	if err != nil {
		return nil, err
	}
	_, err = px.Permissions(ctx, "/")
	why, wrongName := api.Untrusted(err)
	if wrongName {
		return nil, fault.WithHint(err, "if none of those names resolves from here: --fingerprint with what pvenode cert info shows on the node itself")
	}
	if why == "" || f.CAFile != "" || len(f.Endpoints) > 1 {
		return px, err
	}
	seen, errSeen := api.Fingerprint(ctx, f.Endpoints[0], nil)
	if errSeen != nil {
		return nil, errors.Join(err, errSeen)
	}
	const compare = "on the node itself, pvenode cert info shows the right one"
	if f.yes || !ask.terminal {
		return nil, fault.WithHint(fmt.Errorf("%s: its certificate is not trusted, and --yes does not change that: %w", f.Endpoints[0], err),
			"its fingerprint is %s; %s; if they are the same: --fingerprint %s", seen, compare, seen)
	}
	fmt.Fprintf(s.err, "The certificate of %s is not trusted: %s.\nIts SHA-256 fingerprint is\n  %s\n(%s)\n", f.Endpoints[0], why, seen, compare)
	answer, err := ask.ask(ctx, setup.Question{Text: "Is it the right one? Only \"yes\" continues:", Flag: "--fingerprint"})
	if err != nil {
		return nil, err
	}
	if answer != "yes" {
		return nil, fault.WithHint(fault.NotConfirmed.Of(fault.As(fault.Interrupted, errors.New("the certificate was not trusted; nothing was written"))),
			"pvenode cert info, on that Proxmox node, shows the right one: recast init --fingerprint takes it without asking; --ca-file names the CA of a certificate of your own")
	}
	f.Fingerprint, p.Config.Proxmox.Fingerprint = seen, seen
	if px, err = connectProxmox(s, p, cl); err != nil {
		return nil, err
	}
	_, err = px.Permissions(ctx, "/")
	return px, err
}

// relative sets paths for recast.yaml: relative to the file if they are below its directory, else absolute. A
// talosconfig that the environment names is not written to the file.
func (f *initFlags) relative(talosconfig string) error {
	seen := func(path string) (string, error) {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", fault.Configf("find %s: %w", path, err)
		}
		dir, err := filepath.Abs(f.Dir)
		if err != nil {
			return "", fault.Configf("find %s: %w", f.Dir, err)
		}
		rel, err := filepath.Rel(dir, abs)
		if err != nil || !filepath.IsLocal(rel) {
			return abs, nil
		}
		return "./" + rel, nil
	}
	path, err := seen(talosconfig)
	if err != nil {
		return err
	}
	if f.talosconfig != "" || strings.HasPrefix(path, "./") {
		f.TalosConfig = path
	}
	if f.CAFile != "" {
		f.CAFile, err = seen(f.CAFile)
	}
	return err
}

type newFlags struct {
	setup.NewOptions
	controlPlanes, workers int
	names                  []string // of these flags
}

// onlyFound are the flags of init for a cluster that exists already.
var onlyFound = []string{"talosconfig", "exclude"}

func (n *newFlags) register(c *cobra.Command) {
	usage := func(name, text string) string {
		n.names = append(n.names, name)
		return "--new: " + text
	}
	text := func(to *string, name, value, what string) { c.Flags().StringVar(to, name, value, usage(name, what)) }
	list := func(to *[]string, name, what string) { c.Flags().StringSliceVar(to, name, nil, usage(name, what)) }
	number := func(to *int, name string, value int, what string) {
		c.Flags().IntVar(to, name, value, usage(name, what))
	}
	number(&n.controlPlanes, "control-planes", 1, "`number` of control planes")
	number(&n.workers, "workers", 2, "`number` of workers")
	text(&n.Prefix, "prefix", "", "`text` before the nodes' names: prod- for prod-cp1 and prod-wk1 (default: none)")
	list(&n.Addresses, "addresses", "`addresses` of the nodes, control planes first: 10.0.0.11/24, or 10.0.0.11-10.0.0.18/24 for several in a row")
	text(&n.Gateway, "gateway", "", "`address` of the nodes' gateway")
	text(&n.VIP, "vip", "", "unused `address` that the control planes share, for the Kubernetes API")
	text(&n.Endpoint, "kubernetes-endpoint", "", "`URL` of the Kubernetes API, such as that of a load balancer (default: port 6443 of --vip, or of the only control plane)")
	text(&n.Kubernetes, "kubernetes-version", "", "`version` of Kubernetes (default: the newest that this recast knows)")
	list(&n.Hosts, "host", "Proxmox `nodes` that the VMs are spread over (default: all that are online)")
	text(&n.Storage, "storage", "", "Proxmox `storage` for the disks (default: the only one that accepts disks)")
	text(&n.Bridge, "bridge", "vmbr0", "`bridge` of the network cards")
	number(&n.Cores, "cores", 2, "`number` of processors of each VM")
	text(&n.Memory, "memory", "4G", "`size` of each VM's memory: 4G, or 4096 in MiB")
	text(&n.SystemDisk, "system-disk", "20G", "`size` of each system disk")
	text(&n.DataDisk, "data-disk", "", "`size` of a persistent disk of each worker (default: none)")
	list(&n.Install, "install", "official `extensions` in the image besides qemu-guest-agent, such as iscsi-tools")
	list(&n.Age, "age", "`recipients` for whom age encrypts the secrets (default: as the rules of your .sops.yaml say)")
}

// check refuses flags that do not belong to this kind of init, and stores the numbers that were given.
func (n *newFlags) check(c *cobra.Command, fresh bool) error {
	others, why := n.names, "is for a cluster that --new makes"
	if fresh {
		others, why = onlyFound, "is for a cluster that exists already, and --new for one that does not"
	}
	for _, name := range others {
		if c.Flags().Changed(name) {
			return errUsage{fmt.Errorf("--%s %s", name, why)}
		}
	}
	if c.Flags().Changed("control-planes") {
		n.ControlPlanes = &n.controlPlanes
	}
	if c.Flags().Changed("workers") {
		n.Workers = &n.workers
	}
	return nil
}

func (f *initFlags) runNew(ctx context.Context, s *streams) error {
	if err := setup.VacantNew(f.Dir, f.Force); err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	ask := newAsker(s, f.yes)
	p, err := f.project(ctx, ask)
	if err != nil {
		return err
	}
	px, err := f.trusted(ctx, s, p, ask, &cl)
	if err != nil {
		return err
	}
	if err := f.relative(filepath.Join(f.Dir, "talosconfig")); err != nil {
		return err
	}
	src := f.sources(s, ask, &cl)
	src.Proxmox = px
	res, err := setup.New(ctx, src, setup.NewSources{
		Talos: machineconfig.NewestTalos(), Kubernetes: machineconfig.KubernetesFor, Secrets: machineconfig.NewSecrets,
		Protect: func(ctx context.Context, path string, age []string, text cluster.Secret) ([]byte, string, error) {
			o := machineconfig.Options{Base: filepath.Dir(path), Env: command.FromHere().Env, Note: s.say}
			return o.Protect(ctx, path, age, text)
		},
	}, f.InitOptions, f.made.NewOptions)
	if err != nil {
		return err
	}
	return ui.WriteInit(s.out, f.out, res)
}

type adoptFlags struct {
	adopt.Options
	file, to string
	out      string
}

func newAdoptCmd(s *streams) *cobra.Command {
	var f adoptFlags
	c := &cobra.Command{
		Use: "adopt", Short: "Write recast.yaml from what Terraform knows",
		Long: `Read what terraform show -json prints, find the VMs that are Talos nodes, and write
recast.yaml with their VMIDs, hosts and shapes (vmClasses), and the schematics of the
Talos provider. Also print the blocks that keep Terraform from undoing a roll, and what
each way costs. The state and a plan file are both read, of Terraform and of OpenTofu.
No server is asked, and Terraform's files are not touched.

Resources: proxmox_virtual_environment_vm of bpg/proxmox and proxmox_vm_qemu of
Telmate/proxmox, in modules too; roles, versions and the cluster's name are from
resources of siderolabs/talos. A VM is a Talos node if such a resource, its image, its
tags or its name say so; --only takes others.

What the JSON does not say is a question in a comment, with the command that answers
it. What recast.yaml can't be without has a flag, and all that is missing is reported
at once. recast init finds more than this, from the running cluster.`,
		Example: `  terraform show -json | recast adopt --terraform - --endpoint https://pve1.example:8006 \
    --iso-storage local --vmids 9000-9099
  recast adopt --terraform show.json --only module.prod --to prod
  recast adopt --terraform show.json --to - > recast.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return f.run(s) },
	}
	f.register(c)
	return c
}

func (f *adoptFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "terraform", "", "`file` with what terraform show -json prints; -: standard input")
	c.Flags().StringVar(&f.to, "to", ".", "`directory` or .yaml file to write; -: recast.yaml to standard output")
	c.Flags().BoolVar(&f.Force, "force", false, "replace existing files")
	c.Flags().StringArrayVar(&f.Only, "only", nil, "take the VMs at or below this `address`, such as module.prod; may be given several times")
	c.Flags().StringVar(&f.Cluster, "cluster", "", "`name` of the cluster: with several in the JSON, the one to take")
	c.Flags().StringVar(&f.Talos, "talos-version", "", "Talos `version` that every node should run (default: that of the images)")
	c.Flags().StringVar(&f.Platform, "platform", "", "`platform` of the images: nocloud or metal (default: that of the images)")
	c.Flags().StringVar(&f.Schematic, "schematic", "", "schematic `file` for all nodes (default: those of talos_image_factory_schematic)")
	c.Flags().StringVar(&f.Factory, "factory", "", "`URL` of the Image Factory (default: that of the images, or https://factory.talos.dev)")
	c.Flags().StringVar(&f.Extensions, "extensions", "", "`registry` that lists the official extensions (default: ghcr.io/siderolabs)")
	c.Flags().StringSliceVar(&f.Endpoints, "endpoint", nil, "`URLs` of the Proxmox API (default: a constant in a plan's configuration)")
	c.Flags().StringVar(&f.Fingerprint, "fingerprint", "", "SHA-256 `fingerprint` of the API's certificate")
	c.Flags().StringVar(&f.CAFile, "ca-file", "", "PEM `file` with the CA of the API's certificate, relative to --to")
	c.Flags().StringSliceVar(&f.ISOStorage, "iso-storage", nil, "Proxmox `storages` for boot ISOs (default: the one that ISOs were downloaded to)")
	c.Flags().StringVar(&f.VMIDs, "vmids", "", "`range` of unused VMIDs for recast's own VMs, such as 9000-9099")
	outputFlag(c, &f.out, "text", "json")
}

func (f *adoptFlags) run(s *streams) error {
	if f.file == "" {
		return errUsage{errors.New("--terraform is missing: the file with what terraform show -json prints, or - for standard input")}
	}
	if f.to == "-" && f.out == "json" {
		return errUsage{errors.New("--to - prints recast.yaml: it goes without -o json")}
	}
	doc, err := readTerraform(s, f.file)
	if err != nil {
		return err
	}
	f.Dir, f.Name = filepath.Clean(f.to), "recast.yaml" // "": here
	switch ext := filepath.Ext(f.to); {
	case f.to == "-":
		f.Dir = ""
	case ext == ".yaml" || ext == ".yml":
		f.Dir, f.Name = filepath.Split(f.to)
		f.Dir = filepath.Clean(f.Dir)
	}
	for i, e := range f.Endpoints {
		if !strings.Contains(e, "://") {
			f.Endpoints[i] = "https://" + e
		}
	}
	f.Fingerprint = withColons(f.Fingerprint)
	res, err := adopt.Adopt(doc, f.Options)
	if err != nil {
		return err
	}
	if f.to != "-" {
		return ui.WriteAdopt(s.out, f.out, res)
	}
	for _, file := range res.Files[:len(res.Files)-1] {
		fmt.Fprintf(s.err, "not written: %s; --to DIR writes it\n", file.Name)
	}
	_, err = s.out.Write(res.Files[len(res.Files)-1].Content)
	return err
}
