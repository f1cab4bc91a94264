// Package support collects what is needed to get help, without secrets. [Bundle] does it; [Sources] are the reads that
// it may use. Only fields on a fixed list get into the bundle, and what looks like a secret is removed from them.
package support

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/bundle"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Sources are the inputs of Bundle. A nil source is skipped.
type Sources struct {
	Version any // of this program
	// Config is the text of recast.yaml, and Invalid why it can't be used.
	Config  []byte
	Invalid error
	// Secrets are all known secrets: none of them is ever included.
	Secrets []string

	Status  func(context.Context) (pipeline.StatusResult, error)
	Doctor  func(context.Context) checkup.Result
	Observe func(context.Context) (observe.Observation, error)
	VMs     func(context.Context) ([]cluster.VM, error)
	Etcd    cluster.EtcdReader
}

// Timeout of each source, and limits for past runs.
const (
	bundleAsks = 100 * time.Second // longer than doctor's own timeouts
	bundleRuns = 5
	bundleLog  = 4 << 20 // of each log, the newest
)

// Bundle collects what is needed to get help. If something can't be read, it says
// so in the bundle and continues. It changes nothing.
func Bundle(ctx context.Context, p *pipeline.Project, src Sources, now time.Time) *bundle.Bundle {
	name := "recast-support"
	if p != nil {
		name += "-" + p.Config.Cluster
	}
	g := &gathering{Project: p, src: src, out: bundle.New(name, now, src.secrets(p))}
	g.add("version.json", src.Version, bundle.List{"**"})
	g.config()
	if p != nil {
		g.lockFile()
		g.runsHere()
		g.world(ctx)
	}
	g.tell()
	return g.out
}

type gathering struct {
	*pipeline.Project
	src Sources
	out *bundle.Bundle

	mu       sync.Mutex
	problems []string
}

func (g *gathering) problem(what string, err error) {
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.problems = append(g.problems, what+": "+err.Error())
	}
}

func (g *gathering) add(name string, v any, allow bundle.List) {
	g.mu.Lock()
	err := g.out.JSON(name, v, allow)
	g.mu.Unlock()
	g.problem(name, err)
}

func (g *gathering) config() {
	if g.src.Config != nil {
		text, err := configAllowed.YAML(g.src.Config)
		g.problem("recast.yaml", err)
		g.out.Text("recast.yaml", text)
	}
	g.problem("recast.yaml can't be used", g.src.Invalid)
}

func (g *gathering) lockFile() {
	data, err := os.ReadFile(g.LockFile())
	if err == nil {
		var text []byte
		text, err = lockAllowed.YAML(data)
		g.out.Text("recast.lock", text)
	}
	g.problem("recast.lock", err)
	_, err = schematics.ReadLock(g.LockFile())
	g.problem("recast.lock can't be used", err)
}

// runsHere adds the last runs that were started on this machine: results, logs, and from their journals only the plan
// and the names of facts, since journals hold machine configurations.
func (g *gathering) runsHere() {
	runs, err := journal.Runs(g.Runs().Dir)
	g.problem("journals", err)
	g.add("runs.json", runs, bundle.List{"*.ID", "*.Started", "*.Finished", "*.Outcome"})
	for _, run := range runs[:min(len(runs), bundleRuns)] {
		dir := filepath.Join(g.Runs().Dir, run.ID)
		g.keys(run.ID)
		logs, err := filepath.Glob(filepath.Join(dir, "log*.jsonl"))
		g.problem("logs of run "+run.ID, err)
		for _, path := range logs {
			g.log(path, filepath.Join("runs", run.ID, filepath.Base(path)))
		}
	}
}

func (g *gathering) keys(id string) {
	j, err := journal.Open(g.Runs().Dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		g.problem("journal of run "+id, err)
		return
	}
	defer j.Close()
	keys, err := j.Keys("")
	g.problem("journal of run "+id, err)
	g.out.Text(filepath.Join("runs", id, "keys.txt"), []byte(strings.Join(keys, "\n")+"\n"))
	for key, file := range map[string]string{past.PlanKey: "plan.json", past.FirstPlanKey: "plan-first.json"} {
		var plan planning.Plan
		if found, err := j.Get(key, &plan); err != nil {
			g.problem("plan of run "+id, err)
		} else if found {
			g.add(filepath.Join("runs", id, file), plan, planAllowed)
		}
	}
}

