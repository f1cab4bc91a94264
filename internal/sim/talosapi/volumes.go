package talosapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configtypes "github.com/siderolabs/talos/pkg/machinery/config/config"
	blockcfg "github.com/siderolabs/talos/pkg/machinery/config/types/block"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/meta"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// volume is a volume of a configuration.
type volume struct {
	id, label  string
	kind       block.VolumeType
	filesystem string
	selector   *cel.Expression // where to create it, and where a whole disk is; nil: the system disk
	minBytes   uint64          // minimum size of the disk, if its configuration has one
	existing   *cel.Expression // selects the existing partition; nil: found by its label
	device     string          // of machine.disks: the volume is found by device and index
	index      int
	target     string         // of machine.disks: where it is mounted
	source     string         // of what the VM's host shares
	keys       map[int]string // encryption keys by slot; nil: not encrypted
	fixed      bool           // created only by the installer
}

type placed struct {
	dev   device
	index int // of the partition, from 1
	part  artefact.Partition
}

// volumesOf returns the volumes of a configuration; for nil, the volumes of a machine without a configuration.
func volumesOf(cfg config.Provider) []volume {
	vols := []volume{
		{id: labelMeta, label: labelMeta, fixed: true},
		{id: labelState, label: labelState, filesystem: "xfs", fixed: true},
	}
	if cfg == nil {
		return vols
	}
	vols = append(vols, volume{id: labelEphemeral, label: labelEphemeral, filesystem: "xfs"})
	for i := range vols {
		c, _ := cfg.Volumes().ByName(vols[i].id)
		encryption := c.Encryption()
		if encryption == nil {
			encryption = cfg.Machine().SystemDiskEncryption().Get(vols[i].id)
		}
		vols[i].keys, vols[i].selector = keysOf(encryption), selectorOf(c.Provisioning())
	}
	for _, id := range configtypes.PromotableSystemVolumeNames {
		v := volume{id: id, label: id, kind: block.VolumeTypeDirectory}
		if promoted(cfg, id) {
			c, _ := cfg.Volumes().ByName(id)
			v.kind, v.filesystem = block.VolumeTypePartition, "xfs"
			v.keys, v.selector = keysOf(c.Encryption()), selectorOf(c.Provisioning())
		}
		vols = append(vols, v)
	}
	for _, u := range cfg.UserVolumeConfigs() {
		id := userPrefix + u.Name()
		vols = append(vols, volume{
			id: id, label: id, kind: u.Type().ValueOr(block.VolumeTypePartition), filesystem: u.Filesystem().Type().String(),
			keys: keysOf(u.Encryption()), selector: selectorOf(u.Provisioning()),
			minBytes: u.Provisioning().MinSize().ValueOrZero(),
		})
	}
	return append(vols, furtherVolumes(cfg)...)
}

func selectorOf(p configtypes.VolumeProvisioningConfig) *cel.Expression {
	if expr, ok := p.DiskSelector().Get(); ok {
		return &expr
	}
	return nil
}

// promoted reports whether a configuration makes ETCD, CRI, KUBELET or LOG a partition; otherwise the volume is a
// directory on EPHEMERAL (GetPromotableSystemVolumesTransformer in volumeconfig/system_volumes.go).
func promoted(cfg config.Provider, id string) bool {
	c, _ := cfg.Volumes().ByName(id)
	return blockcfg.ProvisioningRequested(c.Provisioning())
}

// furtherVolumes returns the raw, swap, existing and external volumes of a configuration, and the volumes of
// machine.disks.
func furtherVolumes(cfg config.Provider) []volume {
	var vols []volume
	add := func(id, filesystem string, p configtypes.VolumeProvisioningConfig, e configtypes.EncryptionConfig) {
		vols = append(vols, volume{
			id: id, label: id, filesystem: filesystem, keys: keysOf(e),
			selector: selectorOf(p), minBytes: p.MinSize().ValueOrZero(),
		})
	}
	for _, r := range cfg.RawVolumeConfigs() {
		add(constants.RawVolumePrefix+r.Name(), "", r.Provisioning(), r.Encryption())
	}
	for _, s := range cfg.SwapVolumeConfigs() {
		add(constants.SwapVolumePrefix+s.Name(), "swap", s.Provisioning(), s.Encryption())
	}
	for _, e := range cfg.ExistingVolumeConfigs() {
		vols = append(vols, volume{id: constants.ExistingVolumePrefix + e.Name(), existing: new(e.VolumeDiscovery().VolumeSelector())})
	}
	for _, e := range cfg.ExternalVolumeConfigs() {
		v := volume{id: constants.ExternalVolumePrefix + e.Name(), kind: block.VolumeTypeExternal}
		if fs, ok := e.Mount().Virtiofs().Get(); ok {
			v.source = fs.Source()
		}
		vols = append(vols, v)
	}
	for _, d := range cfg.Machine().Disks() {
		for i, p := range d.Partitions() {
			vols = append(vols, volume{id: fmt.Sprintf("%s-%d", d.Device(), i+1), device: d.Device(), index: i, filesystem: "xfs", target: p.MountPoint()})
		}
	}
	return vols
}

