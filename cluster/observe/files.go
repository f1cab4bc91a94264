package observe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// LockedFile is a regular file or a symbolic link of a locked extension image.
type LockedFile struct {
	Mode      fs.FileMode
	SizeBytes int64
	SHA256    string // hex, of a regular file
	Link      string
	HardLink  bool // imager may have left it empty: see File of internal/bootimage
}

// LockedFiles is what a locked extension installs on a node, by absolute path.
type LockedFiles struct {
	Extension cluster.LockedExtension
	Files     map[string]LockedFile
}

// FileTarget is a machine whose files are compared, and the content that they are compared with.
type FileTarget struct {
	Node         string
	Addr         netip.Addr
	UUID         string
	Content      []LockedFiles
	EmbedsConfig bool // the image contains a machine configuration, as an extra file
}

// FileCheck is how the files of one machine compare with the locked images'.
type FileCheck struct {
	Files       int        `json:"files"` // compared
	Bytes       int64      `json:"bytes"` // read from the machine
	Differ      []FileDiff `json:"differ,omitempty"`
	More        int        `json:"more,omitempty"`        // differences beyond those of Differ
	NotCompared []string   `json:"notCompared,omitempty"` // in words, with the reason
}

func (c FileCheck) Same() bool { return len(c.Differ) == 0 && c.More == 0 }

// FileDiff is one file that is not as locked.
type FileDiff struct {
	Path      string `json:"path"`
	Extension string `json:"extension,omitempty"` // name and version; "": no locked extension has the file
	// Found and Wanted are "sha256:…" of regular files, "link to …" of symbolic
	// links, else the kind of file; "": there is none.
	Found  string `json:"found,omitempty"`
	Wanted string `json:"wanted,omitempty"`
}

func (d FileDiff) String() string {
	switch {
	case d.Extension == "":
		return fmt.Sprintf("%s (%s) belongs to no locked extension", d.Path, shortPrint(d.Found))
	case d.Found == "":
		return fmt.Sprintf("%s of extension %s (%s) is missing", d.Path, d.Extension, shortPrint(d.Wanted))
	}
	return fmt.Sprintf("%s of extension %s: %s → %s", d.Path, d.Extension, shortPrint(d.Found), shortPrint(d.Wanted))
}

// shortPrint shortens a digest; a link keeps its whole target.
func shortPrint(fingerprint string) string {
	if strings.HasPrefix(fingerprint, "sha256:") {
		return words.Short(fingerprint)
	}
	return fingerprint
}

// maxFileDiffs is how many files of one node are named; the others are only counted.
const maxFileDiffs = 8

// fileReads bounds how many machines are read at once.
const fileReads = 4

// CompareFiles reads the files of locked extensions back from each target and compares them. Errors are by target:
// if a machine can't be read, the others still are. say gets one line about each node; its calls do not overlap.
func CompareFiles(ctx context.Context, r cluster.FileReader, targets []FileTarget, say func(node, text string)) (checks []FileCheck, errs []error) {
	checks, errs = make([]FileCheck, len(targets)), make([]error, len(targets))
	var saying sync.Mutex
	EachAtOnce(targets, fileReads, func(i int, t *FileTarget) {
		checks[i], errs[i] = compareFiles(ctx, r, *t)
		saying.Lock()
		defer saying.Unlock()
		if errs[i] == nil {
			say(t.Node, checks[i].String())
		} else {
			say(t.Node, "its files could not be read")
		}
	})
	return checks, errs
}

func (c FileCheck) String() string {
	differ := "all are as locked"
	if !c.Same() {
		differ = fmt.Sprintf("%d differ", len(c.Differ)+c.More)
		if len(c.Differ)+c.More == 1 {
			differ = "1 differs"
		}
	}
	return fmt.Sprintf("%s of its extensions compared (%d bytes read): %s", words.Counted(c.Files, "file"), c.Bytes, differ)
}

func (f LockedFile) fingerprint() string {
	if f.Mode.IsRegular() {
		return "sha256:" + f.SHA256
	}
	return kindOf(f.Mode, f.Link)
}

// compareFiles lists, which is cheap, and reads each file with a locked counterpart: only content proves anything.
func compareFiles(ctx context.Context, r cluster.FileReader, t FileTarget) (FileCheck, error) {
	c := &fileComparison{target: t, owners: map[string][]int{}, found: map[string]cluster.MachineFile{}}
	c.plan()
	err := r.Files(ctx, t.Addr, t.UUID, func(ctx context.Context, files cluster.MachineFiles) error {
		if err := c.list(ctx, files); err != nil {
			return err
		}
		return c.compare(ctx, files)
	})
	if err != nil {
		return FileCheck{}, fmt.Errorf("read its files: %w", err)
	}
	return c.check, nil
}

