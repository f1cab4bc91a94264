package talos

import (
	"errors"
	"maps"
	"reflect"
	"strings"

	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// checkRest checks that the patch changed nothing else.
func checkRest(before, after []byte, p cluster.ConfigPatch) error {
	var rest [2][]any
	for i, config := range [][]byte{before, after} {
		docs, err := parseDocuments(config)
		if err != nil {
			return fault.MachineConfig.Refusedf("the patched configuration can't be read: %w", err)
		}
		for _, d := range docs {
			if d.node != nil {
				rest[i] = append(rest[i], without(d, p))
			}
		}
	}
	if !reflect.DeepEqual(rest[0], rest[1]) {
		return fault.WithHint(fault.MachineConfig.Refusedf("editing would change more than it is meant to set"),
			"YAML anchors and merge keys around machine.install or machine.network must be written out")
	}
	return nil
}

// without is the document's content without what the patch sets.
func without(d *document, p cluster.ConfigPatch) any {
	var set [][]string
	switch kind := d.kind(); {
	case kind == "":
		if p.Installer != "" {
			set = append(set, []string{"machine", "install", "image"})
		}
		if installs(p) {
			set = append(set, []string{"machine", "install", "disk"},
				[]string{"machine", "install", "diskSelector"}, []string{"machine", "install", "wipe"})
		}
		if p.Hostname != "" {
			set = append(set, []string{"machine", "network", "hostname"})
		}
	case kind == installKind:
		if p.Installer != "" {
			set = append(set, []string{"installer", "image"})
		}
		if installs(p) {
			set = append(set, []string{"provisioning", "diskSelector"}, []string{"provisioning", "wipe"})
		}
	case kind == hostnameKind && p.Hostname != "":
		set = [][]string{{"hostname"}, {"auto"}}
	}
	set = append(set, kubernetesPaths(d.kind(), p.Kubernetes)...)
	tree := d.orig
	for _, path := range set {
		tree = cut(tree, path...)
	}
	return tree
}

// cut copies a tree without the value at path, and without mappings that become empty.
func cut(tree any, path ...string) any {
	m, ok := tree.(map[string]any)
	if !ok {
		return tree
	}
	m = maps.Clone(m)
	if len(path) == 1 {
		delete(m, path[0])
		return m
	}
	child := cut(m[path[0]], path[1:]...)
	if sub, isMap := child.(map[string]any); child == nil || isMap && len(sub) == 0 {
		delete(m, path[0])
	} else {
		m[path[0]] = child
	}
	return m
}

// machineMode is what configurations are validated for: a bare machine that will
// install itself on a disk, or is already installed.
type machineMode struct{ installs bool }

func (machineMode) String() string          { return "metal" }
func (m machineMode) RequiresInstall() bool { return m.installs }
func (machineMode) InContainer() bool       { return false }

// checkPatched reads the configuration as Talos will, and checks that it means what
// the patch asked for.
func checkPatched(patched []byte, p cluster.ConfigPatch) error {
	cfg, unknown, err := loadKnown(patched)
	if err != nil {
		return fault.WithHint(err, "recast knows the configuration of Talos up to 1.14; a newer Talos needs a newer recast")
	}
	if err := checkUnknown(unknown, p); err != nil {
		return err
	}
	if _, err := cfg.ValidateAsClient(machineMode{installs: installs(p)}); err != nil {
		return fault.MachineConfig.Refusedf("Talos would refuse it: %s", withoutValues(err.Error(), patched))
	}
	docs, err := parseDocuments(patched)
	if err != nil {
		return fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	if !p.Runs {
		err = checkIssue(docs, p)
	}
	if err := errors.Join(err, checkVersion(docs, p), checkKubernetes(cfg, p.Kubernetes)); err != nil {
		return err
	}
	image, selector, err := installTarget(cfg)
	if err != nil && installs(p) {
		return fault.MachineConfig.Refusedf("its install disk: %s", withoutValues(err.Error(), patched))
	}
	if u := cfg.UnattendedInstallConfig(); installs(p) && u != nil && u.RebootAfterInstall() != nil && !*u.RebootAfterInstall() {
		return fault.WithHint(fault.MachineConfig.Refusedf("its %s says reboot: false: Talos would install itself and never boot what it has installed", installKind),
			"remove the line from the configuration, so that Talos reboots after an installation")
	}
	var name string
	if h := cfg.NetworkHostnameConfig(); h != nil {
		name = h.Hostname()
	}
	switch {
	case p.Installer != "" && image != p.Installer:
		return fault.MachineConfig.Refusedf("it would install another image than %s", p.Installer)
	case installs(p) && !selectsOnly(selector, p.Disk):
		_, what, value := attribute(p.Disk)
		return fault.MachineConfig.Refusedf("its disk selector would not match the disk with %s %q alone", what, value)
	case p.Hostname != "" && name != p.Hostname:
		return fault.MachineConfig.Refusedf("it would not name the machine %s", p.Hostname)
	}
	return nil
}

// installTarget is what Talos will install, and how it will choose the disk.
func installTarget(cfg config.Provider) (image string, selector *cel.Expression, err error) {
	if u := cfg.UnattendedInstallConfig(); u != nil {
		match := u.VolumeSelector()
		return u.InstallerImage(), &match, nil
	}
	in := cfg.Machine().Install()
	selector, err = in.DiskMatchExpression()
	if err == nil && selector == nil {
		err = errors.New("no disk selector")
	}
	return in.Image(), selector, err
}

// selectsOnly tries the selector on the disk as Talos would show it, and on disks of
// the same model with names similar to its own.
func selectsOnly(selector *cel.Expression, disk cluster.MachineDisk) bool {
	_, what, name := attribute(disk)
	matches := func(name string) bool {
		spec := &blockpb.DiskSpec{
			DevPath: "/dev/sda", Size: 10 << 30, Model: "QEMU HARDDISK", Transport: "virtio", SubSystem: "/sys/class/block",
		}
		*map[string]*string{"wwid": &spec.Wwid, "serial": &spec.Serial, "bus_path": &spec.BusPath}[what] = name
		ok, err := selector.EvalBool(celenv.DiskLocator(), map[string]any{"disk": spec, "system_disk": false})
		return ok && err == nil
	}
	if name == "" || !matches(name) || matches("") || strings.ContainsAny(name, "*?[]\\\"") {
		return false
	}
	for _, other := range []string{name + "x", "x" + name, name[1:], name[:len(name)-1], strings.Repeat("x", len(name))} {
		if other != name && matches(other) {
			return false
		}
	}
	return true
}