func locate(devs []device, label string) (placed, bool) {
	return first(partitions(devs), func(p placed) bool { return p.part.Label == label })
}

func partitions(devs []device) (all []placed) {
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			all = append(all, placed{dev: d, index: i + 1, part: p})
		}
	}
	return all
}

// onDisk reports whether the volume is on a disk. A directory is not, nor is a volume that the VM's host shares.
func (v volume) onDisk() bool {
	return v.kind != block.VolumeTypeDirectory && v.kind != block.VolumeTypeExternal
}

func (v volume) locate(devs []device) (placed, bool) {
	switch {
	case !v.onDisk():
		return placed{}, false
	case v.kind == block.VolumeTypeDisk:
		p, found := first(partitions(devs), func(p placed) bool {
			ok, err := v.matches(p.dev, false)
			return err == nil && ok
		})
		return p, found && p.part.Whole
	case v.device != "":
		return first(partitions(devs), func(p placed) bool { return p.index == v.index+1 && p.dev.called(v.device) })
	case v.existing == nil:
		return locate(devs, v.label)
	}
	return first(partitions(devs), func(p placed) bool {
		found := &blockpb.DiscoveredVolumeSpec{
			DevPath: p.dev.partPath(p.index), Name: p.part.Filesystem, Uuid: p.part.FilesystemUUID, PartitionUuid: p.part.UUID, PartitionLabel: p.part.Label,
		}
		ok, err := v.existing.EvalBool(celenv.VolumeLocator(), map[string]any{"volume": found, "disk": p.dev.selectable()})
		return err == nil && ok
	})
}

// provision creates missing volumes and publishes the location of all volumes. Existing volumes are left alone.
func (b *boot) provision(ctx context.Context) error {
	failed := map[string]string{}
	for _, v := range volumesOf(b.config()) {
		if err := b.m.make(v); err != nil {
			b.m.console("volume %s: %v", v.id, err)
		}
		if err := b.m.open(v); err != nil {
			b.m.console("volume %s: %v", v.id, err)
			failed[v.id] = err.Error()
		}
	}
	holding(&b.mu, func() { b.failed = failed })
	return b.publishBlock(ctx)
}