const emptyFingerprint = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

type fileComparison struct {
	target FileTarget
	owners map[string][]int // by path: indices into target.Content
	found  map[string]cluster.MachineFile
	check  FileCheck
}

func (c *fileComparison) compare(ctx context.Context, files cluster.MachineFiles) error {
	for _, name := range sortedKeys(c.owners) {
		c.check.Files++
		f, there := c.found[name]
		found := ""
		if there {
			var err error
			if found, err = c.read(ctx, files, f); err != nil {
				return err
			}
		}
		c.judge(name, found)
	}
	for _, name := range sortedKeys(c.found) {
		if _, ours := c.owners[name]; ours {
			continue
		}
		if len(c.check.Differ) >= maxFileDiffs {
			c.check.More++
			continue
		}
		found, err := c.read(ctx, files, c.found[name])
		if err != nil {
			return err
		}
		c.differs(FileDiff{Path: name, Found: found})
	}
	return nil
}

func (c *fileComparison) differs(d FileDiff) {
	if len(c.check.Differ) >= maxFileDiffs {
		c.check.More++
		return
	}
	c.check.Differ = append(c.check.Differ, d)
}

func (c *fileComparison) judge(name, found string) {
	for _, i := range c.owners[name] {
		if f := c.target.Content[i].Files[name]; f.fingerprint() == found || f.HardLink && found == emptyFingerprint {
			return
		}
	}
	last := c.target.Content[c.owners[name][len(c.owners[name])-1]]
	c.differs(FileDiff{Path: name, Extension: last.Extension.Title(), Found: found, Wanted: last.Files[name].fingerprint()})
}

// list records what the machine has at the locked paths, and all files below local.
func (c *fileComparison) list(ctx context.Context, files cluster.MachineFiles) error {
	dirs, running := map[string]bool{local: true}, map[string]int{}
	for name := range c.owners {
		if !strings.HasPrefix(name, local+"/") {
			dirs[path.Dir(name)] = false
		}
	}
	for _, dir := range sortedKeys(dirs) {
		err := files.List(ctx, dir, dirs[dir], func(f cluster.MachineFile) error {
			_, ours := c.owners[f.Path]
			extra := !ours && dirs[dir] && !f.Mode.IsDir() && !c.expected(f)
			switch {
			case extra && strings.HasPrefix(f.Path, services):
				name, _, _ := strings.Cut(strings.TrimPrefix(f.Path, services), "/")
				running[name]++
			case ours || extra:
				c.found[f.Path] = f
			}
			return nil
		})
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
	}
	for _, name := range sortedKeys(running) {
		c.check.NotCompared = append(c.check.NotCompared, fmt.Sprintf("%s below %s%s of no extension image: a service makes files there while it runs", words.Counted(running[name], "file"), services, name))
	}
	return nil
}

// expected reports whether a file below local belongs there although no extension image has it.
func (c *fileComparison) expected(f cluster.MachineFile) bool {
	switch {
	case path.Dir(f.Path) == local+"/share/schematic": // the schematic's own entry
		return true
	case f.Path == local+"/share/ca-certificates" && f.Link == "/etc/ssl": // Dockerfile of Talos
		return true
	}
	return c.target.EmbedsConfig && f.Path == local+"/etc/talos/config.yaml" // constants.EmbeddedConfigDirectory
}

// plan finds the owners of each file. Of several extensions with one file, any may match: one hides the others.
func (c *fileComparison) plan() {
	for i, content := range c.target.Content {
		hidden := map[string]int{}
		for name := range content.Files {
			if why := unseen(name); why != "" {
				hidden[why]++
				continue
			}
			c.owners[name] = append(c.owners[name], i)
		}
		for why, n := range hidden {
			c.check.NotCompared = append(c.check.NotCompared, fmt.Sprintf("%s of extension %s: %s", words.Counted(n, "file"), content.Extension.Title(), why))
		}
	}
	slices.Sort(c.check.NotCompared)
}

func (c *fileComparison) read(ctx context.Context, files cluster.MachineFiles, f cluster.MachineFile) (string, error) {
	if !f.Mode.IsRegular() {
		return kindOf(f.Mode, f.Link), nil
	}
	h := sha256.New()
	if err := files.Read(ctx, f.Path, f.SizeBytes, h); err != nil {
		return "", err
	}
	c.check.Bytes += f.SizeBytes
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func kindOf(mode fs.FileMode, link string) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "link to " + link
	case mode.IsDir():
		return "a directory"
	}
	return "neither a file nor a link"
}

// local has nearly all files of extensions. It is read-only but for services; Talos itself has one link there.
const local = "/usr/local"