// log adds the newest part of a log, line by line. It omits an incomplete last line, which a kill may leave.
func (g *gathering) log(path, name string) {
	data, err := os.ReadFile(path)
	if err != nil {
		g.problem("log "+name, err)
		return
	}
	if len(data) > bundleLog {
		_, data, _ = bytes.Cut(data[len(data)-bundleLog:], []byte("\n"))
	}
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, bundleLog)
	for lines.Scan() {
		allow := logAllowed
		if byUsersProgram(lines.Bytes()) {
			allow = logOfPrograms
		}
		if line, ok := allow.Line(lines.Bytes()); ok {
			out.Write(append(line, '\n'))
		}
	}
	g.problem("log "+name, lines.Err())
	g.out.Lines(name, out.Bytes())
}

// byUsersProgram says whether a line may quote the output of a hook or a gate, which may contain secrets.
func byUsersProgram(line []byte) bool {
	return slices.ContainsFunc([]string{"hook", "ask-gates", "before-run", "after-run"}, func(word string) bool { return bytes.Contains(line, []byte(word)) })
}

// world queries all servers at the same time.
func (g *gathering) world(parent context.Context) {
	ctx, cancel := context.WithTimeoutCause(parent, bundleAsks, errors.New("the bundle waited no longer for it"))
	defer cancel()
	var asks sync.WaitGroup
	if g.src.Status != nil {
		asks.Go(func() {
			res, err := g.src.Status(ctx)
			g.problem("status", err)
			g.add("status.json", res, statusAllowed)
		})
	}
	if g.src.Doctor != nil {
		asks.Go(func() { g.add("doctor.json", withoutPrograms(g.src.Doctor(ctx)), doctorAllowed) })
	}
	if g.src.VMs != nil {
		asks.Go(func() {
			vms, err := g.src.VMs(ctx)
			g.problem("VMs", err)
			g.add("vms.json", g.ourVMs(vms), bundle.List{"**"})
		})
	}
	if g.src.Observe != nil {
		asks.Go(func() {
			seen, err := g.src.Observe(ctx)
			g.problem("nodes", err)
			if err == nil {
				g.add("nodes.json", nodesSeen(seen), bundle.List{"**"})
				g.add("etcd.json", g.etcdSeen(ctx, seen), bundle.List{"**"})
			}
		})
	}
	asks.Wait()
}

// withoutPrograms reduces a diagnosis: of the user's programs and webhooks it keeps only the number and the states.
func withoutPrograms(res checkup.Result) checkup.Result {
	res.Checks = slices.Clone(res.Checks)
	for i, c := range res.Checks {
		if c.Group == checkup.GroupHooks || c.Group == checkup.GroupGates || c.Group == checkup.GroupWebhooks {
			res.Checks[i].What, res.Checks[i].Seen, res.Checks[i].Remedy = bundle.LeftOut, bundle.LeftOut, nil
		}
	}
	return res
}

func (g *gathering) tell() {
	slices.Sort(g.problems)
	if len(g.problems) > 0 {
		g.out.Text("unread.txt", []byte(strings.Join(g.problems, "\n")+"\n"))
	}
	var text strings.Builder
	text.WriteString(bundleReadme + "\nFiles:\n")
	for _, f := range g.out.Files() {
		text.WriteString(fmt.Sprintf("  %s (%d bytes)\n", f.Name, len(f.Data)))
	}
	g.out.Text("README.txt", []byte(text.String()))
}

