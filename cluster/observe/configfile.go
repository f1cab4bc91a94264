package observe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	case f.Open():
		return fmt.Sprintf("the node is unavailable; the file is the one that run %s remembered", f.Parking.Record.Run)
	}
	return "the node is unavailable"
}

// AgainstFile says why a machine must not get the node's file: the file is for another node, or for another
// cluster. The rest of what a machine runs is compared with the file itself.
func (f *Found) AgainstFile() []string {
	file := f.File
	if file == nil || file.Err != nil {
		return nil
	}
	var out []string
	role := cluster.Worker
	if f.Node != nil && f.Node.ControlPlane {
		role = cluster.ControlPlane
	}
	if f.Blank != nil && file.Role != role {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs makes it a %s, and it is a %s: is it the file of another node?", file.Role, role))
	}
	fresh := f.Absent != nil || f.Blank != nil
	if file.Names != "" && (fresh || file.Differs()) { // recast names the machine itself
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs gives it the hostname %s: is it the file of that node?", file.Names))
	}
	if fresh && file.Beside != "" && len(file.Identity) > 0 {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs differs from %s in %s: is it the file of another cluster?", file.Beside, strings.Join(file.Identity, ", ")))
	}
	return out
}

// FileHardlyCompared warns if little of the file of a machine without a configuration could be compared.
func (f *Found) FileHardlyCompared() []string {
	switch file := f.File; {
	case file == nil || file.Err != nil:
	case file.Beside == "":
		return []string{"no other node shows its machine configuration, and the talosconfig names no CA: whether its file in talos.machineConfigs is of this cluster is for you to see"}
	case file.Beside == cluster.Talosconfig:
		return []string{"no other node shows its machine configuration: of its file in talos.machineConfigs only the CA of Talos was compared, with the talosconfig's"}
	}
	return nil
}

// ObserveFiles reads the files of all nodes, and compares each with what its node runs. An unusable file is an
// error of its node only.
func ObserveFiles(ctx context.Context, src Sources, wanted []cluster.Wanted, found []Found) {
	if src.Maintenance == nil {
		return
	}
	if src.MachineConfig == nil {
		eachFound(found, func(i int, f *Found) { f.Volumes = readConfigVolumes(src.Maintenance, wanted[i], f) })
		return
	}
	var shows []shown
	for _, f := range found {
		if f.Machine != nil && !f.Machine.ConfigHidden && f.Machine.Configs.Stored != nil {
			shows = append(shows, shown{f.Name, f.Machine})
		}
	}
	others := shows
	if i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == src.First }); i >= 0 {
		if text, there, err := src.MachineConfig(ctx, src.First); there && err == nil { // an error is found again below
			others = []shown{{src.First, &cluster.Machine{ControlPlane: true, Configs: cluster.Configs{Stored: text, Active: text}, RunningSystem: cluster.RunningSystem{TalosVersion: wanted[i].Build.TalosVersion}}}}
		}
	}
	eachFound(found, func(i int, f *Found) {
		switch {
		case f.Away:
		case f.Name == src.First:
			f.File = observeFile(ctx, src, wanted[i], f, shows)
		default:
			f.File = observeFile(ctx, src, wanted[i], f, others)
		}
		if f.File != nil {
			f.File.Names = otherNode(f.File.Names, f.Name, wanted)
		}
		f.Volumes = readConfigVolumes(src.Maintenance, wanted[i], f)
	})
}

// otherNode returns the other node to which a hostname belongs; "": it belongs to this node, or to nobody.
// Kubernetes knows a node by the hostname in lower case, with its domain or without (Talos, registerWithFQDN).
func otherNode(hostname, own string, wanted []cluster.Wanted) string {
	hostname = strings.ToLower(hostname)
	short, _, _ := strings.Cut(hostname, ".")
	is := func(node string) bool { return node == hostname || node == short }
	i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return is(w.Name) })
	if is(own) || i < 0 {
		return ""
	}
	return wanted[i].Name
}