// make creates a volume's partition on the first disk that matches its selector.
func (m *machine) make(v volume) error {
	devs := m.devices()
	if _, ok := v.locate(devs); ok || v.fixed || v.existing != nil || !v.onDisk() {
		return nil
	}
	if why := v.cannot(devs); why != "" {
		return errors.New(why)
	}
	system, _ := systemDisk(devs)
	for _, d := range devs {
		if d.CDROM || d.foreign || d.Media == nil {
			continue
		}
		ok := d.Key == system.Key
		if v.device != "" {
			ok = d.called(v.device)
		} else if v.selector != nil {
			var err error
			if ok, err = v.matches(d, d.Key == system.Key); err != nil {
				return fmt.Errorf("evaluate disk selector: %w", err)
			}
		}
		if ok && v.fits(d) && (v.kind != block.VolumeTypeDisk || len(d.disk.Partitions) == 0) {
			err := m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
				p := newPartition(v.label, v.filesystem, nil)
				p.Keys = m.slots(v.keys)
				if v.kind == block.VolumeTypeDisk {
					p.Label, p.UUID, p.Whole = "", "", true
				}
				disk.Partitions = append(slices.Clone(disk.Partitions), p)
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

// matches evaluates the volume's selector. For a whole disk Talos has no system_disk (locateDiskByDiskMatch).
func (v volume) matches(d device, system bool) (bool, error) {
	if v.kind == block.VolumeTypeDisk {
		return v.selector.EvalBool(celenv.DiskLocator(), map[string]any{"disk": d.selectable()})
	}
	return matchDisk(v.selector, d, system)
}

func (v volume) fits(d device) bool {
	return v.kind == block.VolumeTypeDisk || uint64(max(d.SizeBytes, 0)) >= v.minBytes
}

// cannot returns the error with which Talos does not make the volume on an installed machine, or does not find a
// whole disk (findCandidateDisks, selectBestDisk and locateDiskByDiskMatch in block/internal/volumes/locate.go,
// format.go); "": no error.
func (v volume) cannot(devs []device) string {
	system, installed := systemDisk(devs)
	if v.selector == nil || !installed {
		return ""
	}
	var matched []device
	var paths []string
	for _, d := range devs {
		ok, err := v.matches(d, d.Key == system.Key)
		if err != nil {
			return "error evaluating disk locator: " + err.Error()
		}
		if ok {
			matched, paths = append(matched, d), append(paths, d.path())
		}
	}
	whole := v.kind == block.VolumeTypeDisk
	switch {
	case len(matched) == 0:
		return "no disks matched selector for volume"
	case whole && len(matched) > 1:
		return fmt.Sprintf("multiple disks matched locator for disk volume; matched disks: %v", paths)
	case whole && len(matched[0].disk.Partitions) > 0 && !matched[0].disk.Partitions[0].Whole:
		return "filesystem type mismatch: gpt != " + v.filesystem
	case !slices.ContainsFunc(matched, v.fits):
		return fmt.Sprintf("no disks matched for volume (%[1]d matched selector): %[1]d have not enough space, 0 have wrong format, 0 have other issues", len(matched))
	}
	return ""
}

// Volumes identifies the partitions of a disk, whatever is written on them.
func Volumes(content []byte) string {
	return eachPartition(content, "\n", func(p artefact.Partition) string {
		return p.Label + " " + p.UUID + " " + p.FilesystemUUID
	})
}

// keysOf returns an encryption's keys by slot, as far as a configuration describes them.
func keysOf(e configtypes.EncryptionConfig) map[int]string {
	if e == nil || e.Provider() == block.EncryptionProviderNone {
		return nil
	}
	keys := map[int]string{}
	for _, k := range e.Keys() {
		text := ""
		switch {
		case k.Static() != nil:
			text = "static " + digest(k.Static().Key())
		case k.NodeID() != nil:
			text = nodeIDKey
		case k.KMS() != nil:
			text = "kms " + k.KMS().Endpoint()
		case k.TPM() != nil:
			text = "tpm"
		}
		if k.LockToSTATE() {
			text += lockedToState
		}
		keys[k.Slot()] = text
	}
	return keys
}

const (
	nodeIDKey     = "nodeID"
	lockedToState = " with STATE"
)

// slots returns the keys that a machine makes of the keys in its configuration: a key of a node ID depends on the
// VM's UUID, and a key locked to STATE depends on a salt in STATE.
func (m *machine) slots(keys map[int]string) map[int]string {
	if keys == nil {
		return nil
	}
	out := map[int]string{}
	for slot, key := range keys {
		of, locked := strings.CutSuffix(key, lockedToState)
		if of == nodeIDKey {
			of += " " + m.hw.UUID
		}
		if state, there := locate(m.devices(), labelState); there && locked {
			of += " " + state.part.UUID
		}
		out[slot] = of
	}
	return out
}

// open opens the volume with the keys of its configuration, and brings its key slots in line with them. Its errors are
// Talos' (controllers/block/internal/volumes, encrypt.go and format.go; internal/pkg/encryption, encryption.go).
func (m *machine) open(v volume) error {
	p, there := v.locate(m.devices())
	if !there || v.fixed { // the lab's installer leaves STATE as it is
		return nil
	}
	is, wants := p.part.Keys, m.slots(v.keys)
	switch {
	case is == nil && wants == nil && p.part.Filesystem != "" && v.filesystem != "" && p.part.Filesystem != v.filesystem:
		return fmt.Errorf("filesystem type mismatch: %s != %s", p.part.Filesystem, v.filesystem)
	case is == nil && wants == nil:
		return nil
	case wants == nil && v.filesystem == "":
		if v.target == "" && v.existing == nil {
			return nil // a raw volume is used as it is
		}
		return errors.New("volume is encrypted, but no encryption config provided")
	case wants == nil:
		return fmt.Errorf("filesystem type mismatch: luks != %s", v.filesystem)
	case is == nil && p.part.Filesystem != "":
		return fmt.Errorf("block dev type mismatch: %s != luks", p.part.Filesystem)
	case is != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(wants)), func(slot int) bool { return is[slot] == wants[slot] }):
		return errors.New("error opening encrypted volume: encryption key rejected")
	case maps.Equal(is, wants):
		return nil
	}
	return m.rewrite(p.dev.Key, func(d artefact.Disk) artefact.Disk {
		d.Partitions = slices.Clone(d.Partitions)
		at := &d.Partitions[p.index-1]
		if at.Keys == nil {
			at.Data = nil // Talos formats what it does not recognize
		}
		at.Keys = wants
		return d
	})
}

// Encrypted encrypts a partition in a disk's content with the node ID of a machine, and with a partition STATE if
// there is one; without on, it removes the encryption. What is inside stays.
func Encrypted(content []byte, label, uuid, state string, on bool) ([]byte, error) {
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return nil, err
	}
	for i := range disk.Partitions {
		if p := &disk.Partitions[i]; p.Label == label {
			p.Keys = nil
			if on {
				p.Keys = map[int]string{0: strings.TrimSpace(nodeIDKey + " " + uuid + " " + state)}
			}
		}
	}
	return artefact.WriteDisk(disk), nil
}

