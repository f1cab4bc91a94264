// Package configs compares the machine configurations that the user keeps with those that the
// nodes run, and shows either. Its main type is [Diffs].
package configs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// Diffs are the machine configurations in talos.machineConfigs beside those that the nodes run.
type Diffs struct {
	Cluster string `json:"cluster"`
	Same    bool   `json:"same"`   // every node was read, and no configuration differs
	Differ  int    `json:"differ"` // nodes whose configuration differs
	Unread  int    `json:"unread"` // nodes whose configuration could not be compared
	Nodes   []Diff `json:"nodes"`
}

// Diff is what a node's configuration in talos.machineConfigs would change on it. It has no secret.
type Diff struct {
	Node string `json:"node"`
	// Wanted says that talos.machineConfigs has a configuration for the node. A node without one keeps what it runs.
	Wanted bool `json:"wanted"`
	// New says that the node is not there yet: there is nothing to compare its configuration with.
	New bool `json:"new,omitempty"`
	// Reset says that its machine has no configuration any more, and gets this one.
	Reset bool `json:"reset,omitempty"`
	// Refused is why a machine without a configuration must not get this one, as recast plan says it.
	Refused []string `json:"refused,omitempty"`
	// Unread is why the two could not be compared.
	Unread []string `json:"unread,omitempty"`
	// Changes are what differs, but for what recast sets itself: installer, install disk, hostname, and the versions of Kubernetes.
	Changes []config.Change `json:"changes,omitempty"`
	// Notes say what a change does not do.
	Notes []string `json:"notes,omitempty"`
}

// Compare compares the configurations in talos.machineConfigs with those that these nodes run;
// none: all nodes. It changes nothing.
func Compare(ctx context.Context, p pipeline.Project, m pipeline.Machines, nodes ...string) (Diffs, error) {
	if m.MachineConfig == nil {
		return Diffs{}, errNone(p)
	}
	named, err := wantedOf(p, nodes)
	if err != nil {
		return Diffs{}, err
	}
	wanted, err := wantedOf(p, nil) // all nodes: a machine without a configuration is compared with the others
	if err != nil {
		return Diffs{}, err
	}
	o, err := observe.ObserveDrift(ctx, pipeline.Sources(p, m), wanted)
	if err != nil {
		return Diffs{}, err
	}
	res := Diffs{Cluster: p.Config.Cluster}
	for i, f := range o.Found {
		if !slices.ContainsFunc(named, func(w cluster.Wanted) bool { return w.Name == f.Name }) {
			continue
		}
		notes, refused := cluster.TellSelectors(f.Selectors(f.HasVolume), f.MachineName())
		d := Diff{Node: f.Name, Wanted: f.File != nil, New: f.Absent != nil, Reset: f.Blank != nil}
		switch {
		case f.File == nil:
		case f.File.Err != nil:
			d.Unread = append(d.Unread, withHints(f.File.Err))
		case d.New, d.Reset:
			d.Refused, d.Notes = append(f.AgainstFile(), refused...), append(f.FileHardlyCompared(), notes...)
		case f.Machine == nil:
			d.Unread = append(d.Unread, f.NothingToCompare())
			d.Unread = append(d.Unread, cluster.Each(f.Errs, withHints)...)
		default:
			d.Changes, d.Refused, d.Notes = f.File.Changes, f.AgainstFile(), append(refused, notes...)
			if f.VM != nil {
				if note := cluster.ArgsWait(*f.VM, *f.Machine, d.Changes); note != "" {
					d.Notes = append(d.Notes, note)
				}
				d.Notes = append(d.Notes, wanted[i].TellArgs(*f.VM, *f.Machine)...)
			}
		}
		if len(d.Unread) > 0 {
			res.Unread++
		}
		if len(d.Changes)+len(d.Refused) > 0 || d.Reset && d.Wanted && len(d.Unread) == 0 {
			res.Differ++
		}
		res.Nodes = append(res.Nodes, d)
	}
	res.Same = res.Unread+res.Differ == 0
	return res, ctx.Err()
}

func withHints(err error) string {
	return strings.Join(append([]string{err.Error()}, fault.Hints(err)...), "; ")
}

func errNone(p pipeline.Project) error {
	return fault.WithHint(fault.MachineConfig.Configf("%s: talos.machineConfigs is not set: recast has no configuration to compare with what a node runs", p.Config.Place("talos")),
		"recast config show NODE shows what a node runs; docs/howto/machine-configuration.md says where configurations may be kept")
}

