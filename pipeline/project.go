// Package pipeline holds one function for each command that reads or changes the world. Each function reads in order,
// from its first line to its last. Three commands have packages of their own: init is
// [github.com/recast-sh/recast/pipeline/setup], doctor pipeline/checkup, and support-bundle pipeline/support.
package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Project is a configuration and the files around it.
type Project struct {
	Config *config.Config
}

// Open returns the project of a configuration. It refuses a State directory that another
// user could have created or can change: recast trusts everything in it.
func Open(c *config.Config) (Project, error) {
	p := Project{Config: c}
	return p, errors.Join(journal.CheckPrivate(p.State()), journal.CheckPrivate(p.cacheDir()))
}

func (p Project) LockFile() string { return filepath.Join(p.Config.Dir, "recast.lock") }

// State is the directory of recast's own files: journals, past locks, the cache unless RECAST_CACHE_DIR names another.
func (p Project) State() string { return filepath.Join(p.Config.Dir, ".recast") }

func (p Project) Locks() past.Locks {
	return past.Locks{Present: p.LockFile(), Dir: filepath.Join(p.State(), "locks"), Runs: p.Runs()}
}

func (p Project) cacheDir() string {
	return cmp.Or(p.Config.CacheDir, filepath.Join(p.State(), "cache"))
}
func (p Project) isoCache() string { return filepath.Join(p.cacheDir(), "iso") }

// SharedRuns is the list of the cluster's runs in its mirror, as images.Records have it; "" if there is none.
func SharedRuns(p Project) string {
	if p.Config.Images.Mirror == "" || p.Config.History.Share == config.ShareNever {
		return ""
	}
	return p.Config.Images.Mirror + ":recast-history-" + p.Config.Cluster
}

// Images are the clients that build and find images.
type Images struct {
	Factory  images.Factory
	Registry interface {
		images.Registry
		images.Puller
		images.Copier
		images.Archives
		schematics.ExtensionImages
	}
	Imager  images.Imager
	Catalog schematics.Catalog
}

// Machines are the clients that read and change a cluster.
type Machines struct {
	Proxmox     cluster.Proxmox
	Store       images.Store
	Talos       cluster.Talos
	Maintenance cluster.Maintenance
	Kube        cluster.Kube
	Leases      cluster.Leases
	Files       cluster.FileReader
	Claims      observe.ClaimReader
	Objects     cluster.ObjectJudge
	Commands    cluster.CommandRunner
	// MachineConfig returns a node's configuration from the user's files; nil: there are none.
	MachineConfig func(ctx context.Context, node string) (cluster.Secret, bool, error)
}

// Lock reads the lock and checks that it belongs to this configuration: a lock of other
// schematics or another Talos version must never be rolled out.
func (p Project) Lock() (schematics.Lock, error) {
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return schematics.Lock{}, err
	}
	req, err := request(p.Config)
	if err != nil {
		return schematics.Lock{}, err
	}
	if err := lock.Matches(req); err != nil {
		return schematics.Lock{}, fault.WithHint(fault.LockStale.Of(fault.As(fault.Config, err)), "run recast lock; to go back to that lock, also check out the recast.yaml and the schematics that it belongs to")
	}
	return lock, nil
}

// Wanted joins configuration and lock, one entry per node, in the order of the configuration.
func (p Project) Wanted(lock schematics.Lock) []cluster.Wanted {
	builds := map[string]cluster.Build{} // by schematic
	var out []cluster.Wanted
	for _, n := range p.Config.Nodes {
		if _, known := builds[n.Schematic]; !known {
			builds[n.Schematic] = p.build(lock, n.Schematic)
		}
		out = append(out, cluster.Wanted{
			Name: n.Name, VMID: cluster.VMID(n.VMID), Schematic: n.Schematic, Build: builds[n.Schematic],
			Strategy: cluster.Strategy(n.Strategy), Holder: cluster.VMID(n.Holder), AcceptLoss: n.AcceptLoss,
			Kubernetes: p.Config.Kubernetes.Version, SystemDisk: n.SystemDisk.Slot, SystemGiB: n.SystemDisk.SizeGiB,
			ISOStorages: p.Config.Images.ISO.Storage, Boot: p.Config.Images.Boot, DiskStorages: p.Config.Images.Disk.Storage, Shape: shapeOf(p.Config, n), Addr: addressOf(p.Config, n),
			Surge: n.Surge,
		})
	}
	return out
}