// StateUUID returns the UUID of the partition STATE in a disk's content.
func StateUUID(content []byte) string {
	disk, _ := artefact.ReadDisk(content)
	p, _ := partition(disk, labelState)
	return p.UUID
}

type mount struct {
	placed
	volume, target string
}

func (b *boot) mounted(devs []device) []mount {
	cfg := b.config()
	if cfg == nil {
		return nil
	}
	var all []mount
	for _, v := range volumesOf(cfg) {
		p, there := v.locate(devs)
		if target := v.mountPoint(); there && target != "" && p.part.Filesystem != "" && b.notOpen(v.id) == "" {
			all = append(all, mount{p, v.id, target})
		}
	}
	return all
}

// PodWrites writes below a path of a running machine, as a pod does that has the path mounted. It returns the ID of
// the volume that holds the data: the volume with the longest mount point above the path.
func (fw *Firmware) PodWrites(vmid int, name string, data []byte) (id string, err error) {
	b := look(&fw.hub.mu, func() *boot { return fw.hub.up[vmid] })
	if b == nil {
		return "", fmt.Errorf("VM %d does not run", vmid)
	}
	var on mount
	for _, at := range b.mounted(b.m.devices()) {
		if strings.HasPrefix(name, strings.TrimSuffix(at.target, "/")+"/") && len(at.target) > len(on.target) {
			on = at
		}
	}
	if on.target == "" {
		return "", fmt.Errorf("no volume is mounted above %s", name)
	}
	return on.volume, b.m.rewrite(on.dev.Key, func(d artefact.Disk) artefact.Disk {
		d.Partitions = slices.Clone(d.Partitions)
		users, etcd := splitEtcd(d.Partitions[on.index-1].Data)
		d.Partitions[on.index-1].Data = joinEtcd(slices.Concat(users, []byte(name+": "), data), etcd)
		return d
	})
}

// systemMounts are where the system volumes are mounted.
var systemMounts = map[string]string{
	labelState: constants.StateMountPoint, labelEphemeral: constants.EphemeralMountPoint, labelEtcd: constants.EtcdDataPath,
	constants.CRIContainerdVolumeID: constants.CRIContainerdDataPath, constants.KubeletDataVolumeID: constants.KubeletDataPath, constants.LogVolumeID: constants.LogMountPoint,
}

// mountPoint returns the path at which a volume is mounted; "" if the volume is not mounted.
func (v volume) mountPoint() string {
	if v.target != "" || systemMounts[v.id] != "" {
		return v.target + systemMounts[v.id]
	}
	for _, prefix := range []string{userPrefix, constants.ExistingVolumePrefix, constants.ExternalVolumePrefix} {
		if name, ok := strings.CutPrefix(v.id, prefix); ok {
			return constants.UserVolumeMountPoint + "/" + name
		}
	}
	return ""
}

// mountSpec returns the mount of a volume as Talos' controllers specify it: relative to its parent
// (volumeconfig/system_volumes.go, user_volumes.go; user_disk_config.go).
func (v volume) mountSpec() block.MountSpec {
	target := v.mountPoint()
	below, onEphemeral := strings.CutPrefix(target, constants.EphemeralMountPoint+"/")
	switch {
	case target == "":
		return block.MountSpec{}
	case v.id == labelState, v.id == labelEphemeral, v.target != "" && !onEphemeral:
		return block.MountSpec{TargetPath: target}
	case v.target != "" || v.id == constants.LogVolumeID:
		return block.MountSpec{TargetPath: below, ParentID: labelEphemeral}
	}
	return block.MountSpec{TargetPath: path.Base(target), ParentID: path.Dir(target)}
}