// wantedOf returns the nodes with these names, whatever the lock is; without names, all nodes.
func wantedOf(p pipeline.Project, names []string) ([]cluster.Wanted, error) {
	lock, _ := schematics.ReadLock(p.LockFile()) // configurations need none
	wanted := p.Wanted(lock)
	if len(names) == 0 {
		return wanted, nil
	}
	if err := p.RequireNodes(names...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(wanted, func(w cluster.Wanted) bool { return !slices.Contains(names, w.Name) }), nil
}

// Config is a node's machine configuration.
type Config struct {
	Node string
	Text cluster.Secret
}

// Running reads the machine configurations that these nodes run; none: all nodes. It fails if a configuration can't
// be read.
func Running(ctx context.Context, p pipeline.Project, m pipeline.Machines, nodes ...string) ([]Config, error) {
	wanted, err := wantedOf(p, nodes)
	if err != nil {
		return nil, err
	}
	read, err := observe.ObserveRunning(ctx, pipeline.Sources(p, m), wanted)
	if err != nil {
		return nil, err
	}
	var out []Config
	var problems []error
	for _, c := range read {
		problems = append(problems, fault.Prefix("read the machine configuration of "+c.Node, c.Err))
		out = append(out, Config{c.Node, c.Text})
	}
	return out, errors.Join(problems...)
}

// Wanted reads the configurations that talos.machineConfigs has for these nodes; none: for all nodes. It fails if a
// named node has none, or if no node has any.
func Wanted(ctx context.Context, p pipeline.Project, read func(context.Context, string) (cluster.Secret, bool, error), nodes ...string) ([]Config, error) {
	if read == nil {
		return nil, errNone(p)
	}
	wanted, err := wantedOf(p, nodes)
	if err != nil {
		return nil, err
	}
	var out []Config
	for _, w := range wanted {
		text, found, err := read(ctx, w.Name)
		switch {
		case err != nil:
			return nil, err
		case found:
			out = append(out, Config{w.Name, text})
		case len(nodes) > 0:
			return nil, fault.WithHint(fault.MachineConfig.Configf("talos.machineConfigs has no configuration for %s", w.Name), "the node keeps the one that it runs: recast config show %s", w.Name)
		}
	}
	if len(out) == 0 {
		return nil, fault.WithHint(fault.MachineConfig.Configf("talos.machineConfigs has no configuration for any node"), "names in talos.machineConfigs is the pattern of their files; default: {node}.yaml")
	}
	return out, nil
}

// Shown returns a configuration without its secrets.
func Shown(text cluster.Secret) ([]byte, error) {
	shown, err := config.Redacted(text)
	if err != nil {
		return nil, fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	return shown, nil
}

// Begin returns the machine configuration of first, the control plane with which a cluster begins, and the addresses
// that the control planes will have, the address of first at the start.
func Begin(ctx context.Context, p pipeline.Project, read func(context.Context, string) (cluster.Secret, bool, error), first string) (text cluster.Secret, endpoints []netip.Addr, err error) {
	if _, err := wantedOf(p, []string{first}); err != nil {
		return nil, nil, err
	}
	all, err := Wanted(ctx, p, read)
	if err != nil {
		return nil, nil, err
	}
	wanted, err := wantedOf(p, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range all {
		docs, err := config.Parse(c.Text)
		if err != nil {
			return nil, nil, fault.MachineConfig.Configf("the configuration of %s in talos.machineConfigs: %w", c.Node, err)
		}
		if docs.Role() != cluster.ControlPlane {
			continue
		}
		i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == c.Node })
		switch addr := wanted[i].Addr; {
		case !addr.IsValid():
		case c.Node == first:
			text, endpoints = c.Text, slices.Insert(endpoints, 0, addr)
		default:
			endpoints = append(endpoints, addr)
		}
	}
	if text == nil {
		return nil, nil, fault.WithHint(fault.MachineConfig.Configf("a cluster can't begin with %s", first),
			"it has to be a control plane, with a configuration in talos.machineConfigs, and an address: nodes[].address, or ipconfig")
	}
	return text, endpoints, nil
}

// Roles returns the role of each node whose configuration in talos.machineConfigs can be read and has a role.
func Roles(ctx context.Context, p pipeline.Project, read func(context.Context, string) (cluster.Secret, bool, error)) map[string]string {
	roles := map[string]string{}
	if read == nil {
		return roles
	}
	for _, n := range p.Config.Nodes {
		text, found, err := read(ctx, n.Name)
		if err != nil || !found {
			continue
		}
		if docs, err := config.Parse(text); err == nil && docs.SaysRole() {
			roles[n.Name] = docs.Role()
		}
	}
	return roles
}