// shapeOf is what the configuration says about a node's VM. It leaves out the size of the system disk, which is meant
// for a new system disk.
func shapeOf(c *config.Config, n config.Node) cluster.Shape {
	vm := c.ShapeOf(n)
	s := cluster.Shape{Class: n.Class, Settings: vm.Settings(), Devices: vm.Devices(), Pool: value(vm.Pool), HA: vm.HAOptions(), Host: n.Host, CloudInit: value(vm.CloudInit)}
	for _, d := range vm.Disks {
		disk := cluster.ShapeDisk{Key: d.Slot, Storage: value(d.Storage), Options: d.Options()}
		if d.Size != nil && !d.IsSystem() {
			disk.SizeGiB = d.Size.GiB
		}
		s.Disks = append(s.Disks, disk)
	}
	if s.IsEmpty() {
		return cluster.Shape{}
	}
	return s
}

// addressOf is the address that the machine of a new node will have, as far as the configuration says.
func addressOf(c *config.Config, n config.Node) netip.Addr {
	if addr, err := netip.ParseAddr(n.Address); err == nil {
		return addr
	}
	for part := range strings.SplitSeq(strings.Join(c.ShapeOf(n).IPConfig[:min(1, len(c.ShapeOf(n).IPConfig))], ""), ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimPrefix(part, "ip=")); err == nil {
			return prefix.Addr()
		}
	}
	return netip.Addr{}
}

// value returns the string that s points to; "" if s is nil.
func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (p Project) build(lock schematics.Lock, schematic string) cluster.Build {
	b, e := build(lock, schematic), lock.Schematics[schematic]
	if slices.Contains([]string{config.BootDisk, config.BootAuto}, p.Config.Images.Boot) {
		if b.NoDisk = lock.NoDisk(e, p.ByImager(schematic)); b.NoDisk == "" {
			b.DiskName = lock.DiskName(e)
		}
	}
	return b
}

func build(lock schematics.Lock, schematic string) cluster.Build {
	e := lock.Schematics[schematic]
	return cluster.Build{
		ID: e.BuildID, TalosVersion: lock.Talos, Broken: lock.Broken, Arch: lock.Arch, Platform: lock.Platform, SecureBoot: lock.SecureBoot, SchematicID: e.SchematicID, LockHash: e.LockHash,
		Extensions: extensions(e.Extensions), Overlay: overlay(e), Rebuild: e.Rebuild, Installer: e.Installer, ISOName: e.ISO.Name, Uploads: uploads(e.Uploads), DiskBytes: e.Disk.DiskBytes, KernelArgs: e.KernelArgs(), EmbedsConfig: e.EmbedsConfig(), Schematic: cluster.Secret(e.Schematic),
	}
}

func uploads(list []schematics.Upload) []cluster.Upload {
	return cluster.Each(list, func(u schematics.Upload) cluster.Upload {
		return cluster.Upload{Of: u.Of(), Name: u.Name, Storage: u.Storage, Host: u.Host, Changed: u.Changed}
	})
}

func extensions(list []schematics.Extension) []cluster.LockedExtension {
	return cluster.Each(list, func(e schematics.Extension) cluster.LockedExtension {
		return cluster.LockedExtension{Name: e.Name, Version: e.Version, Ref: e.Ref, Digest: e.Digest}
	})
}

func nodeOf(n planning.NodePlan) string { return n.Node }

func overlay(e schematics.Locked) cluster.LockedOverlay {
	if e.Overlay == nil {
		return cluster.LockedOverlay{}
	}
	return cluster.LockedOverlay{Name: e.Overlay.Name, Digest: e.Overlay.Digest}
}

// Runs returns the runs whose journals are on this machine, and the copies of other machines' runs.
func (p Project) Runs() past.Runs {
	return past.Runs{Dir: filepath.Join(p.State(), "runs"), Elsewhere: filepath.Join(p.State(), "elsewhere")}
}