func (b *boot) mountStatuses(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, m := range b.mounted(devs) {
		spec := runtime.MountStatusSpec{Source: m.dev.partPath(m.index), Target: m.target, FilesystemType: m.part.Filesystem}
		rs = append(rs, filled(runtime.NewMountStatus(runtime.NamespaceName, m.volume), spec))
	}
	return rs
}

func metaKeys(devs []device) []resource.Resource {
	d, _ := systemDisk(devs)
	tags := readMeta(d)
	var rs []resource.Resource
	for tag, value := range map[uint8]string{meta.Upgrade: tags.Upgrade, meta.StagedUpgradeImageRef: tags.Staged} {
		if value != "" {
			r := runtime.NewMetaKey(runtime.NamespaceName, runtime.MetaKeyTagToID(tag))
			rs = append(rs, filled(r, runtime.MetaKeySpec{Value: value}))
		}
	}
	return rs
}

// volumeStatuses returns the locations of all volumes that Talos manages.
func (b *boot) volumeStatuses(devs []device) []resource.Resource {
	cfg := b.config()
	var rs []resource.Resource
	for _, v := range volumesOf(cfg) {
		r := block.NewVolumeStatus(block.NamespaceName, v.id)
		spec := r.TypedSpec()
		spec.Type = v.kind
		p, found := v.locate(devs)
		cannot := v.cannot(devs)
		switch {
		case !v.onDisk():
			spec.Phase, spec.Location, spec.MountLocation, spec.MountSpec = block.VolumePhaseReady, v.source, v.source, v.mountSpec()
		case !found && v.id == labelState && cfg != nil: // during the installation
			spec.Phase, spec.ErrorMessage = block.VolumePhaseFailed, "no such attribute(s): system_disk"
		case !found && (v.fixed || v.existing != nil): // the volume is not made
			spec.Phase = block.VolumePhaseMissing
		case cannot != "" && (!found || v.kind == block.VolumeTypeDisk):
			spec.Phase, spec.ErrorMessage = block.VolumePhaseFailed, cannot
		case !found:
			spec.Phase = block.VolumePhaseWaiting
		default:
			place(spec, p)
			spec.MountSpec = v.mountSpec()
			if why := b.notOpen(v.id); why != "" {
				spec.Phase, spec.PreFailPhase, spec.ErrorMessage = block.VolumePhaseFailed, block.VolumePhaseLocated, why
			} else if len(v.keys) > 0 && p.part.Keys != nil {
				spec.EncryptionProvider, spec.EncryptionSlot = block.EncryptionProviderLUKS2, new(slices.Min(slices.Collect(maps.Keys(v.keys))))
			}
		}
		rs = append(rs, r)
	}
	return rs
}

// notOpen says why Talos could not open a volume in this boot.
func (b *boot) notOpen(id string) string { return look(&b.mu, func() string { return b.failed[id] }) }

func place(spec *block.VolumeStatusSpec, p placed) {
	spec.Phase = block.VolumePhaseReady
	spec.Location = p.dev.partPath(p.index)
	spec.MountLocation = spec.Location
	if !p.part.Whole {
		spec.ParentLocation = p.dev.path()
		spec.PartitionIndex = p.index
	}
	spec.UUID, spec.PartitionUUID = p.part.FilesystemUUID, p.part.UUID
	if p.part.Filesystem == "xfs" {
		spec.Filesystem = block.FilesystemTypeXFS
	}
	spec.SetSize(partitionSizes(p.dev)[p.index-1])
}

const lvmPhysicalVolume = "lvm2-pv"

// inPool reports whether a partition is a physical volume of LVM or a part of a ZFS pool.
func inPool(p artefact.Partition) bool {
	return p.Filesystem == lvmPhysicalVolume || p.Filesystem == "zfs"
}

// physicalVolumes returns the physical volumes that pvs shows on the machine (LVMScanController,
// internal/app/machined/pkg/controllers/storage/lvm_scan.go).
func physicalVolumes(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			if p.Filesystem != lvmPhysicalVolume {
				continue
			}
			name := d.partitionName(i + 1)
			spec := storage.LVMPhysicalVolumeStatusSpec{
				Device: "/dev/" + name, VGName: p.VolumeGroup, UUID: p.FilesystemUUID, Format: "lvm2", Allocatable: "allocatable",
			}
			rs = append(rs, filled(storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, name), spec))
		}
	}
	return rs
}
