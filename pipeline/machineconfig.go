package pipeline

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// ConfigDiffs are the machine configurations in talos.machineConfigs beside those that the nodes run.
type ConfigDiffs struct {
	Cluster string       `json:"cluster"`
	Same    bool         `json:"same"`   // every node was read, and no configuration differs
	Differ  int          `json:"differ"` // nodes whose configuration differs
	Unread  int          `json:"unread"` // nodes whose configuration could not be compared
	Nodes   []ConfigDiff `json:"nodes"`
}

// ConfigDiff is what a node's configuration in talos.machineConfigs would change on it. It has no secret.
type ConfigDiff struct {
	Node string `json:"node"`
	// Kept says that talos.machineConfigs has a configuration for the node. A node without one keeps what it runs.
	Kept bool `json:"kept"`
	// Unread is why the two could not be compared; "": they were.
	Unread string `json:"unread,omitempty"`
	// Changes are what differs, but for what recast sets itself: installer, install disk, hostname, and the versions of Kubernetes.
	Changes []config.Change `json:"changes,omitempty"`
}

// DiffConfigs compares the configurations in talos.machineConfigs with those that these nodes run;
// none: all nodes. It changes nothing.
func DiffConfigs(ctx context.Context, p Project, m Machines, nodes ...string) (ConfigDiffs, error) {
	if m.MachineConfig == nil {
		return ConfigDiffs{}, errNoConfigs(p)
	}
	wanted, err := wantedOf(p, nodes)
	if err != nil {
		return ConfigDiffs{}, err
	}
	found, err := observe.ObserveConfigs(ctx, sources(p, m), wanted)
	if err != nil {
		return ConfigDiffs{}, err
	}
	res := ConfigDiffs{Cluster: p.Config.Cluster}
	for _, f := range found {
		d := ConfigDiff{Node: f.Name, Kept: f.File != nil}
		switch {
		case f.File == nil:
		case f.File.Err != nil:
			d.Unread = f.File.Err.Error()
		case f.Machine == nil:
			d.Unread = errors.Join(f.Errs...).Error()
		default:
			d.Changes = f.File.Changes
		}
		if d.Unread != "" {
			res.Unread++
		}
		if len(d.Changes) > 0 {
			res.Differ++
		}
		res.Nodes = append(res.Nodes, d)
	}
	res.Same = res.Unread+res.Differ == 0
	return res, ctx.Err()
}

func errNoConfigs(p Project) error {
	return fault.WithHint(fault.MachineConfig.Configf("%s: talos.machineConfigs is not set: recast has no configuration to compare with what a node runs", p.Config.Place("talos")),
		"recast config show NODE shows what a node runs; docs/notes/rolling.md says where configurations may be kept")
}

// NodeNames are the names that a command was given; without any, those of all nodes.
func NodeNames(p Project, given []string) []string {
	if len(given) > 0 {
		return given
	}
	return nodeNames(p.Config)
}

// wantedOf are the nodes of these names, whatever the lock is; without names, all nodes.
func wantedOf(p Project, names []string) ([]cluster.Wanted, error) {
	lock, _ := schematics.ReadLock(p.LockFile()) // configurations need none
	wanted := p.Wanted(lock)
	if len(names) == 0 {
		return wanted, nil
	}
	known := nodeNames(p.Config)
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fault.WithHint(fault.Configf("no node %q", name), "the nodes are: %s", strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(wanted, func(w cluster.Wanted) bool { return !slices.Contains(names, w.Name) }), nil
}

// RunningConfig reads the machine configuration that a node runs.
func RunningConfig(ctx context.Context, p Project, m Machines, node string) (cluster.Secret, error) {
	wanted, err := wantedOf(p, []string{node})
	if err != nil {
		return nil, err
	}
	found, err := findNode(ctx, p, m, wanted[0])
	if err != nil {
		return nil, err
	}
	text, err := m.Talos.MachineConfig(ctx, found.Addr)
	return text, fault.Prefix("read the machine configuration of "+node, err)
}

// KeptConfig reads a node's configuration in talos.machineConfigs.
func KeptConfig(ctx context.Context, p Project, m Machines, node string) (cluster.Secret, error) {
	if m.MachineConfig == nil {
		return nil, errNoConfigs(p)
	}
	if _, err := wantedOf(p, []string{node}); err != nil {
		return nil, err
	}
	text, found, err := m.MachineConfig(ctx, node)
	if err == nil && !found {
		err = fault.WithHint(fault.MachineConfig.Configf("talos.machineConfigs has no configuration for %s", node), "it keeps the configuration that it runs: recast config show %s", node)
	}
	return text, err
}

// Shown returns a configuration without its secrets.
func Shown(text cluster.Secret) ([]byte, error) {
	shown, err := config.Redacted(text)
	if err != nil {
		return nil, fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	return shown, nil
}