// RunningConfig is the machine configuration that a node runs.
type RunningConfig struct {
	Node string
	Text cluster.Secret
	Err  error // why it could not be read
}

// ObserveRunning reads the configurations that nodes run, in the order of wanted.
func ObserveRunning(ctx context.Context, src Sources, wanted []cluster.Wanted) ([]RunningConfig, error) {
	src.MachineConfig = nil // no file is compared
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
		if f.Machine != nil { // the machine is the node's own
			out[i].Text, out[i].Err = src.Talos.MachineConfig(ctx, f.Addr)
		}
	})
	return out, nil
}

// eachFound calls do for all nodes, some at a time.
func eachFound(found []Found, do func(i int, f *Found)) {
	// No call returns an error.
	_ = tryFound(found, MachinesAtOnce, func(i int, f *Found) error { do(i, f); return nil })
}

func tryFound(found []Found, atOnce int, do func(i int, f *Found) error) error {
	g := errgroup.Group{}
	g.SetLimit(atOnce)
	for i := range found {
		g.Go(func() error { return do(i, &found[i]) })
	}
	return g.Wait()
}

// CompareConfigs says how a file differs from the configurations that its node has, stored for its next boot and
// active. Before the comparison, recast sets in all of them what it sets itself. The node runs one version of
// Talos; another version may read the file.
func CompareConfigs(m cluster.Maintenance, has cluster.Configs, file cluster.Secret, runsTalos, readsTalos string) (cluster.FoundFile, error) {
	patch := cluster.NeutralPatch
	patch.Talos = readsTalos
	wanted, err := m.PatchConfig(file, patch)
	if err != nil {
		return cluster.FoundFile{}, err
	}
	patch.Talos, patch.Runs = runsTalos, true
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
	f.Identity, f.Reboot, f.Unknown, f.Encryption = effect.Identity, effect.Reboot, effect.Unknown, effect.Encryption
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
	if f.Absent != nil || f.Blank != nil {
		talos := w.Build.TalosVersion
		if f.Blank != nil {
			talos = f.Blank.TalosVersion
		}
		if file, err = compareBeside(src.Maintenance, talos, docs.Role(), text, shows); err != nil {
			file = cluster.FoundFile{Err: err}
		}
	}
	if file.Err == nil && (file.Differs() || f.Blank != nil) {
		file.Volumes, file.Err = src.Maintenance.ConfigVolumes(text, w.Build.TalosVersion)
	}
	if file.Err == nil && (file.Differs() || f.Blank != nil || f.Absent != nil || hasWholeDisk(f.Machine)) {
		addr := f.Addr
		if f.Machine == nil && f.Blank == nil {
			addr = netip.Addr{}
		}
		file.Selectors, file.Err = src.Maintenance.Selectors(ctx, addr, f.Blank != nil, text, w.Build.TalosVersion)
	}
	file.Hash, file.Sum, file.Role = docs.Hash(), cluster.ConfigSum(text), docs.Role()
	file.TypeInit, file.Omni, file.Names = docs.TypeInit(), docs.Has(cluster.OmniDocument), docs.Hostname()
	return &file
}

// hasWholeDisk says whether the machine has a volume whose disk Talos looks for at each boot (talos#12650).
func hasWholeDisk(m *cluster.Machine) bool {
	return m != nil && slices.ContainsFunc(m.VolumeStatuses, func(s cluster.VolumeStatus) bool { return s.Type == cluster.DiskVolume })
}

// shown is a node that shows its machine configuration, or whose configuration the others' have to fit.
type shown struct {
	node    string
	machine *cluster.Machine
}

