package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// NewOptions are the answers for a cluster that is not there yet, as a person types them.
type NewOptions struct {
	ControlPlanes *int // how many; nil: asked
	Workers       *int
	Prefix        string   // of the nodes' names
	Addresses     []string // "10.0.0.11/24", "10.0.0.11-10.0.0.18/24"; nil: asked
	Gateway       string   // "": asked
	VIP           string   // an address that the control planes share; "": none
	Endpoint      string   // URL of the Kubernetes API; "": at the VIP, or the only control plane
	Kubernetes    string   // version; "": the newest for that Talos
	Hosts         []string // Proxmox nodes; nil: all that are online
	Storage       string   // of disks; "": the only one, or asked
	Bridge        string
	Cores         int
	Memory        string   // "4G", or MiB
	SystemDisk    string   // "20G"
	DataDisk      string   // of workers; "": none
	Install       []string // official extensions, besides qemu-guest-agent
	Age           []string // recipients that the secrets are encrypted for
}

// NewSources make what a new cluster is made of besides its VMs.
type NewSources struct {
	Talos string // the newest version that is known
	// Kubernetes returns the version for a Talos: the wanted one, or for "" the newest; "" if none is known.
	Kubernetes func(talos, wanted string) (string, error)
	// Secrets makes the secrets of a cluster.
	Secrets func(talos string) (cluster.Secret, error)
	// Protect encrypts a text for the file at path, for these recipients of age, or as the user's rules
	// say; by names the program, "" if nothing says so.
	Protect func(ctx context.Context, path string, age []string, text cluster.Secret) (out []byte, by string, err error)
}

// newCluster is a running New. What is found are the nodes as they will be.
type newCluster struct {
	*initial
	NewOptions
	makes    NewSources
	prefixes []netip.Prefix // addresses of the nodes, in their order
	gateway  netip.Addr
	classes  []config.DraftClass
}

const (
	secretsFile = "secrets.yaml"
	patchFile   = "patches/control-plane.yaml"
)

// New writes what a cluster from nothing is made of, all of it or nothing: recast.yaml, a schematic, the
// secrets of the cluster, and recast.lock. Proxmox is only read.
func New(ctx context.Context, src InitSources, makes NewSources, o InitOptions, n NewOptions) (InitResult, error) {
	in := &newCluster{initial: &initial{InitOptions: o, src: src, fresh: true}, NewOptions: n, makes: makes}
	if err := VacantNew(o.Dir, o.Force); err != nil {
		return InitResult{}, err
	}
	if err := in.mayLook(ctx); err != nil {
		return InitResult{}, err
	}
	src.Say("looking at Proxmox")
	for _, decide := range []func(context.Context) error{
		in.shaped, in.look, in.versions, in.named, in.counted, in.addressed, in.reached, in.stored, in.proxmox, in.described,
	} {
		if err := decide(ctx); err != nil {
			return InitResult{}, err
		}
	}
	src.Say("making the secrets of the cluster, and asking the registry for digests of extensions")
	if err := in.write(ctx); err != nil {
		return InitResult{}, err
	}
	return in.res, nil
}

// VacantNew is Vacant for the files of a new cluster. Its secrets are never replaced.
func VacantNew(dir string, force bool) error {
	if err := keepsSecrets(dir); err != nil {
		return err
	}
	return Vacant(dir, force)
}

// take has q.Check take what was given, or else the answer to the question.
func (in *newCluster) take(ctx context.Context, given string, q Question) (err error) {
	if given == "" {
		if given, err = in.src.Ask(ctx, q); err != nil {
			return err
		}
	}
	return q.Check(given)
}

// look reads the VMs and the hosts of the Proxmox cluster.
func (in *newCluster) look(ctx context.Context) error {
	vms, err := in.src.Proxmox.VMs(ctx)
	away, lacking := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !lacking {
		return fmt.Errorf("list the VMs: %w", err)
	}
	in.found.VMs = vms
	if lacking {
		in.found.VMs = append(in.found.VMs, away.VMs...)
		in.warn("%s: whether a VM there has a node's address can't be seen", away.Who())
	}
	return in.chooseHosts(ctx, away)
}