const bundleReadme = `Support bundle of recast. Review it before you share it.

It contains only fields that are allowed by name. Known secrets, and text that looks like
a secret, were removed from these. It does not contain: the Proxmox token, talosconfig,
kubeconfig, machine configurations, the commands and output of your hooks and gates,
cloud-init users, passwords and keys, and notes of VMs other than recast's own records.
From the journal of a run it has only its result (runs.json), the names of its facts
(keys.txt), its plan (plan.json; plan-first.json is the original plan of a run that was
continued) and its log.

It does contain: names and addresses of nodes and hosts, disks and their storages,
versions, what recast did and when, and why it failed.
`

// The fields of each document that a support bundle includes. Of hooks, gates and webhooks it includes only the number.
var (
	configAllowed = bundle.List{
		"version", "cluster", "talos.version", "talos.config", "talos.machineConfigs", "talos.machineConfigs.dir", "talos.machineConfigs.names", "kubernetes.version",
		"images.builder", "images.factory", "images.extensions", "images.caFile", "images.platform", "images.arch", "images.secureBoot", "images.signature",
		"images.signingKey", "images.imager.image", "images.mirror", "images.iso.storage.*", "images.iso.delivery",
		"schematics.*", "schematics.*.file", "schematics.*.extensions.*",
		"proxmox.endpoints.*", "proxmox.fingerprint", "proxmox.caFile", "proxmox.vmids",
		"nodes.*.name", "nodes.*.schematic", "nodes.*.vmid", "nodes.*.strategy", "nodes.*.holder", "nodes.*.acceptLoss.*",
		"nodes.*.surge", "nodes.*.systemDisk.slot", "nodes.*.systemDisk.sizeGiB",
		"roll.strategy", "roll.order", "roll.maxUnavailable.*", "roll.surge", "roll.workersBeside", "roll.canary", "roll.drain.*", "roll.settle", "roll.poll",
		"roll.timeouts.*", "roll.bootFailure", "roll.keepDisks", "roll.ignoreNodes.*", "roll.etcdSnapshot", "roll.rehearse.enabled", "roll.rehearse.addresses.*", "roll.rehearse.gateway",
		"roll.gates.*.kind", "roll.gates.*.apiVersion", "roll.gates.*.timeout", "roll.hooks.*.*.timeout", "notify.*.on.*",
	}
	// Not the schematics themselves: kernel arguments may contain a token, and an embedded configuration contains secrets.
	lockAllowed = bundle.List{
		"version", "talos", "arch", "platform", "secureBoot", "secureBootKey", "signers.*", "checksum",
		"schematics.*.file", "schematics.*.buildID", "schematics.*.schematicID", "schematics.*.lockHash", "schematics.*.extensions.*.*",
		"schematics.*.overlay.*", "schematics.*.rebuild", "schematics.*.installer", "schematics.*.signer", "schematics.*.iso.*",
	}
	planAllowed = bundle.List{
		"version", "id", "lock", "config", "acceptOutage", "what.*", "cluster", "run", "nodes.*.*", "nodes.*.drift.**", "nodes.*.refused.*", "nodes.*.willLose.*",
		"nodes.*.notes.*", "nodes.*.slots.*", "nodes.*.carried.*.*", "nodes.*.systemDisk.*", "nodes.*.frees.*.*", "nodes.*.renewed.*",
		"maxUnavailable", "perHost", "workersBeside", "totalSeconds", "surge.**", "batches.**", "room.*", "warnings.*", "kubernetes.*", "scratch.**", "trials.**",
	}
	logOfPrograms = bundle.List{
		"time", "level", "msg", "status", "command", "version", "exitCode", "seconds", "code", "run", "step", "node", "risk",
		"server", "host", "method", "path",
	}
	logAllowed    = append(slices.Clone(logOfPrograms), "title", "text", "error", "hints.*")
	statusAllowed = bundle.List{
		"cluster", "claim.**", "lastRun.**", "open.**", "marked.**", "kept.**", "scratch.**", "surge.*", "kubernetes", "problems.*",
	}
	doctorAllowed = bundle.List{
		"cluster", "checks.*.*", "checks.*.remedy.*", "needs.**", "proxmoxVersion", "grants.*", "caution", "nodes.**",
	}
)

