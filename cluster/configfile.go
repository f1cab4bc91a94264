package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
)

// ConfigFile is a node's file of talos.machineConfigs beside the machine
// configuration that the node runs. It shows no secret.
type ConfigFile struct {
	// Hash is a SHA-256 of what the file says, whatever its order, comments and style.
	Hash string `json:"sha256"`
	// Runs is the SHA-256 of the configuration that the node runs; "" where there is none to compare with.
	Runs string `json:"runs,omitempty"`
	// Applied says that the node gets what the file says.
	Applied bool `json:"applied"`
	// Uncompared is why the two were not compared; "": they were.
	Uncompared string `json:"uncompared,omitempty"`
	// Changes are what differs, but for what recast sets itself: installer, install disk,
	// hostname, and the versions of Kubernetes, which stay those that the node runs.
	Changes []config.Change `json:"changes,omitempty"`
}

// ConfigPlace is where the machine configuration is that an unfinished replacement
// gives its node.
type ConfigPlace string

// The places of it. ConfigNowhere is none but the old system disk.
const (
	ConfigNowhere   ConfigPlace = ""
	ConfigInJournal ConfigPlace = "journal"
	ConfigInFile    ConfigPlace = "file" // of talos.machineConfigs, with the sum that the record has
)

// FoundFile is a node's file as it was found.
type FoundFile struct {
	ConfigFile
	Sum string // of its bytes
	Err error  // why it can't be used, or not compared with what the node runs
}

// NeutralPatch is what recast sets itself, the same in every configuration, so that none
// differs for it.
var NeutralPatch = ConfigPatch{Installer: "recast.invalid/installer@sha256:" + strings.Repeat("0", 64), Disk: MachineDisk{Serial: "recast"}, Hostname: "recast"}

// ObserveFiles reads the files of the nodes that a roll has something to do with, and
// compares each with what its node runs. That one can't be used is an error of its node alone.
func ObserveFiles(ctx context.Context, src Sources, wanted []Wanted, found []Found) {
	if src.MachineConfig == nil || src.Maintenance == nil {
		return
	}
	g := errgroup.Group{}
	g.SetLimit(MachinesAtOnce)
	for i := range found {
		if f := found[i]; f.Away || f.Machine != nil && !f.Unfinished() && !Diff(wanted[i], f, nothingPast).Rollable() {
			continue
		}
		g.Go(func() error {
			found[i].File = observeFile(ctx, src, wanted[i], &found[i])
			return nil
		})
	}
	_ = g.Wait() // none of them returns an error
}

func nothingPast(string) ([]LockedExtension, bool) { return nil, false }

func observeFile(ctx context.Context, src Sources, w Wanted, f *Found) *FoundFile {
	text, there, err := src.MachineConfig(f.Name)
	if err != nil {
		return &FoundFile{Err: err}
	}
	if !there {
		return nil
	}
	file := &FoundFile{Sum: ConfigSum(text)}
	if file.Hash, file.Err = Text(text); file.Err != nil || f.Machine == nil {
		return file
	}
	runs, err := src.Talos.MachineConfig(ctx, f.Addr)
	if err != nil {
		file.Err = fmt.Errorf("what the node runs can't be read: %w", err)
		return file
	}
	file.Runs = ConfigSum(runs)
	kubernetes, err := src.Talos.KubernetesImages(ctx, f.Addr)
	if err != nil {
		file.Err = fmt.Errorf("which Kubernetes the node runs can't be read: %w", err)
		return file
	}
	file.Changes, file.Err = compareConfigs(src.Maintenance, runs, text, kubernetes.Images, w.Build.TalosVersion)
	return file
}

// Text is the hash of what a configuration says.
func Text(text Secret) (string, error) {
	docs, err := config.Parse(text)
	if err != nil {
		return "", fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	return docs.Hash(), nil
}

// compareConfigs lists in what a file differs from what its node runs, once recast has
// set in both what it sets itself. The file is read as Talos of that version reads it.
func compareConfigs(m Maintenance, runs, file Secret, kubernetes KubernetesImages, talos string) ([]config.Change, error) {
	patch := NeutralPatch
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

// DropsVolumes tells of the volumes on persistent disks that a file lacks the document of: Talos
// would not mount them, pods would write to the system disk instead, and the node would never be
// what it was.
func (f *Found) DropsVolumes(changes []config.Change) []string {
	if f.Machine == nil {
		return nil
	}
	var out []string
	for _, v := range f.Machine.Volumes {
		document := v.document()
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

// NothingToCompare is why there is no configuration to compare a file with.
func (f *Found) NothingToCompare() string {
	switch {
	case f.Blank != nil:
		return "the machine has no configuration"
	case f.Open() && f.Parking.Record.Config != "":
		return fmt.Sprintf("the node is away; the file is the one that run %s remembered", f.Parking.Record.Run)
	}
	return "the node is away"
}

// HashOf is what binds a plan to a node's file: "" where there is none that is applied.
func (f *ConfigFile) HashOf() (file, runs string) {
	if f == nil || !f.Applied {
		return "", ""
	}
	return f.Hash, f.Runs
}
