package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline"
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

// NewSources create what a new cluster needs besides its VMs.
type NewSources struct {
	Talos string // the newest version that is known
	// Kubernetes returns the version for a Talos: the wanted one, or for "" the newest; "" if none is known.
	Kubernetes func(talos, wanted string) (string, error)
	// Secrets makes the secrets of a cluster.
	Secrets func(talos string) (cluster.Secret, error)
	// Protect encrypts a text for the file at path: for these recipients of age, or as the user's rules say. by names
	// the program; "" if neither asks for encryption.
	Protect func(ctx context.Context, path string, age []string, text cluster.Secret) (out []byte, by string, err error)
}

// newCluster is a running New. The nodes in found are the nodes that the cluster will have.
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

// New writes the files of a new cluster, all of them or none: recast.yaml, a schematic, the secrets of the cluster,
// and recast.lock. It only reads Proxmox.
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

// take passes the given answer to q.Check, or, if there is none, the user's answer to q.
func (in *newCluster) take(ctx context.Context, given string, q Question) (err error) {
	if given == "" {
		if given, err = in.src.Ask(ctx, q); err != nil {
			return err
		}
	}
	return q.Check(given)
}

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

func (in *newCluster) versions(ctx context.Context) (err error) {
	d := &in.draft
	in.Talos = cmp.Or(in.Talos, in.makes.Talos)
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

// unnamed refuses node names that VMs have already: recast creates no second VM with the same name.
func (in *newCluster) unnamed() error {
	taken := cluster.Where(in.found.VMs, func(vm cluster.VM) bool {
		return slices.ContainsFunc(in.found.Nodes, func(n survey.Discovered) bool { return n.Name == vm.Name })
	})
	if len(taken) == 0 {
		return nil
	}
	list := strings.Join(cluster.Each(taken, cluster.VM.String), ", ")
	return fault.WithHint(fault.Refusedf("there are VMs with the names of nodes already: %s", list),
		"--prefix %s- gives the nodes other names, such as %[1]s-cp1", strings.ToLower(in.Cluster))
}

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

// keepsSecrets refuses a directory with secrets, whatever the options: without its secrets, a cluster can no longer
// be reached.
func keepsSecrets(dir string) error {
	file := filepath.Join(dir, secretsFile)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fault.Configf("look at %s: %w", dir, err)
	}
	return fault.WithHint(fault.Configf("%s already exists, and is never replaced: a cluster that was made of these secrets is lost with them; nothing was changed", file),
		"--dir makes another cluster elsewhere; if no cluster has these secrets, move the file away")
}

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

// sharedAddress returns the patch with which the control planes share an address.
func (in *newCluster) sharedAddress(context.Context) ([]byte, error) {
	return fmt.Appendf(nil, `# The control planes share this address: one of them has it, and another one takes it over.
machine:
  network:
    interfaces:
      - deviceSelector: {physical: true}
        vip: {ip: %s}
`, in.VIP), nil
}

func (in *newCluster) number(ctx context.Context, n, given *int, least int, q Question) error {
	q.Check = func(answer string) (err error) {
		if *n, err = strconv.Atoi(answer); err != nil || *n < least || *n > 500 {
			return fault.Configf("%s: %q is not a number from %d to 500", q.Flag, answer, least)
		}
		return nil
	}
	text := ""
	if given != nil {
		text = strconv.Itoa(*given)
	}
	return in.take(ctx, text, q)
}