// services is where the services of extensions run. Each has a writable overlay over its files. containerd makes mount
// points there. The service may write files there if its container.security.writeableRootfs is set (PreFunc and
// getOCIOptions of Talos' internal/app/machined/pkg/system/services/extension.go).
const services = local + "/lib/containers/"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// unseen says why a node does not show a file as locked (Compress and others of Talos' internal/pkg/extensions).
func unseen(name string) string {
	rest, lib := strings.CutPrefix(strings.TrimPrefix(name, "/usr"), "/lib/")
	if !lib {
		return ""
	}
	dir, base := path.Split(rest)
	microcode := dir == "firmware/intel-ucode/" || dir == "firmware/amd-ucode/" && strings.HasPrefix(base, "microcode_amd") && strings.HasSuffix(base, ".bin")
	switch {
	case microcode:
		return "CPU microcode: it is loaded before the system starts and is no file on a node"
	case strings.HasPrefix(dir, "modules/") && strings.Count(dir, "/") == 2 && strings.HasPrefix(base, "modules."):
		return "the list of kernel modules: it is generated for every image"
	}
	return ""
}

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

// AgainstFile: the file is for another node or cluster. What a machine runs is compared with the file itself.
func (f *Found) AgainstFile() (out []string) {
	file := f.File
	if file == nil || file.Err != nil {
		return nil
	}
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

// ObserveFiles compares all nodes' files with what they run. An unusable file is an error of its node only.
func ObserveFiles(ctx context.Context, src Sources, wanted []cluster.Wanted, found []Found) {
	if src.Maintenance == nil {
		return
	}
	if src.MachineConfig == nil {
		EachAtOnce(found, MachinesAtOnce, func(i int, f *Found) { f.Volumes = readConfigVolumes(src.Maintenance, wanted[i], f) })
		return
	}
	open := cluster.Where(found, func(f Found) bool {
		return f.Machine != nil && !f.Machine.ConfigHidden && f.Machine.Configs.Stored != nil
	})
	shows := cluster.Each(open, func(f Found) shown { return shown{f.Name, f.Machine} })
	others := shows
	if i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == src.First }); i >= 0 {
		if text, there, err := src.MachineConfig(ctx, src.First); there && err == nil { // an error is found again below
			others = []shown{{src.First, &cluster.Machine{ControlPlane: true, Configs: cluster.Configs{Stored: text, Active: text}, RunningSystem: cluster.RunningSystem{TalosVersion: wanted[i].Build.TalosVersion}}}}
		}
	}
	EachAtOnce(found, MachinesAtOnce, func(i int, f *Found) {
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
	EachAtOnce(o.Found, MachinesAtOnce, func(i int, f *Found) {
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

// EachAtOnce calls do with a pointer to each value, for at most limit values at once.
func EachAtOnce[T any](values []T, limit int, do func(i int, v *T)) {
	g := errgroup.Group{}
	g.SetLimit(limit)
	for i := range values {
		g.Go(func() error { do(i, &values[i]); return nil })
	}
	_ = g.Wait() // no call returns an error
}

// tryFound calls do for all nodes and returns the first node's error.
func tryFound(found []Found, limit int, do func(i int, f *Found) error) error {
	errs := make([]error, len(found))
	EachAtOnce(found, limit, func(i int, f *Found) { errs[i] = do(i, f) })
	err, _ := cluster.Find(errs, func(err error) bool { return err != nil })
	return err
}

// CompareConfigs says how a file differs from the configurations that its node has, stored for its next boot and
// active. What recast sets itself is set in all of them. Another Talos than the node runs may read the file.
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
	f := cluster.FoundFile{ConfigFile: cluster.ConfigFile{Changes: config.Compare(found, docs), Pending: !has.Same()}}
	f.Changes = slices.DeleteFunc(f.Changes, func(c config.Change) bool { return c.OfKubernetesVersion() || c.OfHostname() })
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

// ConfigVolumes are those that a machine's configurations define, read only if the machine may get other ones.
type ConfigVolumes struct {
	Runs  []cluster.ConfigVolume // by the configuration that the machine runs
	Keeps []cluster.ConfigVolume // by the configuration for its next boot, as the wanted Talos reads it
	Err   error
}

// readConfigVolumes skips a machine that runs on as now: file and stored configuration agree, for no older Talos.
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

// Selectors returns the selectors in the node's file that choose where Talos makes a volume, or looks for one at each
// boot. Existing partitions are found by label. While the VM is to get disks, what matches nothing is unknown.
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

func (f *Found) HasVolume(id string) bool {
	return f.Machine != nil && f.Machine.HasVolume(id) || f.Blank != nil && f.Blank.HasVolume(id)
}

func (f *Found) MachineName() string {
	if f.VM == nil {
		return "the machine"
	}
	return fmt.Sprintf("VM %d", f.VM.ID)
}