// History maps the hashes of this lock and of past ones to what they pin.
func (p Project) History(lock schematics.Lock) (cluster.History, error) {
	h, err := schematics.ReadHistory(p.Locks().Dir, append([]schematics.Lock{lock}, p.Locks().Shared()...)...)
	if err != nil {
		return nil, err
	}
	return func(hash string) (cluster.LockedContent, bool) {
		e, known := h.ByLockHash(hash)
		return cluster.LockedContent{Extensions: extensions(e.Extensions), Overlay: overlay(e), Rebuild: e.Rebuild}, known
	}, nil
}

// observation reads the state of every configured node; first is observe.Sources.First.
func observation(ctx context.Context, p Project, src observe.Sources, wanted []cluster.Wanted, first, rebuild string) (observe.Observation, error) {
	if src.First, src.Rebuild = first, rebuild; first != "" || rebuild != "" {
		src.Past = nil
	}
	o, err := observe.Observe(ctx, src, wanted)
	if err != nil {
		return o, err
	}
	o.PastBuilds, err = pastBuilds(p)
	return o, err
}

// ObserveNodes reads the configured nodes, whatever the lock is.
func ObserveNodes(ctx context.Context, p Project, m Machines) (observe.Observation, error) {
	lock, _ := schematics.ReadLock(p.LockFile()) // reported separately
	return observation(ctx, p, Sources(p, m), p.Wanted(lock), "", "")
}

// Sources returns the clients with which a project's nodes are read.
func Sources(p Project, m Machines) observe.Sources {
	return observe.Sources{
		Proxmox: m.Proxmox, Talos: m.Talos, Maintenance: m.Maintenance, Kube: m.Kube, Cluster: p.Config.Cluster, ParkingIDs: parkingIDs(p),
		ConfigKnown: func(ctx context.Context, node string, rec parking.Record) (cluster.ConfigPlace, error) {
			return configKnown(ctx, p, m, node, rec)
		}, MachineConfig: m.MachineConfig,
	}
}

// configKnown says where the machine configuration of a node is: in the journal of the record's run, if that journal
// is here, or in the user's files. Either must match the checksum in the record.
func configKnown(ctx context.Context, p Project, m Machines, node string, rec parking.Record) (cluster.ConfigPlace, error) {
	found, damaged := hasConfig(p.Runs().Dir, node, rec)
	switch {
	case found:
		return cluster.ConfigInJournal, nil
	case damaged != nil && !errors.Is(damaged, cluster.ErrConfigDamaged):
		return cluster.ConfigNowhere, damaged
	case m.MachineConfig == nil:
		return cluster.ConfigNowhere, damaged
	}
	switch file, found, err := m.MachineConfig(ctx, node); {
	case err != nil:
		return cluster.ConfigNowhere, err
	case found && rec.CheckConfig(file) == nil:
		return cluster.ConfigInFile, nil
	}
	return cluster.ConfigNowhere, damaged
}

// hasConfig says whether the machine configuration of a node is in the journal of the
// record's run. ErrConfigDamaged: it is there, but damaged.
func hasConfig(dir, node string, rec parking.Record) (bool, error) {
	runs, err := journal.Runs(dir)
	if err != nil || !slices.ContainsFunc(runs, func(r journal.RunInfo) bool { return r.ID == rec.Run }) {
		return false, err
	}
	j, err := journal.Open(dir, journal.Options{Run: rec.Run, ReadOnly: true})
	if err != nil {
		return false, err
	}
	defer j.Close()
	config, found, err := j.Secret(roll.MachineConfigKey(node))
	if errors.Is(err, journal.ErrEmpty) {
		return false, rec.CheckConfig(nil)
	}
	if err == nil && found {
		err = rec.CheckConfig(config)
	}
	return found && err == nil, err
}

