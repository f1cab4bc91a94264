package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for one that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what that reports; "" for nothing
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

// awaitDetached waits until Kubernetes counts no volume as attached to the node.
func (n *nodeRoll) awaitDetached(ctx context.Context, id string, within time.Duration) error {
	err := n.wait(ctx, id, "volumes of "+n.plan.Node+" detached", within, func(ctx context.Context) (bool, string, error) {
		volumes, err := n.Kube.AttachedVolumes(ctx, n.plan.Node)
		var names []string
		for _, v := range volumes {
			names = append(names, v.String())
		}
		return len(volumes) == 0, "still attached: " + strings.Join(names, "; "), err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(err, "a volume's driver detaches it once no pod of the node uses it: see its controller's logs and kubectl describe volumeattachments; "+
			"nothing of VM %d was touched, and the same command again goes on", n.plan.VMID)
	}
	return err
}

// awaitDisksGone waits until the VM has none but the disks that it is remembered
// with: stopped now, it would be recreated without the others, or take along what a
// pod writes to elsewhere by now.
func (n *nodeRoll) awaitDisksGone(ctx context.Context, id string, mem memory, within time.Duration) error {
	var foreign []string
	err := n.wait(ctx, id, fmt.Sprintf("disks of pods to leave VM %d", n.plan.VMID), within, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
		if err != nil {
			return false, "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
		}
		foreign, err = foreignDisks(vm, mem)
		return err == nil && len(foreign) == 0, "still there: " + strings.Join(foreign, ", "), err
	})
	if len(foreign) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.As(fault.Refused, err),
			"Kubernetes counts no volume as attached to %s any more, so its driver lost track of these: see which VM has each by right, then take them out of VM %d (qm set %d --delete KEY keeps the volume of another owner) and run the same command again; "+
				"nothing of the VM was touched", n.plan.Node, n.plan.VMID, n.plan.VMID)
	}
	return err
}

// foreignDisks lists the drives that a VM is not remembered with: those of pods,
// which are never remembered, and whatever was plugged in since.
func foreignDisks(vm VM, mem memory) ([]string, error) {
	have, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	before, err := mem.disks()
	if err != nil {
		return nil, err
	}
	var foreign []string
	for _, d := range have {
		if _, had := findDrive(before, d.Key); !d.CDROM && (!had || d.CSI()) {
			foreign = append(foreign, fmt.Sprintf("%s (%s)", d.Key, d.Volid))
		}
	}
	return foreign, nil
}
