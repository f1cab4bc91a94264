package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
)

// AttachedVolumes lists what the node's VolumeAttachments say, by name.
func (c *Client) AttachedVolumes(ctx context.Context, node string) ([]cluster.AttachedVolume, error) {
	// The API can't select VolumeAttachments by node.
	list, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	var attached []cluster.AttachedVolume
	for _, a := range list.Items {
		if a.Spec.NodeName != node {
			continue
		}
		v := attachedVolume(a)
		v.Claim = c.claimOf(ctx, v.Volume)
		attached = append(attached, v)
	}
	slices.SortFunc(attached, func(a, b cluster.AttachedVolume) int { return cmp.Compare(a.Attachment, b.Attachment) })
	return attached, nil
}

func attachedVolume(a storagev1.VolumeAttachment) cluster.AttachedVolume {
	v := cluster.AttachedVolume{Attachment: a.Name, Driver: a.Spec.Attacher}
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		v.Volume = *name
	}
	switch {
	case a.Status.DetachError != nil:
		v.Trouble = "can't be detached: " + a.Status.DetachError.Message
	case a.Status.AttachError != nil:
		v.Trouble = "could not be attached: " + a.Status.AttachError.Message
	}
	return v
}

// claimOf is the claim that a PersistentVolume is bound to; "" if there is none,
// or if it can't be read: the volume counts without it, too.
func (c *Client) claimOf(ctx context.Context, volume string) string {
	if volume == "" {
		return ""
	}
	pv, err := c.api.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
	if err != nil || pv.Spec.ClaimRef == nil {
		return ""
	}
	return pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name
}