// chooseHosts chooses the Proxmox nodes for the VMs, among those that answer. away may be nil.
func (in *newCluster) chooseHosts(ctx context.Context, away *cluster.HostsAway) error {
	all, err := in.src.Proxmox.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	var online, out []string
	for _, h := range all {
		answers := away == nil || !slices.ContainsFunc(away.Hosts, func(a cluster.AwayHost) bool { return a.Name == h.Name })
		if h.Online && answers {
			online = append(online, h.Name)
		} else {
			out = append(out, h.Name)
		}
	}
	slices.SortFunc(online, cluster.CompareKeys)
	for _, host := range in.Hosts {
		if !slices.Contains(online, host) {
			return fault.WithHint(fault.Configf("%s is not a Proxmox node that is online", host), "--host: those that are: %s", strings.Join(online, ", "))
		}
	}
	if len(in.Hosts) > 0 {
		return nil
	}
	if len(online) == 0 {
		return fault.Refusedf("no Proxmox node is online")
	}
	if len(out) > 0 {
		in.warn("no VM is to be on %s: offline, or without an answer", strings.Join(out, ", "))
	}
	in.Hosts = online
	return nil
}

// warnOfHosts warns of a host that takes etcd's majority with it.
func (in *newCluster) warnOfHosts(controlPlanes int) {
	for _, host := range in.Hosts {
		there := in.names(func(n survey.Discovered) bool { return n.Machine.ControlPlane && n.VM.Host == host })
		if controlPlanes > 2 && len(there) > (controlPlanes-1)/2 {
			in.warn("%s are on %s: etcd loses its majority if that host fails", strings.Join(there, ", "), host)
		}
	}
}

// shaped decides what the VMs are made of, except for their storage.
func (in *newCluster) shaped(context.Context) error {
	c := config.DraftClass{Name: "control-plane", Cores: in.Cores, Bridge: in.Bridge}
	if c.Cores < 1 {
		return fault.Configf("--cores: %d is too few", c.Cores)
	}
	text, unit := strings.CutSuffix(in.Memory, "G")
	mib, err := strconv.Atoi(text)
	if unit {
		mib <<= 10
	}
	if c.MemoryMiB = mib; err != nil || mib < 2048 || mib > 16<<20 {
		return fault.Configf("--memory: %q is not an amount of memory of at least 2G: write it like 4G, or in MiB like 4096", in.Memory)
	}
	if err := c.System.UnmarshalText([]byte(in.SystemDisk)); err != nil || c.System.GiB < 10 {
		return fault.Configf("--system-disk: %q is not a size of at least 10G: write it like 20G", in.SystemDisk)
	}
	worker := c
	worker.Name = "worker"
	if in.DataDisk != "" {
		worker.Data = &config.DiskSize{}
		if err := worker.Data.UnmarshalText([]byte(in.DataDisk)); err != nil {
			return fault.Configf("--data-disk: %w", err)
		}
	}
	in.classes = []config.DraftClass{c, worker}
	return nil
}

func (in *newCluster) stored(ctx context.Context) error {
	names, _, err := in.taking(ctx, "images")
	if err != nil {
		return err
	}
	hosts := strings.Join(in.hosts(), ", ")
	switch {
	case in.Storage != "" && !slices.Contains(names, in.Storage):
		return fault.WithHint(fault.Refusedf("storage %s does not take disks of VMs on every Proxmox node of the cluster (%s)", in.Storage, hosts),
			"--storage: one that does: %s; the token needs Datastore.Audit on /storage/%s to see it", strings.Join(names, ", "), in.Storage)
	case len(names) == 0:
		return fault.WithHint(fault.Refusedf("no storage takes disks of VMs on every Proxmox node of the cluster (%s)", hosts),
			"--host leaves a Proxmox node out; the token needs Datastore.Audit on /storage to see storages")
	case in.Storage == "":
		if in.Storage, err = in.choose(ctx, "Storages that take disks of VMs", "Where should the disks be?", "--storage", names, ""); err != nil {
			return err
		}
	}
	for i := range in.classes {
		in.classes[i].Storage = in.Storage
	}
	return nil
}

