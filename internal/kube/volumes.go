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
		if v.Claim, err = c.claimOf(ctx, v.Volume); err != nil {
			return nil, err
		}
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

// claimOf is the claim that a PersistentVolume is bound to; "" if there is none.
func (c *Client) claimOf(ctx context.Context, volume string) (string, error) {
	if volume == "" {
		return "", nil
	}
	pv, err := c.api.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
	switch {
	case missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read persistent volume %s: %w", volume, c.translate(err))
	case pv.Spec.ClaimRef == nil:
		return "", nil
	}
	return pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name, nil
}