// compareBeside compares the file of a machine without a configuration, as a version of Talos reads it, with what
// another node runs, if possible one of the same role; else with the talosconfig. This detects a file of another
// cluster.
func compareBeside(m cluster.Maintenance, talos, role string, text cluster.Secret, shows []shown) (cluster.FoundFile, error) {
	alike := func(s shown) bool { return s.machine.ControlPlane == (role == cluster.ControlPlane) }
	if len(shows) == 0 {
		switch trusted, known, err := m.TrustedCA(text); {
		case err != nil || !known:
			return cluster.FoundFile{}, err
		case !trusted:
			return cluster.FoundFile{Beside: cluster.Talosconfig, Identity: []string{cluster.TalosCA}}, nil
		}
		return cluster.FoundFile{Beside: cluster.Talosconfig}, nil
	}
	beside := shows[max(0, slices.IndexFunc(shows, alike))]
	f, err := CompareConfigs(m, beside.machine.Configs, text, beside.machine.TalosVersion, talos)
	f.Identity = slices.DeleteFunc(f.Identity, func(what string) bool { return what == cluster.NodeRole })
	return cluster.FoundFile{Beside: beside.node, Identity: f.Identity, Encryption: f.Encryption}, err
}

// compareFile compares a node's file, as a version of Talos reads it, with what the node runs. Most files do not
// differ, which shows without reading them as Talos does: the same version already reads that configuration.
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

// ConfigVolumes are the volumes that a machine's configurations define. They are read only if the machine may get
// other volumes than it has.
type ConfigVolumes struct {
	Runs  []cluster.ConfigVolume // by the configuration that the machine runs
	Keeps []cluster.ConfigVolume // by the configuration for its next boot, as the wanted Talos reads it
	Err   error
}

// readConfigVolumes skips a machine that will run what it runs now: its file and its stored configuration say the
// same, and no older Talos is to read them.
func readConfigVolumes(m cluster.Maintenance, w cluster.Wanted, f *Found) (v ConfigVolumes) {
	if f.Away || f.Machine == nil || f.Machine.ConfigHidden || f.Machine.Configs.Stored == nil {
		return v
	}
	has, other := f.Machine.Configs, f.File != nil && len(f.File.Volumes) > 0
	if !other && has.Same() && !olderMinor(f.Machine.TalosVersion, w.Build.TalosVersion) {
		return v
	}
	if v.Runs, v.Err = m.ConfigVolumes(has.Active, f.Machine.TalosVersion); v.Err == nil {
		v.Keeps, v.Err = m.ConfigVolumes(has.Stored, w.Build.TalosVersion)
	}
	return v
}

// olderMinor says whether the wanted Talos is of an earlier minor release than the running one.
func olderMinor(runs, wanted string) bool {
	is, errIs := cluster.ParseVersion(runs)
	next, errNext := cluster.ParseVersion(wanted)
	return errIs == nil && errNext == nil && (next.Major < is.Major || next.Major == is.Major && next.Minor < is.Minor)
}

// Selectors returns the selectors in the node's file that choose where Talos makes a volume, or looks for one at
// each boot. Talos finds an existing partition by its label. While the VM is to get disks, it is unknown which
// selectors match nothing.
func (f *Found) Selectors(there func(id string) bool) []cluster.DiskSelector {
	if f.File == nil {
		return nil
	}
	out := slices.DeleteFunc(slices.Clone(f.File.Selectors), func(s cluster.DiskSelector) bool {
		return (s.Kind == cluster.ForPartition || s.Kind == cluster.ForDevice) && there(s.ID)
	})
	for i, s := range out {
		if len(s.Found) == 0 && s.Unknown == "" && s.Broken == "" && f.Shape.NewDisks() {
			out[i].Unknown = "its VM does not have all disks of recast.yaml yet"
		}
	}
	return out
}

// HasVolume says whether the machine, with a configuration or without, has a volume of that ID.
func (f *Found) HasVolume(id string) bool {
	return f.Machine != nil && f.Machine.HasVolume(id) || f.Blank != nil && f.Blank.HasVolume(id)
}

// MachineName names the node's machine for people.
func (f *Found) MachineName() string {
	if f.VM == nil {
		return "the machine"
	}
	return fmt.Sprintf("VM %d", f.VM.ID)
}