// vmids chooses the range for recast's own VMs. Two recast.yaml of one cluster need the same range, or each refuses
// what the other has left: so if recast has run before, there is no safe default.
func (in *initial) vmids(ctx context.Context) (err error) {
	if in.containers, err = in.src.Proxmox.Containers(ctx); err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	own := in.found.Own(in.draft.Cluster)
	read := func(answer string) (r config.VMIDRange, err error) {
		if err := r.UnmarshalText([]byte(answer)); err != nil {
			return r, fault.As(fault.Config, err)
		}
		return r, in.claimable(r, own)
	}
	answer := in.VMIDs
	if answer == "" {
		q := Question{Flag: "--vmids", Check: func(answer string) error { _, err := read(answer); return err }}
		if q.Text = in.rolled(own); q.Text == "" {
			q.Text, q.Default = "Which VMIDs may recast use for its own VMs (the claim, parked disks)?", in.freeRange().String()
		}
		if answer, err = in.src.Ask(ctx, q); err != nil {
			return err
		}
	}
	if in.draft.VMIDs, err = read(answer); err != nil {
		return err
	}
	if in.rolled(own) != "" && !slices.ContainsFunc(own, survey.IsClaim) {
		in.warn("recast has run on these nodes before, and no active run shows where its claim is: proxmox.vmids of the other recast.yaml must start with %d too, or each refuses what the other has left", in.draft.VMIDs.First)
	}
	if others := in.othersIn(in.draft.VMIDs, own); len(others) > 0 {
		in.warn("the VMIDs %s should be only for recast's own VMs, but others use some of them: %s", in.draft.VMIDs, strings.Join(others, ", "))
	}
	return nil
}

// rolled asks for the range of another recast.yaml; "" if there is no sign of one.
func (in *initial) rolled(own []cluster.VM) string {
	var why string
	made := in.names(func(n survey.Discovered) bool { return n.VM.MadeBy() != "" })
	switch {
	case len(own) > 0:
		ids := cluster.Each(own, func(vm cluster.VM) string { return fmt.Sprintf("VM %d", vm.ID) })
		why = "its own: " + strings.Join(ids, ", ")
	case len(made) > 0:
		why = "it has created the VM of " + strings.Join(made, ", ")
	default:
		return ""
	}
	return fmt.Sprintf("recast has run on these nodes before (%s). Two recast.yaml of one cluster need the same proxmox.vmids: which range does the other one use?", why)
}

// claimable refuses a range that can't be that of earlier runs, or whose first number, the claim's, is in use.
func (in *initial) claimable(r config.VMIDRange, own []cluster.VM) error {
	for _, vm := range own {
		claim := survey.IsClaim(vm)
		switch {
		case !r.Contains(int(vm.ID)), claim && int(vm.ID) != r.First:
			what := "is recast's own"
			if claim {
				what = "is the claim of a run, with the first number of its range"
			}
			return fault.WithHint(fault.Refusedf("%s %s: it belongs to a recast.yaml with other proxmox.vmids than %s, and each of the two would refuse what the other has left", vm, what, r),
				"--vmids: the range of the recast.yaml that has rolled them. If its proxmox.vmids have changed since, copy that recast.yaml: an older or a wider range may start elsewhere, and its claim with it. "+
					"If it belongs to another Talos cluster, use --cluster to give this one another name than %s", in.draft.Cluster)
		case !claim && int(vm.ID) == r.First:
			return fault.WithHint(fault.Refusedf("%s is recast's own, and not its claim: its range starts before %s", vm, r),
				"--vmids: the range of the recast.yaml that has rolled them")
		}
	}
	if taken := in.othersIn(config.VMIDRange{First: r.First, Last: r.First}, own); len(taken) > 0 {
		return fault.WithHint(fault.Refusedf("%s has the first number of %s, which is the claim's", taken[0], r), "--vmids: a range that starts with an unused number")
	}
	for _, n := range in.found.Nodes {
		if int(n.VM.ID) == r.First || int(n.Holder) == r.First {
			return fault.WithHint(fault.Refusedf("VM %d, which is or has disks of node %s, has the first number of %s, which is the claim's", r.First, n.Name, r),
				"--vmids: a range that starts with an unused number")
		}
	}
	return nil
}