type bundledVM struct {
	ID      cluster.VMID      `json:"vmid"`
	Name    string            `json:"name"`
	Host    string            `json:"host"`
	Running bool              `json:"running"`
	Lock    string            `json:"lock,omitempty"`
	HA      bool              `json:"ha,omitempty"`
	Pool    string            `json:"pool,omitempty"`
	Digest  string            `json:"digest"`
	Pending []string          `json:"pending,omitempty"`
	UUID    string            `json:"uuid"`
	MadeBy  string            `json:"madeByRun,omitempty"`
	Config  map[string]string `json:"config"`
	LeftOut []string          `json:"leftOut,omitempty"` // other keys of its configuration
	Record  *parking.Record   `json:"record,omitempty"`
	Trouble string            `json:"recordTrouble,omitempty"`
}

// vmAllowed are the keys of a VM's configuration that hold no secrets: not ciuser,
// cipassword, sshkeys, cicustom, args, hookscript, description.
var vmAllowed = regexp.MustCompile(`^(?:(?:scsi|virtio|sata|ide|unused|efidisk|tpmstate|net|ipconfig|hostpci|numa|serial)\d+|acpi|agent|arch|autostart|balloon|bios|boot|cores|cpu|cpulimit|cpuunits|hotplug|hugepages|kvm|lock|machine|memory|meta|name|numa|onboot|ostype|protection|rng0|scsihw|searchdomain|nameserver|shares|sockets|startup|tablet|tags|template|vcpus|vga|vmgenid|watchdog)$`)

// ourVMs returns the VMs of nodes, their holders, and recast's own VMs.
func (g *gathering) ourVMs(vms []cluster.VM) []bundledVM {
	return append([]bundledVM{}, cluster.Each(cluster.Where(vms, g.isOurs), bundled)...)
}

func (g *gathering) isOurs(vm cluster.VM) bool {
	for _, n := range g.Config.Nodes {
		if vm.Name == n.Name || vm.ID != 0 && (int(vm.ID) == n.VMID || int(vm.ID) == n.Holder) {
			return true
		}
	}
	return g.Config.Proxmox.VMIDs.Contains(int(vm.ID))
}

func bundled(vm cluster.VM) bundledVM {
	b := bundledVM{
		ID: vm.ID, Name: vm.Name, Host: vm.Host, Running: vm.Running, Lock: vm.Lock, HA: vm.HA, Pool: vm.Pool, Digest: vm.Digest,
		Pending: vm.Pending, UUID: vm.UUID(), MadeBy: vm.MadeBy(), Config: map[string]string{},
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if vmAllowed.MatchString(key) {
			b.Config[key] = vm.Config[key]
		} else {
			b.LeftOut = append(b.LeftOut, key)
		}
	}
	rec, ok, err := parking.SaidRecord(vm)
	switch {
	case err != nil:
		b.Trouble = err.Error()
	case ok:
		rec.Memory = "" // the VM's whole configuration, compressed
		b.Record = &rec
	}
	return b
}

type seenNode struct {
	Name         string                   `json:"name"`
	Addr         string                   `json:"address"`
	VMID         cluster.VMID             `json:"vmid,omitempty"`
	Talos        string                   `json:"talos,omitempty"`
	Stage        string                   `json:"stage,omitempty"`
	Ready        bool                     `json:"machineReady"`
	Unmet        []string                 `json:"unmet,omitempty"`
	Schematic    string                   `json:"schematic,omitempty"`
	LockHash     string                   `json:"lockHash,omitempty"`
	Extensions   []cluster.ExtensionEntry `json:"extensions,omitempty"`
	SystemDisk   string                   `json:"systemDisk,omitempty"`
	Disks        []cluster.MachineDisk    `json:"disks,omitempty"`
	Volumes      []cluster.Volume         `json:"volumes,omitempty"`
	Kubelet      string                   `json:"kubelet,omitempty"`
	NodeReady    bool                     `json:"nodeReady"`
	ControlPlane bool                     `json:"controlPlane"`
	Cordoned     bool                     `json:"cordoned,omitempty"`
	Mark         *cluster.Mark            `json:"mark,omitempty"`
	Problems     []string                 `json:"problems,omitempty"`
}

