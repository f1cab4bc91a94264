package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	documents "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// volume is a partition that Talos manages.
type volume struct {
	id, label  string
	filesystem string
	selector   *cel.Expression // where to create it; nil: the system disk
	existing   *cel.Expression // which existing partition it is; nil: found by its label
	fixed      bool            // created only by the installer
}

// placed is the location of a volume.
type placed struct {
	dev   device
	index int // of the partition, from 1
	part  artefact.Partition
}

// volumesOf are the volumes of a configuration; nil: those of every machine.
func volumesOf(cfg config.Provider) []volume {
	vols := []volume{
		{id: labelMeta, label: labelMeta, fixed: true},
		{id: labelState, label: labelState, filesystem: "xfs", fixed: true},
		{id: labelEphemeral, label: labelEphemeral, filesystem: "xfs"},
	}
	if cfg == nil {
		return vols
	}
	if c, ok := cfg.Volumes().ByName(labelEphemeral); ok {
		if expr, ok := c.Provisioning().DiskSelector().Get(); ok {
			vols[2].selector = &expr
		}
	}
	if c, ok := cfg.Volumes().ByName(labelEtcd); ok {
		v := volume{id: labelEtcd, label: labelEtcd, filesystem: "xfs"}
		if expr, ok := c.Provisioning().DiskSelector().Get(); ok {
			v.selector = &expr
		}
		vols = append(vols, v)
	}
	for _, u := range cfg.UserVolumeConfigs() {
		if u.Type().ValueOr(block.VolumeTypePartition) != block.VolumeTypePartition {
			continue
		}
		v := volume{id: userPrefix + u.Name(), label: userPrefix + u.Name(), filesystem: u.Filesystem().Type().String()}
		if expr, ok := u.Provisioning().DiskSelector().Get(); ok {
			v.selector = &expr
		}
		vols = append(vols, v)
	}
	return append(vols, furtherVolumes(cfg)...)
}

// furtherVolumes are the raw, swap and existing volumes of a configuration.
func furtherVolumes(cfg config.Provider) []volume {
	var vols []volume
	add := func(id, filesystem string, p documents.VolumeProvisioningConfig) {
		v := volume{id: id, label: id, filesystem: filesystem}
		if expr, ok := p.DiskSelector().Get(); ok {
			v.selector = &expr
		}
		vols = append(vols, v)
	}
	for _, r := range cfg.RawVolumeConfigs() {
		add(constants.RawVolumePrefix+r.Name(), "", r.Provisioning())
	}
	for _, s := range cfg.SwapVolumeConfigs() {
		add(constants.SwapVolumePrefix+s.Name(), "swap", s.Provisioning())
	}
	for _, e := range cfg.ExistingVolumeConfigs() {
		vols = append(vols, volume{id: constants.ExistingVolumePrefix + e.Name(), existing: new(e.VolumeDiscovery().VolumeSelector())})
	}
	return vols
}

// locate finds a volume on any disk by its partition label.
func locate(devs []device, label string) (placed, bool) {
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			if p.Label == label {
				return placed{dev: d, index: i + 1, part: p}, true
			}
		}
	}
	return placed{}, false
}

// locate finds the volume by its label or selector.
func (v volume) locate(devs []device) (placed, bool) {
	if v.existing == nil {
		return locate(devs, v.label)
	}
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			found := &blockpb.DiscoveredVolumeSpec{
				DevPath: "/dev/" + d.partitionName(i+1), Name: p.Filesystem, Uuid: p.FilesystemUUID, PartitionUuid: p.UUID, PartitionLabel: p.Label,
			}
			ok, err := v.existing.EvalBool(celenv.VolumeLocator(), map[string]any{"volume": found, "disk": d.selectable()})
			if err == nil && ok {
				return placed{dev: d, index: i + 1, part: p}, true
			}
		}
	}
	return placed{}, false
}

// provision creates missing volumes and publishes the location of all. Existing ones are
// left alone.
func (b *boot) provision(ctx context.Context) error {
	for _, v := range volumesOf(b.config()) {
		if err := b.m.make(v); err != nil {
			b.m.console("volume %s: %v", v.id, err)
		}
	}
	return b.publishBlock(ctx)
}

// make creates a volume's partition on the first disk that matches its selector.
func (m *machine) make(v volume) error {
	devs := m.devices()
	if _, ok := v.locate(devs); ok || v.fixed || v.existing != nil {
		return nil
	}
	system, _ := systemDisk(devs)
	for _, d := range devs {
		if d.CDROM || d.foreign || d.Media == nil {
			continue
		}
		ok := d.Key == system.Key
		if v.selector != nil {
			var err error
			if ok, err = matchDisk(v.selector, d, d.Key == system.Key); err != nil {
				return fmt.Errorf("evaluate disk selector: %w", err)
			}
		}
		if ok {
			err := m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
				disk.Partitions = append(slices.Clone(disk.Partitions), newPartition(v.label, v.filesystem, nil))
				return disk
			})
			if formatted := m.fw.o.Formatted; err == nil && formatted != nil && strings.HasPrefix(v.label, userPrefix) && d.Key != system.Key {
				formatted(m.hw.Name, v.label, d.Media)
			}
			return err
		}
	}
	return errors.New("no disk matches its selector")
}

// Volumes identifies the partitions of a disk, whatever is written on them.
func Volumes(content []byte) string {
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return "foreign " + digest(content)
	}
	var b strings.Builder
	for _, p := range disk.Partitions {
		fmt.Fprintln(&b, p.Label, p.UUID, p.FilesystemUUID)
	}
	return b.String()
}
