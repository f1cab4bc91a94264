package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
)

// NothingToCompare says why there is no configuration to compare a file with.
func (f *Found) NothingToCompare() string {
	switch {
	case f.Absent != nil:
		return "it is a new node"
	case f.Blank != nil:
		return "the machine has no configuration"
	case f.Open() && f.Parking.Record.Config != "":
		return fmt.Sprintf("the node is unavailable; the file is the one that run %s remembered", f.Parking.Record.Run)
	}
	return "the node is unavailable"
}

// ObserveFiles reads the files of all nodes, and compares each with what its node runs. An unusable
// file is an error of its node only.
func ObserveFiles(ctx context.Context, src Sources, wanted []cluster.Wanted, found []Found) {
	if src.MachineConfig == nil || src.Maintenance == nil {
		return
	}
	var shows []shown
	for _, f := range found {
		if f.Machine != nil && !f.Machine.ConfigHidden && f.Machine.Configs.Stored != nil {
			shows = append(shows, shown{f.Name, f.Machine})
		}
	}
	if i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == src.First }); i >= 0 {
		if text, there, err := src.MachineConfig(ctx, src.First); there && err == nil { // an error is found again below
			shows = []shown{{src.First, &cluster.Machine{ControlPlane: true, Configs: cluster.Configs{Stored: text, Active: text}, RunningSystem: cluster.RunningSystem{TalosVersion: wanted[i].Build.TalosVersion}}}}
		}
	}
	eachFound(found, func(i int, f *Found) {
		if !f.Away {
			f.File = observeFile(ctx, src, wanted[i], f, shows)
		}
	})
}

// RunningConfig is the machine configuration that a node runs.
type RunningConfig struct {
	Node string
	Text cluster.Secret
	Err  error // why it could not be read
}

// ObserveRunning reads the configurations that nodes run, in the order of wanted.
func ObserveRunning(ctx context.Context, src Sources, wanted []cluster.Wanted) ([]RunningConfig, error) {
	src.MachineConfig = nil // nothing is compared with it
	o, err := ObserveDrift(ctx, src, wanted)
	if err != nil {
		return nil, err
	}
	out := make([]RunningConfig, len(o.Found))
	eachFound(o.Found, func(i int, f *Found) {
		out[i] = RunningConfig{Node: f.Name, Err: errors.Join(f.Errs...)}
		if f.Absent != nil {
			out[i].Err = NotThereYet(f.Name)
		}
		if f.Machine != nil { // it is the node's own
			out[i].Text, out[i].Err = src.Talos.MachineConfig(ctx, f.Addr)
		}
	})
	return out, nil
}

// eachFound calls do for all nodes, some at a time.
func eachFound(found []Found, do func(i int, f *Found)) {
	g := errgroup.Group{}
	g.SetLimit(MachinesAtOnce)
	for i := range found {
		g.Go(func() error { do(i, &found[i]); return nil })
	}
	_ = g.Wait() // none of them returns an error
}

// CompareConfigs says how a file differs from the configurations that its node has, stored for its
// next boot and active, after recast has set in all of them what it sets itself. The node runs Talos
// of one version, and another may read the file.
func CompareConfigs(m cluster.Maintenance, has cluster.Configs, file cluster.Secret, runsTalos, readsTalos string) (cluster.FoundFile, error) {
	patch := cluster.NeutralPatch
	patch.Talos = readsTalos
	wanted, err := m.PatchConfig(file, patch)
	if err != nil {
		return cluster.FoundFile{}, err
	}
	patch.Talos = runsTalos
	kept, err := m.PatchConfig(has.Stored, patch)
	if err != nil {
		return cluster.FoundFile{}, fmt.Errorf("what the node runs can't be compared with it: %w", err)
	}
	found, errFound := config.Parse(kept)
	docs, errWanted := config.Parse(wanted)
	if err := errors.Join(errFound, errWanted); err != nil {
		return cluster.FoundFile{}, err
	}
	f := cluster.FoundFile{ConfigFile: cluster.ConfigFile{Changes: slices.DeleteFunc(config.Compare(found, docs), config.Change.OfKubernetesVersion), Pending: !has.Same()}}
	if !f.Differs() {
		return f, nil
	}
	runs, err := m.PatchConfig(has.Active, patch)
	if err != nil {
		return cluster.FoundFile{}, fmt.Errorf("what the node runs can't be compared with it: %w", err)
	}
	effect, err := m.ConfigEffect(runs, wanted)
	if err != nil {
		return cluster.FoundFile{}, err
	}
	f.Identity, f.Reboot, f.Unknown = effect.Identity, effect.Reboot, effect.Unknown
	return f, nil
}

func observeFile(ctx context.Context, src Sources, w cluster.Wanted, f *Found, shows []shown) *cluster.FoundFile {
	text, there, err := src.MachineConfig(ctx, f.Name)
	if err != nil {
		return &cluster.FoundFile{Err: err}
	}
	if !there {
		return nil
	}
	docs, err := config.Parse(text)
	if err != nil {
		return &cluster.FoundFile{Sum: cluster.ConfigSum(text), Err: fault.MachineConfig.Refusedf("not a machine configuration: %w", err)}
	}
	file := cluster.FoundFile{}
	if f.Machine != nil && !f.Machine.ConfigHidden {
		if file, err = compareFile(src.Maintenance, f.Machine, text, docs, w.Build.TalosVersion); err != nil {
			file = cluster.FoundFile{Err: err}
		}
		file.Runs = cluster.ConfigSum(f.Machine.Configs.Stored)
	}
	if f.Absent != nil {
		if file, err = compareBeside(src.Maintenance, w, docs.Role(), text, shows); err != nil {
			file = cluster.FoundFile{Err: err}
		}
	}
	file.Hash, file.Sum, file.Role = docs.Hash(), cluster.ConfigSum(text), docs.Role()
	return &file
}

// shown is a node that shows its machine configuration, or has the one that the others' are to fit.
type shown struct {
	node    string
	machine *cluster.Machine
}

// compareBeside compares the file of a new node with what another one runs, if possible one of its role:
// so a file of another cluster is seen.
func compareBeside(m cluster.Maintenance, w cluster.Wanted, role string, text cluster.Secret, shows []shown) (cluster.FoundFile, error) {
	alike := func(s shown) bool { return s.machine.ControlPlane == (role == cluster.ControlPlane) }
	if len(shows) == 0 {
		return cluster.FoundFile{}, nil
	}
	beside := shows[max(0, slices.IndexFunc(shows, alike))]
	f, err := CompareConfigs(m, beside.machine.Configs, text, beside.machine.TalosVersion, w.Build.TalosVersion)
	f.Identity = slices.DeleteFunc(f.Identity, func(what string) bool { return what == cluster.NodeRole })
	return cluster.FoundFile{Beside: beside.node, Identity: f.Identity}, err
}

// compareFile compares a node's file, as a version of Talos reads it, with what the node runs. Most
// files do not differ, which is seen without reading them as Talos does: the same version reads that
// configuration already.
func compareFile(m cluster.Maintenance, machine *cluster.Machine, text cluster.Secret, docs config.Documents, talos string) (cluster.FoundFile, error) {
	has := machine.Configs
	if has.Stored == nil {
		return cluster.FoundFile{}, errors.New("the machine shows no configuration to compare it with")
	}
	if kept, err := config.Parse(has.Stored); err == nil && machine.TalosVersion == talos && has.Same() && config.SameButForRecast(kept, docs) {
		return cluster.FoundFile{}, nil
	}
	return CompareConfigs(m, has, text, machine.TalosVersion, talos)
}