func nodesSeen(seen observe.Observation) []seenNode {
	out := []seenNode{}
	for _, f := range seen.Found {
		n := seenNode{Name: f.Name, Addr: fmt.Sprint(f.Addr)}
		if f.VM != nil {
			n.VMID = f.VM.ID
		}
		if m := f.Machine; m != nil {
			n.Talos, n.Stage, n.Ready, n.Unmet, n.SystemDisk = m.TalosVersion, m.Stage, m.Ready, m.Unmet, m.SystemDisk
			n.Schematic, n.LockHash, n.Disks, n.Volumes = m.Schematic.ID, m.Schematic.LockHash(), m.Disks, m.Volumes
			for _, e := range m.Extensions {
				n.Extensions = append(n.Extensions, cluster.ExtensionEntry{Name: e.Name, Version: e.Version})
			}
		}
		if k := f.Node; k != nil {
			n.Kubelet, n.NodeReady, n.ControlPlane, n.Cordoned, n.Mark = k.KubeletVersion, k.Ready, k.ControlPlane, k.Unschedulable, k.Mark
		}
		n.Problems = append(n.Problems, cluster.Each(f.Errs, error.Error)...)
		out = append(out, n)
	}
	return out
}

type seenMember struct {
	Node    string               `json:"node"`
	Status  *cluster.EtcdStatus  `json:"status,omitempty"`
	Members []cluster.EtcdMember `json:"members,omitempty"` // as it knows them
	Problem string               `json:"problem,omitempty"`
}

func (g *gathering) etcdSeen(ctx context.Context, seen observe.Observation) []seenMember {
	out := []seenMember{}
	if g.src.Etcd == nil {
		return out
	}
	for _, f := range seen.Found {
		if f.Node == nil || !f.Node.ControlPlane || !f.Addr.IsValid() {
			continue
		}
		m := seenMember{Node: f.Name}
		status, err := g.src.Etcd.EtcdStatus(ctx, f.Addr)
		if err == nil {
			m.Status = &status
			m.Members, err = g.src.Etcd.EtcdMembers(ctx, f.Addr)
		}
		if err != nil {
			m.Problem = err.Error()
		}
		out = append(out, m)
	}
	return out
}

// secrets returns all secrets on this machine: the given ones, those of Secrets, and the command lines of hooks and gates.
func (src Sources) secrets(p *pipeline.Project) []string {
	out := slices.Clone(src.Secrets)
	if p == nil {
		return out
	}
	return slices.Concat(out, commandLines(*p), Secrets(*p))
}

// Secrets returns the secrets in the files of a project: its journals, talos.machineConfigs and the talosconfig.
func Secrets(p pipeline.Project) (out []string) {
	files, _ := filepath.Glob(filepath.Join(p.Runs().Dir, "*", "*.secret")) // the pattern is valid
	if dir := p.Config.Talos.MachineConfigs.Path; dir != "" {
		more, _ := filepath.Glob(filepath.Join(dir, "*.yaml"))
		files = append(files, more...)
	}
	for _, file := range append(files, p.Config.Talos.Config) {
		if b, err := os.ReadFile(file); err == nil { // the file itself is never included
			out = append(out, redact.YAML(b)...)
		}
	}
	return out
}

// commandLines returns the command lines of hooks and gates, except programs without arguments, whose name is harmless.
func commandLines(p pipeline.Project) (lines []string) {
	add := func(c cluster.CommandGate, line string) {
		if len(c.Args) > 1 {
			lines = append(lines, line)
		}
	}
	hooks := p.Hooks()
	for _, point := range cluster.HookPoints() {
		for _, h := range hooks.At(point) {
			add(h.Command, h.About())
		}
	}
	for _, g := range p.Gates() {
		if g.Command != nil {
			add(*g.Command, g.About())
		}
	}
	return lines
}
