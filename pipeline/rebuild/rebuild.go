// Package rebuild recreates the control planes of a broken cluster, with a snapshot of its etcd.
package rebuild

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	machineconfig "github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
)

type Options struct {
	First  string // the control plane on which etcd begins
	File   string // the snapshot
	Copied bool   // File was copied from a member's data directory and has no checksum
}

// Rebuild takes away what is left of all control planes, creates the first one with the snapshot, and then creates
// the others: verify → take away → bootstrap. It continues an earlier Rebuild that did not finish. Workers stay as
// they are.
func Rebuild(ctx context.Context, p pipeline.Project, c pipeline.Images, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions, of Options) (pipeline.Report, error) {
	read := func(ctx context.Context) (etcd.Snapshot, error) {
		return pipeline.ReadSnapshot(ctx, pipeline.RestoreOptions{File: of.File, Node: of.First, Copied: of.Copied})
	}
	snapshot, err := read(ctx)
	if err != nil {
		return pipeline.Report{}, err
	}
	p, names, err := controlPlanes(ctx, p, m, snapshot.Members)
	if err != nil {
		return pipeline.Report{}, err
	}
	o.Policy.Rebuild = snapshot.SHA256
	o.Rebuild = etcd.Source{File: of.File, Copied: of.Copied, Gone: names, Sum: func(ctx context.Context) (string, error) {
		again, err := read(ctx)
		return again.SHA256, err
	}}
	var left []string
	o.Rebuild.Left = func(text string) { left = append(left, text) }
	rep, err := pipeline.Bootstrap(ctx, p, c, m, run, o, of.First)
	if err == nil && rep.Run != "" {
		rep.Afterwards = append(left, etcd.AfterRestore)
	}
	return rep, err
}

// controlPlanes returns the project without its workers, which are neither read nor changed. members are the members
// of the etcd in the snapshot.
func controlPlanes(ctx context.Context, p pipeline.Project, m pipeline.Machines, members []string) (pipeline.Project, []string, error) {
	files, err := configs.Wanted(ctx, p, m.MachineConfig)
	if err != nil {
		return p, nil, err
	}
	var names []string
	for _, n := range p.Config.Nodes {
		i := slices.IndexFunc(files, func(f configs.Config) bool { return f.Node == n.Name })
		if i < 0 {
			if slices.ContainsFunc(members, func(m string) bool { return cluster.IsMember(m, n.Name) }) {
				return p, nil, fault.WithHint(fault.MachineConfig.Configf("%s is a control plane, and has no configuration in talos.machineConfigs", n.Name), "it can't be read from a machine that is taken away: put it there")
			}
			continue
		}
		docs, err := machineconfig.Parse(files[i].Text)
		if err != nil {
			return p, nil, fault.MachineConfig.Configf("the configuration of %s in talos.machineConfigs: %w", n.Name, err)
		}
		if docs.Role() == cluster.ControlPlane {
			names = append(names, n.Name)
		}
	}
	for _, m := range members {
		if !slices.ContainsFunc(names, func(node string) bool { return cluster.IsMember(m, node) }) {
			return p, nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("the snapshot is of an etcd with the member %s, which is not a control plane of recast.yaml: whether that is gone can't be seen", m), "list it, or take a later snapshot, from after it was removed")
		}
	}
	only := *p.Config
	only.Nodes = slices.Clone(only.Nodes)
	only.Nodes = slices.DeleteFunc(only.Nodes, func(n config.Node) bool { return !slices.Contains(names, n.Name) })
	p.Config = &only
	return p, names, nil
}
