package cluster

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// CSI says whether a storage driver of Kubernetes attached this disk for a pod: it
// comes and goes with the pod, and belongs to nobody's VM. A PersistentVolume says so;
// the name of a volume proves nothing.
func (d Disk) CSI() bool { return d.Pod }

// csiVolume is how sergelogvinov/proxmox-csi-plugin names the volumes that it makes,
// vm-9999-pvc-UUID (pkg/csi/controller.go, CreateVolume): none is there twice.
var csiVolume = regexp.MustCompile(`(?:^|/)vm-\d+-pvc-[^/]+$`)

// LikeCSI says whether the disk is named as that driver names its own.
func (d Disk) LikeCSI() bool {
	_, name, _ := strings.Cut(d.Volid, ":")
	return csiVolume.MatchString(strings.TrimSuffix(name, path.Ext(name)))
}

// PodVolumes are the volumes in the VM's drives that one of these handles means:
// REGION/ZONE/STORAGE/VOLUME, where ZONE is the host that has the volume, "" on a shared
// storage (pkg/utils/volume/volume.go there). Older releases wrote the host that it was made on,
// wherever the VM: with the names that the driver gives, that makes no difference.
func (vm VM) PodVolumes(handles []string) []string {
	if len(handles) == 0 {
		return nil
	}
	var out []string
	for key, value := range vm.Config {
		d, err := ParseDisk(key, value)
		if err != nil || d.CDROM || d.OfHost() {
			continue
		}
		means := func(handle string) bool {
			parts := strings.SplitN(handle, "/", 4)
			return len(parts) == 4 && parts[2]+":"+parts[3] == d.Volid && (parts[1] == "" || parts[1] == vm.Host || d.LikeCSI())
		}
		if slices.ContainsFunc(handles, means) {
			out = append(out, d.Volid)
		}
	}
	slices.Sort(out)
	return out
}

// Doubtful says whether a drive of the VM may be a pod's, going by whose number it carries.
func (vm VM) Doubtful(d Disk) bool {
	return !d.CDROM && !d.OfHost() && !d.Pod && d.Owner != vm.ID
}

// KnowPods asks for the volumes of pods where a drive of the VM may be one.
func (vm *VM) KnowPods(ctx context.Context, handles func(context.Context) ([]string, error)) error {
	disks, err := vm.Disks()
	if err != nil || !slices.ContainsFunc(disks, vm.Doubtful) {
		return err
	}
	all, err := handles(ctx)
	if err != nil {
		return fmt.Errorf("see which disks of %s are pods': %w", vm, err)
	}
	for _, volid := range vm.PodVolumes(all) {
		if !slices.Contains(vm.Pods, volid) {
			vm.Pods = append(slices.Clone(vm.Pods), volid)
		}
	}
	return nil
}

// DropCSI forgets the disks of pods: they go with the drain, and the new VM gets others.
func (vm VM) DropCSI() {
	maps.DeleteFunc(vm.Config, func(key, value string) bool {
		d, err := ParseDisk(key, value)
		return err == nil && slices.Contains(vm.Pods, d.Volid)
	})
}

// SameButPods says whether a VM is as it was but for disks of pods: those come to a node
// when another one is drained.
func (vm VM) SameButPods(ctx context.Context, now VM, handles func(context.Context) ([]string, error)) (bool, error) {
	now.Pods = vm.Pods
	if err := now.KnowPods(ctx, handles); err != nil {
		return false, err
	}
	before, after := maps.Clone(vm.Config), maps.Clone(now.Config)
	VM{Config: before, Pods: vm.Pods}.DropCSI()
	VM{Config: after, Pods: now.Pods}.DropCSI()
	return maps.Equal(before, after) && slices.Equal(vm.Pending, now.Pending), nil
}

// Unclaimed says what to do about a disk that is named as a pod's, and no PersistentVolume has it.
func (d Disk) Unclaimed(vm VM) Obstacle {
	line := fmt.Sprintf("qm set %d --delete %s", vm.ID, d.Key)
	return Obstacle{Command: line, Text: fmt.Sprintf("%s (%s) is named as a pod's volume, but no PersistentVolume that Kubernetes tells of has it, so no drain takes it away: "+
		"have Kubernetes answer, or make its PersistentVolume again; or, where nobody needs it here, take it out of VM %d, which keeps the volume: %s", d.Key, d.Volid, vm.ID, line)}
}