func pastBuilds(p Project) (map[string]cluster.Build, error) {
	h, err := schematics.ReadHistory(p.Locks().Dir)
	if err != nil {
		return nil, err
	}
	builds := map[string]cluster.Build{}
	for _, lock := range h.Locks() {
		for name := range lock.Schematics {
			b := build(lock, name)
			builds[b.ID] = b
		}
	}
	return builds, nil
}

func awaitTasks(ctx context.Context, p Project, px cluster.Tasks, vms []cluster.VM, say func(string)) error {
	nodes := cluster.Each(p.Config.Nodes, func(n config.Node) cluster.Wanted {
		return cluster.Wanted{Name: n.Name, VMID: cluster.VMID(n.VMID), Holder: cluster.VMID(n.Holder)}
	})
	of, err := exchange.TouchedBy(vms, p.Config.Cluster, nodes, func(id cluster.VMID) bool { return p.Config.Proxmox.VMIDs.Contains(int(id)) })
	if err != nil {
		return err
	}
	return exchange.AwaitOwnTasks(ctx, px, of, timing(p.Config).Poll, say)
}

// readable lists the VMs that can be read, and the hosts whose VMs can't. The claim must be readable.
func readable(ctx context.Context, p Project, px cluster.VMReader) ([]cluster.VM, *cluster.HostsAway, error) {
	vms, err := px.VMs(ctx)
	away, lacking := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !lacking {
		return nil, nil, fmt.Errorf("read Proxmox: %w", err)
	}
	if claim, there := away.VM(p.ClaimID()); there {
		return vms, away, fault.As(fault.Refused, fmt.Errorf("whether a run is at work can't be determined: the claim is VM %d on %s: %w", claim.ID, claim.Host, err))
	}
	return vms, away, nil
}

// Hypervisor is what doctor and init read from Proxmox.
type Hypervisor interface {
	cluster.Access
	cluster.Inventory
	// Hosts lists the nodes of the Proxmox cluster.
	Hosts(ctx context.Context) ([]cluster.Host, error)
	// Containers lists the containers of the Proxmox cluster, by VMID; VMs have other VMIDs.
	Containers(ctx context.Context) ([]cluster.Container, error)
	// Uploaders names who else may upload to a storage, as far as access control lists show; no administrators.
	Uploaders(ctx context.Context, storage string) ([]string, error)
	// Rebalancing returns the settings with which Proxmox HA moves VMs by itself, to balance load, and when it does.
	Rebalancing(ctx context.Context) ([]string, error)
	images.Reacher
	images.Storages
	images.Finder
}

func (p Project) Policy(asked planning.Policy) planning.Policy {
	r := p.Config.Roll
	asked.WorkersFirst, asked.Canary, asked.CanaryNode = r.Order == "workers-first", r.Canary.On, r.Canary.Node
	asked.MaxUnavailable, asked.PerHost = r.MaxUnavailable.Workers.Of, r.MaxUnavailable.PerHost
	asked.Surge = r.Surge.Of
	asked.WorkersBeside, asked.KeepDisks = r.WorkersBeside, r.KeepDisks
	asked.IgnoreNodes = r.IgnoreNodes
	asked.BootFailure = cluster.BootFailure(r.BootFailure)
	asked.Reboot = cluster.Reboot(r.Reboot)
	asked.DrainDeletes = r.Drain.OnTimeout == "delete"
	return asked
}

// Gates returns the user's gates in the order of the configuration.
func (p Project) Gates() []cluster.UserGate {
	return cluster.Each(p.Config.Roll.Gates, func(g config.Gate) cluster.UserGate { return gate(p.Config, g) })
}

func gate(c *config.Config, g config.Gate) cluster.UserGate {
	out := cluster.UserGate{
		Description: g.Description, BeforeOnly: g.When == "before",
		TimeoutSeconds: max(1, int(time.Duration(g.Timeout).Seconds())),
	}
	if len(g.Command) > 0 {
		out.Command = &cluster.CommandGate{Args: g.Command, Dir: c.Dir, Env: g.Env}
		return out
	}
	out.Objects = &cluster.ObjectGate{
		APIVersion: g.APIVersion, Kind: g.Kind, Namespace: g.Namespace, Name: g.Name,
		Labels: g.LabelSelector.String(), Expr: g.Expr, Optional: g.Optional,
	}
	return out
}