// versions decides on Talos and Kubernetes.
func (in *newCluster) versions(ctx context.Context) (err error) {
	d := &in.draft
	if in.Talos == "" {
		in.Talos = in.makes.Talos
	}
	in.Talos = "v" + strings.TrimPrefix(in.Talos, "v")
	d.Talos = in.Talos
	d.Kubernetes, err = in.makes.Kubernetes(in.Talos, in.Kubernetes)
	if err != nil {
		return fault.WithHint(err, "--talos-version and --kubernetes-version give other ones")
	}
	if d.Kubernetes == "" {
		err := in.take(ctx, "", Question{
			Text: "Which Kubernetes should run with Talos " + in.Talos + ", such as v1.35.4?", Flag: "--kubernetes-version",
			Check: func(answer string) (err error) {
				d.Kubernetes, err = in.makes.Kubernetes(in.Talos, answer)
				return err
			},
		})
		if err != nil {
			return err
		}
	}
	if err := cluster.CheckKubernetesVersion(d.Kubernetes); err != nil {
		return err
	}
	d.Platform, d.Arch = "nocloud", "amd64"
	in.cameFrom()
	in.TalosConfig = "./talosconfig"
	in.res.Talos, in.res.Kubernetes, in.res.Platform, in.res.Arch = d.Talos, d.Kubernetes, d.Platform, d.Arch
	return nil
}

// named asks for the cluster's name, which no other cluster may have here.
func (in *newCluster) named(ctx context.Context) (err error) {
	if in.Cluster == "" {
		in.Cluster, err = in.src.Ask(ctx, Question{Text: "What is the cluster to be called?", Flag: "--cluster"})
		if err != nil {
			return err
		}
	}
	if own := in.found.Own(in.Cluster); len(own) > 0 {
		return fault.WithHint(fault.Refusedf("%s is recast's own, for a cluster of the name %s: there is one already", own[0], in.Cluster),
			"--cluster gives the new one another name; recast init without --new finds the one that is there")
	}
	return nil
}

// counted decides how many nodes there will be, and which names they have.
func (in *newCluster) counted(ctx context.Context) error {
	var controlPlanes, workers int
	if err := in.number(ctx, &controlPlanes, in.ControlPlanes, 1, Question{Text: "How many control planes?", Default: "1", Flag: "--control-planes"}); err != nil {
		return err
	}
	if err := in.number(ctx, &workers, in.Workers, 0, Question{Text: "How many workers?", Default: "2", Flag: "--workers"}); err != nil {
		return err
	}
	add := func(kind string, count int) {
		for i := range count {
			n := survey.Discovered{Name: fmt.Sprintf("%s%s%d", in.Prefix, kind, i+1), Machine: cluster.Machine{ControlPlane: kind == "cp"}}
			n.VM.Host = in.Hosts[len(in.found.Nodes)%len(in.Hosts)]
			in.found.Nodes = append(in.found.Nodes, n)
		}
	}
	add("cp", controlPlanes)
	add("wk", workers)
	if controlPlanes%2 == 0 {
		in.warn("%d control planes survive the loss of no more of them than %d do: etcd needs a majority", controlPlanes, controlPlanes-1)
	}
	in.warnOfHosts(controlPlanes)
	if err := in.unnamed(); err != nil {
		return err
	}
	return in.sayable()
}

// unnamed refuses names that VMs have: recast makes no second VM of a name.
func (in *newCluster) unnamed() error {
	var taken []string
	for _, vm := range in.found.VMs {
		if slices.ContainsFunc(in.found.Nodes, func(n survey.Discovered) bool { return n.Name == vm.Name }) {
			taken = append(taken, vm.String())
		}
	}
	if len(taken) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("there are VMs with the names of nodes already: %s", strings.Join(taken, ", ")),
		"--prefix %s- gives the nodes other names, such as %[1]s-cp1", strings.ToLower(in.Cluster))
}