// othersIn returns the VMs and containers in a range that are neither nodes, nor own disks
// of nodes, nor are recast's own.
func (in *initial) othersIn(r config.VMIDRange, own []cluster.VM) []string {
	var out []string
	for _, vm := range in.found.VMs {
		node := slices.ContainsFunc(in.found.Nodes, func(n survey.Discovered) bool { return n.VM.ID == vm.ID || n.Holder == vm.ID })
		mine := slices.ContainsFunc(own, func(o cluster.VM) bool { return o.ID == vm.ID })
		if r.Contains(int(vm.ID)) && !node && !mine {
			out = append(out, vm.String())
		}
	}
	for _, c := range in.containers {
		if r.Contains(int(c.ID)) {
			out = append(out, c.String())
		}
	}
	return out
}

// freeRange is the first hundred unused VMIDs from 9000 on, or more of them for more nodes.
func (in *initial) freeRange() config.VMIDRange {
	size := 100
	for size < len(in.found.Nodes)+2 {
		size += 100
	}
	r := config.VMIDRange{First: 9000, Last: 9000 + size - 1}
	for slices.ContainsFunc(in.found.VMs, func(vm cluster.VM) bool { return r.Contains(int(vm.ID)) }) ||
		slices.ContainsFunc(in.containers, func(c cluster.Container) bool { return r.Contains(int(c.ID)) }) {
		r.First, r.Last = r.First+100, r.Last+100
	}
	return r
}

type extraFile struct {
	name    string
	mode    fs.FileMode
	content func(context.Context) ([]byte, error)
}

