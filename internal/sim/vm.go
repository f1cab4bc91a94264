package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// VM replaces the lab's own VM of a node. The lab sets its name, its SMBIOS UUID and
// the MACs.
type VM struct {
	Config    map[string]string // as qm create takes it: a new disk is "local-lvm:20"
	Documents []string          // additional machine configuration documents
	Content   map[string][]byte // of disks that are not blank, by key
}

// systemDisk is the key of Talos' disk: the first one in the boot order.
func (v VM) systemDisk() string {
	for key := range strings.SplitSeq(strings.TrimPrefix(v.Config["boot"], "order="), ";") {
		if d := v.Config[key]; d != "" && !strings.HasPrefix(key, "net") && !strings.Contains(d, "media=cdrom") {
			return key
		}
	}
	return ""
}

// bus is that of the system disk.
func (v VM) bus() string { return strings.TrimRight(v.systemDisk(), "0123456789") }

// ephemeralElsewhere says whether a document puts EPHEMERAL on another disk.
func (v VM) ephemeralElsewhere() bool {
	return slices.ContainsFunc(v.Documents, func(d string) bool {
		return strings.Contains(d, "kind: VolumeConfig") && strings.Contains(d, "name: EPHEMERAL") && strings.Contains(d, "diskSelector")
	})
}

func (v VM) check(node string) error {
	switch key := v.systemDisk(); {
	case !strings.HasSuffix(key, "0"):
		return fmt.Errorf("VM of %s: its boot order begins with no disk that has the number 0", node)
	case v.Content[key] != nil:
		return fmt.Errorf("VM of %s: %s is for Talos to write on", node, key)
	}
	return nil
}

// complete is the configuration with the lab's own settings added.
func (v VM) complete(n Node) map[string]string {
	c := map[string]string{"smbios1": "uuid=" + n.UUID}
	for key, value := range v.Config {
		number, isNet := strings.CutPrefix(key, "net")
		switch model, rest, _ := strings.Cut(value, ","); {
		case isNet && number == "0":
			value = model + "=" + n.MAC + "," + rest
		case isNet:
			value = model + "=" + n.MAC[:9] + "0" + number + n.MAC[11:] + "," + rest
		case key == "smbios1":
			value = c["smbios1"] + "," + value
		}
		c[key] = value
	}
	c["name"] = n.Name
	return c
}

// installVM makes the machine of a node with a VM from Options.VMs.
func (l *Lab) installVM(n Node, v VM, installer string, uki []byte, member talosapi.EtcdData) error {
	m := talosapi.Machine{Hostname: n.Name, ControlPlane: n.ControlPlane, Installer: installer, Documents: v.Documents}
	if v.bus() == "virtio" {
		m.InstallDisk = "/dev/vda"
	}
	config, err := l.Talos.MachineConfig(m)
	if err != nil {
		return err
	}
	system, err := l.machines.Preinstalled(config, uki, v.ephemeralElsewhere())
	if err != nil {
		return err
	}
	if n.ControlPlane {
		if system, err = talosapi.WithEtcd(system, member); err != nil {
			return err
		}
	}
	content := map[string]*world.Media{v.systemDisk(): world.NewMedia(system)}
	if v.Config["efidisk0"] != "" {
		img, err := artefact.ReadUKI(uki)
		if err != nil {
			return err
		}
		content["efidisk0"] = world.NewMedia(talosapi.NVRAM(img))
	}
	for key, bytes := range v.Content {
		content[key] = world.NewMedia(bytes)
	}
	return l.World.DefineVM(n.Host, n.VMID, v.complete(n), content)
}
