package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
)

// DropsVolumes describes volumes on persistent disks whose document is missing in a file: Talos
// would not mount them, pods would write to the system disk instead, and the node would never be as
// it was.
func (f *Found) DropsVolumes(changes []config.Change) []string {
	if f.Machine == nil {
		return nil
	}
	var out []string
	for _, v := range f.Machine.Volumes {
		document := v.Document()
		if document == "" || v.Phase != "ready" || v.Disk == f.Machine.SystemDisk {
			continue
		}
		if slices.ContainsFunc(changes, func(c config.Change) bool { return c.Document == document && c.Path == "" && c.Kind == config.Removed }) {
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs lacks %s, whose volume is on the persistent disk %s: put that document back, "+
				"or, where the volume is to go, have the node run without it first (talosctl apply-config)", document, v.Disk))
		}
	}
	return out
}

// NothingToCompare says why there is no configuration to compare a file with.
func (f *Found) NothingToCompare() string {
	switch {
	case f.Blank != nil:
		return "the machine has no configuration"
	case f.Open() && f.Parking.Record.Config != "":
		return fmt.Sprintf("the node is unavailable; the file is the one that run %s remembered", f.Parking.Record.Run)
	}
	return "the node is unavailable"
}

// ObserveFiles reads the files of the nodes that a roll would change, and compares each with what
// its node runs. An unusable file is an error of its node only.
func ObserveFiles(ctx context.Context, src Sources, wanted []cluster.Wanted, found []Found) {
	if src.MachineConfig == nil || src.Maintenance == nil {
		return
	}
	eachFound(found, func(i int, f *Found) {
		if f.Away || f.Machine != nil && !f.Unfinished() && !Diff(wanted[i], *f, nothingPast).Rollable() {
			return
		}
		f.File = observeFile(ctx, src, wanted[i], f)
	})
}

// ObserveConfigs reads what ObserveDrift does, and compares the file of each node with what it runs.
func ObserveConfigs(ctx context.Context, src Sources, wanted []cluster.Wanted) ([]Found, error) {
	found, err := ObserveDrift(ctx, src, wanted)
	if err != nil {
		return nil, err
	}
	eachFound(found, func(i int, f *Found) { f.File = observeFile(ctx, src, wanted[i], f) })
	return found, nil
}

// RunningConfig is the machine configuration that a node runs.
type RunningConfig struct {
	Node string
	Text cluster.Secret
	Err  error // why it could not be read
}

// ObserveRunning reads the configurations that nodes run, in the order of wanted.
func ObserveRunning(ctx context.Context, src Sources, wanted []cluster.Wanted) ([]RunningConfig, error) {
	found, err := ObserveDrift(ctx, src, wanted)
	if err != nil {
		return nil, err
	}
	out := make([]RunningConfig, len(found))
	eachFound(found, func(i int, f *Found) {
		out[i] = RunningConfig{Node: f.Name, Err: errors.Join(f.Errs...)}
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

// compareConfigs lists how a file differs from what its node runs, after recast has set in both
// what it sets itself. The file is read as Talos of version talos reads it.
func compareConfigs(m cluster.Maintenance, runs, file cluster.Secret, kubernetes cluster.KubernetesImages, talos string) ([]config.Change, error) {
	patch := cluster.NeutralPatch
	patch.Kubernetes = kubernetes
	a, err := m.PatchConfig(runs, patch)
	if err != nil {
		return nil, fmt.Errorf("what the node runs can't be compared with it: %w", err)
	}
	patch.Talos = talos
	b, err := m.PatchConfig(file, patch)
	if err != nil {
		return nil, err
	}
	found, errFound := config.Parse(a)
	wanted, errWanted := config.Parse(b)
	if err := errors.Join(errFound, errWanted); err != nil {
		return nil, err
	}
	return config.Compare(found, wanted), nil
}

func nothingPast(string) ([]cluster.LockedExtension, bool) { return nil, false }

func observeFile(ctx context.Context, src Sources, w cluster.Wanted, f *Found) *cluster.FoundFile {
	text, there, err := src.MachineConfig(ctx, f.Name)
	if err != nil {
		return &cluster.FoundFile{Err: err}
	}
	if !there {
		return nil
	}
	file := &cluster.FoundFile{Sum: cluster.ConfigSum(text)}
	if file.Hash, file.Err = cluster.Text(text); file.Err != nil || f.Machine == nil {
		return file
	}
	runs, err := src.Talos.MachineConfig(ctx, f.Addr)
	if err != nil {
		file.Err = fmt.Errorf("what the node runs can't be read: %w", err)
		return file
	}
	file.Runs = cluster.ConfigSum(runs)
	kubernetes, err := src.Talos.KubernetesImages(ctx, f.Addr)
	if err != nil {
		file.Err = fmt.Errorf("which Kubernetes the node runs can't be read: %w", err)
		return file
	}
	file.Changes, file.Err = compareConfigs(src.Maintenance, runs, text, kubernetes.Images, w.Build.TalosVersion)
	return file
}
