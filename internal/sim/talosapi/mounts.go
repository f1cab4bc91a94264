package talosapi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/meta"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// mount is a mounted volume.
type mount struct {
	placed
	volume, target string
}

// mounted are a configured machine's mounted volumes.
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

// PodWrites writes below a path of a running machine as a pod does that has it mounted, and returns the ID of the volume
// on which it came to be: that with the longest mount point above it.
func (fw *Firmware) PodWrites(vmid int, name string, data []byte) (id string, err error) {
	fw.systems.mu.Lock()
	b := fw.systems.up[vmid]
	fw.systems.mu.Unlock()
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

// mountPoint is where a volume is mounted; empty if it is not.
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

// mountSpec is where a volume is mounted as Talos' controllers specify it: relative to its
// parent (volumeconfig/system_volumes.go, user_volumes.go; user_disk_config.go).
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
		r := runtime.NewMountStatus(runtime.NamespaceName, m.volume)
		*r.TypedSpec() = runtime.MountStatusSpec{Source: m.dev.partPath(m.index), Target: m.target, FilesystemType: m.part.Filesystem}
		rs = append(rs, r)
	}
	return rs
}

// metaKeys are the tags in META.
func metaKeys(devs []device) []resource.Resource {
	d, _ := systemDisk(devs)
	tags := readMeta(d)
	var rs []resource.Resource
	for tag, value := range map[uint8]string{meta.Upgrade: tags.Upgrade, meta.StagedUpgradeImageRef: tags.Staged} {
		if value != "" {
			r := runtime.NewMetaKey(runtime.NamespaceName, runtime.MetaKeyTagToID(tag))
			r.TypedSpec().Value = value
			rs = append(rs, r)
		}
	}
	return rs
}