// described drafts what is written.
func (in *newCluster) described(context.Context) error {
	names := []string{"siderolabs/qemu-guest-agent"}
	for _, x := range in.Install {
		if !strings.Contains(x, "/") {
			x = "siderolabs/" + x
		}
		if !slices.Contains(names, x) {
			names = append(names, x)
		}
	}
	s, err := schematics.Parse("--install", []byte("customization:\n  systemExtensions:\n    officialExtensions:\n      - "+strings.Join(names, "\n      - ")+"\n"))
	if err != nil {
		return err
	}
	plan := plannedSchematic{Schematic: s, name: "default", nodes: in.found.Nodes, fresh: true}
	in.plans = []plannedSchematic{plan}
	in.res.Schematics = []InitSchematic{{Name: plan.name, File: plan.file(), Extensions: shortNames(s.Extensions()), Nodes: plan.nodeNames()}}
	in.res.New, in.res.Endpoint, in.res.Drift = true, in.Endpoint, []observe.Drift{}

	d := &in.draft
	d.Schematics = []config.DraftSchematic{{Name: plan.name, File: plan.file(), Nodes: plan.nodeNames()}}
	d.New = &config.DraftNew{Secrets: secretsFile, Endpoint: in.Endpoint, Release: strings.Join(strings.Split(in.Talos, ".")[:2], "."), Classes: in.classes}
	for i, n := range in.found.Nodes {
		class := in.classes[1]
		if n.Machine.ControlPlane {
			class = in.classes[0]
			d.New.ControlPlanes = append(d.New.ControlPlanes, n.Name)
		}
		d.Nodes = append(d.Nodes, config.DraftNode{
			Name: n.Name, Schematic: plan.name, Class: class.Name, Host: n.VM.Host, IPConfig: fmt.Sprintf("ip=%s,gw=%s", in.prefixes[i], in.gateway),
		})
		node := InitNode{
			Name: n.Name, ControlPlane: n.Machine.ControlPlane, Host: n.VM.Host, Address: in.prefixes[i].Addr().String(), Firmware: "UEFI", Schematic: plan.name,
			SystemDisk: "scsi0 " + class.System.String(),
		}
		if class.Data != nil {
			node.Persistent = []string{"scsi1 " + class.Data.String()}
		}
		in.res.Nodes = append(in.res.Nodes, node)
	}
	in.extra = []extraFile{{secretsFile, 0o600, in.secrets}}
	if in.VIP != "" {
		d.New.Patches = []string{patchFile}
		in.extra = append(in.extra, extraFile{patchFile, 0o644, in.sharedAddress})
	}
	return nil
}

// keepsSecrets refuses a directory with secrets, whatever the options: who replaces the secrets of a
// cluster can't reach it any more.
func keepsSecrets(dir string) error {
	file := filepath.Join(dir, secretsFile)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fault.Configf("look at %s: %w", dir, err)
	}
	return fault.WithHint(fault.Configf("%s is there already, and is never replaced: a cluster that was made of these secrets is lost with them; nothing was changed", file),
		"--dir makes another cluster elsewhere; if no cluster has these secrets, move the file away")
}

// secrets makes the secrets of the cluster, and encrypts them where that is wanted.
func (in *newCluster) secrets(ctx context.Context) ([]byte, error) {
	text, err := in.makes.Secrets(in.Talos)
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(filepath.Join(in.Dir, secretsFile))
	if err != nil {
		return nil, fault.Configf("find %s: %w", in.Dir, err)
	}
	out, by, err := in.makes.Protect(ctx, path, in.Age, text)
	if err != nil {
		return nil, err
	}
	if in.res.Encrypted = by; by == "" {
		in.res.Secret = append(in.res.Secret, secretsFile)
		in.warn("%s is not encrypted: keep it out of git. --age, or a rule for it in a .sops.yaml, has it encrypted", secretsFile)
	}
	return out, nil
}

// sharedAddress is the patch that has control planes share an address.
func (in *newCluster) sharedAddress(context.Context) ([]byte, error) {
	return fmt.Appendf(nil, `# The control planes share this address: one of them has it, and another one takes it over.
machine:
  network:
    interfaces:
      - deviceSelector: {physical: true}
        vip: {ip: %s}
`, in.VIP), nil
}
