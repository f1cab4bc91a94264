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

// CSI says whether a Kubernetes storage driver attached this disk for a pod: it comes and goes with
// the pod, and belongs to no VM. A PersistentVolume proves it; the volume's name does not.
func (d Disk) CSI() bool { return d.Pod }

// csiVolume matches the names that sergelogvinov/proxmox-csi-plugin gives its volumes,
// vm-9999-pvc-UUID (pkg/csi/controller.go, CreateVolume). They are unique.
var csiVolume = regexp.MustCompile(`(?:^|/)vm-\d+-pvc-[^/]+$`)

// LikeCSI says whether the disk has a name as that driver gives it.
func (d Disk) LikeCSI() bool {
	_, name, _ := strings.Cut(d.Volid, ":")
	return csiVolume.MatchString(strings.TrimSuffix(name, path.Ext(name)))
}

// PodVolumes returns the volumes in the VM's drives that one of these handles means:
// REGION/ZONE/STORAGE/VOLUME, where ZONE is the host that has the volume, "" on a shared storage
// (pkg/utils/volume/volume.go there). Older releases wrote the host where the volume was made, even
// if the VM is on another one: so ZONE does not count for names that the driver gives.
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

// Doubtful says whether a drive of the VM may be a pod's: its volume's name has another VMID.
func (vm VM) Doubtful(d Disk) bool {
	return !d.CDROM && !d.OfHost() && !d.Pod && d.Owner != vm.ID
}

// KnowPods reads the volumes of pods if a drive of the VM may be one, and adds those to Pods.
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

// DropCSI removes the disks of pods: they leave with the drain, and the new VM gets others.
func (vm VM) DropCSI() {
	maps.DeleteFunc(vm.Config, func(key, value string) bool {
		d, err := ParseDisk(key, value)
		return err == nil && slices.Contains(vm.Pods, d.Volid)
	})
}

// SameButPods says whether a VM is unchanged except for disks of pods: a node gets those when
// another node is drained.
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

// Unclaimed says what to do about a disk that has the name of a pod's volume but no
// PersistentVolume. While the VM is off, no pod uses it.
func (d Disk) Unclaimed(vm VM) Obstacle {
	line := fmt.Sprintf("qm shutdown %d && qm set %[1]d --delete %s && qm start %[1]d", vm.ID, d.Key)
	return Obstacle{Command: line, Text: fmt.Sprintf("%s (%s) is named as a pod's volume, but no PersistentVolume that Kubernetes tells of has it, so no drain takes it away: "+
		"have Kubernetes answer, or make its PersistentVolume again; or, if it is not needed here, take it out of VM %d, which keeps the volume, after kubectl drain: %s", d.Key, d.Volid, vm.ID, line)}
}
