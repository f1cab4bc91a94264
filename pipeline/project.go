// Package pipeline holds one function for each command that reads or changes
// the world. Each can be read from its first line to its last.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
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
	return p, journal.CheckPrivate(p.State())
}

// LockFile is recast.lock beside the configuration.
func (p Project) LockFile() string { return filepath.Join(p.Config.Dir, "recast.lock") }

// State is the directory of recast's own files: journals, past locks, the ISO cache.
func (p Project) State() string { return filepath.Join(p.Config.Dir, ".recast") }

func (p Project) pastLocks() string { return filepath.Join(p.State(), "locks") }
func (p Project) isoCache() string  { return filepath.Join(p.State(), "cache", "iso") }
func (p Project) runs() string      { return filepath.Join(p.State(), "runs") }

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
	Claims      provenance.ClaimReader
	Objects     cluster.ObjectJudge
	Commands    cluster.CommandRunner
	// MachineConfig returns a node's configuration from the user's files; nil: there
	// are none.
	MachineConfig func(node string) (cluster.Secret, bool, error)
}

// lock reads the lock and checks that it belongs to this configuration: a lock of other
// schematics or another Talos version must never be rolled out.
func (p Project) lock() (schematics.Lock, error) {
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return schematics.Lock{}, err
	}
	req, err := p.request()
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
			builds[n.Schematic] = build(lock, n.Schematic)
		}
		out = append(out, cluster.Wanted{
			Name: n.Name, VMID: cluster.VMID(n.VMID), Schematic: n.Schematic, Build: builds[n.Schematic],
			Strategy: cluster.Strategy(n.Strategy), Holder: cluster.VMID(n.Holder), AcceptLoss: n.AcceptLoss,
			Kubernetes: p.Config.Kubernetes.Version, SystemDisk: n.SystemDisk.Slot, SystemGiB: n.SystemDisk.SizeGiB,
			ISOStorages: p.Config.Images.ISO.Storage,
		})
	}
	return out
}

func build(lock schematics.Lock, schematic string) cluster.Build {
	e := lock.Schematics[schematic]
	return cluster.Build{
		ID: e.BuildID, TalosVersion: lock.Talos, Arch: lock.Arch, Platform: lock.Platform, SecureBoot: lock.SecureBoot, SchematicID: e.SchematicID, LockHash: e.LockHash,
		Extensions: extensions(e.Extensions), Installer: e.Installer, ISOName: e.ISO.Name, KernelArgs: e.KernelArgs(),
		EmbedsConfig: e.EmbedsConfig(),
	}
}

func extensions(list []schematics.Extension) []cluster.LockedExtension {
	var out []cluster.LockedExtension
	for _, e := range list {
		out = append(out, cluster.LockedExtension{Name: e.Name, Version: e.Version, Ref: e.Ref, Digest: e.Digest})
	}
	return out
}

// History maps the hashes of this lock and of past ones to their extensions.
func (p Project) History(lock schematics.Lock) (cluster.History, error) {
	h, err := schematics.ReadHistory(p.pastLocks(), lock)
	if err != nil {
		return nil, err
	}
	return func(hash string) ([]cluster.LockedExtension, bool) {
		list, known := h.ByLockHash(hash)
		return extensions(list), known
	}, nil
}

// observe reads the state of every configured node.
func (p Project) observe(ctx context.Context, m Machines, wanted []cluster.Wanted) (cluster.Observation, error) {
	o, err := cluster.Observe(ctx, p.sources(m), wanted)
	if err != nil {
		return o, err
	}
	o.PastBuilds, err = p.pastBuilds()
	return o, err
}

func (p Project) sources(m Machines) cluster.Sources {
	return cluster.Sources{
		Proxmox: m.Proxmox, Talos: m.Talos, Maintenance: m.Maintenance, Kube: m.Kube, Cluster: p.Config.Cluster, ParkingIDs: p.parkingIDs(),
		ConfigKnown: func(node string, rec cluster.Record) (cluster.ConfigPlace, error) { return p.configKnown(m, node, rec) }, MachineConfig: m.MachineConfig,
	}
}