// write creates all files in a temporary directory, locks them there, and then moves them to their places.
func (in *initial) write(ctx context.Context) error {
	files := cluster.Each(in.plans, plannedSchematic.file)
	files = append(files, cluster.Each(in.extra, func(f extraFile) string { return f.name })...)
	if err := Vacant(in.Dir, in.Force, files...); err != nil {
		return err
	}
	files = append(files, "recast.lock", "recast.yaml") // recast.yaml last: it completes the set
	err := Place(in.Dir, files, func(stage string) error {
		if err := in.lockIn(ctx, stage); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := in.keepOldLock(); err != nil {
			return err
		}
		if in.fresh {
			return keepsSecrets(in.Dir)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(files)
	in.res.Files, in.res.Dir = files, in.Dir
	return nil
}

// Place writes all of the files or none: fill makes them in a temporary directory, from which they are moved.
func Place(dir string, files []string, fill func(stage string) error) (err error) {
	if _, errThere := os.Stat(dir); errors.Is(errThere, fs.ErrNotExist) {
		defer func() {
			if err != nil {
				_ = os.Remove(dir) // the directory is empty
			}
		}()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.Configf("create the directory: %w", err)
	}
	stage, err := os.MkdirTemp(dir, ".recast-init-*")
	if err != nil {
		return fault.Configf("write to %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	if err := fill(stage); err != nil {
		return err
	}
	return moveIn(stage, dir, files)
}

func (in *initial) lockIn(ctx context.Context, stage string) error {
	for _, p := range in.plans {
		mode := fs.FileMode(0o644)
		if len(p.Secrets()) > 0 {
			mode = 0o600
		}
		if err := WriteSynced(filepath.Join(stage, p.file()), []byte(p.content()), mode); err != nil {
			return err
		}
	}
	for _, f := range in.extra {
		text, err := f.content(ctx)
		if err != nil {
			return err
		}
		if err := WriteSynced(filepath.Join(stage, f.name), text, f.mode); err != nil {
			return err
		}
	}
	here := in.draft // paths are relative to the file
	if here.CAFile != "" && !filepath.IsAbs(here.CAFile) {
		dir, err := filepath.Abs(in.Dir)
		if err != nil {
			return fault.Configf("find %s: %w", in.Dir, err)
		}
		here.CAFile = filepath.Join(dir, here.CAFile)
	}
	if err := renderTo(filepath.Join(stage, "recast.yaml"), here.Render); err != nil {
		return in.otherwise(err)
	}
	p, err := in.src.Load(filepath.Join(stage, "recast.yaml"))
	if err != nil {
		return err
	}
	im, err := in.src.Images(p)
	if err != nil {
		return err
	}
	res, err := pipeline.Lock(ctx, p, im, pipeline.LockOptions{})
	if err != nil {
		what := "lock what the nodes run"
		if in.fresh {
			what = "lock the schematic"
		}
		return fault.WithHint(fmt.Errorf("%s: %w", what, err),
			"the official extensions are read from %s, and the factory is %s: --extensions and --factory change that. Nothing was written", in.draft.Extensions, in.draft.Factory)
	}
	for _, w := range res.Warnings {
		in.warn("%s; %s", w, w.Hint)
	}
	if in.fresh {
		return nil
	}
	p.Config.Dir = in.Dir // where past locks are
	if err := in.compare(p, res.Lock); err != nil {
		return err
	}
	return renderTo(filepath.Join(stage, "recast.yaml"), in.draft.Render)
}

func (in *initial) compare(p pipeline.Project, lock schematics.Lock) error {
	past, err := p.History(lock)
	if err != nil {
		return err
	}
	for i, w := range p.Wanted(lock) {
		d := observe.Diff(w, in.found.Nodes[i].Found(), past)
		in.res.Drift = append(in.res.Drift, d)
		for _, r := range d.Reasons {
			if r.Code != "extension-extra" {
				continue
			}
			for j, s := range in.draft.Schematics {
				if s.Name == w.Schematic {
					in.draft.Schematics[j].Unknown = append(s.Unknown, r.Text)
				}
			}
		}
	}
	for j, s := range in.draft.Schematics {
		slices.Sort(s.Unknown)
		in.draft.Schematics[j].Unknown = slices.Compact(s.Unknown)
	}
	return nil
}

// keepOldLock archives the lock that will be replaced, as recast lock does: it describes
// the builds that nodes may still run.
func (in *initial) keepOldLock() error {
	old, err := schematics.ReadLock(filepath.Join(in.Dir, "recast.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.WithHint(err, "or move it elsewhere and keep it: nodes may still run its builds. Nothing was changed")
	}
	state := filepath.Join(in.Dir, ".recast")
	if err := journal.CheckPrivate(state); err != nil {
		return err
	}
	if err := journal.KeepOutOfGit(state); err != nil {
		return err
	}
	return schematics.Archive(filepath.Join(state, "locks"), old)
}

func renderTo(path string, render func() ([]byte, error)) error {
	b, err := render()
	if err != nil {
		return err
	}
	return WriteSynced(path, b, 0o644)
}

// WriteSynced writes a file and syncs it to disk.
func WriteSynced(path string, content []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return f.Sync()
}

// moveIn renames files of one directory into another. If one of them fails, it moves the
// others back and restores the files that they replaced.
func moveIn(from, to string, files []string) (err error) {
	type step struct{ was, is string }
	var done []step
	move := func(was, is string) error {
		if err := os.MkdirAll(filepath.Dir(is), 0o755); err != nil {
			return err
		}
		if err := os.Rename(was, is); err != nil {
			return err
		}
		done = append(done, step{was, is})
		return nil
	}
	defer func() {
		if err == nil {
			return
		}
		for _, s := range slices.Backward(done) {
			err = errors.Join(err, os.Rename(s.is, s.was))
		}
		err = fault.As(fault.Config, fmt.Errorf("write to %s: %w", to, err))
	}()
	for _, name := range files {
		path := filepath.Join(to, name)
		if err := move(path, filepath.Join(from, "replaced", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := move(filepath.Join(from, name), path); err != nil {
			return err
		}
	}
	return nil
}
