package cluster

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for one that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what that reports; "" for nothing
	Handle     string // the driver's own name for it: "cluster-1/pve1/fast/vm-9999-pvc-0b5f"; "" if there is none
	User       string // the pod that uses it and that a drain leaves on the node: "DaemonSet pod csi/agent-x2b"; "" for none
}

// String names the volume for people.
func (v AttachedVolume) String() string {
	text, about := "VolumeAttachment "+v.Attachment, "driver "+v.Driver
	if v.Volume != "" {
		text = "PersistentVolume " + v.Volume
	}
	if v.Claim != "" {
		about = "claim " + v.Claim + ", " + about
	}
	text += " (" + about + ")"
	if v.Trouble != "" {
		text += " " + v.Trouble
	}
	return text
}

// isOf says whether a drive of a VM is the volume. Drivers of Proxmox end their
// handles with the volume's name there.
func (v AttachedVolume) isOf(d Disk) bool {
	name := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(path.Base(s), ".qcow2"), ".raw") }
	_, volume, _ := strings.Cut(d.Volid, ":")
	return v.Handle != "" && name(v.Handle) == name(volume)
}

// awaitDetached waits until Kubernetes counts no volume as attached to the node
// but those of pods that a drain leaves there, which never go.
func (n *nodeRoll) awaitDetached(ctx context.Context, id string, within time.Duration) error {
	err := n.watch(ctx, id, wait.For{Name: "volumes of " + n.plan.Node + " detached", Timeout: within, Watches: []wait.Watch{n.watchDetached}}, func(ctx context.Context) (bool, string, error) {
		volumes, err := n.Kube.AttachedVolumes(ctx, n.plan.Node)
		var names []string
		for _, v := range volumes {
			if v.User == "" {
				names = append(names, v.String())
			}
		}
		return err == nil && len(names) == 0, "still attached: " + strings.Join(names, "; "), err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.DrainBlocked.Of(err), "a volume's driver detaches it once no pod of the node uses it: see its controller's logs and kubectl describe volumeattachments; "+
			"nothing of VM %d was touched, and the same command again goes on", n.plan.VMID)
	}
	return err
}

// awaitDisksGone waits until the VM has none but the disks that it is remembered
// with: stopped now, it would be recreated without the others, or take along what a
// pod writes to elsewhere by now.
func (n *nodeRoll) awaitDisksGone(ctx context.Context, id string, mem memory, within time.Duration) error {
	var foreign []Disk
	err := n.wait(ctx, id, fmt.Sprintf("disks of pods to leave VM %d", n.plan.VMID), within, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMConfig(ctx, n.plan.VMID)
		if err != nil {
			return false, "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
		}
		foreign, err = foreignDisks(vm, mem)
		return err == nil && len(foreign) == 0, "still there: " + diskNames(foreign), err
	})
	if len(foreign) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return n.disksStay(ctx, foreign, fault.As(fault.Refused, err))
	}
	return err
}

// disksStay says what to do about disks of pods that a VM still has: a pod that a
// drain leaves uses them, or nobody does.
func (n *nodeRoll) disksStay(ctx context.Context, foreign []Disk, err error) error {
	volumes, lost := n.Kube.AttachedVolumes(ctx, n.plan.Node)
	if lost != nil {
		return errors.Join(err, lost)
	}
	for _, v := range volumes {
		i := slices.IndexFunc(foreign, v.isOf)
		if v.User == "" || i < 0 {
			continue
		}
		err = fault.WithHint(fault.DrainBlocked.Of(err), "%s is %s, which %s uses: a drain leaves such pods where they are. Keep that one off %s (a DaemonSet's by its nodeSelector or affinity), then run the same command again; nothing of VM %d was touched",
			foreign[i].Key, v, v.User, n.plan.Node, n.plan.VMID)
		foreign = slices.Delete(foreign, i, i+1)
	}
	if len(foreign) == 0 {
		return err
	}
	return fault.WithHint(fault.DrainBlocked.Of(err),
		"Kubernetes counts no volume of %s as attached to %s any more, so its driver lost track: see which VM has each by right, then take them out of VM %d (qm set %d --delete KEY keeps the volume of another owner) and run the same command again; "+
			"nothing of the VM was touched", diskNames(foreign), n.plan.Node, n.plan.VMID, n.plan.VMID)
}

// foreignDisks lists the drives that a VM is not remembered with: those of pods,
// which are never remembered, and whatever was plugged in since.
func foreignDisks(vm VM, mem memory) ([]Disk, error) {
	have, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	before, err := mem.disks()
	if err != nil {
		return nil, err
	}
	var foreign []Disk
	for _, d := range have {
		if _, had := findDrive(before, d.Key); !d.CDROM && (!had || d.CSI()) {
			foreign = append(foreign, d)
		}
	}
	return foreign, nil
}

func diskNames(disks []Disk) string {
	var names []string
	for _, d := range disks {
		names = append(names, fmt.Sprintf("%s (%s)", d.Key, d.Volid))
	}
	return strings.Join(names, ", ")
}