// configKnown says where the machine configuration of a node is: in the journal of the
// record's run, if that is here, or in the user's files. Either must have the sum of the
// record.
func (p Project) configKnown(m Machines, node string, rec cluster.Record) (cluster.ConfigPlace, error) {
	found, damaged := p.inJournal(node, rec)
	switch {
	case found:
		return cluster.ConfigInJournal, nil
	case damaged != nil && !errors.Is(damaged, cluster.ErrConfigDamaged):
		return cluster.ConfigNowhere, damaged
	case m.MachineConfig == nil:
		return cluster.ConfigNowhere, damaged
	}
	switch file, found, err := m.MachineConfig(node); {
	case err != nil:
		return cluster.ConfigNowhere, err
	case found && rec.CheckConfig(file) == nil:
		return cluster.ConfigInFile, nil
	}
	return cluster.ConfigNowhere, damaged
}

// inJournal says whether the machine configuration of a node is in the journal of the
// record's run. ErrConfigDamaged: it is there, but damaged.
func (p Project) inJournal(node string, rec cluster.Record) (bool, error) {
	runs, err := journal.Runs(p.runs())
	if err != nil || !slices.ContainsFunc(runs, func(r journal.RunInfo) bool { return r.ID == rec.Run }) {
		return false, err
	}
	j, err := journal.Open(p.runs(), journal.Options{Run: rec.Run, ReadOnly: true})
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

// pastBuilds returns the builds of past locks, by ID.
func (p Project) pastBuilds() (map[string]cluster.Build, error) {
	h, err := schematics.ReadHistory(p.pastLocks())
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

// claimID is the VMID of the claim: the first of the range.
func (p Project) claimID() cluster.VMID {
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		return cluster.VMID(vmid)
	}
	return 0 // an empty range is refused when the configuration is read
}

// parkingIDs returns the VMIDs for parking VMs, lowest first: the range without the
// claim's and without those that others are known to use.
func (p Project) parkingIDs() []cluster.VMID {
	var ids []cluster.VMID
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		id := cluster.VMID(vmid)
		known := slices.ContainsFunc(p.Config.Nodes, func(n config.Node) bool { return n.VMID == vmid || n.Holder == vmid })
		if !known && id != p.claimID() {
			ids = append(ids, id)
		}
	}
	return ids
}

// awaitTasks waits for Proxmox tasks of an earlier run of this cluster.
func (p Project) awaitTasks(ctx context.Context, px cluster.Tasks, vms []cluster.VM, say func(string)) error {
	var nodes []cluster.Wanted
	for _, n := range p.Config.Nodes {
		nodes = append(nodes, cluster.Wanted{Name: n.Name, VMID: cluster.VMID(n.VMID), Holder: cluster.VMID(n.Holder)})
	}
	of, err := roll.TouchedBy(vms, p.Config.Cluster, nodes, func(id cluster.VMID) bool { return p.Config.Proxmox.VMIDs.Contains(int(id)) })
	if err != nil {
		return err
	}
	return roll.AwaitOwnTasks(ctx, px, of, p.timing().Poll, say)
}

// readable lists the VMs that can be read, and the hosts whose VMs can't. The claim must
// be readable.
func (p Project) readable(ctx context.Context, px cluster.VMReader) ([]cluster.VM, *cluster.HostsAway, error) {
	vms, err := px.VMs(ctx)
	away, lacking := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !lacking {
		return nil, nil, fmt.Errorf("read Proxmox: %w", err)
	}
	if claim, there := away.VM(p.claimID()); there {
		return vms, away, fault.As(fault.Refused, fmt.Errorf("whether a run is at work can't be told: the claim is VM %d on %s: %w", claim.ID, claim.Host, err))
	}
	return vms, away, nil
}

func (p Project) timing() roll.Timing {
	r := p.Config.Roll
	return roll.Timing{
		Poll: time.Duration(r.Poll), Settle: time.Duration(r.Settle), Stop: time.Duration(r.Timeouts.Stop),
		Boot: time.Duration(r.Timeouts.Boot), Join: time.Duration(r.Timeouts.Join), Drain: time.Duration(r.Drain.Timeout),
	}
}
