package support

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/bundle"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/pipeline"
)

// The fields of each document that a support bundle includes. Of hooks, gates and webhooks
// it includes only the number.
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

// bundledVM is one of our VMs in a bundle.
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
	out := []bundledVM{}
	for _, vm := range vms {
		if g.isOurs(vm) {
			out = append(out, bundled(vm))
		}
	}
	return out
}

func (g *gathering) isOurs(vm cluster.VM) bool {
	if ids := g.Config.Proxmox.VMIDs; int(vm.ID) >= ids.First && int(vm.ID) <= ids.Last {
		return true
	}
	for _, n := range g.Config.Nodes {
		if vm.Name == n.Name || vm.ID != 0 && (int(vm.ID) == n.VMID || int(vm.ID) == n.Holder) {
			return true
		}
	}
	return false
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
	rec, ok, err := parking.ReadRecord(vm)
	switch {
	case err != nil:
		b.Trouble = err.Error()
	case ok:
		rec.Memory = "" // the VM's whole configuration, compressed
		b.Record = &rec
	}
	return b
}

// seenNode is a node in a bundle.
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
		for _, err := range f.Errs {
			n.Problems = append(n.Problems, err.Error())
		}
		out = append(out, n)
	}
	return out
}

// seenMember is the state of etcd according to a control plane.
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

// commandLines returns the command lines of hooks and gates, except programs without
// arguments, whose name is harmless.
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