// Hooks returns the user's hooks in the order of the configuration.
func (p Project) Hooks() cluster.Hooks {
	list := func(in []config.Hook) []cluster.Hook {
		var out []cluster.Hook
		for _, h := range in {
			out = append(out, cluster.Hook{
				Description: h.Description, TimeoutSeconds: max(1, int(time.Duration(h.Timeout).Seconds())),
				Command: cluster.CommandGate{Args: h.Command, Dir: p.Config.Dir, Env: h.Env},
			})
		}
		return out
	}
	h := p.Config.Roll.Hooks
	return cluster.Hooks{
		BeforeRun: list(h.BeforeRun), AfterRun: list(h.AfterRun), BeforeBatch: list(h.BeforeBatch), AfterBatch: list(h.AfterBatch),
		BeforeNode: list(h.BeforeNode), AfterNode: list(h.AfterNode),
	}
}

func timing(c *config.Config) cluster.Timing {
	r := c.Roll
	return cluster.Timing{
		Poll: time.Duration(r.Poll), Settle: time.Duration(r.Settle), Stop: time.Duration(r.Timeouts.Stop),
		Boot: time.Duration(r.Timeouts.Boot), Join: time.Duration(r.Timeouts.Join), Try: time.Duration(r.Timeouts.Try), Drain: time.Duration(r.Drain.Timeout), Heal: time.Duration(r.Timeouts.Storage),
	}
}

// ByImager says whether the imager, not a factory, builds a schematic.
func (p Project) ByImager(schematic string) bool {
	return p.Config.Images.BuilderOf(p.Config.Schematics[schematic]) == config.BuilderImager
}

// RehearsalOn returns how scratch VMs are reached.
func (p Project) RehearsalOn() planning.Rehearsal {
	var r planning.Rehearsal
	for _, a := range p.Config.Roll.Rehearse.Addresses {
		if prefix, err := netip.ParsePrefix(a); err == nil { // the configuration was checked
			r.Addresses = append(r.Addresses, prefix)
		}
	}
	r.Gateway, _ = netip.ParseAddr(p.Config.Roll.Rehearse.Gateway) // this, too, was checked
	return r
}

func nodeNames(c *config.Config) []string {
	return cluster.Each(c.Nodes, func(n config.Node) string { return n.Name })
}

// RequireNodes refuses the first name that is no node's.
func (p Project) RequireNodes(names ...string) error {
	known := nodeNames(p.Config)
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fault.WithHint(fault.Configf("no node %q", name), "the nodes are: %s", strings.Join(known, ", "))
		}
	}
	return nil
}

func (p Project) VMIDs() cluster.VMIDRange {
	r := p.Config.Proxmox.VMIDs
	return cluster.VMIDRange{First: cluster.VMID(r.First), Last: cluster.VMID(r.Last)}
}

// NodeVMs are the known VMIDs of the nodes, sorted: those in the configuration and those of a plan.
func (p Project) NodeVMs(plan planning.Plan) []cluster.VMID {
	ids := cluster.Each(p.Config.Nodes, func(n config.Node) cluster.VMID { return cluster.VMID(n.VMID) })
	ids = append(ids, cluster.Each(plan.Nodes, func(n planning.NodePlan) cluster.VMID { return n.VMID })...)
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id cluster.VMID) bool { return id == 0 })
}

// ClaimID is the VMID of the claim: the first of the range.
func (p Project) ClaimID() cluster.VMID {
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		return cluster.VMID(vmid)
	}
	return 0 // an empty range is refused when the configuration is read
}

// parkingIDs returns the VMIDs for parking VMs, lowest first: the range without the
// claim's and without those that others are known to use.
func parkingIDs(p Project) []cluster.VMID {
	var ids []cluster.VMID
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		id := cluster.VMID(vmid)
		known := slices.ContainsFunc(p.Config.Nodes, func(n config.Node) bool { return n.VMID == vmid || n.Holder == vmid })
		if !known && id != p.ClaimID() {
			ids = append(ids, id)
		}
	}
	return ids
}
