package talosapi

import (
	"path"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/meta"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
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
		if target := mountPoint(v.id); there && target != "" && p.part.Filesystem != "" {
			all = append(all, mount{p, v.id, target})
		}
	}
	return all
}

// mountPoint is where a volume is mounted; empty if it is not.
func mountPoint(id string) string {
	switch id {
	case labelState:
		return constants.StateMountPoint
	case labelEphemeral:
		return constants.EphemeralMountPoint
	case labelEtcd:
		return constants.EtcdDataPath
	}
	for _, prefix := range []string{userPrefix, constants.ExistingVolumePrefix} {
		if name, ok := strings.CutPrefix(id, prefix); ok {
			return constants.UserVolumeMountPoint + "/" + name
		}
	}
	return ""
}

// mountSpec is where a volume is mounted as Talos' controllers specify it: relative to its
// parent (volumeconfig/system_volumes.go, user_volumes.go).
func mountSpec(id string) block.MountSpec {
	target := mountPoint(id)
	switch {
	case target == "":
		return block.MountSpec{}
	case id == labelState, id == labelEphemeral:
		return block.MountSpec{TargetPath: target}
	}
	return block.MountSpec{TargetPath: path.Base(target), ParentID: path.Dir(target)}
}

func (b *boot) mountStatuses(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, m := range b.mounted(devs) {
		r := runtime.NewMountStatus(runtime.NamespaceName, m.volume)
		*r.TypedSpec() = runtime.MountStatusSpec{Source: "/dev/" + m.dev.partitionName(m.index), Target: m.target, FilesystemType: m.part.Filesystem}
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
